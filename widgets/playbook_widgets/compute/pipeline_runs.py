"""A run's own trace: which schedule it was, how long its actions took, and when they really happened."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.timeline import Slot, Timeline, Times
from playbook.schedules.validate import schedule_of, validate


def has_times(data: Mapping[str, Any]) -> bool:
    """Whether any action says when it began: a trace does, a schedule does not."""
    try:
        return any("start" in action for rank in data["ranks"] for action in rank)
    except (KeyError, TypeError):
        return False


def read_trace(data: Mapping[str, Any]) -> tuple[Timeline, str]:
    """What was measured, from 0 on, and its unit. ``data`` is the JSON of ``playbook schedule`` or of a run::

        {"name", "placement", "unit": "s", "ranks": [[{"op", "stage", "microbatch", "start", "end"}, …], …]}

    Raises ScheduleError for what is no trace, and for a schedule that is not complete.
    """
    try:
        starts = [[(float(a["start"]), float(a["end"])) for a in rank] for rank in data["ranks"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ScheduleError(
            'trace is {"ranks": [[{"op": "F", "stage": 0, "microbatch": 0, "start": 0.0, "end": 1.0}, …], …]}; '
            f"this one has {error!r}"
        ) from error
    schedule = schedule_of(data)
    validate(schedule)
    first = min((start for rank in starts for start, _ in rank), default=0.0)
    ends = {}
    for actions, spans in zip(schedule.ranks, starts, strict=True):
        for action, (start, end) in zip(actions, spans, strict=True):
            if end < start:
                raise ScheduleError(f"trace has {action} end at {end:g}, before it starts at {start:g}")
            ends[_key(action)] = end - first, action
    ranks = tuple(
        tuple(
            _slot(schedule, rank, a, t[0] - first, t[1] - first, ends)
            for a, t in zip(actions, spans, strict=True)
        )
        for rank, (actions, spans) in enumerate(zip(schedule.ranks, starts, strict=True))
    )
    # Between an action and what it waited for there are only messages: how long they took is not known otherwise.
    whole = max((slot.end for slots in ranks for slot in slots), default=0.0)
    return Timeline(schedule, ranks, Times(comm=whole)), str(data.get("unit", "s"))


def measured_times(line: Timeline) -> Times:
    """Medians of what F, B and W took on each stage, and of a hop. A BW without B and W beside it is taken to be half of
    each."""
    found: dict[tuple[str, int], list[float]] = {}
    for slots in line.ranks:
        for slot in slots:
            found.setdefault((slot.action.op, slot.action.stage), []).append(slot.end - slot.start)
    middle = {key: median(times) for key, times in found.items()}
    f, b, w = [], [], []
    for stage in range(line.schedule.depth):
        both = middle.get(("BW", stage), 0.0)
        f.append(middle.get(("F", stage), 0.0))
        w.append(middle.get(("W", stage), both / 2))
        b.append(middle.get(("B", stage), max(0.0, both - w[-1])))
    return Times(tuple(f), tuple(b), tuple(w), comm=median(hops(line)))


def hops(measured: Timeline) -> list[float]:
    """How long it took from the end of an action to the beginning of one on another rank that was waiting for it alone;
    one hop of 0 where none waited."""
    ends = {_key(slot.action): slot.end for slots in measured.ranks for slot in slots}
    found = []
    for slots in measured.ranks:
        for before, slot in zip((None, *slots), slots, strict=False):
            over = ends[_key(slot.last)] if slot.last else None
            if over is not None and (before is None or before.end < over):
                found.append(max(0.0, slot.start - over))
    return found or [0.0]


def _slot(
    schedule: Schedule,
    rank: int,
    action: Action,
    start: float,
    end: float,
    ends: Mapping[Action, tuple[float, Action]],
) -> Slot:
    """With what came last of what it needs from other ranks; its message came just in time."""
    needs = [ends[n] for n in schedule.needs(action) if schedule.rank_of(n.stage, n.microbatch) != rank]
    last = max(needs, key=lambda need: need[0])[1] if needs else None
    return Slot(action, start, end, last, start if last else 0.0)


def _key(action: Action) -> Action:
    return action._replace(op="B") if action.op == "BW" else action
