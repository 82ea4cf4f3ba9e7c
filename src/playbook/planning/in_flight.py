"""What a rank keeps of its pipeline stages at the fullest moments of its step.

A schedule is a list of actions for each rank, so nothing has to be timed to know what a rank keeps: F of a stage adds
what it saves for one micro-batch, B takes it away but for what W needs, W takes that. At which moment most is kept
depends on the bytes of each stage; which moments it *can* be depends on the schedule alone, and is worked out once.

Narayanan et al. 2021 (arXiv 2104.04473, section 2.2) for 1F1B and the interleaved schedule, Lamy-Poirier 2022 (arXiv
2211.05953) for the breadth-first one, Qi et al. 2023 (arXiv 2401.10241) for zero-bubble ones, DeepSeek-AI 2024 (arXiv
2412.19437, table 2) for DualPipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from playbook.layout import Layout
from playbook.layout.stages import chunks, least_microbatches, on_ranks, stages_of
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import make
from playbook.schedules.interleaved import rounds


class InFlight(NamedTuple):
    """Micro-batches that a rank keeps something of, one number for each of its stages.

    Of ``full`` it keeps all that F saved, of ``rest`` what W needs once B is over.
    """

    full: tuple[int, ...]
    rest: tuple[int, ...]


Moments = tuple[InFlight, ...]


@dataclass(frozen=True)
class Line:
    """Who has which stages of a pipeline, and the most that each keeps.

    ``stages[r]`` are those of rank r, ``fullest[r]`` the moments of its step of which none keeps less than another of
    everything; ``before[r]`` are such among those with which a backward pass begins. ``depth`` counts stages, ``ways``
    the directions in which they stand on the ranks.
    """

    depth: int
    ways: int
    stages: tuple[tuple[int, ...], ...]
    fullest: tuple[Moments, ...]
    before: tuple[Moments, ...]


def line_of(layout: Layout, schedule: Schedule | None = None) -> Line:
    """The pipeline of a layout, or of a schedule of one's own. Raises ScheduleError for what has no schedule."""
    if schedule is not None:
        stages = stages_of(schedule.placement, len(schedule.ranks))
        walked = [_walk(schedule, rank, stages[rank]) for rank in range(len(schedule.ranks))]
        fullest, before = (tuple(moments) for moments in zip(*walked, strict=True))
        return Line(schedule.depth, len(schedule.placement), stages, fullest, before)
    if layout.pp == 1:
        return _ONE
    return _line(layout.schedule, layout.pp, chunks(layout), layout.grad_acc)


_ONE = Line(1, 1, ((0,),), ((InFlight((1,), (0,)),),), ((InFlight((1,), (0,)),),))


@cache
def _line(name: str, pp: int, vpp: int, microbatches: int) -> Line:
    if vpp == 1 and name in ("interleaved", "breadth-first"):
        name = "1f1b"  # with one chunk they are that
    where = on_ranks(name, pp, vpp)
    stages = stages_of(where, pp)
    if name in ("interleaved", "zb-v", "dualpipe", "dualpipev"):
        walked = _walked(name, pp, vpp, *_enough(name, pp, microbatches))
    else:
        walked = tuple(_by_formula(name, pp, vpp, microbatches, rank) for rank in range(pp))
    fullest, before = (tuple(moments) for moments in zip(*walked, strict=True))
    return Line(len(where[0]), len(where), stages, fullest, before)


def _by_formula(name: str, pp: int, vpp: int, m: int, rank: int) -> tuple[Moments, Moments]:
    """Schedules whose fullest moments can be written down.

    ZB-H1 and ZB-H2 have so many micro-batches ahead of the first B, and so many Ws are put off: F comes before or after
    one of either goes.
    """
    if name == "breadth-first":  # all of them on every chunk but the last, which is 1F1B
        last = min(m, 2 * (pp - rank - 1) + 1)
        most = (InFlight((m,) * (vpp - 1) + (last,), (0,) * vpp),)
        return most, most
    if name in ("zb-h1", "zb-h2"):
        double = 1 if name == "zb-h1" else 2
        ahead, late = double * (pp - rank) - (double - 1), double * rank
        before = InFlight((ahead,), (late,))
        return (before, InFlight((ahead - 1,), (late + 1,))), (before,)
    most = (InFlight(({"naive": 1, "afab": m, "1f1b": min(m, pp - rank)}[name],), (0,)),)
    return most, most


def _enough(name: str, pp: int, m: int) -> tuple[int, int | None]:
    """Micro-batches beyond which a rank keeps no more, and how many of them run through a chunk at a time."""
    if name != "interleaved":
        least = least_microbatches(name, pp)
        return min(m, least + 2 + (m - least) % 2), None
    turns = rounds(pp, m, min(pp, m))
    longer = min(sum(turn > turns[-1] for turn in turns), 3)
    return min(m, turns[-1] * min(len(turns), longer + 3) + longer), turns[-1]


@cache
def _walked(name: str, pp: int, vpp: int, m: int, run: int | None) -> tuple[tuple[Moments, Moments], ...]:
    schedule = make(name, pp, m, vpp, run=run)
    stages = stages_of(schedule.placement, pp)
    return tuple(_walk(schedule, rank, stages[rank]) for rank in range(pp))


def _walk(schedule: Schedule, rank: int, stages: Sequence[int]) -> tuple[Moments, Moments]:
    """The moments of a rank that can be its fullest, after F or B when less comes next; those before B and BW."""
    place = {stage: i for i, stage in enumerate(stages)}
    full, rest, moments, before = [0] * len(stages), [0] * len(stages), [], []
    actions = schedule.ranks[rank]
    for action, after in zip(actions, [*actions[1:], None], strict=True):
        i = place[action.stage]
        full[i] += {"F": 1, "W": 0}.get(action.op, -1)
        rest[i] += {"B": 1, "W": -1}.get(action.op, 0)
        if action.op in ("F", "B") and (after is None or after.op != "F"):
            moments.append((*full, *rest))
        if after is not None and after.op in ("B", "BW"):
            before.append((*full, *rest))
    many = len(stages)
    fullest, beginning = (
        tuple(InFlight(one[:many], one[many:]) for one in _largest(each)) for each in (moments, before)
    )
    return fullest, beginning


def _largest(moments: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Those of which one keeps most, whatever each number weighs.

    Left out are moments half-way between the one before and the one after, and such than which another has at least as
    much of everything.
    """
    found: list[tuple[int, ...]] = []
    for before, one, after in zip([None, *moments], moments, [*moments[1:], None], strict=False):
        half_way = (
            before and after and all(a + c == 2 * b for a, b, c in zip(before, one, after, strict=True))
        )
        if not half_way and not any(_covers(other, one) for other in found):
            found = [other for other in found if not _covers(one, other)] + [one]
    return found


def _covers(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(map(int.__ge__, a, b))
