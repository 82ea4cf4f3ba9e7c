"""Every collective over gloo, and over sockets: equal to torch.distributed's, and to its plan, message by message and
byte by byte.
"""

import random
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from playbook.collectives import CollectiveError
from playbook.instruments.counting import CountBytes
from playbook.launch import process_group as launched
from playbook_book import collectives
from playbook_book.collectives import merge, process_group
from playbook_book.collectives.plans import ALGORITHMS, plan
from playbook_book.rendezvous import connect, free_port
from playbook_book.sockets import SocketGroup

DTYPES = ("float32", "float64", "int64", "bfloat16")
REDUCING = ("reduce", "reduce_scatter", "all_reduce")
ROOTED = ("broadcast", "reduce", "gather", "scatter")


def draw_cases(ranks: int) -> list[dict]:
    """Every algorithm with sizes below, at and above the number of ranks, few of them round, and every dtype.

    Three and four ranks take a third of the sizes each, five to eight a fourth, each number of ranks another.
    """
    rng = random.Random(ranks)
    cases = []
    for turn, (collective, name) in enumerate((c, name) for c, names in ALGORITHMS.items() for name in names):
        sizes = enumerate((0, 1, max(0, ranks - 1), ranks, 3 * ranks + 1, rng.randrange(50, 400)))
        if ranks > 2:
            parts = 3 if ranks < 5 else 4
            sizes = list(sizes)[(turn + ranks) % parts :: parts]
        for i, elements in sizes:
            dtype = DTYPES[(i + ranks) % 4]
            ops = ("sum", "sum", "max", "min", "prod", "sum" if dtype == "int64" else "avg")
            cases.append(
                {
                    "collective": collective,
                    "algorithm": name,
                    "elements": elements,
                    "dtype": dtype,
                    "op": rng.choice(ops) if collective in REDUCING else "sum",
                    "root": rng.randrange(ranks) if collective in ROOTED else 0,
                    "piece": rng.choice((64, 1 << 20)),  # messages in many parts, and whole ones
                    "scratch": rng.choice((0, 128, 1 << 20)),
                    "seed": rng.randrange(1 << 30),
                }
            )
    return cases


def inputs(case: dict, ranks: int) -> list[Tensor]:
    """The whole vector as each rank has it. Halves and products of small integers are exact in every dtype and order."""
    dtype = getattr(torch, case["dtype"])
    generator = torch.Generator().manual_seed(case["seed"])
    if case["op"] == "prod" or dtype in (torch.int64, torch.bfloat16):
        values = torch.tensor([-2, -1, 1, 2])[
            torch.randint(4, (ranks, case["elements"]), generator=generator)
        ]
        return list(values.to(dtype))
    return list(torch.randn(ranks, case["elements"], generator=generator, dtype=torch.float64).to(dtype))


def ours(
    case: dict, vectors: list[Tensor], rank: int, group: dist.ProcessGroup | SocketGroup
) -> tuple[Tensor, list]:
    """This rank's result and transcript; a group of sockets gets the memory of the tensors as numpy arrays."""
    n, kind = len(vectors), case["collective"]
    vector = vectors[rank].clone()
    chunk = vector.tensor_split(n)[rank]
    options: dict = {"algorithm": case["algorithm"]}
    if kind in REDUCING:
        options["op"] = case["op"]
    whole = {"elements": case["elements"]}

    def call(*tensors: Tensor | None, **options: object) -> list:
        sockets = isinstance(group, SocketGroup)
        arrays = [t.numpy() if sockets and t is not None else t for t in tensors]
        return getattr(collectives, kind)(*arrays, group, **options)

    if kind == "barrier":
        return torch.empty(0), call(**options)
    if kind == "all_reduce":
        return vector, call(vector, **options)
    if kind in ("broadcast", "reduce"):
        return vector, call(vector, root=case["root"], **options)
    if kind == "scatter":
        output, data = torch.empty_like(chunk), vector if rank == case["root"] else None
        return output, call(output, data, root=case["root"], **whole, **options)
    if kind == "gather":
        output = torch.empty_like(vector) if rank == case["root"] else None
        transcript = call(output, chunk, root=case["root"], **whole, **options)
        return torch.empty(0) if output is None else output, transcript
    shapes = {"all_gather": vector, "reduce_scatter": chunk, "all_to_all": chunk.repeat(n)}
    output = torch.empty_like(shapes[kind])
    transcript = call(output, chunk if kind == "all_gather" else vector, **options)
    if kind == "reduce_scatter":
        assert torch.equal(vector, vectors[rank])
    return output, transcript


