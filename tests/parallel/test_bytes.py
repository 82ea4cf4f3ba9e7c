"""What is counted on the wire, and kept in memory, is what the formulas say: exactly."""

from __future__ import annotations

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import BLOCKS, MIXTRAL
from parallel_runs import BATCH, Case

from playbook import launch
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.layout import Layout
from playbook.layout.fields import MOMENTS
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.planning.recipes import load_recipe
from playbook.planning.sharding import share_of
from playbook.shapes import ModelShape
from playbook_book.replica_traffic import traffic

#: What a step tells beside gradients and parameters: the number of targets (int64), the loss, and ZeRO's norm (fp32).
SCALARS = [("all_reduce", 8), ("all_reduce", 4)]
NORM = ("all_reduce", 4)


def second_step(runs: list[tuple[Case, str, dict]]) -> list:
    """In a rank: what the second step of each run tells the counter, and the bytes that the engine keeps then."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group() as world:
        for case, text, given in runs:
            layout = Layout.parse(text).replace(**given)
            engine = parallelize(case.model(), Mesh(layout), case.make())
            step(case, engine, world, layout.grad_acc)
            with CountBytes(traffic_groups(engine)) as count:
                step(case, engine, world, layout.grad_acc)
            kept = {
                kind: sum(t.numel() * t.element_size() for t in tensors)
                for kind, tensors in engine.tensors().items()
            }
            found.append(([(e.kind, e.payload, e.sent) for e in count.events], kept))
    return found


def step(case: Case, engine, world, grad_acc: int) -> None:
    """A step without looks at whole gradients, which cost communication, and time, of their own."""
    x, y = (t.chunk(world.size)[world.rank] for t in case.batch(0))
    engine.zero_grad()
    engine.accumulate(x, y, len(x) // grad_acc)
    engine.clip(1.0)
    engine.step()


def units(shape: ModelShape, layout: Layout):
    return predict(shape, layout, seq=9, recipe="fp32", device="cpu").stages[0].counts.units


def split(events: list) -> tuple[dict[str, int], list]:
    """Bytes sent of gradients and parameters by collective, and the scalars beside them."""
    sent: dict[str, int] = {}
    small = [(kind, payload) for kind, payload, _ in events if payload <= 8]
    for kind, payload, bytes_sent in events:
        if payload > 8:
            sent[kind] = sent.get(kind, 0) + bytes_sent
    return sent, small


#: Stages of ZeRO; ZeRO-3 that keeps its weights after forward is one more.
STAGES = ((0, True), (1, True), (2, True), (3, True), (3, False))
TRAFFIC = all_pairs(
    case
    for case in combined(
        dp=(2, 3, 4), stage=STAGES, grad_acc=(1, 2, 3), block=list(BLOCKS), tied=(False, True)
    )
    if BATCH // case["dp"] % case["grad_acc"] == 0
)


@pytest.mark.parametrize("dp", [2, 3, 4])
def test_traffic_of_a_step(ranks, dp):
    """2Ψ, 2Ψ, (1 + G)Ψ and 3Ψ less what need not come twice; odd sizes, so that vectors are padded."""
    chosen = [case for case in TRAFFIC if case["dp"] == dp]
    runs = []
    for one in chosen:
        shape = BLOCKS[one["block"]].replace(tied=one["tied"])
        zero, reshard = one["stage"]
        text = f"dp={dp},zero={zero},grad_acc={one['grad_acc']}"
        runs.append((Case(shape, steps=1), text, {} if reshard else {"reshard": False}))
    found = ranks(second_step, runs, ranks=dp).values
    for i, (case, text, options) in enumerate(runs):
        layout = Layout.parse(text)
        expected = traffic(
            units(case.shape, layout),
            dp,
            layout.zero,
            weight_bytes=4,
            gradient_bytes=4,
            grad_acc=layout.grad_acc,
            **options,
        )
        by_rank = [split(results[i][0]) for results in found]
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            sent = [sent.get(collective, 0) for sent, _ in by_rank]
            assert sum(sent) == dp * getattr(expected, collective), (chosen[i], collective)
            assert layout.zero == 0 or len(set(sent)) == 1  # padded: every rank sends as much
        for _, small in by_rank:
            assert sorted(small) == sorted([*SCALARS, NORM] if layout.zero else SCALARS)


MEMORY = all_pairs(
    combined(
        dp=(1, 3, 8),
        zero=range(4),
        block=list(BLOCKS),
        tied=(False, True),
        recipe=("fp32", "bf16-mixed"),
        moments=tuple(MOMENTS),
    )
)


@pytest.mark.parametrize("dp", [1, 3, 8])
def test_memory_of_a_rank(ranks, dp):
    """Parameters, gradients and optimizer states of the fullest rank are those of ``planning.memory``; the states of all
    ranks together are those of one device, whatever the padding."""
    chosen = [case for case in MEMORY if case["dp"] == dp]
    runs = []
    for one in chosen:
        dtype = torch.float32 if one["recipe"] == "fp32" else torch.bfloat16
        shape = BLOCKS[one["block"]].replace(tied=one["tied"])
        case = Case(shape, dtype=dtype, moments=one["moments"], steps=1)
        runs.append((case, f"dp={dp},zero={one['zero']}", {}))
    found = ranks(second_step, runs, ranks=dp).values
    for i, (case, text, _) in enumerate(runs):
        recipe, zero = load_recipe(chosen[i]["recipe"]).with_moments(case.moments), chosen[i]["zero"]
        one = predict(case.shape, Layout(), seq=9, recipe=recipe, device="cpu").stages[0]
        stage = predict(case.shape, Layout.parse(text), seq=9, recipe=recipe, device="cpu").stages[0]
        kept = [results[i][1] for results in found]
        for kind in ("parameters", "gradients", "optimizer"):
            assert max(rank[kind] for rank in kept) == getattr(stage, kind), (chosen[i], kind)
        assert sum(rank["optimizer"] for rank in kept) == one.optimizer * (1 if zero else dp)


def test_shares_are_told_by_the_same_function():
    layout = Layout(dp=3, zero=3)
    found = units(BLOCKS["llama"], layout)
    stage = predict(BLOCKS["llama"], layout, seq=9, recipe="fp32").stages[0]
    assert stage.parameters == 4 * share_of(found, 3, 3) == stage.gradients
    assert sum(unit.parameters for unit in found) == BLOCKS["llama"].num_parameters


def peaks(case: Case, texts: list[str]) -> list[tuple[int, dict]]:
    """In a rank: the peak of the second step of each layout."""
    from playbook.instruments.memory_timeline import peak_bytes

    torch.set_num_threads(1)
    found = []
    with launch.process_group() as world:
        for layout in map(Layout.parse, texts):
            engine = parallelize(case.model(), Mesh(layout), case.make())
            step(case, engine, world, layout.grad_acc)
            with peak_bytes(engine.model, engine.optimizers[0], engine.tensors()) as most:
                step(case, engine, world, layout.grad_acc)
            found.append((most.bytes, most.categories))
    return found


def test_the_fullest_moment_is_about_as_predicted(ranks):
    """Within a tenth for a model whose weights weigh more than its activations."""
    shape = BLOCKS["llama"].replace(layers=4, hidden=96, heads=6, ffn=256, vocab=300)
    texts = [f"dp=4,zero={zero},grad_acc=2,micro_batch=3" for zero in range(4)]
    for found in ranks(peaks, Case(shape, steps=1), texts, ranks=4).values:
        for text, (bytes_, _) in zip(texts, found, strict=True):
            predicted = predict(shape, Layout.parse(text), seq=9, recipe="fp32", device="cpu").peak
            assert predicted == pytest.approx(bytes_, rel=0.1), text


def test_the_fullest_moment_of_ranks_with_experts(ranks):
    """Also where experts are replicated less often than all else: under ZeRO they are a set of their own."""
    experts = {"experts": 8, "top_k": 2, "ffn": 64}
    shape = MIXTRAL.replace(layers=4, hidden=96, heads=6, kv_heads=6, vocab=300, moe=experts)
    sets = [(2, 0), (2, 1), (2, 2), (2, 3), (4, 0), (4, 3)]
    texts = [f"dp=4,ep={ep},zero={zero},grad_acc=2,micro_batch=3" for ep, zero in sets]
    for found in ranks(peaks, Case(shape, steps=1), texts, ranks=4).values:
        for text, (bytes_, _) in zip(texts, found, strict=True):
            predicted = predict(shape, Layout.parse(text), seq=9, recipe="fp32", device="cpu").peak
            assert predicted == pytest.approx(bytes_, rel=0.05), text


def test_weights_of_a_block_come_and_go(ranks):
    """Under ZeRO-3 the peak of parameters lies far below the whole model, and above a rank's share of it."""
    shape = BLOCKS["llama"].replace(layers=12, hidden=48, ffn=100)
    whole = 4 * shape.num_parameters
    for [(_, categories)] in ranks(peaks, Case(shape, steps=1), ["dp=4,zero=3"], ranks=4).values:
        assert whole / 4 < categories["parameters"] < whole / 2
