"""One forward, one backward (PipeDream-flush, Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1)."""

from __future__ import annotations

from playbook.schedules.actions import Action, Schedule, straight


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """What has a gradient goes backward at once: rank r keeps stages − r micro-batches at most, whatever their number."""
    ranks = tuple(_rank(r, stages, microbatches) for r in range(stages))
    return Schedule("1f1b", microbatches, straight(stages), ranks)


def _rank(rank: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    ahead = min(stages - rank - 1, microbatches)
    actions = [Action("F", rank, m) for m in range(ahead)]
    for m in range(microbatches):
        if ahead + m < microbatches:
            actions.append(Action("F", rank, ahead + m))
        actions.append(Action("BW", rank, m))
    return tuple(actions)
