"""When each rank of a schedule ends, for many times of the same schedule: `timeline.simulate` without the picture.

A schedule is put in an order in which it can be carried out once; then times are a walk along that order. A long step is
the same over and over in the middle: what a further round of micro-batches adds is found from two short ones. A test
holds it to the timeline. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from playbook.layout import Layout
from playbook.layout.stages import chunks
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.catalogue import make
from playbook.schedules.timeline import simulate

#: An action, or two side by side, in a walk: its rank; its lengths, as places in a table of times; the events that it
#: needs, each with whether it is on the same rank; and how many results it sends to other ranks.
Event = tuple[int, tuple[int, ...], tuple[tuple[int, bool], ...], int]


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
    going = _Going(schedule)
    waiting = list(range(len(schedule.ranks)))
    while waiting:
        before = len(going.events)
        waiting = [rank for rank in waiting if not going.advance(rank)]
        if waiting and len(going.events) == before:
            simulate(schedule)  # raises, and says who waits for whom
    return going.events


class _Going:
    """A schedule on its way. A micro-batch on a stage is a number, its place: stage · microbatches + microbatch."""

    def __init__(self, schedule: Schedule):
        self.schedule, self.events = schedule, list[Event]()
        places = schedule.depth * schedule.microbatches
        self.next = [0] * len(schedule.ranks)
        # By place, the event that made it and the rank on which: -1 while there is none.
        self.forward, self.backward = [-1] * places, [-1] * places

    def advance(self, rank: int) -> bool:
        """Carry out what a rank can before it must wait, and say whether it is done."""
        actions, overlapped = self.schedule.ranks[rank], self.schedule.overlapped
        depth, count, i = self.schedule.depth, self.schedule.microbatches, self.next[rank]
        while i < len(actions):
            block = actions[i : i + 2] if overlapped and (rank, i) in overlapped else actions[i : i + 1]
            needs: list[int] = []
            if not all(self._ready(action, needs) for action in block):
                break
            lengths, sent = [], 0
            for op, stage, microbatch in block:
                lengths.append(_PLACE[op] * depth + stage)
                if op == "W":
                    continue
                forward = op == "F"
                (self.forward if forward else self.backward)[stage * count + microbatch] = len(self.events)
                to = stage + 1 if forward else stage - 1
                sent += 0 <= to < depth and self.schedule.rank_of(to, microbatch) != rank
            there = tuple((need, self.events[need][0] == rank) for need in needs)
            self.events.append((rank, tuple(lengths), there, sent))
            i += len(block)
        self.next[rank] = i
        return i == len(actions)

    def _ready(self, action: Action, needs: list[int]) -> bool:
        """Whether what an action needs is there; what it needs of other stages goes into ``needs``."""
        op, stage, microbatch = action
        count = self.schedule.microbatches
        place = stage * count + microbatch
        if op == "F":
            if not stage:
                return True
            need = self.forward[place - count]
        else:
            if (self.forward if op != "W" else self.backward)[place] < 0:
                return False  # on its own rank: if it is there, it is over in time
            if op == "W" or stage + 1 == self.schedule.depth:
                return True
            need = self.backward[place + count]
        needs.append(need)
        return need >= 0


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
    if layout.own_schedule:
        return Walk.of(layout.own_schedule).ends(forward, backward, weights, comm, blocking)
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
        return tuple(walk(name, ranks, count, vpp).ends(forward, backward, weights, comm, blocking))
    here = walk(name, ranks, short, vpp).ends(forward, backward, weights, comm, blocking)
    more = walk(name, ranks, short + period, vpp).ends(forward, backward, weights, comm, blocking)
    rounds = (count - short) // period
    return tuple(a + rounds * (b - a) for a, b in zip(here, more, strict=True))
