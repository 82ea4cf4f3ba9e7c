"""Exercises of the chapter on collectives."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number

#: Seconds after which ranks that wait for each other are ended.
_PATIENCE = 4.0


@number(
    "collectives.tree",
    "seconds in which a tree brings weights to a hundred nodes",
    praise="seven steps, since 64 < 100 ≤ 128; an eighth would reach 256 nodes",
    otherwise="How many nodes have the weights after each step?",
)
def tree() -> tuple[float, dict[float, str]]:
    from playbook.collectives.links import AlphaBeta
    from playbook_book.collective_costs import seconds
    from playbook_book.collectives.network import Network

    size, nodes, bandwidth = 140 * 10**9, 100, 50e9
    network = Network.uniform(AlphaBeta(alpha=0, beta=1 / bandwidth))
    took, once = seconds("broadcast", size, nodes, network, "binomial"), size / bandwidth
    return took, {
        once: "that is one message, and a hundred nodes need the weights",
        (nodes - 1) * once: "that is one node after the other",
        nodes * once: "that is one node after the other, and one of them has the weights already",
        6.644 * once: "a step is a whole message: nobody has the weights after a part of it",
        6 * once: "after that long 64 nodes have the weights",
        8 * took: "line and weights are both given in bytes: there are no bits to convert",
    }


answers("collectives.tree", right=[7 * 140 / 50])


@exercise("collectives.broadcast", "function", "a broadcast that beats the tree")
def broadcast(write: Callable[..., Any]) -> str:
    from playbook.collectives import CollectiveError
    from playbook.collectives.links import AlphaBeta
    from playbook_book.collective_costs import seconds, simulate
    from playbook_book.collectives.network import Network
    from playbook_book.collectives.plans import Plan, Vector
    from playbook_book.replay import end, replay

    file, network = 5_000_000, Network.uniform(AlphaBeta(alpha=0, beta=1e-6))
    for ranks in (8, 5):
        messages = tuple(write(Vector.even(file, ranks, 1)))
        plan = Plan("broadcast", "mine", ranks, file, 1, 0, messages)
        try:
            held = replay(plan)[-1] if messages else [[]] * ranks
        except CollectiveError as error:
            raise NotYet(f"with {ranks} ranks: {error}") from error
        without = [rank for rank, wanted in enumerate(end(plan)) if held[rank] != wanted]
        if without:
            raise NotYet(f"with {ranks} ranks, {_names(without)} without some chunk in the end")
        took, limit = simulate(plan, network).seconds, seconds("broadcast", file, ranks, network, "binomial")
        if took >= limit:
            raise NotYet(f"all {ranks} ranks have it, after {took:.2f} s; the tree needs {limit:.2f}")
        if ranks == 8:
            best = took
    return f"{best:.2f} s instead of 15 with eight ranks; nobody can do it in less than 5"


def _names(ranks: list[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]} is"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]} are"


def _chain(v, end=0):
    """Chunk after chunk goes from rank to rank, up to the one before ``end``."""
    for step in range(2 * v.ranks):
        for rank in range((end or v.ranks) - 1):
            if 0 <= step - rank < v.ranks:
                yield v.send(step, rank, rank + 1, step - rank, step - rank + 1)


def _tree(v):
    from playbook_book.collectives.plans.rooted import broadcast_binomial

    return broadcast_binomial(v)


answers(
    "collectives.broadcast",
    right=[_chain],
    wrong={
        "ranks 2, 3, 4, 5, 6 and 7 are without some chunk": lambda v: [v.send(0, 0, 1)],
        "rank 3 has no chunk 0": lambda v: [v.send(0, 0, 1, 0, 1), v.send(0, 3, 2, 0, 1)],
        "with 8 ranks, rank 7 is without some chunk": lambda v: _chain(v, end=7),
        "all 8 ranks have it, after 15.00 s; the tree needs 15.00": _tree,
        "are without some chunk": lambda v: [],
    },
)


@exercise("collectives.order", "repair", "all-reduces that ranks start in different orders")
def order(mended: Callable[..., Any]) -> str:
    names = ["embedding", "layers", "head"]
    cases = {
        "where all ranks complete their buckets in the same order": [names] * 3,
        "where ranks complete their buckets in different orders": [names, names[::-1], names[1:] + names[:1]],
    }
    for case, ready in cases.items():
        for rank, sums in enumerate(_ended(_bucket_sums, mended, ready, 3)):
            for place, name in enumerate(names):
                right = 6.0 * 10**place
                if sums[name] is None:
                    raise NotYet(
                        f"{case}, the elements of bucket {name!r} differ: read before it was complete?"
                    )
                if sums[name] == 10.0**place * (rank + 1):
                    raise NotYet(
                        f"{case}, bucket {name!r} of rank {rank} is not summed when the function returns"
                    )
                if sums[name] != right:
                    raise NotYet(
                        f"{case}, bucket {name!r} of rank {rank} holds {sums[name]:g} instead of {right:g}, "
                        "and nothing complained"
                    )
    return "each bucket with itself, in whatever order ranks complete them"


def _bucket_sums(mended: Callable[..., Any], ready: list[list[str]]) -> dict[str, float | None]:
    """In a rank: what its buckets hold when ``mended`` returns; None where their elements differ."""
    import torch

    from playbook.launch import process_group

    with process_group() as world:
        buckets = {
            name: torch.full((1000,), 10.0**place * (world.rank + 1)) for place, name in enumerate(ready[0])
        }
        if world.rank == 2:
            time.sleep(0.5)  # so that a handle that nobody waits for is not complete by chance
        mended(buckets, iter(ready[world.rank]))
        held = {name: bucket.unique().tolist() for name, bucket in buckets.items()}
        return {name: values[0] if len(values) == 1 else None for name, values in held.items()}


@answers_made("collectives.order")
def _orders() -> tuple[list[Any], dict[str, Any]]:
    import torch
    import torch.distributed as dist

    def summed(buckets, ready, *, order=sorted, waits=True, logs=0, more=0):
        first = dist.get_rank() == 0
        for _ in range(logs * first):
            dist.all_reduce(torch.zeros(3))
        started = [dist.all_reduce(buckets[name], async_op=True) for name in order(ready)]
        for work in started if waits else []:
            work.wait()
        for _ in range(more * first):
            dist.all_reduce(torch.zeros(1000))
        return started

    return [summed], {
        "in different orders, bucket 'embedding' of rank 0 holds": partial(summed, order=list),
        "where all ranks complete their buckets in the same order": partial(summed, waits=False),
        "calls of different sizes met": partial(summed, logs=1),
        "the 3 ranks wait for each other, and were ended": partial(summed, more=2),
    }


@exercise("collectives.shift", "repair", "a ring in which everybody sends first")
def shift(mended: Callable[..., Any]) -> str:
    for ranks in (3, 2):
        got = _ended(_shifted, mended, ranks)
        if got == [float(rank) for rank in range(ranks)]:
            raise NotYet(f"with {ranks} ranks, each returns its own tensor")
        if ranks == 3 and got == [1.0, 2.0, 0.0]:
            raise NotYet("with 3 ranks, each returns the tensor of its right neighbour")
        if got != [float((rank - 1) % ranks) for rank in range(ranks)]:
            raise NotYet(f"with {ranks} ranks, some return what is not their left neighbour's tensor")
    return "every rank has its left neighbour's tensor"


def _shifted(mended: Callable[..., Any]) -> float | None:
    """In a rank: the element that all of the returned tensor holds; None where they differ."""
    import torch

    from playbook.launch import process_group

    with process_group() as world:
        values = mended(torch.full((1000,), float(world.rank)), world).unique().tolist()
        return values[0] if len(values) == 1 else None


def _ended(work: Callable[..., Any], *args: Any) -> list[Any]:
    """What the ranks return; the last of ``args`` is their number. NotYet if they never do."""
    from playbook import launch

    *args_of_ranks, ranks = args
    try:
        return list(launch.run(work, *args_of_ranks, ranks=ranks, timeout=_PATIENCE, backend="gloo").values)
    except launch.RankError as error:
        if " was killed " in error.sentence:
            raise NotYet(
                f"with {ranks} ranks, calls of different sizes met, and a process was aborted"
            ) from error
        if not error.sentence.startswith("not finished"):
            raise
        raise NotYet(
            f"the {ranks} ranks wait for each other, and were ended after {_PATIENCE:g} seconds"
        ) from error


@answers_made("collectives.shift")
def _shifts() -> tuple[list[Any], dict[str, Any]]:
    import torch
    import torch.distributed as dist

    def by_turns(x, world):
        y = torch.empty_like(x)
        for sender in range(world.size):
            if world.rank == sender:
                dist.send(x, (sender + 1) % world.size)
            elif world.rank == (sender + 1) % world.size:
                dist.recv(y, sender)
        return y

    def at_once(x, world, to=1, send=dist.isend):
        y = torch.empty_like(x)
        sending = send(x, (world.rank + to) % world.size)
        dist.recv(y, (world.rank - to) % world.size)
        sending.wait()
        return y

    def from_rank_0(x, world):
        dist.broadcast(x, src=0)
        return x

    return [by_turns, at_once], {
        "the 3 ranks wait for each other, and were ended": partial(at_once, send=dist.send),
        "of its right neighbour": partial(at_once, to=-1),
        "each returns its own tensor": lambda x, world: x,
        "not their left neighbour's": from_rank_0,
    }
