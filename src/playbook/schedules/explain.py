"""Why a rank waits, how long on paper, and what the step takes as long as it does because of."""

from __future__ import annotations

from dataclasses import dataclass

from playbook.schedules.actions import Action
from playbook.schedules.timeline import Slot, Timeline

#: What a rank that does nothing waits for, with a few words for each.
CAUSES = {
    "fill": "the first micro-batch has not come yet",
    "dependency": "another rank is not done",
    "link": "the link still carries an earlier message",
    "communication": "the message is on its way",
    "sending": "it sends, and cannot compute meanwhile",
    "drain": "it is done, others are not",
}
_TINY = 1e-9  # of a step: what rounding of times may leave between two actions


@dataclass(frozen=True)
class Idle:
    """From ``start`` to ``end`` rank ``rank`` computes nothing, for one of `CAUSES`; ``text`` says it in a sentence.

    ``next`` is what it will do then, ``waits_for`` what came last of what that needs; None where there is no such action.
    """

    rank: int
    start: float
    end: float
    cause: str
    next: Action | None
    waits_for: Action | None
    text: str


def idles(timeline: Timeline) -> list[Idle]:
    """Every gap of every rank, from 0 to the makespan, in order. A gap with several causes is that many: an action is
    waited for, then the link for its message, then the message."""
    return [idle for rank in range(len(timeline.ranks)) for idle in rank_idles(timeline, rank)]


def rank_idles(timeline: Timeline, rank: int) -> list[Idle]:
    """The gaps of one rank; see `idles`."""
    found: list[Idle] = []
    reached, tiny = 0.0, _TINY * timeline.makespan
    slots = timeline.ranks[rank]
    for i, slot in enumerate(slots):
        if slot.start > reached + tiny:
            found += _gap(timeline, rank, i, reached)
        reached = max(reached, slot.end)
    if timeline.makespan > reached + tiny:
        found += _drain(timeline, rank, reached)
    return found


def bubble_by_cause(timeline: Timeline) -> dict[str, float]:
    """How long ranks wait, all together, by cause."""
    total = dict.fromkeys(CAUSES, 0.0)
    for idle in idles(timeline):
        total[idle.cause] += idle.end - idle.start
    return total


def critical_path(timeline: Timeline) -> list[Slot]:
    """Slots from the beginning to the end of the step, each of which could not begin before the one before it was over
    (and its message there): to make the step shorter, one of these, or a message between two, must be."""
    if not any(timeline.ranks):
        return []
    rank = max(
        range(len(timeline.ranks)), key=lambda r: timeline.ranks[r][-1].end if timeline.ranks[r] else -1.0
    )
    i, path, tiny = len(timeline.ranks[rank]) - 1, [], _TINY * timeline.makespan
    while True:
        slot = timeline.ranks[rank][i]
        path.append(slot)
        if slot.last is not None and slot.arrived >= slot.start - tiny:
            rank, i = timeline.places[slot.last]
            continue
        i -= 1
        while i >= 0 and timeline.ranks[rank][i].end > slot.start + tiny:  # side by side with this one
            i -= 1
        if i < 0:
            return path[::-1]


