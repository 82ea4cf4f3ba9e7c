"""Every schedule by its name, and what its bubble is on paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from playbook._checks import check_int, unknown
from playbook.errors import ScheduleError
from playbook.schedules.actions import Schedule
from playbook.schedules.afab import afab, naive
from playbook.schedules.dualpipe import dualpipe, dualpipe_v
from playbook.schedules.fitted import zero_bubble
from playbook.schedules.interleaved import interleaved
from playbook.schedules.one_f_one_b import one_f_one_b
from playbook.schedules.timeline import Times
from playbook.schedules.zero_bubble import zb_h1, zb_h2, zb_v

#: Schedules that two numbers determine: ranks and micro-batches.
BY_HAND: dict[str, Callable[[int, int], Schedule]] = {
    "naive": naive,
    "afab": afab,
    "1f1b": one_f_one_b,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe": dualpipe,
    "dualpipev": dualpipe_v,
}
NAMES = (*BY_HAND, "interleaved", "breadth-first", "zb-1p", "zb-2p")


def make(
    name: str,
    stages: int,
    microbatches: int,
    vpp: int = 1,
    times: Times | None = None,
    *,
    run: int | None = None,
    limit: float | None = None,
    rest: float = 1.0,
) -> Schedule:
    """A schedule on ``stages`` ranks.

    ``vpp`` chunks and ``run`` micro-batches at a time are for the interleaved ones; ``times``, ``limit`` (micro-batches
    whose activations fit) and ``rest`` (the part of them that W needs) for ZB-1p and ZB-2p. Raises ScheduleError for
    unknown names and numbers that do not fit.
    """
    check_int("stages", stages, ScheduleError)
    check_int("microbatches", microbatches, ScheduleError)
    check_int("vpp", vpp, ScheduleError)
    if name not in NAMES:
        raise ScheduleError(unknown("schedule", name, NAMES))
    if name in ("interleaved", "breadth-first"):
        chosen = microbatches if name == "breadth-first" else run
        return interleaved(stages, microbatches, vpp, chosen)
    if vpp != 1:
        raise ScheduleError(
            f"vpp is {vpp}, but {name} has a fixed number of chunks: leave it out, or take interleaved"
        )
    if name in BY_HAND:
        return BY_HAND[name](stages, microbatches)
    given = (1 if name == "zb-1p" else 2) * stages if limit is None else limit
    return zero_bubble(stages, microbatches, given, times, rest=rest, name=name)


def placement(name: str, stages: int, vpp: int = 1) -> tuple[tuple[int, ...], ...]:
    """The rank of each stage of the model, for each way through the pipeline: it does not depend on micro-batches."""
    return make(name, stages, 4 * stages, vpp).placement


@dataclass(frozen=True)
class Formula:
    """A bubble on paper, for equal stages and messages that cost nothing: ``text``, and what it comes to."""

    text: str
    time: float


def bubble_on_paper(
    name: str, stages: int, microbatches: int, vpp: int, f: float, b: float, w: float, fb: float | None = None
) -> Formula | None:
    """How long a rank waits a step; None where there is no closed form. f, b, w are the times of a rank's whole part of
    the model for one micro-batch.

    Narayanan et al. 2021 (section 2.2), Qi et al. 2023 (table 2), DeepSeek-AI 2024 (table 2; exact where b = f).
    """
    p, whole = stages, f + b + w
    if name == "naive":
        return Formula("(p − 1)·m·(f + b + w)", (p - 1) * microbatches * whole)
    if name in ("afab", "1f1b"):
        return Formula("(p − 1)·(f + b + w)", (p - 1) * whole)
    if name in ("interleaved", "breadth-first"):
        return Formula("(p − 1)·(f + b + w)/v", (p - 1) * whole / vpp)
    if name == "zb-h1":
        return Formula("(p − 1)·(f + b − w)", (p - 1) * (f + b - w))
    if name == "zb-h2":
        return Formula("(p − 1)·(f + b − 2w)", (p - 1) * (f + b - 2 * w))
    if name in ("dualpipe", "dualpipev"):
        half = p / 2 if name == "dualpipe" else p
        both = whole if fb is None else fb
        return Formula("(p/2 − 1)·(f&b + (b + w) − 3w)", (half - 1) * (both + b - 2 * w))
    return None
