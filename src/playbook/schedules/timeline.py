"""What a schedule takes: every action starts when its rank is free and what it needs has arrived.

An event simulation. A hop between two ranks takes ``comm``; nothing else costs anything.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule

PerStage = float | Sequence[float]


@dataclass(frozen=True)
class Times:
    """How long an action takes, in any unit: one number, or one for each stage. BW takes b + w.

    ``fb`` is a forward and a backward pass side by side; None is the sum of both.
    """

    f: PerStage = 1.0
    b: PerStage = 1.0
    w: PerStage = 1.0
    comm: float = 0.0
    fb: float | None = None

    def table(self, depth: int) -> dict[str, list[float]]:
        """By operation, the time on every stage. Raises ScheduleError for a list of another length."""
        found = {}
        for name in "fbw":
            given = getattr(self, name)
            if not isinstance(given, int | float) and len(given) != depth:
                raise ScheduleError(
                    f"{name} has {len(given)} times, but the schedule has {depth} stages: give each one"
                )
            found[name.upper()] = (
                [float(given)] * depth if isinstance(given, int | float) else list(map(float, given))
            )
        found["BW"] = [b + w for b, w in zip(found["B"], found["W"], strict=True)]
        return found


class Slot(NamedTuple):
    """An action's place in time. ``last`` is what it needed that came last, ``arrived`` when; None if it needed nothing."""

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
        return max(self.busy(rank) for rank in range(len(self.ranks)))

    def busy(self, rank: int) -> float:
        """What a rank works; actions side by side count once."""
        total, reached = 0.0, float("-inf")
        for slot in self.ranks[rank]:
            total += max(0.0, slot.end - max(slot.start, reached))
            reached = max(reached, slot.end)
        return total

    @property
    def bubble_fraction(self) -> float:
        """The part of a step in which the busiest rank waits, if all ranks begin and end a step together."""
        return (self.makespan - self.ideal) / self.makespan

    @property
    def bubble_fraction_span(self) -> float:
        """The same if steps overlap: ranks begin the next as they end this one."""
        return (self.span - self.ideal) / self.span

    @property
    def bubble_ratio(self) -> float:
        """Waiting over working."""
        return (self.makespan - self.ideal) / self.ideal

    def in_flight(self, rank: int) -> list[tuple[float, int]]:
        """How many stages' activations of a micro-batch a rank keeps from each moment on: from F to W."""
        events = []
        for action, start, end, *_ in self.ranks[rank]:
            if action.op == "F":
                events.append((start, 1))
            elif action.op != "B":
                events.append((end, -1))
        events.sort()
        found, count = [], 0
        for moment, change in events:
            count += change
            found.append((moment, count))
        return found

    def peak_in_flight(self, rank: int) -> int:
        return max((count for _, count in self.in_flight(rank)), default=0)


def simulate(schedule: Schedule, times: Times | None = None) -> Timeline:
    """Raises ScheduleError where actions wait for one another, and says which for which."""
    times = times or Times()
    return _Simulation(schedule, times).run()


class _Simulation:
    def __init__(self, schedule: Schedule, times: Times):
        self.schedule, self.times, self.table = schedule, times, times.table(schedule.depth)
        self.next = [0] * len(schedule.ranks)
        self.free = [0.0] * len(schedule.ranks)
        self.slots: list[list[Slot]] = [[] for _ in schedule.ranks]
        self.done: dict[Action, float] = {}  # a BW is its B
        self.waiting: dict[Action, list[int]] = {}

    def run(self) -> Timeline:
        ready = deque(range(len(self.schedule.ranks)))
        while ready:
            rank = ready.popleft()
            while self.next[rank] < len(self.schedule.ranks[rank]):
                missing = self._step(rank)
                if missing is not None:
                    self.waiting.setdefault(missing, []).append(rank)
                    break
                for slot in self.slots[rank][-2:]:
                    key = _key(slot.action)
                    ready.extend(self.waiting.pop(key, ()))
        for rank, place in enumerate(self.next):
            if place < len(self.schedule.ranks[rank]):
                raise ScheduleError(self._deadlock(rank))
        return Timeline(self.schedule, tuple(map(tuple, self.slots)))

    def _step(self, rank: int) -> Action | None:
        """Carry out the next action, or the next two side by side; what is missing, if something is."""
        i, actions = self.next[rank], self.schedule.ranks[rank]
        block = actions[i : i + 2] if (rank, i) in self.schedule.together else actions[i : i + 1]
        begin, found = self.free[rank], []
        for action in block:
            last, arrived = None, 0.0
            for need in self.schedule.needs(action):
                end = self.done.get(need)
                if end is None:
                    return need
                elsewhere = self.schedule.rank_of(need.stage, need.microbatch) != rank
                end += self.times.comm if elsewhere else 0.0
                if end >= arrived:
                    last, arrived = need, end
            begin = max(begin, arrived)
            found.append((action, last, arrived))
        lengths = [self.table[a.op][a.stage] for a in block]
        length = sum(lengths) if self.times.fb is None or len(block) == 1 else self.times.fb
        for action, last, arrived in found:
            self.slots[rank].append(Slot(action, begin, begin + length, last, arrived))
            self.done[_key(action)] = begin + length
        self.free[rank], self.next[rank] = begin + length, i + len(block)
        return None

    def _deadlock(self, rank: int) -> str:
        """Who waits for whom, around the circle or to an action that nobody has."""
        said, seen = [], set()
        while rank not in seen:
            seen.add(rank)
            action = self.schedule.ranks[rank][self.next[rank]]
            need = next(n for n in self.schedule.needs(action) if n not in self.done)
            said.append(f"rank {rank} waits with {action} for {need}")
            holder = self._holder(need)
            if holder is None:
                said.append("which no rank ever does")
                break
            rank = holder
        return "the schedule cannot go on: " + ", ".join(said)

    def _holder(self, need: Action) -> int | None:
        for rank, actions in enumerate(self.schedule.ranks):
            if any(_key(a) == need for a in actions[self.next[rank] :]):
                return rank
        return None


def _key(action: Action) -> Action:
    return action._replace(op="B") if action.op == "BW" else action
