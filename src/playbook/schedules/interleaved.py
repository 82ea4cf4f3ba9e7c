"""Interleaved 1F1B: each rank has several chunks of the model, and the pipeline is that many times shorter to fill.

Narayanan et al. 2021 (arXiv 2104.04473, section 2.2.2) run as many micro-batches through a chunk as there are ranks
before the next chunk takes its turn (depth first); Lamy-Poirier 2022 (arXiv 2211.05953) runs all of them (breadth first);
Llama 3 (arXiv 2407.21783, section 3.3.2) any number between, and any number of micro-batches.
"""

from __future__ import annotations

from playbook.errors import ScheduleError
from playbook.layout.stages import on_ranks
from playbook.schedules.actions import Action, Schedule


def interleaved(stages: int, microbatches: int, vpp: int = 2, run: int | None = None) -> Schedule:
    """``stages`` ranks with ``vpp`` chunks each; chunk c of rank r is stage c·stages + r.

    ``run`` micro-batches go through a chunk before the next one takes its turn: from ``stages`` (depth first, the
    default) to ``microbatches`` (breadth first). Each one more means vpp − 1 more forward passes ahead of the first
    backward pass, so that messages have more time. See `rounds` for numbers that do not divide the micro-batches; fewer
    micro-batches than ranks all go together. Raises ScheduleError for another ``run``.
    """
    least = min(stages, microbatches)
    run = least if run is None else run
    if not least <= run <= microbatches:
        raise ScheduleError(
            f"run is {run}, but {stages} ranks with {microbatches} micro-batches must run from {least} (depth first) to "
            f"{microbatches} (breadth first) through a chunk at a time: fewer would come back before they can go on"
        )
    turns = rounds(stages, microbatches, run)
    ranks = tuple(_rank(r, stages, vpp, turns) for r in range(stages))
    return Schedule("interleaved", microbatches, on_ranks("interleaved", stages, vpp), ranks)


def rounds(stages: int, microbatches: int, run: int) -> list[int]:
    """How many micro-batches run through a chunk, turn by turn.

    What ``run`` leaves over has a turn of its own if it fills the pipeline of ``stages`` ranks; the first turns share it
    if not.
    """
    whole, rest = divmod(microbatches, run)
    if rest >= stages:
        return [run] * whole + [rest]
    more, first = divmod(rest, whole)
    return [run + more + (i < first) for i in range(whole)]


def _rank(rank: int, stages: int, vpp: int, turns: list[int]) -> tuple[Action, ...]:
    starts = [sum(turns[:i]) for i in range(len(turns))]
    groups = [range(start, start + length) for start, length in zip(starts, turns, strict=True)]
    forward = [Action("F", c * stages + rank, m) for ms in groups for c in range(vpp) for m in ms]
    backward = [Action("BW", c * stages + rank, m) for ms in groups for c in reversed(range(vpp)) for m in ms]
    # Before the first backward pass: the way down and back to the last chunk, and the chunks before it of the first turn.
    inner = stages - rank - 1
    ahead = min(len(forward), 2 * inner + (vpp - 1) * turns[0] if vpp > 1 else inner)
    actions = forward[:ahead]
    for i, action in enumerate(backward):
        actions += forward[ahead + i : ahead + i + 1]
        actions.append(action)
    return tuple(actions)
