"""Zero-bubble schedules by hand (Qi et al. 2023, arXiv 2401.10241): weight gradients, which nobody waits for, fill the
gaps."""

from __future__ import annotations

from playbook.errors import ScheduleError
from playbook.layout.stages import least_microbatches, on_ranks
from playbook.schedules.actions import Action, Schedule


def zb_h1(stages: int, microbatches: int) -> Schedule:
    """The activations of 1F1B, a third of its bubble: rank r defers r weight gradients (section 2.1)."""
    return _by_hand("zb-h1", stages, microbatches, [(stages - r, r) for r in range(stages)])


def zb_h2(stages: int, microbatches: int) -> Schedule:
    """Twice the activations, no bubble between a rank's first action and its last (section 2.2)."""
    return _by_hand("zb-h2", stages, microbatches, [(2 * (stages - r) - 1, 2 * r) for r in range(stages)])


def _by_hand(name: str, stages: int, microbatches: int, shape: list[tuple[int, int]]) -> Schedule:
    """Rank by rank: so many forward passes ahead, so many weight gradients deferred.

    Ahead and deferred come to the same number on every rank: micro-batches whose activations are all, or half, there.
    """
    needed = least_microbatches(name, stages)
    if microbatches < needed:
        raise ScheduleError(
            f"microbatches is {microbatches}, but {name} on {stages} stages fills its pipeline with {needed}: it must be "
            "at least as many"
        )
    ranks = tuple(_rank(r, microbatches, ahead, late) for r, (ahead, late) in enumerate(shape))
    return Schedule(name, microbatches, on_ranks(name, stages), ranks)


def _rank(rank: int, microbatches: int, ahead: int, late: int) -> tuple[Action, ...]:
    order = ([Action(op, rank, m) for m in range(microbatches)] for op in ("F", "B", "W"))
    forward, backward, weights = map(iter, order)
    pattern = "F" * ahead + "BF" * late + "BWF" * (microbatches - ahead - late) + "BW" * ahead + "W" * late
    sources = {"F": forward, "B": backward, "W": weights}
    return tuple(next(sources[op]) for op in pattern)


def zb_v(stages: int, microbatches: int) -> Schedule:
    """Two chunks a rank, down one side of a V and up the other (section 6 of the paper): the activations of 1F1B, and no
    bubble if F, B and W take the same time. ``stages`` are ranks; the model has twice as many stages."""
    needed = least_microbatches("zb-v", stages)
    if microbatches < needed:
        raise ScheduleError(
            f"microbatches is {microbatches}, but zb-v on {stages} ranks fills its pipeline with {needed}: it must be at "
            "least as many"
        )
    ranks = tuple(_v_rank(r, stages, microbatches) for r in range(stages))
    return Schedule("zb-v", microbatches, on_ranks("zb-v", stages), ranks)


def _v_rank(rank: int, stages: int, microbatches: int) -> tuple[Action, ...]:
    """Side 0 goes down, side 1 up."""
    inner = stages - rank
    left = microbatches - (2 * stages - rank - 1)  # passes down that are not part of the warm-up
    steps = ["F0"] * (2 * inner - 1) + ["F1", "F0"] * rank + ["F1", "B1", "W1"] * inner
    for i in range(microbatches - stages):
        steps += [*(["F0"] if i < left else []), "B0", "W0", "F1", "B1", "W1"]
    steps += ["B0", "B1"] * rank + ["B0", "W0"] * inner + ["W1"] * rank + ["W0"] * rank
    stage = {"0": rank, "1": 2 * stages - 1 - rank}
    count = {step: iter(range(microbatches)) for step in set(steps)}
    return tuple(Action(step[0], stage[step[1]], next(count[step])) for step in steps)