def theirs(case: dict, vectors: list[Tensor], group: dist.ProcessGroup) -> Tensor:
    """The same from torch.distributed; what gloo does not do with uneven chunks, from its all-reduce."""
    n, rank, kind, root = group.size(), group.rank(), case["collective"], case["root"]
    vector = vectors[rank].clone()
    even = case["elements"] % n == 0 and case["elements"] > 0
    if kind == "barrier":
        return torch.empty(0)
    if kind == "broadcast":
        dist.broadcast(vector, group_src=root, group=group)
        return vector
    if kind == "scatter":
        chunk = torch.empty_like(vector.tensor_split(n)[rank])
        if even:
            dist.scatter(
                chunk, list(vector.tensor_split(n)) if rank == root else None, group_src=root, group=group
            )
            return chunk
        dist.broadcast(vector, group_src=root, group=group)
        return vector.tensor_split(n)[rank]
    if kind in ("gather", "all_gather"):
        return gathered(vector, kind, even, root, group)
    if kind == "all_to_all":
        sizes = [len(c) for c in vector.tensor_split(n)]
        output = vector.new_empty(n * sizes[rank])
        dist.all_to_all_single(output, vector, [sizes[rank]] * n, sizes, group=group)
        return output
    op = {"sum": "SUM", "avg": "SUM", "max": "MAX", "min": "MIN", "prod": "PRODUCT"}[case["op"]]
    original = vector.clone()
    dist.all_reduce(vector, getattr(dist.ReduceOp, op), group=group)
    if case["op"] == "avg":
        vector /= n
    if kind == "reduce_scatter":
        return vector.tensor_split(n)[rank]
    return vector if kind == "all_reduce" or rank == root else original


def gathered(vector: Tensor, kind: str, even: bool, root: int, group: dist.ProcessGroup) -> Tensor:
    n, rank = group.size(), group.rank()
    chunk = vector.tensor_split(n)[rank]
    output = torch.empty_like(vector)
    if even and kind == "all_gather":
        dist.all_gather_into_tensor(output, chunk.contiguous(), group=group)
    elif even:
        rows = list(output.tensor_split(n)) if rank == root else None
        dist.gather(chunk.contiguous(), rows, group_dst=root, group=group)
    else:
        output.zero_()
        output.tensor_split(n)[rank].copy_(chunk)
        dist.all_reduce(output, group=group)
    return output if kind == "all_gather" or rank == root else torch.empty(0)


def compare(cases: list[dict]) -> list[dict]:
    """In one rank: run all cases three ways; what went wrong, the transcripts, counted bytes, and the results' bits."""
    results = []
    with launched() as world, meet(world.rank, world.size) as sockets:
        group = dist.group.WORLD
        assert group is not None
        for case in cases:
            process_group.PIECE, process_group.SCRATCH = case["piece"], case["scratch"]
            vectors = inputs(case, world.size)
            with CountBytes() as count:
                result, transcript = ours(case, vectors, world.rank, group)
            expected = theirs(case, vectors, group)
            tolerance = {torch.float32: 1e-5, torch.float64: 1e-12}.get(result.dtype, 0.0)
            row = {
                "difference": mismatch(result, expected, tolerance),
                "transcript": transcript,
                "sent": count["world"]["send"].payload,
                "received": count["world"]["recv"].payload,
                "bits": result.contiguous().view(torch.uint8).numpy().tobytes(),
            }
            if case["dtype"] != "bfloat16":  # numpy has none
                result, transcript = ours(case, vectors, world.rank, sockets)
                row["difference"] += mismatch(result, expected, tolerance)
                assert transcript == row["transcript"]
            results.append(row)
    return results


def meet(rank: int, size: int) -> SocketGroup:
    port = torch.tensor([free_port()])
    dist.broadcast(port, 0)
    return connect(rank, size, port=int(port), timeout=60)


def mismatch(result: Tensor, expected: Tensor, tolerance: float) -> str:
    try:
        torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)
    except AssertionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("n", range(1, 9))
def test_every_collective_equals_torchs_and_sends_what_its_plan_says(ranks, n):
    cases = draw_cases(n)
    by_rank = ranks(compare, cases, ranks=n).values
    for i, case in enumerate(cases):
        results = [rank[i] for rank in by_rank]
        assert [r["difference"] for r in results] == [""] * n, case
        p = plan(
            case["collective"], case["algorithm"], ranks=n, elements=case["elements"], root=case["root"],
            itemsize=getattr(torch, case["dtype"]).itemsize,
            ranks_per_node=n if case["algorithm"] == "two_level" else None,
        )  # fmt: skip
        transcripts = [r["transcript"] for r in results]
        assert merge(transcripts) == sorted(p.messages), case
        assert transcripts == [[m for step in p.of_rank(rank) for m in step] for rank in range(n)], case
        assert [r["sent"] for r in results] == [p.bytes_sent(rank) for rank in range(n)], case
        assert [r["received"] for r in results] == [p.bytes_received(rank) for rank in range(n)], case
        if case["collective"] == "all_reduce":
            assert len({r["bits"] for r in results}) == 1, case


