"""CountBytes against bytes worked out by hand, for every call of torch.distributed and for what calls them unseen."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import nn

from playbook.collectives import CollectiveError
from playbook.instruments import counting
from playbook.instruments.counting import KINDS, CollectiveEvent, CountBytes, Tally
from playbook.launch import process_group as launched
from playbook.planning.communication import ring_bytes_sent
from playbook_book.collectives.plans import plan

N = 3


def every_call() -> tuple[dict, dict, list[CollectiveEvent], str]:
    """Each call of torch.distributed once, on vectors of 6 fp32 numbers (24 bytes), chunks of 2 (8 bytes)."""
    with launched() as world:
        rank, group = world.rank, dist.group.WORLD
        with CountBytes() as count:
            x, chunk, whole = torch.ones(6), torch.ones(2), torch.empty(6)
            dist.broadcast(x, 1)
            dist.reduce(x, 1)
            dist.all_reduce(x)
            dist.all_reduce(x, async_op=True).wait()
            dist.all_gather_into_tensor(whole, chunk)
            dist.all_gather([torch.empty(2) for _ in range(N)], chunk)
            dist.reduce_scatter_tensor(chunk, x)
            dist.reduce_scatter(chunk, list(x.view(N, 2)))
            dist.all_to_all_single(whole, x)
            dist.all_to_all_single(torch.empty(N), torch.ones(N, 1), [1] * N, [1] * N)
            dist.gather(chunk, [torch.empty(2) for _ in range(N)] if rank == 1 else None, dst=1)
            dist.scatter(chunk, list(x.view(N, 2)) if rank == 1 else None, src=1)
            dist.barrier()
            if rank == 0:
                dist.send(x, 1)
                dist.isend(x, 1).wait()
            elif rank == 1:
                dist.recv(x, 0)
                dist.irecv(x, 0).wait()
            right, left = (rank + 1) % N, (rank - 1) % N
            ops = [dist.P2POp(dist.isend, chunk, right), dist.P2POp(dist.irecv, torch.empty(2), left)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
        dist.all_reduce(x)  # after the count: not counted
        kinds = {kind: count["world"][kind] for kind in KINDS}
        assert group is not None
        return (
            kinds,
            {"sent": count.sent, "payload": {label: count[label].total.payload for label in count.sent}},
            count.events,
            repr(count),
        )


def test_each_call_is_counted_as_both_conventions_say(ranks):
    values = ranks(every_call, ranks=N).values
    for rank, (kinds, totals, events, table) in enumerate(values):
        root, last = rank == 1, rank == 0
        expected = {
            "broadcast": Tally(1, 24, 0 if last else 24),  # a chain from rank 1 ends at rank 0
            "reduce": Tally(1, 24, 0 if root else 24),
            "all_reduce": Tally(2, 48, 2 * 32),  # 2·(N − 1)/N·K each
            "all_gather": Tally(2, 48, 2 * 16),  # (N − 1)/N·K each
            "reduce_scatter": Tally(2, 48, 2 * 16),
            "all_to_all": Tally(2, 24 + 12, 16 + 8),
            "gather": Tally(1, 24, 0 if root else 8),
            "scatter": Tally(1, 24, 16 if root else 0),
            "barrier": Tally(1, 0, 0),
            "send": Tally(1 + 2 * last, 8 + 48 * last, 8 + 48 * last),
            "recv": Tally(1 + 2 * root, 8 + 48 * root, 0),
        }
        assert kinds == expected
        assert totals["sent"] == {"world": sum(t.sent for t in expected.values())}
        assert totals["payload"] == {"world": sum(t.payload for t in expected.values())}
        assert [e.kind for e in events][:3] == ["broadcast", "reduce", "all_reduce"]
        assert len(events) == sum(t.calls for t in expected.values())
        assert "all_reduce" in table
        assert "64" in table


def uneven_rows() -> tuple[Tally, Tally]:
    """Rows of 3 fp32 numbers (12 bytes): rank r hands rank q of them ``(r + q) % 3``, so three in all."""
    with launched() as world:
        given = [(world.rank + q) % N for q in range(N)]  # symmetric: as many come as go
        rows, elements = torch.ones(sum(given), 3), torch.ones(sum(given))
        return tuple(
            tallies(lambda x=x: dist.all_to_all_single(torch.empty_like(x), x, given, given))["all_to_all"]
            for x in (rows, elements)
        )


def test_an_all_to_all_of_uneven_splits_sends_whole_rows(ranks):
    for rank, (rows, elements) in enumerate(ranks(uneven_rows, ranks=N).values):
        others = 3 - 2 * rank % 3
        assert elements == Tally(1, 3 * 4, others * 4)
        assert rows == Tally(1, 3 * 12, others * 12)


def by_axis() -> tuple[dict, dict, str]:
    """Four ranks as 2 × 2: gradients over one axis, activations over the other; odd sizes."""
    with launched() as world:
        rows = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        columns = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        tp, dp = rows[world.rank // 2], columns[world.rank % 2]
        labels = {"tp": tp, "dp": dp, "elsewhere": rows[1 - world.rank // 2]}
        with CountBytes(groups=labels) as count:
            dist.all_reduce(torch.ones(7), group=dp)  # 28 bytes: chunks of 4 and 3 numbers
            dist.reduce_scatter_tensor(
                torch.empty(3, dtype=torch.bfloat16), torch.ones(6, dtype=torch.bfloat16), group=tp
            )
            dist.barrier()
        with count:  # goes on counting
            dist.all_reduce(torch.ones(2), group=dp)
        with pytest.raises(CollectiveError, match="unknown collective 'allreduce'"):
            count["dp"]["allreduce"]
        with pytest.raises(CollectiveError, match="unknown group 'pp'"):
            count["pp"]
        with pytest.raises(CollectiveError, match="'tp' and 'tensor' label the same group"):
            CountBytes(groups={"tp": tp, "tensor": tp})
        return (
            count.sent,
            {label: count[label].total.calls for label in count.sent},
            str(count["tp"]["all_reduce"]),
        )


def test_bytes_of_each_axis_and_no_name_that_does_not_exist(ranks):
    for sent, calls, absent in ranks(by_axis, ranks=4).values:
        assert sent == {"dp": 28 + 8, "tp": 6, "elsewhere": 0, "world": 0}
        assert calls == {"dp": 2, "tp": 1, "elsewhere": 0, "world": 1}
        assert absent == str(Tally())


def one_label_for_two() -> tuple[int, str]:
    with launched() as world:
        second = dist.new_group(list(range(world.size)))
        with CountBytes({"dp": [dist.group.WORLD, second], "none": None}) as count:
            dist.all_reduce(torch.ones(6))
            dist.all_reduce(torch.ones(6), group=second)
        try:
            CountBytes({"dp": [dist.group.WORLD], "tp": dist.group.WORLD})
        except CollectiveError as error:
            return count["dp"].total.payload, str(error)
        return count["dp"].total.payload, ""


def test_a_label_may_stand_for_several_groups(ranks):
    for payload, error in ranks(one_label_for_two, ranks=N).values:
        assert payload == 48
        assert error == "'dp' and 'tp' label the same group"


def tallies(work: Callable[[], object]) -> dict[str, Tally]:
    with CountBytes() as count:
        work()
    return dict(count["world"].tallies)


def wrapped_models() -> dict[str, dict[str, Tally]]:
    """A training step of a model that is replicated by DDP, and sharded by FSDP2 both ways. Nothing to wrap there."""
    from torch.distributed.fsdp import fully_shard

    def step(model: nn.Module) -> dict[str, Tally]:
        return tallies(lambda: model(torch.ones(2, 4)).sum().backward())

    def sharded(reshard: bool) -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4))
        for layer in model:
            fully_shard(layer, reshard_after_forward=reshard)
        return fully_shard(model)

    with launched():
        return {
            "ddp": step(nn.parallel.DistributedDataParallel(nn.Linear(4, 4))),
            "keeps": step(sharded(reshard=False)),
            "reshards": step(sharded(reshard=True)),
        }


def test_ddp_and_fsdp_are_seen(ranks):
    layer = (16 + 4) * 4  # bytes of a layer's parameters, whose chunks of 2 ranks are even
    for value in ranks(wrapped_models, ranks=2).values:
        assert value["ddp"] == {"all_reduce": Tally(1, layer, layer)}
        scattered = {"reduce_scatter": Tally(3, 3 * layer, 3 * layer // 2)}
        assert value["keeps"] == {"all_gather": Tally(3, 3 * layer, 3 * layer // 2)} | scattered
        assert value["reshards"] == {"all_gather": Tally(6, 6 * layer, 6 * layer // 2)} | scattered


def functional() -> dict[str, Tally]:
    """Functional collectives, with gradients and without: 8 fp32 numbers, 32 bytes, each."""
    import torch.distributed._functional_collectives as f

    def work() -> None:
        world, x = dist.group.WORLD, torch.ones(8)
        whole, half = torch.ones(8, requires_grad=True), torch.ones(4, requires_grad=True)
        results = [
            f.all_reduce(x, "sum", world),
            f.broadcast(x, 0, world),
            f.all_gather_tensor(x[:4], 0, world),
            f.reduce_scatter_tensor(x, "sum", 0, world),
            f.all_to_all_single(x, None, None, world),
            *f.all_reduce_coalesced([x, x], "sum", world),
        ]
        for y in results:
            f.wait_tensor(y)
        f.all_gather_tensor_autograd(half, 0, world).sum().backward()  # backward: a reduce-scatter
        f.reduce_scatter_tensor_autograd(whole, "sum", 0, world).sum().backward()  # backward: an all-gather
        f.all_to_all_single_autograd(whole, None, None, world).sum().backward()
        dist.monitored_barrier()

    with launched():
        return tallies(work)


def test_functional_collectives_are_seen_with_their_backward(ranks):
    for rank, value in enumerate(ranks(functional, ranks=2).values):
        assert value == {
            "all_reduce": Tally(3, 96, 96),
            "broadcast": Tally(1, 32, 0 if rank == 1 else 32),
            "all_gather": Tally(3, 96, 48),
            "reduce_scatter": Tally(3, 96, 48),
            "all_to_all": Tally(3, 96, 48),
            "barrier": Tally(1, 0, 0),
        }


def redistributed() -> list[dict[str, Tally]]:
    """A 4 × 4 matrix, 64 bytes, from each placement to another one; and a product of two sharded ones."""
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Placement,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    with launched() as world:
        mesh = init_device_mesh("cpu", (world.size,))
        rows = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
        copies = distribute_tensor(torch.ones(4, 4), mesh, [Replicate()])
        sums = DTensor.from_local(torch.ones(4, 4), mesh, [Partial()])

        def to(tensor: DTensor, placement: Placement) -> dict[str, Tally]:
            return tallies(lambda: tensor.redistribute(mesh, [placement]).to_local())

        changes = [to(rows, Replicate()), to(sums, Replicate()), to(sums, Shard(0)), to(copies, Shard(1))]
        return [*changes, to(rows, Shard(1)), tallies(lambda: (copies @ rows).full_tensor())]


def test_dtensor_is_seen(ranks):
    for value in ranks(redistributed, ranks=2).values:
        *changes, rows_to_columns, product = value
        gathered = {"all_gather": Tally(1, 64, 32)}
        assert changes == [
            gathered,
            {"all_reduce": Tally(1, 64, 64)},
            {"reduce_scatter": Tally(1, 64, 32)},
            {},
        ]
        # PyTorch's detour on CPU: it gathers all and keeps its part.
        assert rows_to_columns in (gathered, {"all_to_all": Tally(1, 32, 16)})
        assert product in (
            gathered,
            {"all_reduce": Tally(1, 64, 64)},
        )  # the factor gathered, or partial sums reduced


def unknown_collective() -> str:
    del counting._READERS["c10d::allreduce_"]
    with launched(), CountBytes(), pytest.raises(CollectiveError) as caught:
        dist.all_reduce(torch.ones(1))
    return str(caught.value)


def test_what_it_cannot_count_is_refused(ranks):
    assert (
        ranks(unknown_collective, ranks=1)[0].value
        == "CountBytes does not know how to count c10d::allreduce_"
    )


def test_the_formula_is_what_the_ring_plans_send():
    for ranks in range(1, 9):
        for elements in (0, 1, 5, 8, 41):
            for kind, algorithm in (("all_reduce", "ring"), ("all_gather", "ring"), ("reduce_scatter", "ring"),
                                    ("all_to_all", "pairwise"), ("gather", "naive"), ("scatter", "naive")):  # fmt: skip
                root = ranks - 1 if kind in ("gather", "scatter") else 0
                p = plan(kind, algorithm, ranks=ranks, elements=elements, itemsize=4, root=root)
                for rank in range(ranks):
                    assert ring_bytes_sent(kind, elements, 4, ranks, rank, root) == p.bytes_sent(rank)
