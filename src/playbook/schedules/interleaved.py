"""Interleaved 1F1B: each rank has several chunks of the model, and the pipeline is that many times shorter to fill.

Narayanan et al. 2021 (arXiv 2104.04473, section 2.2.2) run ``stages`` micro-batches through a chunk before the next chunk
takes its turn (depth first); Lamy-Poirier 2022 (arXiv 2211.05953) runs all of them (breadth first); Llama 3 (arXiv
2407.21783, section 3.3.2) any number between.
"""

from __future__ import annotations

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule


def interleaved(stages: int, microbatches: int, vpp: int = 2, run: int | None = None) -> Schedule:
    """``stages`` ranks with ``vpp`` chunks each; chunk c of rank r is stage c·stages + r.

    ``run`` micro-batches go through a chunk before the next one takes its turn: ``stages`` (depth first, the default) up
    to ``microbatches`` (breadth first). Raises ScheduleError for a run that is shorter than the pipeline or that does not
    divide the micro-batches.
    """
    run = stages if run is None else run
    if not stages <= run <= max(stages, microbatches):
        raise ScheduleError(
            f"run is {run}, but must be from stages = {stages} to microbatches = {microbatches}"
        )
    if microbatches % run:
        raise ScheduleError(
            f"microbatches is {microbatches}, but the interleaved schedule needs a multiple of the {run} that run "
            "through a chunk at a time"
        )
    placement = (tuple(s % stages for s in range(stages * vpp)),)
    ranks = tuple(_rank(r, stages, microbatches, vpp, run) for r in range(stages))
    return Schedule("interleaved", microbatches, placement, ranks)


def _rank(rank: int, stages: int, microbatches: int, vpp: int, run: int) -> tuple[Action, ...]:
    rounds = [range(start, start + run) for start in range(0, microbatches, run)]
    forward = [(c * stages + rank, m) for ms in rounds for c in range(vpp) for m in ms]
    backward = [(c * stages + rank, m) for ms in rounds for c in reversed(range(vpp)) for m in ms]
    # Before the first backward pass: the way down and back to the last chunk, and all earlier chunks of the first round.
    inner = stages - rank - 1
    ahead = min(len(forward), 2 * inner + (vpp - 1) * run if vpp > 1 else inner)
    actions = [Action("F", *place) for place in forward[:ahead]]
    for i, place in enumerate(backward):
        if ahead + i < len(forward):
            actions.append(Action("F", *forward[ahead + i]))
        actions.append(Action("BW", *place))
    return tuple(actions)
