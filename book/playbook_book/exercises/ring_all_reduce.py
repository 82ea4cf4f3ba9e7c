"""Exercises of the chapter on the ring all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise("ring-all-reduce.wait", "number", "milliseconds behind a bus bandwidth")
def wait(answer: Any) -> str:
    gib, gb = 2**30, 463.6e9
    right = 2 * 7 / 8 * gib / gb * 1e3
    hints = {
        gib / gb * 1e3: "that takes the reported number for K/t, the algorithm bandwidth",
        gib / gb * 1e3 / 1.75: "the factor belongs on the other side: bus bandwidth is the larger of the two",
        right / 1e3: "that is in seconds",
        right * 1e9 / gib: "1 GiB is 2³⁰ bytes, and a GB/s is 10⁹ bytes per second",
        2 * right: "2(N − 1)/N counts both trips around the ring",
        right / 2: "that is one trip around the ring",
    }
    number(answer, right, hints, otherwise="Solve the definition of bus bandwidth for t")
    return "bus bandwidth is what the link carries; the vector goes over it 2(N − 1)/N times"


@exercise("ring-all-reduce.nodes", "number", "milliseconds of a ring through sixteen nodes of four GPUs")
def nodes(answer: Any) -> str:
    hop, crossing, sent = 3.4e-3, 14e-3, 2 * 63 / 64 * 100e6  # in ms and bytes

    def took(crossings: int, adapters: float) -> float:
        return (126 - crossings) * hop + crossings * crossing + sent / (adapters * 50e6)

    right = took(30, 4)
    hints = {
        took(30, 1): "a node has four adapters, and rings over all of them side by side",
        took(30, 8): "these nodes have four GPUs, so four adapters each",
        took(14, 8): "that is eight nodes of eight GPUs",
        took(14, 4): "the bytes are right; there are sixteen nodes now: count the crossings again",
        took(126, 4): "not every hop crosses to another node",
        took(0, 4): "some of the hops cross to another node",
        took(32, 4): "2(m − 1) crossings, not 2m: the last node need not send to the first again",
        sent / 200e6: "that is the bytes alone; add the latencies",
        right / 1e3: "that is in seconds",
    }
    number(answer, right, hints, otherwise="Add up hops inside nodes, crossings, and bytes over the rails")
    return "half the adapters and twice the crossings: the ring of 64 GPUs depends on how they are packed"


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
