"""A timeline as the page draws it: columns of numbers, not objects, so that 32 ranks and 256 micro-batches stay light."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from playbook.schedules.actions import Action
from playbook.schedules.explain import CAUSES, bubble_on_paper, critical_path, idles
from playbook.schedules.timeline import Timeline
from playbook_widgets.compute.building import LETTERS, Board
from playbook_widgets.compute.recognise import recognise
from playbook_widgets.compute.visualizer_setting import ScheduleSetting

#: Gaps that are told in a sentence each; where there are more, the page composes it of the cause's words.
SENTENCES = 2000


def drawn(
    line: Timeline, label: str, setting: ScheduleSetting, name: str = "", paper: bool = True
) -> dict[str, Any]:
    """One timeline.

    ``slots`` has a column each for op (a letter; X is BW), stage, microbatch, start and end; those of rank r are from
    ``offsets[r]`` to ``offsets[r + 1]``. ``full`` and ``rest`` are what a stage's activations of one micro-batch come to
    after F, and after B, in micro-batches of a rank's whole part of the model. ``path`` are slots, ``path_work`` is what
    they take. ``idle`` has a column each for rank, start, end, cause (a place in CAUSES), next and waits_for (slots, or
    -1), and text.
    """
    schedule, share = line.schedule, len(line.ranks) / line.schedule.depth
    rounded = _rounding(line.makespan)
    slots = [slot for rank in line.ranks for slot in rank]
    peaks = [line.peak_in_flight(r, share, share * setting.rest) for r in range(len(line.ranks))]
    return {
        "label": label,
        "name": name,
        "ranks": len(line.ranks),
        "microbatches": schedule.microbatches,
        "depth": schedule.depth,
        "placement": [list(homes) for homes in schedule.placement],
        "directions": list(schedule.directions),
        "offsets": _offsets(len(rank) for rank in line.ranks),
        "slots": {
            "op": "".join(LETTERS[slot.action.op] for slot in slots),
            "stage": [slot.action.stage for slot in slots],
            "microbatch": [slot.action.microbatch for slot in slots],
            "start": [rounded(slot.start) for slot in slots],
            "end": [rounded(slot.end) for slot in slots],
        },
        "full": share,
        "rest": share * setting.rest,
        "peaks": [round(peak, 6) for peak in peaks],
        **_gaps(line, rounded),
        "numbers": line.numbers(),
        "paper": _paper(setting, line, name) if paper else None,
    }


def _offsets(lengths: Iterable[int]) -> list[int]:
    found = [0]
    for length in lengths:
        found.append(found[-1] + length)
    return found


def _rounding(makespan: float) -> Any:
    """To seven digits of the whole; whole numbers as such."""
    digits = 6 - math.floor(math.log10(makespan)) if makespan > 0 else 6

    def rounded(time: float) -> float:
        found = round(time, digits)
        return int(found) if found == int(found) else found

    return rounded


def _gaps(line: Timeline, rounded: Any) -> dict[str, Any]:
    """Gaps with their reasons, what they come to by cause, and the critical path."""
    offsets = _offsets(len(rank) for rank in line.ranks)

    def number(action: Action | None) -> int:
        place = line.places.get(action) if action else None
        return -1 if place is None else offsets[place[0]] + place[1]

    found, causes, path = idles(line), list(CAUSES), critical_path(line)
    by_cause = dict.fromkeys(causes, 0.0)
    for idle in found:
        by_cause[idle.cause] += idle.end - idle.start
    told = len(found) <= SENTENCES
    return {
        "idle": {
            "rank": [idle.rank for idle in found],
            "start": [rounded(idle.start) for idle in found],
            "end": [rounded(idle.end) for idle in found],
            "cause": [causes.index(idle.cause) for idle in found],
            "next": [number(idle.next) for idle in found],
            "waits_for": [number(idle.waits_for) for idle in found],
            "text": [idle.text for idle in found] if told else None,
        },
        "causes": by_cause,
        "path": [number(slot.action) for slot in path],
        "path_work": sum(slot.end - slot.start for slot in path),
    }


def _paper(setting: ScheduleSetting, line: Timeline, name: str) -> dict[str, Any] | None:
    """The bubble on paper, where there is one, beside that of the simulation: of the step, or of the span for schedules
    whose ranks go on to the next step."""
    times, chunks = setting.times, line.schedule.depth // setting.stages
    if not all(isinstance(getattr(times, key), int | float) for key in "fbw"):
        return None
    # DualPipeV is written down for one of a rank's two stages.
    share = 1 / chunks if name == "dualpipev" else 1.0
    f, b, w = (getattr(times, key) * share for key in "fbw")
    fb = None if times.fb is None else times.fb * share
    told = bubble_on_paper(name, setting.stages, setting.microbatches, chunks, f, b, w, fb)
    if told is None:
        return None
    of_span = name in ("zb-h2", "zb-v")
    took = (line.span if of_span else line.makespan) - line.ideal
    return {"text": told.text, "time": told.time, "simulated": took, "of": "span" if of_span else "makespan"}


def moves(board: Board, own: Timeline, plan: Timeline) -> dict[str, Any]:
    """What can be done next on every rank, and why not; whether all is done, and what it is then; whether the plan has B
    and W ``apart``.

    ``ranks[r]`` are moves as [word, op, stage, microbatch, refused]; ``best[r]`` is the word of the one that a click on
    the rank means: with B and W apart, and with both as one.
    """
    complete = board.left == 0
    last = {rank: slots[-1].end for rank, slots in enumerate(own.ranks) if slots}
    ranks = [board.moves(rank) for rank in range(len(own.ranks))]
    return {
        "text": board.text(),
        "placed": len(board.placed),
        "left": board.left,
        "complete": complete,
        "known": recognise(board.schedule()) if complete else None,
        "rival": {"makespan": plan.makespan},
        "apart": any(action.op == "W" for rank in plan.schedule.ranks for action in rank),
        "ranks": [[[board.word(m[:2]), m.action.op, m.action.stage, m.action.microbatch, m.refused] for m in mine]
                  for mine in ranks],
        "best": [[_best(board, own, last.get(r, 0.0), mine, ops) for ops in (("F", "B", "W"), ("F", "BW"))]
                 for r, mine in enumerate(ranks)],
    }  # fmt: skip


def _best(board: Board, own: Timeline, free: float, mine: Any, ops: tuple[str, ...]) -> str:
    """Of what is possible, what can start first: rather back than forward, and weight gradients last."""
    order = {"B": 0, "BW": 0, "F": 1, "W": 2}
    ends = {_done(slot.action): slot.end for slots in own.ranks for slot in slots}
    found = []
    for move in mine:
        if move.action.op in ops and not move.refused:
            start = max([free, *(ends[need] for need in board.plan.needs(move.action))])
            found.append((start, order[move.action.op], -move.action.stage, board.word(move[:2])))
    return min(found)[-1] if found else ""


def _done(action: Action) -> Action:
    return action._replace(op="B") if action.op == "BW" else action
