"""What a schedule takes: every action starts when its rank is free and what it needs has arrived.

A hop between two ranks takes ``comm + transfer``: the latency of the link, and the time for which the message fills it.
Messages between two ranks in one direction go one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.kept import change
from playbook.schedules.walk import walk

PerStage = float | Sequence[float]


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _part(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


@dataclass(frozen=True)
class Times:
    """How long actions and messages take, in any unit: numbers of at least 0. Raises ScheduleError for others.

    ``f``, ``b``, ``w`` are one number, or one for each stage of the model; BW takes b + w. ``fb`` is a forward and a
    backward pass side by side; None is the sum of both. ``comm`` is the latency of a hop, ``transfer`` how long a message
    fills its link (bytes over bandwidth). Without ``overlap`` the sending rank computes nothing for comm + transfer.
    """

    f: PerStage = 1.0
    b: PerStage = 1.0
    w: PerStage = 1.0
    comm: float = 0.0
    fb: float | None = None
    transfer: float = 0.0
    overlap: bool = True

    def __post_init__(self) -> None:
        for name in ("f", "b", "w", "comm", "fb", "transfer"):
            given = getattr(self, name)
            several = name in ("f", "b", "w") and not _number(given)
            values = list(given) if several and isinstance(given, Sequence) else [given]
            if name == "fb" and given is None:
                continue
            for value in values:
                if not _number(value) or not 0 <= value < float("inf"):
                    raise ScheduleError(f"{name} has {value!r}, but a time is a finite number of at least 0")

    def table(self, depth: int) -> dict[str, list[float]]:
        """By operation, the time on every stage. Raises ScheduleError for a list of another length."""
        found = {}
        for name in "fbw":
            given = getattr(self, name)
            if not _number(given) and len(given) != depth:
                raise ScheduleError(
                    f"{name} has {len(given)} times, but the schedule has {depth} stages: give each one"
                )
            found[name.upper()] = [float(given)] * depth if _number(given) else list(map(float, given))
        found["BW"] = [b + w for b, w in zip(found["B"], found["W"], strict=True)]
        return found


class Slot(NamedTuple):
    """An action's place in time. ``last`` is the action on another stage that it, or the one side by side with it, needs
    (of several, the one that came last), and ``arrived`` when its result was there; None and 0 if there is none."""

    action: Action
    start: float
    end: float
    last: Action | None
    arrived: float


@dataclass(frozen=True)
class Timeline:
    """A schedule in time: slots by rank, in order."""

    schedule: Schedule
    ranks: tuple[tuple[Slot, ...], ...]
    times: Times = Times()

    @cached_property
    def makespan(self) -> float:
        """From the first start to the last end of all."""
        return max((slots[-1].end for slots in self.ranks if slots), default=0.0)

    @cached_property
    def span(self) -> float:
        """The longest time from a rank's first start to its last end."""
        return max((slots[-1].end - slots[0].start for slots in self.ranks if slots), default=0.0)

    @cached_property
    def ideal(self) -> float:
        """What the busiest rank works."""
        return max((self.busy(rank) for rank in range(len(self.ranks))), default=0.0)

    @cached_property
    def places(self) -> dict[Action, tuple[int, int]]:
        """Rank and position of every action."""
        return {s.action: (rank, i) for rank, slots in enumerate(self.ranks) for i, s in enumerate(slots)}

    def busy(self, rank: int) -> float:
        """What a rank works; actions side by side count once."""
        total, reached = 0.0, 0.0
        for _, start, end, _, _ in self.ranks[rank]:
            if end > reached:
                total += end - (start if start > reached else reached)
                reached = end
        return total

    @property
    def bubble_fraction(self) -> float:
        """The part of a step in which the busiest rank waits, if all ranks begin and end a step together."""
        return _part(self.makespan - self.ideal, self.makespan)

    @property
    def bubble_fraction_span(self) -> float:
        """The same if steps overlap: ranks begin the next as they end this one."""
        return _part(self.span - self.ideal, self.span)

    @property
    def bubble_ratio(self) -> float:
        """Waiting over working."""
        return _part(self.makespan - self.ideal, self.ideal)

    def in_flight(
        self, rank: int, full: PerStage = 1, rest: PerStage | None = None
    ) -> list[tuple[float, float]]:
        """What a rank keeps from each moment on, as (moment, amount): F saves ``full`` of its stage, B frees all but
        ``rest`` of it, W (or BW) the rest.

        Numbers, or one for each stage of the model, in any unit; by default the stages' activations of a micro-batch are
        counted, from F to W. What an action saves is there as it begins; what it frees goes as it ends.
        """
        depth = self.schedule.depth
        whole = [full] * depth if isinstance(full, int | float) else list(full)
        left = whole if rest is None else [rest] * depth if isinstance(rest, int | float) else list(rest)
        events: list[tuple[float, float]] = []
        for action, start, end, _, _ in self.ranks[rank]:
            amount = change(action, whole, left)
            if action.op != "B" or amount:
                events.append((start if action.op == "F" else end, amount))
        events.sort(key=lambda event: event[0])  # side by side, both begin before one ends
        amounts = accumulate(amount for _, amount in events)
        return [(moment, amount) for (moment, _), amount in zip(events, amounts, strict=True)]

    def numbers(self) -> dict[str, float]:
        """What a step takes, by the names of ``playbook schedule --json``."""
        names = ("makespan", "span", "ideal", "bubble_fraction", "bubble_fraction_span", "bubble_ratio")
        return {name: getattr(self, name) for name in names}

    def peak_in_flight(self, rank: int, full: PerStage = 1, rest: PerStage | None = None) -> float:
        """The most that a rank ever keeps; see `in_flight`."""
        return max((amount for _, amount in self.in_flight(rank, full, rest)), default=0)


