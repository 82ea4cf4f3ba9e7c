"""Batch sizes drawn: over the course of published runs, and what a larger batch is worth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, WIDTH, rc_parameters
from playbook_book.figures.axes import count_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.batches import BatchSchedule

DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 1.5, 1, 1.5)), "-", (0, (3, 1)))


def batch_schedules(runs: Mapping[str, BatchSchedule], *, start: float = 1e8) -> Figure:
    """Tokens per step over tokens seen, a line per run, from ``start`` tokens on; its name where it ends."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        axes.set_xscale("log")
        axes.set_yscale("log", base=2)
        for i, run in enumerate(runs.values()):
            seen, batch = _points(run, start)
            hue = CYCLE[i % len(CYCLE)]
            axes.plot(seen, batch, color=hue, linestyle=DASHES[i % len(DASHES)])
            axes.plot(seen[-1], batch[-1], "o", color=hue, markersize=4)
        axes.set_xlim(start, max(run.tokens for run in runs.values()) * 2)
        axes.set_yticks([4.0**p * 1e6 for p in range(-2, 4)])
        axes.minorticks_off()
        _names_beside(axes, runs)
        count_axis(axes.xaxis, "tokens seen")
        count_axis(axes.yaxis, "tokens per optimizer step")
    return figure


def _names_beside(axes: Any, runs: Mapping[str, BatchSchedule]) -> None:
    """Names right of the axes, a thin rule from each to the end of its line; pushed apart where ends crowd."""
    right, lower = axes.get_xlim()[1], 0.0
    order = sorted(runs, key=lambda name: (runs[name].last_batch, runs[name].tokens))
    for name in order:
        run = runs[name]
        at = max(run.last_batch, lower * 1.6)
        lower = at
        ink = rc_parameters()["text.color"]
        axes.plot(
            [run.tokens, right], [run.last_batch, at], color=ink, linewidth=0.6, alpha=0.4, clip_on=False
        )
        axes.text(right * 1.08, at, name, va="center", fontsize=9)


def _points(run: BatchSchedule, start: float) -> tuple[list[float], list[float]]:
    """The schedule's corners, with points between them: a straight line is a curve on logarithmic axes."""
    seen: list[float] = []
    batch: list[float] = []
    corners = list(run.corners())
    for (x0, y0), (x1, y1) in zip(corners[::2], corners[1::2], strict=True):
        x0 = min(max(x0, start), x1)
        for i in range(65):
            x = x0 * (x1 / x0) ** (i / 64)
            seen.append(x)
            batch.append(y1 - (y1 - y0) * (x1 - x) / (x1 - x0) if x1 > x0 else y1)
    return seen, batch


def tokens_against_steps(runs: Mapping[str, Sequence[float]], tokens_per_step: Mapping[str, int]) -> Figure:
    """The same losses twice: over tokens seen (what data and arithmetic cost), and over optimizer steps (time, when
    devices are free). ``tokens_per_step`` has the names of ``runs``."""
    import matplotlib.pyplot as plt

    from playbook_book.figures.training import running_mean

    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.0), sharey=True)
        for i, (name, losses) in enumerate(runs.items()):
            smooth = running_mean(losses, max(1, len(losses) // 12))
            for axes, unit in zip(panels, (tokens_per_step[name], 1), strict=True):
                axes.plot(
                    [(n + 1) * unit for n in range(len(smooth))],
                    smooth,
                    color=CYCLE[i % len(CYCLE)],
                    label=name,
                )
        panels[0].set_ylabel("loss (nats per token)")
        panels[1].set_xscale("log")
        for axes, label in zip(panels, ("tokens seen", "optimizer steps"), strict=True):
            count_axis(axes.xaxis, label)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(labels))
    return figure
