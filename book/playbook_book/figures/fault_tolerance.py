"""Checkpoints drawn: runs resumed without something, goodput by interval, what a save costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import log_seconds_axis, seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGH = 0.62  # of a bar, in rows


def went_on(undisturbed: Sequence[float], resumed: Mapping[str, Sequence[float]], saved: int) -> Figure:
    """A panel for each run that was resumed after ``saved`` steps, its losses over those of the undisturbed run."""
    import matplotlib.pyplot as plt

    columns = 3
    rows = -(-len(resumed) // columns)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            rows, columns, sharex=True, sharey=True, squeeze=False, figsize=(WIDTH, 1.55 * rows + 0.3)
        )
        for axes, (name, losses) in zip(panels.flat, resumed.items(), strict=False):
            axes.plot(range(len(undisturbed)), undisturbed, color=PALETTE["idle"], linewidth=3.5, alpha=0.6)
            axes.plot(range(saved, saved + len(losses)), losses, color=PALETTE["compute"], linewidth=1.5)
            axes.axvline(saved - 0.5, color=INK, linewidth=0.8, linestyle=":")
            axes.set_title(name, fontsize=9.5)
        for axes in list(panels.flat)[len(resumed) :]:
            axes.set_visible(False)
        panels[0, 0].set_ylim(bottom=0)
        figure.supxlabel("step", fontsize=10)
        figure.supylabel("loss", fontsize=10)
    return figure


def goodput_by_interval(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    dots: Mapping[str, Sequence[tuple[float, float]]],
    marks: Mapping[str, float],
) -> Figure:
    """Useful shares over the interval in seconds: expected ones as lines, simulated ones as dots of the same hue.

    ``marks`` are intervals that a formula gives, one for each curve.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for hue, (name, points) in zip(CYCLE, curves.items(), strict=False):
            axes.plot(*zip(*points, strict=True), color=hue, label=name)
            if name in dots:
                axes.plot(*zip(*dots[name], strict=True), "o", color=hue, markersize=4.5)
            if name in marks:
                axes.axvline(marks[name], color=hue, linewidth=1, linestyle=":")
        log_seconds_axis(
            axes.xaxis, [x for points in curves.values() for x, _ in points], "interval between checkpoints"
        )
        axes.set(ylim=(0, 1), ylabel="useful share of the time")
        axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
        figure.legend(loc="outside lower center", ncols=2)
    return figure


@dataclass(frozen=True)
class Span:
    """What went on from ``start`` to ``end`` (seconds): a "step", a "save" that training waits for, or a "write"."""

    kind: str
    start: float
    end: float


#: Of each kind: the row, the hue, what it is called.
_KINDS = {
    "step": (1, PALETTE["compute"], "steps"),
    "save": (1, PALETTE["memory"], "training waits"),
    "write": (0, PALETTE["communication"], "files are written"),
}


def saves(runs: Mapping[str, Sequence[Span]]) -> Figure:
    """A panel for each run on one time axis: above, training and what it waits for; below, the writing of files."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    longest = max(span.end for spans in runs.values() for span in spans)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            len(runs), 1, sharex=True, squeeze=False, figsize=(WIDTH, 0.7 + 0.95 * len(runs))
        )
        for axes, (name, spans) in zip(panels.flat, runs.items(), strict=True):
            _panel(axes, spans)
            axes.set_title(name, fontsize=10)
        axes.set_xlim(0, longest * 1.01)
        seconds_axis(axes.xaxis, "time")
        patches = [
            Patch(facecolor=hue, alpha=0.6, edgecolor=hue, label=label) for _, hue, label in _KINDS.values()
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return figure


def _panel(axes: Any, spans: Sequence[Span]) -> None:
    for span in spans:
        row, hue, _ = _KINDS[span.kind]
        axes.barh(
            row, span.end - span.start, HIGH, span.start, color=(hue, 0.6), edgecolor=hue, linewidth=0.6
        )
    axes.set_yticks([1, 0], ["training", "disk"], fontsize=9)
    axes.set_ylim(-0.5, 1.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)