def simulate(schedule: Schedule, times: Times | None = None) -> Timeline:
    """When everything happens. Raises ScheduleError where actions wait for one another, and says which for which."""
    times = times or Times()
    clock = _Clock(schedule, times)
    for rank, block, receivers in walk(schedule):
        clock.do(rank, block, receivers)
    return Timeline(schedule, tuple(map(tuple, clock.slots)), times)


class _Clock:
    """The times of a schedule that is walked through. A micro-batch on a stage is a number, its place (`walk`)."""

    def __init__(self, schedule: Schedule, times: Times):
        self.schedule, self.times, self.table = schedule, times, times.table(schedule.depth)
        ranks, places = len(schedule.ranks), schedule.depth * schedule.microbatches
        self.free = [0.0] * ranks
        self.slots: list[list[Slot]] = [[] for _ in range(ranks)]
        self.links: dict[tuple[int, int], float] = {}  # until when a link is full
        # By place: the action done, and when its message was where the next stage waits for it.
        self.forward: list[tuple[Action | None, float]] = [(None, 0.0)] * places
        self.backward: list[tuple[Action | None, float]] = [(None, 0.0)] * places

    def do(self, rank: int, block: Sequence[Action], receivers: Sequence[int]) -> None:
        """Carry out an action, or two side by side, as soon as ``rank`` is free and what they need has arrived."""
        last, arrived = self._needed(block[0])
        length = self.table[block[0][0]][block[0][1]]
        if block[1:]:
            beside = self._needed(block[1])
            last, arrived = beside if beside[1] > arrived else (last, arrived)
            both = length + self.table[block[1][0]][block[1][1]]
            length = both if self.times.fb is None else self.times.fb
        begin = self.free[rank]
        if arrived > begin:
            begin = arrived
        self.free[rank] = end = begin + length
        for done, other in zip(block, receivers, strict=True):
            self.slots[rank].append(Slot(done, begin, end, last, arrived))
            if done[0] != "W":
                self._send(rank, done, end, other)

    def _needed(self, action: Action) -> tuple[Action | None, float]:
        """What came last of what ``action`` needs of other stages, and when it was on its rank. What it needs of its own
        is over before its turn."""
        op, stage, microbatch = action
        place, count = stage * self.schedule.microbatches + microbatch, self.schedule.microbatches
        if op == "F":
            return self.forward[place - count] if stage else (None, 0.0)
        return (None, 0.0) if op == "W" or stage + 1 == self.schedule.depth else self.backward[place + count]

    def _send(self, rank: int, action: Action, end: float, other: int) -> None:
        """Note that ``action`` is done, and when the stage that waits for it has its message."""
        op, stage, microbatch = action
        there, times = end, self.times
        if other != rank and not times.overlap:
            self.free[rank] += times.comm + times.transfer
            there = self.free[rank]
        elif other != rank and times.transfer:
            leaves = max(end, self.links.get((rank, other), 0.0))
            self.links[rank, other] = leaves + times.transfer
            there = leaves + times.transfer + times.comm
        elif other != rank:
            there = end + times.comm
        place = stage * self.schedule.microbatches + microbatch
        (self.forward if op == "F" else self.backward)[place] = action, there