def _gap(timeline: Timeline, rank: int, i: int, reached: float) -> list[Idle]:
    """From ``reached`` to the start of slot ``i``: for what its message was late, stretch by stretch."""
    slot, times, tiny = timeline.ranks[rank][i], timeline.times, _TINY * timeline.makespan
    found: list[Idle] = []

    def add(until: float, cause: str, need: Action | None, text: str) -> None:
        nonlocal reached
        if min(until, slot.start) > reached + tiny:
            found.append(
                Idle(rank, reached, min(until, slot.start), cause, action, need, f"rank {rank} {text}")
            )
            reached = found[-1].end

    action, need = slot.action, slot.last
    if not times.overlap and i:
        sent = timeline.ranks[rank][i - 1].action
        add(
            timeline.ranks[rank][i - 1].end + times.comm + times.transfer,
            "sending",
            sent,
            f"sends what {sent} gave, and computes nothing meanwhile",
        )
    if need is None:
        return found
    action = _waiting(timeline, rank, i, need)
    other, place = timeline.places[need]
    over = timeline.ranks[other][place].end
    what = f"waits with {action} for {need}"
    if i:
        add(over, "dependency", need, f"{what}, which rank {other} ends at {over:.6g}")
    else:
        add(over, "fill", need, f"has nothing to do yet: it {what}, which rank {other} ends at {over:.6g}")
    leaves = slot.arrived - times.comm - times.transfer
    message = f"waits with {action} for the message of {need} from rank {other}"
    add(leaves, "link", need, f"{message}, which until {leaves:.6g} waits for earlier ones on the same link")
    add(slot.start, "communication", need, f"{message}, which arrives at {slot.arrived:.6g}")
    return found


def _waiting(timeline: Timeline, rank: int, i: int, need: Action) -> Action:
    """Of slot ``i`` and the one side by side with it, the action that needs ``need``."""
    slots, asked = timeline.ranks[rank], need._replace(op="B") if need.op == "BW" else need
    for slot in slots[i : i + 2]:
        if slot.start == slots[i].start and asked in timeline.schedule.needs(slot.action):
            return slot.action
    return slots[i].action


def _drain(timeline: Timeline, rank: int, reached: float) -> list[Idle]:
    late = next(r for r, s in enumerate(timeline.ranks) if s and s[-1].end == timeline.makespan)
    done = "has done all its work" if timeline.ranks[rank] else "has no work"
    last = timeline.ranks[late][-1].action
    text = f"rank {rank} {done}; the step ends at {timeline.makespan:.6g}, with {last} on rank {late}"
    return [Idle(rank, reached, timeline.makespan, "drain", None, last, text)]


@dataclass(frozen=True)
class Formula:
    """A bubble on paper, for equal stages and messages that cost nothing: ``text``, and the ``time`` that it comes to.

    It is what is left of the ``of`` (makespan, or span: steps overlap) without the work of a rank.
    """

    text: str
    time: float
    of: str = "makespan"


def bubble_on_paper(
    name: str, stages: int, microbatches: int, vpp: int, f: float, b: float, w: float, fb: float | None = None
) -> Formula | None:
    """How long a rank waits a step; None where there is no closed form. f, b, w are the times of a rank's whole part of
    the model for one micro-batch (of dualpipev: of one of its two stages), fb that of a forward and a backward pass side
    by side.

    Narayanan et al. 2021 (section 2.2), Qi et al. 2023 (table 2; while w is at most f and b), DeepSeek-AI 2024 (table 2;
    exact where b = f).
    """
    p, whole = stages, f + b + w
    if name == "naive":
        return Formula("(p − 1)·m·(f + b + w)", (p - 1) * microbatches * whole)
    if name in ("afab", "1f1b"):
        return Formula("(p − 1)·(f + b + w)", (p - 1) * whole)
    if name in ("interleaved", "breadth-first") and microbatches >= stages:
        return Formula("(p − 1)·(f + b + w)/v", (p - 1) * whole / vpp)
    if name in ("zb-h1", "zb-1p") and w <= min(f, b):
        return Formula("(p − 1)·(f + b − w)", (p - 1) * (f + b - w))
    if name == "zb-h2" and w <= min(f, b):
        return Formula("(p − 1)·(f + b − 2w)", (p - 1) * (f + b - 2 * w), "span")
    if name in ("dualpipe", "dualpipev"):
        half = p / 2 if name == "dualpipe" else p
        both, text = whole if fb is None else fb, "p/2" if name == "dualpipe" else "p"
        return Formula(f"({text} − 1)·(f&b + (b + w) − 3w)", (half - 1) * (both + b - 2 * w))
    return None
