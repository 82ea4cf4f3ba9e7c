"""Overlap drawn: messages that travel while blocks run, and techniques beside the machines that they run on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook.figures.style import INK, PALETTE, WIDTH, colour, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HIGH = 0.62  # of a bar, in rows


@dataclass(frozen=True)
class Span:
    """A block that runs, or the message that it needs on its way."""

    lane: str
    block: int
    start: float
    end: float


def prefetched(ratio: float, blocks: int) -> list[Span]:
    """A pass in which the message of each block travels while the block before it runs.

    A block takes 1, its message ``ratio``. A block starts when its message is there and the one before it is done; a
    message when the one before it is through and the block before it starts.
    """
    found: list[Span] = []
    arrived, done = ratio, 0.0
    found.append(Span("network", 0, 0.0, ratio))
    for block in range(blocks):
        begin = max(arrived, done)
        done = begin + 1
        found.append(Span("compute", block, begin, done))
        if block + 1 < blocks:
            start = max(arrived, begin)
            arrived = start + ratio
            found.append(Span("network", block + 1, start, arrived))
    return found


def passes(ratios: Sequence[float], blocks: int = 4) -> Figure:
    """A panel for each ratio of sending to computing: two lanes, of compute and of the network, on one time axis."""
    import matplotlib.pyplot as plt

    spans = {ratio: prefetched(ratio, blocks) for ratio in ratios}
    longest = max(span.end for each in spans.values() for span in each)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            len(ratios), 1, sharex=True, squeeze=False, figsize=(WIDTH, 0.5 + 0.92 * len(ratios))
        )
        for axes, (ratio, each) in zip(panels.flat, spans.items(), strict=True):
            _lanes(axes, each)
            axes.set_title(f"ratio {ratio:g}", fontsize=10, loc="left")
        axes.set_xlabel("time, in blocks")
        axes.set_xlim(0, longest * 1.01)
    return figure


def _lanes(axes: Any, spans: Sequence[Span]) -> None:
    rows, hues = {"compute": 1, "network": 0}, {"compute": "compute", "network": "communication"}
    busy = [span for span in spans if span.lane == "compute"]
    for span in spans:
        y, width = rows[span.lane], span.end - span.start
        axes.barh(
            y,
            width,
            HIGH,
            span.start,
            color=PALETTE[hues[span.lane]],
            alpha=0.55,
            edgecolor=INK,
            linewidth=0.6,
        )
        axes.text(span.start + width / 2, y, str(span.block), ha="center", va="center", fontsize=9)
    for before, after in zip([None, *busy], busy, strict=False):
        start = before.end if before else 0.0
        if after.start - start > 1e-9:
            look = {"facecolor": "none", "edgecolor": PALETTE["idle"], "hatch": "////", "linewidth": 0.0}
            axes.barh(1, after.start - start, HIGH, start, **look)
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set_ylim(-0.5, 1.5)
    axes.grid(False)
    axes.grid(True, axis="x", linewidth=0.4)


def intensities(
    techniques: Mapping[str, tuple[str, float, float]], machines: Mapping[str, Mapping[str, float]]
) -> Figure:
    """Techniques as ranges of FLOPs per byte sent, machines as lines: what lies to the right of a line is hidden.

    ``techniques`` are, by name, an axis (for the hue) and the two ends; ``machines`` by link (two), by GPU (up to three).
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.3 + 0.36 * len(techniques)))
        for row, (axis, low, high) in enumerate(techniques.values()):
            axes.plot(
                [low, high], [row, row], color=colour(axis), linewidth=7, solid_capstyle="butt", alpha=0.75
            )
            axes.plot([low, high], [row, row], "|", color=INK, markersize=11)
        # Hues belong to techniques: links differ in strength, GPUs in their dashes.
        for hue, (link, speeds) in zip((PALETTE["idle"], INK), machines.items(), strict=False):
            for dash, (gpu, balance) in zip((":", "--", "-"), speeds.items(), strict=False):
                axes.axvline(balance, color=hue, linewidth=1.3, linestyle=dash, label=f"{gpu}, {link}")
        axes.set_xscale("log")
        axes.set_yticks(range(len(techniques)), list(techniques))
        axes.set_ylim(len(techniques) - 0.5, -0.6)
        axes.set_xlabel("FLOPs for each byte sent")
        axes.grid(False, axis="y")
        figure.legend(loc="outside lower center", ncols=3, fontsize=8.5)
    return figure
