"""Exercises of the chapter on the ring all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number


@number(
    "ring-all-reduce.wait",
    "milliseconds behind a bus bandwidth",
    praise="bus bandwidth is what the link carries; the vector goes over it 2(N − 1)/N times",
    otherwise="Solve the definition of bus bandwidth for t",
)
def wait() -> tuple[float, dict[float, str]]:
    gib, gb = 2**30, 463.6e9
    ms = 2 * 7 / 8 * gib / gb * 1e3
    return ms, {
        gib / gb * 1e3: "that takes the reported number for K/t, the algorithm bandwidth",
        gib / gb * 1e3 / 1.75: "the factor belongs on the other side: bus bandwidth is the larger of the two",
        ms / 1e3: "that is in seconds",
        ms * 1e9 / gib: "1 GiB is 2³⁰ bytes, and a GB/s is 10⁹ bytes per second",
        2 * ms: "2(N − 1)/N counts both trips around the ring",
        ms / 2: "that is one trip around the ring",
    }


@number(
    "ring-all-reduce.nodes",
    "milliseconds of a ring through sixteen nodes of four GPUs",
    praise="half the adapters and twice the crossings: the ring of 64 GPUs depends on how they are packed",
    otherwise="Add up hops inside nodes, crossings, and bytes over the rails",
)
def nodes() -> tuple[float, dict[float, str]]:
    hop, crossing, sent = 3.4e-3, 14e-3, 2 * 63 / 64 * 100e6  # in ms and bytes

    def took(crossings: int, adapters: float) -> float:
        return (126 - crossings) * hop + crossings * crossing + sent / (adapters * 50e6)

    return took(30, 4), {
        took(30, 1): "a node has four adapters, and rings over all of them side by side",
        took(30, 8): "these nodes have four GPUs, so four adapters each",
        took(14, 8): "that is eight nodes of eight GPUs",
        took(14, 4): "the bytes are right; there are sixteen nodes now: count the crossings again",
        took(126, 4): "not every hop crosses to another node",
        took(0, 4): "some of the hops cross to another node",
        took(32, 4): "2(m − 1) crossings, not 2m: the last node need not send to the first again",
        sent / 200e6: "that is the bytes alone; add the latencies",
        took(30, 4) / 1e3: "that is in seconds",
    }


@answers_made("ring-all-reduce.nodes")
def _of_four_a_node() -> tuple[list[float], dict[str, Any]]:
    from playbook.hardware import load
    from playbook_book.collectives.closed_forms import closed_form
    from playbook_book.collectives.network import Network

    network = Network.of(load("h100-8"), ranks_per_node=4)
    cost = closed_form("all_reduce", "ring", 64, network)
    assert cost is not None
    return [cost.time(100e6, network) * 1e3], {}


@exercise("ring-all-reduce.directions", "function", "an all-gather around a ring in both directions")
def directions(sends: Callable[..., Any]) -> str:
    for n in range(2, 10):
        held = [{rank} for rank in range(n)]
        for step in range(n // 2):
            _step(sends, step, held)
        missing = next((rank for rank in range(n) if len(held[rank]) < n), None)
        if missing is not None:
            lacks = n - len(held[missing])
            chunks, steps = ("chunk" if lacks == 1 else "chunks"), ("step" if n // 2 == 1 else "steps")
            raise NotYet(f"{n} ranks: after {n // 2} {steps} rank {missing} still lacks {lacks} {chunks}")
    return "⌊N/2⌋ steps in place of N − 1, and every chunk reaches every rank once"


def _step(sends: Callable[..., Any], step: int, held: list[set[int]]) -> None:
    """One step on all ranks: what each of them sends must be there, and new to its neighbour."""
    n, arriving = len(held), []
    where = f"{n} ranks, step {step}"
    for rank in range(n):
        got = sends(step, rank, n)
        if not isinstance(got, tuple) or len(got) != 2:
            raise NotYet(f"return two things, what goes to the right and what to the left; this is {got!r}")
        for chunk, target, side in zip(got, (rank + 1, rank - 1), ("right", "left"), strict=True):
            if chunk is None:
                continue
            if isinstance(chunk, bool) or not isinstance(chunk, int) or not 0 <= chunk < n:
                raise NotYet(f"{where}: rank {rank} sends {chunk!r}; chunks are 0 to {n - 1}, or None")
            if chunk not in held[rank]:
                raise NotYet(
                    f"{where}: rank {rank} sends chunk {chunk} to the {side} and does not have it yet"
                )
            arriving.append((target % n, chunk))
    for target, chunk in arriving:
        if chunk in held[target]:
            raise NotYet(f"{where}: rank {target} is sent chunk {chunk}, which it already has: wasted bytes")
        held[target].add(chunk)


def _both_ways(step, rank, ranks, *, sign=1, left=lambda ranks: (ranks - 1) // 2):
    """``left`` is in how many steps something goes to the left."""
    return (rank - sign * step) % ranks, (rank + sign * step) % ranks if step < left(ranks) else None


answers(
    "ring-all-reduce.directions",
    right=[_both_ways],
    wrong={
        "after 1 step rank 0 still lacks 1 chunk": partial(_both_ways, left=lambda ranks: ranks // 2 - 1),
        "rank 1 is sent chunk 0, which it already has": partial(_both_ways, left=lambda ranks: ranks),
        "4 ranks, step 1: rank 1 is sent chunk 1, which it already has": partial(_both_ways, sign=-1),
        "sends chunk 1 to the right and does not have it yet": lambda step, rank, ranks: (1, None),
        "return two things": lambda step, rank, ranks: (rank - step) % ranks,
    },
)


@exercise("ring-all-reduce.phases", "repair", "a ring that is right for two ranks and wrong for more")
def phases(mended: Callable[..., Any]) -> str:
    from playbook import launch

    worked = ""
    for n in (2, 3, 4):
        found = launch.run(_summed, mended, ranks=n, backend="gloo").values
        right = [(chunk + 1) * int("1" * n) for chunk in range(n)]
        for rank, (x, sent) in enumerate(found):
            if x != right:
                raise NotYet(f"{worked}with {n} ranks, rank {rank} ends with {x}; one process has {right}")
            if sent > 2 * (n - 1):
                raise NotYet(
                    f"the sums are right, and rank {rank} of {n} sent {sent} chunks; {2 * (n - 1)} are enough"
                )
        worked = f"right with {n} ranks; "
    return "the sum on every rank, with 2(N − 1) chunks sent"


def _summed(mended: Callable[..., Any]) -> tuple[list[int], int]:
    """In a rank: what it ends with, and how many chunks it has sent. Chunk c of rank r begins as (c + 1)·10^r."""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group

    sent = 0
    with process_group() as world:

        def exchange(value: int) -> int:
            nonlocal sent
            sent += 1
            here, there = torch.tensor([int(value)]), torch.empty(1, dtype=torch.int64)
            sending = dist.isend(here, (world.rank + 1) % world.size)
            dist.recv(there, (world.rank - 1) % world.size)
            assert sending is not None
            sending.wait()
            return int(there)

        x = [(chunk + 1) * 10**world.rank for chunk in range(world.size)]
        mended(x, exchange, world.rank, world.size)
    return [int(value) for value in x], sent


def _ring(x, exchange, rank, ranks, *, first=1, steps=None):
    """Reduces, then passes on from the chunk ``first`` after its own; the second phase may have fewer ``steps``."""
    for step in range(ranks - 1):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes
    for step in range(ranks - 1 if steps is None else steps):
        comes = exchange(x[(rank - step + first) % ranks])
        x[(rank - step) % ranks] = comes


def _adds_twice(x, exchange, rank, ranks):
    for step in range(2 * (ranks - 1)):
        comes = exchange(x[(rank - step) % ranks])
        x[(rank - step - 1) % ranks] += comes


def _all_around(x, exchange, rank, ranks):
    for chunk in range(ranks):
        comes = x[chunk]
        for _ in range(ranks - 1):
            comes = exchange(comes)
            x[chunk] += comes


answers(
    "ring-all-reduce.phases",
    right=[_ring],
    wrong={
        "right with 2 ranks; with 3 ranks, rank 0 ends with": partial(_ring, first=-1),
        "with 2 ranks, rank 0 ends with [1, 22]": partial(_ring, steps=0),
        "with 2 ranks, rank 0 ends with": _adds_twice,
        "rank 0 of 3 sent 6 chunks; 4 are enough": _all_around,
    },
)
