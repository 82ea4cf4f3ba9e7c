"""Of layouts that are predicted to be about as fast, the one that loses least if the calibration is somewhat wrong.

A calibration is known to within some percent, most of all what a network carries and what hides behind computation. Each
of `DOUBTS` is a calibration in which one of its numbers is off; the regret of a layout is how much longer it takes there
than the fastest, in the mean over all of them and the calibration itself (Savage 1951, "The theory of statistical
decision", on regret; a mean in place of its maximum, since none of the doubts is likely). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from playbook.planning.calibration import Calibration
from playbook.planning.simulator import Run

#: By how much a number of a calibration may be off, down and up: about what fits to different tables differ by.
DOUBTS = {
    "inter": (0.6, 1.5), "intra": (0.75, 1.25), "hidden_dp": (0.6, 1.0), "hidden_tp": (0.5, 1.5), "bandwidth": (0.8, 1.2),
    "launch": (2.0,),
}  # fmt: skip
#: Expected regrets that differ by less are equal.
EQUAL = 0.003


def doubted(calibration: Calibration) -> Iterator[Calibration]:
    """The calibration, and those in which one of its numbers is off."""
    yield calibration
    for name, factors in DOUBTS.items():
        for factor in factors:
            value = getattr(calibration, name) * factor
            if "most" in type(calibration).__dataclass_fields__[name].metadata:
                value = min(1.0, value)
            if value != getattr(calibration, name):
                yield replace(calibration, **{name: value})


def expected_regrets(runs: Sequence[Run]) -> list[float]:
    """Of each run the mean regret, as a share of the fastest one's seconds."""
    if not runs:
        return []
    totals, cases = [0.0] * len(runs), 0
    for calibration in doubted(runs[0].calibration):
        seconds = [_seconds(run, calibration) for run in runs]
        best, cases = min(seconds), cases + 1
        totals = [total + taken / best - 1 for total, taken in zip(totals, seconds, strict=True)]
    return [total / cases for total in totals]


def _seconds(run: Run, calibration: Calibration) -> float:
    """Of a step with another calibration, which changes nothing of its memory."""
    other = replace(run, calibration=calibration)
    vars(other)["memory"], vars(other)["held"] = run.memory, run.held
    vars(other)["times"] = replace(run.times, device=other.device, links=other.links)  # of the same sizes
    return other.seconds


def choice(runs: Sequence[Run], regrets: Sequence[float]) -> int:
    """Which of the runs has the least expected regret; of those that are equal, the one with fewer axes, and with less
    tensor parallelism across nodes."""

    def key(place: int) -> tuple[int, int, float]:
        layout, node = runs[place].layout, runs[place].cluster.gpus_per_node
        axes = sum(size > 1 for size in (layout.tp, layout.cp, layout.pp, layout.ep))
        return axes, max(0, layout.tp - node), regrets[place]

    return min((i for i, regret in enumerate(regrets) if regret <= min(regrets) + EQUAL), key=key)
