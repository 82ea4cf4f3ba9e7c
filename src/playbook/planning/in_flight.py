"""What a rank keeps of its pipeline stages at the fullest moments of its step.

A schedule is a list of actions for each rank, so nothing has to be timed to know what a rank keeps: F of a stage adds
what it saves for one micro-batch, B takes it away but for what W needs, W takes that. At which moment most is kept
depends on the bytes of each stage; which moments it *can* be depends on the schedule alone: it is walked through once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from playbook.layout import Layout
from playbook.layout.fields import KINDS
from playbook.layout.stages import chunks, stages_of
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import make
from playbook.schedules.interleaved import rounds
from playbook.schedules.kept import InFlight, in_flight

Moments = tuple[InFlight, ...]


@dataclass(frozen=True)
class PipelineStages:
    """Who has which stages of a pipeline, and the most that each keeps.

    ``stages[r]`` are those of rank r, ``fullest[r]`` the different moments of its step of which one is the fullest,
    whatever stages weigh; with ``before[r]`` a backward pass begins. ``depth`` counts stages, ``directions`` those in
    which they stand on the ranks.
    """

    depth: int
    directions: int
    stages: tuple[tuple[int, ...], ...]
    fullest: tuple[Moments, ...]
    before: tuple[Moments, ...]


def pipeline_stages(layout: Layout) -> PipelineStages:
    """The pipeline of a layout. Raises ScheduleError for what has no schedule."""
    if (schedule := layout.own_schedule) is not None:
        return _walked(schedule, schedule.microbatches)
    if layout.pp == 1:
        return _stages("1f1b", 1, 1, 1)
    return _stages(layout.schedule, layout.pp, chunks(layout), layout.grad_acc)


@cache
def _stages(name: str, pp: int, vpp: int, microbatches: int) -> PipelineStages:
    """Of many micro-batches those are walked through beyond which a rank keeps no more, or as many more as there are."""
    count = min(microbatches, pp * (pp + 8) + microbatches % pp)
    turns = rounds(pp, count, min(pp, microbatches))
    run, longer = turns[-1], min(4, sum(turn > turns[-1] for turn in turns))
    if name == "interleaved" and longer:  # where which runs are the longer ones decides what meets
        return _walked(make(name, pp, count, vpp), microbatches)
    few = run * min(len(turns), longer + 3) + longer
    few += few % 2 * (name in KINDS and KINDS[name].bidirectional)  # half of them at either end
    return _walked(make(name, pp, few, vpp, run=run if name == "interleaved" else None), microbatches)


def _walked(schedule: Schedule, microbatches: int) -> PipelineStages:
    ranks = len(schedule.ranks)
    stages = stages_of(schedule.placement, ranks)
    each = [_moments(schedule, rank, stages[rank], microbatches) for rank in range(ranks)]
    fullest, before = (tuple(moments) for moments in zip(*each, strict=True))
    return PipelineStages(schedule.depth, len(schedule.placement), stages, fullest, before)


def _moments(
    schedule: Schedule, rank: int, stages: tuple[int, ...], microbatches: int
) -> tuple[Moments, Moments]:
    """Moments after F or B when no F comes next, and those before B and BW."""
    actions = schedule.ranks[rank]
    nexts = [*(after.op for _, after in pairwise(actions)), ""]
    fullest: dict[InFlight, None] = {}
    before: dict[InFlight, None] = {}
    for action, after, moment in zip(actions, nexts, in_flight(schedule, rank, stages), strict=True):
        if action.op in ("F", "B") and after != "F":
            fullest[moment] = None
        if after in ("B", "BW"):
            before[moment] = None
    walked = schedule.microbatches
    found = [tuple(_of_all(m, walked, microbatches) for m in moments) for moments in (fullest, before)]
    return found[0], found[1]


def _of_all(moment: InFlight, walked: int, microbatches: int) -> InFlight:
    """A stage that keeps all micro-batches that were walked through keeps all that there are."""
    if walked == microbatches or not any(walked in counts for counts in moment):
        return moment
    return InFlight(*(tuple(microbatches if n == walked else n for n in counts) for counts in moment))
