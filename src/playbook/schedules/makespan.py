"""When each rank of a schedule ends, for many times of the same schedule: `timeline.simulate` without the picture.

A schedule is put in an order in which it can be carried out once; then times are a walk along that order. A long step is
the same over and over in the middle: what a further round of micro-batches adds is found from two short ones. A test
holds it to the timeline. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from playbook.layout import Layout
from playbook.layout.stages import chunks
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.catalogue import make


class Event(NamedTuple):
    """An action, or two side by side, in a walk: on ``rank``, with ``lengths`` (places in a table of times).

    ``needs`` are events before it, each with whether it is on the same rank; so many results are ``sent``.
    """

    rank: int
    lengths: tuple[int, ...]
    needs: tuple[tuple[int, bool], ...]
    sent: int


@dataclass(frozen=True)
class Walk:
    """A schedule in an order in which everything that an action needs comes before it."""

    ranks: int
    depth: int
    events: tuple[Event, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Walk:
        """Raises ScheduleError where actions wait for one another: `timeline.simulate` says which."""
        return cls(len(schedule.ranks), schedule.depth, tuple(_ordered(schedule)))

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


def _ordered(schedule: Schedule) -> list[Event]:
    """Events of all ranks, each when what it needs is there: ranks go on in turns until they must wait."""
    depth, count = schedule.depth, len(schedule.ranks)
    events: list[Event] = []
    done: dict[tuple[bool, int, int], tuple[int, int]] = {}  # (forward?, stage, micro-batch): event and rank
    next_, waiting = [0] * count, list(range(count))
    while waiting:
        stuck = []
        moved = False
        for rank in waiting:
            actions, i = schedule.ranks[rank], next_[rank]
            while i < len(actions):
                both = (rank, i) in schedule.overlapped
                block = actions[i : i + 2] if both else actions[i : i + 1]
                needs = _needs(block, done, depth, rank)
                if needs is None:
                    break
                sends = 0
                for op, stage, microbatch in block:
                    to = stage + (1 if op == "F" else -1)
                    if op != "W":
                        done[op == "F", stage, microbatch] = (len(events), rank)
                        sends += 0 <= to < depth and schedule.rank_of(to, microbatch) != rank
                events.append(Event(rank, tuple(_PLACE[a[0]] * depth + a[1] for a in block), needs, sends))
                i += len(block)
                moved = True
            next_[rank] = i
            if i < len(actions):
                stuck.append(rank)
        if stuck and not moved:
            from playbook.schedules.timeline import simulate

            simulate(schedule)  # raises, and says who waits for whom
        waiting = stuck
    return events


def _needs(
    block: Sequence[Action], done: dict[tuple[bool, int, int], tuple[int, int]], depth: int, rank: int
) -> tuple[tuple[int, bool], ...] | None:
    found = []
    for op, stage, microbatch in block:
        if op != "F" and (op != "W", stage, microbatch) not in done:
            return None  # what it needs on its own rank has not come: then it is over in time
        if op == "W" or (op == "F" and not stage) or (op != "F" and stage + 1 == depth):
            continue
        need = done.get((True, stage - 1, microbatch) if op == "F" else (False, stage + 1, microbatch))
        if need is None:
            return None
        found.append((need[0], need[1] == rank))
    return tuple(found)


@lru_cache(maxsize=512)
def walk(name: str, ranks: int, microbatches: int, vpp: int) -> Walk:
    """The walk of a schedule by its name."""
    return Walk.of(make(name, ranks, microbatches, vpp))


def ends(
    layout: Layout,
    forward: tuple[float, ...],
    backward: tuple[float, ...],
    weights: tuple[float, ...],
    comm: float = 0.0,
    blocking: bool = False,
) -> list[float]:
    """When each rank of the layout's pipeline is done with its micro-batches. Times are of stages, in seconds."""
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
    short = 2 * period + count % period
    if name not in STEADY or count <= max(short + period, EXACT):
        return tuple(walk(name, ranks, count, vpp).ends(forward, backward, weights, comm, blocking))
    here = walk(name, ranks, short, vpp).ends(forward, backward, weights, comm, blocking)
    more = walk(name, ranks, short + period, vpp).ends(forward, backward, weights, comm, blocking)
    rounds = (count - short) // period
    return tuple(a + rounds * (b - a) for a, b in zip(here, more, strict=True))
