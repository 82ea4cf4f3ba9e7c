"""Which known schedule is this? Names do not matter: neither those of micro-batches nor those of ranks."""

from __future__ import annotations

from collections.abc import Iterator

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.afab import afab, naive
from playbook.schedules.dualpipe import dualpipe, dualpipe_v
from playbook.schedules.interleaved import interleaved, rounds
from playbook.schedules.one_f_one_b import one_f_one_b
from playbook.schedules.zero_bubble import zb_h1, zb_h2, zb_v

#: Where several are the same, as with one micro-batch, the one that is best known comes first.
_KNOWN = {
    "1f1b": one_f_one_b,
    "afab": afab,
    "naive": naive,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
    "dualpipev": dualpipe_v,
}

Form = tuple[tuple[Action, ...], ...]


def recognise(schedule: Schedule) -> str | None:
    """The name of the schedule that has the same actions in the same order on every rank, or None.

    Micro-batches may have other numbers, ranks too; a B with its W right behind it is a BW. Several names of one and the
    same schedule are joined by "or"; an interleaved one says its run if it is neither the shortest nor the longest.
    """
    if not all(schedule.placement) or not all(schedule.ranks):
        return None
    given = _form(schedule)
    return " or ".join(name for name, known in _candidates(schedule) if _form(known) == given) or None


def _candidates(schedule: Schedule) -> Iterator[tuple[str, Schedule]]:
    stages, microbatches, chunks = len(schedule.ranks), schedule.microbatches, schedule.chunks
    for name, maker in _KNOWN.items():
        try:
            known = maker(stages, microbatches)
        except ScheduleError:
            continue
        if known.chunks == chunks and len(known.placement) == len(schedule.placement):
            yield name, known
    if chunks > 1 and len(schedule.placement) == 1 and schedule.depth == stages * chunks:
        yield from _interleaved(schedule, stages, microbatches, chunks)


def _interleaved(
    schedule: Schedule, stages: int, microbatches: int, chunks: int
) -> Iterator[tuple[str, Schedule]]:
    """The first turn says how many run together: forward passes on the first stage before the first one on another."""
    forward = [a.stage for a in schedule.ranks[schedule.placement[0][0]] if a.op == "F"]
    first = next((i for i, stage in enumerate(forward) if stage), len(forward))
    least, seen = min(stages, microbatches), []
    for run in range(least, microbatches + 1):
        turns = rounds(stages, microbatches, run)
        if turns[0] == first and turns not in seen:
            seen.append(turns)
            longest = "breadth-first" if turns == [microbatches] else f"interleaved with runs of {run}"
            yield (
                "interleaved" if run == least else longest,
                interleaved(stages, microbatches, chunks, run),
            )


def _form(schedule: Schedule) -> Form:
    """Ranks in the order in which a micro-batch first comes to them, micro-batches as they begin, B and W fused."""
    ranks = list(dict.fromkeys(rank for direction in schedule.placement for rank in direction))
    order: dict[int, int] = {}
    for direction, places in enumerate(schedule.placement):
        for op, stage, microbatch in schedule.ranks[places[0]]:
            if op == "F" and stage == 0 and schedule.direction(microbatch) == direction:
                order[microbatch] = len(order)
    return tuple(tuple(_fused(schedule.ranks[rank], order)) for rank in ranks)


def _fused(actions: tuple[Action, ...], order: dict[int, int]) -> Iterator[Action]:
    last: Action | None = None
    for op, stage, microbatch in actions:
        action = Action(op, stage, order.get(microbatch, -1))
        if last is not None and last.op == "B" and action == last._replace(op="W"):
            last = last._replace(op="BW")
            continue
        if last is not None:
            yield last
        last = action
    if last is not None:
        yield last
