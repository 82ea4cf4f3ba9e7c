"""When each rank of a schedule ends, for many times of the same schedule: `timeline.simulate` without the picture.

A schedule is put in an order in which it can be carried out once; then times are a walk along that order. A long step is
the same over and over in the middle: what a further round of micro-batches adds is found from two short ones. A test
holds it to the timeline. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from playbook.layout import Layout
from playbook.layout.stages import chunks
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import make
from playbook.schedules.walk import walk

#: An action, or two side by side: their rank; their lengths, as places in a table of times; the events that they need,
#: each with whether it is on the same rank; and how many results they send to other ranks.
Event = tuple[int, tuple[int, ...], tuple[tuple[int, bool], ...], int]


@dataclass(frozen=True)
class Order:
    """A schedule in an order in which everything that an action needs comes before it."""

    ranks: int
    depth: int
    events: tuple[Event, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Order:
        """Raises ScheduleError where actions wait for one another."""
        return cls(len(schedule.ranks), schedule.depth, tuple(_events(schedule)))

    def ends(
        self,
        forward: Sequence[float],
        backward: Sequence[float],
        weights: Sequence[float],
        comm: float = 0.0,
        blocking: bool = False,
    ) -> list[float]:
        """When each rank is done. Times are of stages, those of BW are b + w; ``comm`` is that of a hop between ranks,
        for which with ``blocking`` the sender computes nothing."""
        table = (*forward, *backward, *weights, *(b + w for b, w in zip(backward, weights, strict=True)))
        free = [0.0] * self.ranks
        end: list[float] = []
        busy = comm if blocking else 0.0
        for rank, lengths, needs, sends in self.events:
            begin = free[rank]
            for need, near in needs:
                there = end[need] if near or blocking else end[need] + comm
                if there > begin:
                    begin = there
            for length in lengths:
                begin += table[length]
            if sends and blocking:
                begin += busy * sends
            free[rank] = begin
            end.append(begin)
        return free


_PLACE = {"F": 0, "B": 1, "W": 2, "BW": 3}


def _events(schedule: Schedule) -> Iterator[Event]:
    depth, count = schedule.depth, schedule.microbatches
    made: dict[bool, list[int]] = {forward: [-1] * (depth * count) for forward in (True, False)}
    ranks: list[int] = []
    for number, (rank, block, receivers) in enumerate(walk(schedule)):
        lengths, needs = [], []
        for op, stage, microbatch in block:
            lengths.append(_PLACE[op] * depth + stage)
            if op == "W":
                continue
            forward, place = op == "F", stage * count + microbatch
            before = stage - 1 if forward else stage + 1
            if 0 <= before < depth:
                need = made[forward][before * count + microbatch]
                needs.append((need, ranks[need] == rank))
            made[forward][place] = number
        ranks.append(rank)
        yield rank, tuple(lengths), tuple(needs), sum(other != rank for other in receivers)


@lru_cache(maxsize=512)
def order(name: str, ranks: int, microbatches: int, vpp: int) -> Order:
    """The order of a schedule by its name."""
    return Order.of(make(name, ranks, microbatches, vpp))


def ends(
    layout: Layout,
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    weights: tuple[float, ...],
    comm: float = 0.0,
    blocking: bool = False,
) -> list[float]:
    """When each rank of the layout's pipeline is done with its micro-batches. Times are of stages, in seconds."""
    if layout.own_schedule:
        return Order.of(layout.own_schedule).ends(forward, backward, weights, comm, blocking)
    return list(
        _ends(
            layout.schedule,
            layout.pp,
            layout.grad_acc,
            chunks(layout),
            forward,
            backward,
            weights,
            comm,
            blocking,
        )
    )


#: Schedules that repeat themselves, so that long steps can be told from short ones.
STEADY = ("1f1b", "interleaved", "zb-h1", "naive")
#: Micro-batches that are always walked through.
EXACT = 32


@lru_cache(maxsize=4096)
def _ends(
    name: str, ranks: int, count: int, vpp: int, forward: tuple[float, ...], backward: tuple[float, ...],
    weights: tuple[float, ...], comm: float, blocking: bool,
) -> tuple[float, ...]:  # fmt: skip
    period = ranks
    short = (1 + (vpp > 1)) * period + count % period
    if name not in STEADY or count <= max(short + period, EXACT):
        return tuple(order(name, ranks, count, vpp).ends(forward, backward, weights, comm, blocking))
    here = order(name, ranks, short, vpp).ends(forward, backward, weights, comm, blocking)
    more = order(name, ranks, short + period, vpp).ends(forward, backward, weights, comm, blocking)
    rounds = (count - short) // period
    return tuple(a + rounds * (b - a) for a, b in zip(here, more, strict=True))
