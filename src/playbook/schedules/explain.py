"""Why a rank waits, and what the step takes as long as it does because of."""

from __future__ import annotations

from dataclasses import dataclass

from playbook.schedules.actions import Action
from playbook.schedules.timeline import Slot, Timeline

#: Kinds of waiting: before a rank's first action, for an action on another rank, for a message, after the last action.
CAUSES = ("fill", "dependency", "communication", "drain")


@dataclass(frozen=True)
class Idle:
    """From ``start`` to ``end`` rank ``rank`` has nothing to do. ``waits_for`` came last of what its next action needed."""

    rank: int
    start: float
    end: float
    cause: str
    next: Action | None
    waits_for: Action | None
    text: str


def idles(timeline: Timeline) -> list[Idle]:
    """Every gap of every rank, from 0 to the makespan. A gap in which first an action and then its message is waited for is
    two."""
    found: list[Idle] = []
    for rank, slots in enumerate(timeline.ranks):
        reached = 0.0
        for slot in slots:
            if slot.start > reached + 1e-12:
                found += _gap(timeline, rank, reached, slot)
            reached = max(reached, slot.end)
        if timeline.makespan > reached + 1e-12:
            text = f"rank {rank} has done all its work; the step ends when the last rank has"
            found.append(Idle(rank, reached, timeline.makespan, "drain", None, None, text))
    return found


def bubble_by_cause(timeline: Timeline) -> dict[str, float]:
    """How long ranks wait, all together, by cause."""
    total = dict.fromkeys(CAUSES, 0.0)
    for idle in idles(timeline):
        total[idle.cause] += idle.end - idle.start
    return total


def critical_path(timeline: Timeline) -> list[Slot]:
    """Slots from the beginning to the end, each of which could not begin before the one before it was over and its message
    there: to make the step shorter, one of these must be."""
    schedule = timeline.schedule
    place: dict[Action, tuple[int, int]] = {}
    for rank, slots in enumerate(timeline.ranks):
        for i, slot in enumerate(slots):
            action = slot.action._replace(op="B") if slot.action.op == "BW" else slot.action
            place[action] = rank, i
    rank = max(
        range(len(timeline.ranks)), key=lambda r: timeline.ranks[r][-1].end if timeline.ranks[r] else 0.0
    )
    i, path = len(timeline.ranks[rank]) - 1, []
    while True:
        slot = timeline.ranks[rank][i]
        path.append(slot)
        if slot.last is not None and slot.arrived >= slot.start - 1e-12:
            rank, i = place[slot.last]
        elif i:
            i -= 1
            while i and timeline.ranks[rank][i].end > slot.start + 1e-12:  # side by side with this one
                i -= 1
        else:
            break
    assert schedule is timeline.schedule
    return path[::-1]


def _gap(timeline: Timeline, rank: int, reached: float, slot: Slot) -> list[Idle]:
    need, schedule = slot.last, timeline.schedule
    if need is None:
        return []
    other = schedule.rank_of(need.stage, need.microbatch)
    over = slot.arrived if other == rank else _end_of(timeline, other, need)
    first = "fill" if reached == 0.0 else "dependency"
    found = []
    if over > reached + 1e-12:
        text = f"rank {rank} waits with {slot.action} for {need} on rank {other}, which is over at {over:g}"
        found.append(Idle(rank, reached, min(over, slot.start), first, slot.action, need, text))
    if slot.start > max(over, reached) + 1e-12:
        text = f"rank {rank} waits with {slot.action} for the message of {need} from rank {other}"
        start = max(over, reached)
        found.append(Idle(rank, start, slot.start, "communication", slot.action, need, text))
    return found


def _end_of(timeline: Timeline, rank: int, need: Action) -> float:
    for slot in timeline.ranks[rank]:
        same = slot.action._replace(op="B") if slot.action.op == "BW" else slot.action
        if same == need:
            return slot.end
    return 0.0