def in_subgroups() -> list[tuple[float, list]]:
    """Two groups of two ranks, at once, with ranks of the group that are not those of the world."""
    with launched() as world:
        groups = [dist.new_group([0, 2]), dist.new_group([3, 1], sort_ranks=False)]
        mine = groups[world.rank % 2]
        results = []
        for name in ALGORITHMS["all_reduce"]:
            vector = torch.full((5,), float(world.rank + 1))
            transcript = collectives.all_reduce(vector, mine, algorithm=name)
            results.append((float(vector[0]), transcript))
        with pytest.raises(CollectiveError, match="must be a process group that this rank is in"):
            collectives.barrier(groups[1 - world.rank % 2])
        return results


def test_a_group_is_an_argument(ranks):
    values = ranks(in_subgroups, ranks=4).values
    for rank, results in enumerate(values):
        assert [total for total, _ in results] == [4.0 if rank % 2 == 0 else 6.0] * len(results)
        assert all({m.source, m.target} == {0, 1} for _, transcript in results for m in transcript)


def nodes_of_two() -> list[float]:
    with launched() as world:
        vector = torch.arange(13.0) * (world.rank + 1)
        transcript = collectives.all_reduce(vector, dist.group.WORLD, algorithm="two_level", ranks_per_node=2)
        outside = [m for m in transcript if m.source // 2 != m.target // 2]
        return [*vector.tolist(), sum(m.bytes for m in outside if m.source == world.rank)]


def test_two_levels_with_nodes_of_two(ranks):
    values = ranks(nodes_of_two, ranks=6).values
    assert all(value[:-1] == [i * 21.0 for i in range(13)] for value in values)
    p = plan("all_reduce", "two_level", ranks=6, elements=13, itemsize=4, ranks_per_node=2)
    crossing = [m for m in p.messages if m.source // 2 != m.target // 2]
    assert [value[-1] for value in values] == [
        sum(m.bytes for m in crossing if m.source == r) for r in range(6)
    ]


def late_rank(folder: Path) -> list[str]:
    """In a rank: the barriers that it came out of before rank 1, which takes its time, had gone in."""
    early = []
    with launched() as world:
        for name in ALGORITHMS["barrier"]:
            dist.barrier()
            if world.rank == 1:
                time.sleep(0.2)
                (folder / name).touch()
            collectives.barrier(dist.group.WORLD, algorithm=name)
            if not (folder / name).exists():
                early.append(name)
    return early


def test_a_barrier_holds_everyone_back(ranks, tmp_path):
    assert ranks(late_rank, tmp_path, ranks=3).values == [[]] * 3
    assert {path.name for path in tmp_path.iterdir()} == set(ALGORITHMS["barrier"])


def refusals() -> list[str]:
    with launched():
        group, x = dist.group.WORLD, torch.ones(4)
        sentences = []
        for call in (
            lambda: collectives.all_reduce(torch.ones(4, 2).t(), group),
            lambda: collectives.all_reduce(torch.ones(4, dtype=torch.int64), group, op="avg"),
            lambda: collectives.all_reduce(x, group, op="median"),
            lambda: collectives.all_reduce(x, group, algorithm="rings"),
            lambda: collectives.broadcast(x, group, root=2),
            lambda: collectives.reduce_scatter(torch.ones(3), x, group),
            lambda: collectives.all_to_all(torch.ones(3), x, group),
            lambda: collectives.gather(torch.ones(5), torch.ones(3 - group.rank()), group, root=group.rank()),
            lambda: collectives.scatter(torch.ones(2), None, group, root=group.rank()),
            lambda: collectives.barrier(None),
        ):
            with pytest.raises(CollectiveError) as caught:
                call()
            sentences.append(str(caught.value))
        return sentences


def test_bad_requests_are_refused_before_anything_is_sent(ranks):
    sentences = ranks(refusals, ranks=2)[0].value
    for part, sentence in zip(
        ("contiguous, got strides (1, 2)", "avg needs floating-point numbers, got torch.int64", "unknown op 'median'",
         "did you mean ring", "0 to 1, got 2", "on 2 ranks has 2, got 3", "2 × 2 elements, got 3",
         "pass elements=5 on every rank", "must pass the whole vector of 4 elements", "got None"),
        sentences, strict=True,
    ):  # fmt: skip
        assert part in sentence
