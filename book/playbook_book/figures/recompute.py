"""Recomputation drawn: whose activations are alive when, what it buys and what it costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, PAPER, WIDTH, colour, rc_parameters
from playbook.figures.units import format_bytes
from playbook_book.figures.axes import bytes_axis, count_axis, format_tokens
from playbook_book.figures.memory import _thinned

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.block_tape import HeldActivations

# A second forward pass is the price of the memory saved: it has a colour of its own.
KINDS = {"forward": PALETTE["F"], "again": PALETTE["W"]}


def held_over_step(panels: Mapping[str, HeldActivations]) -> Figure:
    """One panel per entry: bytes of activations alive over a step, a band per block, on common axes.

    Bands of neighbouring blocks differ in shade; what a second forward pass recomputed has its own colour.
    A line marks where backward begins; each panel's peak is written into it.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, rows = plt.subplots(
            len(panels),
            1,
            figsize=(WIDTH, 0.9 + 1.45 * len(panels)),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axes, (title, held) in zip(rows[:, 0], panels.items(), strict=True):
            _bands(axes, held)
            axes.set_title(f"{title}: peak {format_bytes(held.peak)}")
            axes.axvline(held.turn, color=rc_parameters()["text.color"], alpha=0.6, linewidth=0.8)
        top = max(held.peak for held in panels.values())
        first = next(iter(panels.values()))
        rows[0, 0].set_ylim(0, 1.12 * top)
        rows[0, 0].set_xlim(0, max(len(held.again) for held in panels.values()))
        for x, text in ((first.turn, "forward ←"), (first.turn, "→ backward")):
            side = "right" if text.startswith("forward") else "left"
            rows[0, 0].text(x, 1.09 * top, f" {text} ", ha=side, va="top", fontsize=9)
        bytes_axis(rows[len(panels) // 2, 0].yaxis, "activations alive")
        for axes in rows[:, 0]:
            bytes_axis(axes.yaxis)
        count_axis(rows[-1, 0].xaxis, "allocations and releases so far")
        entries = {"kept by the blocks": PALETTE["activations"]}
        if max(max(held.other) for held in panels.values()) > 0.03 * top:
            entries["by the rest"] = PALETTE["temporary"]
        _legend(figure, {**entries, "recomputed in backward": KINDS["again"]})
    return figure


def _bands(axes: Any, held: HeldActivations) -> None:
    events = list(range(len(held.again)))
    times, rows = _thinned(events, [*held.kept, held.other, held.again], limit=240)
    plum = PALETTE["activations"]
    colours = [*[plum] * len(held.kept), PALETTE["temporary"], KINDS["again"]]
    bands = axes.stackplot(times, rows, colors=colours, step="post", edgecolor=PAPER, linewidth=0.4)
    for i, band in enumerate(bands[: len(held.kept)]):
        band.set_alpha(0.95 if i % 2 else 0.68)


def _legend(figure: Any, entries: dict[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(color=hue, label=name) for name, hue in entries.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), columnspacing=1.1)


@dataclass(frozen=True)
class Segments:
    """Peaks over blocks per segment, and what the formula needs: L blocks, c bytes entering each, and I that it keeps.

    What enters a block is among what it keeps, so a segment's first input, its checkpoint, is counted once.
    """

    peaks: Mapping[int, float]
    layers: int
    entrance: float
    inside: float

    @property
    def best(self) -> float:
        """Blocks per segment at which L/k·c + k·I − c is least: sqrt(L·c/I)."""
        return (self.layers * self.entrance / self.inside) ** 0.5

    def formula(self, size: float) -> float:
        """Bytes alive at the peak with ``size`` blocks per segment."""
        return self.layers / size * self.entrance + size * self.inside - self.entrance


def peaks_over_segments(cases: Mapping[str, Segments]) -> Figure:
    """Measured peaks (dots) on the formula (line), a panel per case, both axes logarithmic.

    Bytes are in units of the case's block inputs, L·c: what one checkpoint per block keeps.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(cases), figsize=(WIDTH, 3.2), squeeze=False)
        for axes, (title, case) in zip(panels[0], cases.items(), strict=True):
            sizes, unit = sorted(case.peaks), case.layers * case.entrance
            fine = [sizes[0] * (sizes[-1] / sizes[0]) ** (i / 60) for i in range(61)]
            axes.loglog(
                fine, [case.formula(k) / unit for k in fine], color=PALETTE["temporary"], label="formula"
            )
            dots = [case.peaks[k] / unit for k in sizes]
            axes.loglog(sizes, dots, "o", color=PALETTE["activations"], markersize=5, label="measured")
            ink = rc_parameters()["text.color"]
            axes.axvline(case.best, linestyle=(0, (3, 3)), color=ink, linewidth=1, label="best by formula")
            axes.set(title=title, xlabel="blocks per segment")
            axes.minorticks_off()
            ticks = [2**n for n in range(12) if sizes[0] <= 2**n <= sizes[-1]]
            axes.set_xticks(ticks, [str(k) for k in ticks])
            heights = [h for h in (0.25, 0.5, 1, 2, 4, 8, 16, 32) if 0.8 * min(dots) <= h <= 1.25 * max(dots)]
            axes.set_yticks(heights, [f"{h:g}" for h in heights])
        panels[0][0].set_ylabel("peak activations\n(inputs of all blocks = 1)")
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def memory_by_mode(
    models: Mapping[str, Mapping[int, Mapping[str, Mapping[str, float]]]], *, capacity: tuple[str, float]
) -> Figure:
    """One panel per model, a group of bars per sequence length, a bar per recompute mode, cut into categories.

    ``models`` maps title → tokens → mode → category → bytes, with the same lengths and modes everywhere.
    ``capacity`` is (name, bytes) of a device. A panel's axis follows its last mode but one, or the device; a bar that
    goes beyond is cut, and every bar carries its total in decimal GB.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        size = (WIDTH, 1.1 + 1.9 * len(models))
        figure, rows = plt.subplots(len(models), 1, figsize=size, sharex=True, squeeze=False)
        for axes, (title, groups) in zip(rows[:, 0], models.items(), strict=True):
            _mode_bars(axes, groups, capacity[1])
            ink = rc_parameters()["text.color"]
            axes.axhline(capacity[1] / 1e9, linestyle=(0, (4, 3)), color=ink, linewidth=1, label=capacity[0])
            axes.set(title=title, ylabel="memory (GB)")
        names = list(next(iter(groups.values())))
        places = [_place(g, b, len(names)) for g in range(len(groups)) for b in range(len(names))]
        middle = len(names) // 2
        texts = [
            n + (f"\n{format_tokens(seq)}" if n == names[middle] else "") for seq in groups for n in names
        ]
        short = [text.replace(text.split("\n")[0], text[0]) for text in texts]
        rows[-1, 0].set_xticks(places, short)
        rows[-1, 0].set_xlabel(", ".join(names) + " at each sequence length (tokens)")
        figure.legend(*rows[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _place(group: int, bar: int, bars: int) -> float:
    return group + 0.81 / bars * (bar - (bars - 1) / 2)


def _mode_bars(axes: Any, groups: Mapping[int, Mapping[str, Mapping[str, float]]], capacity: float) -> None:
    modes = list(next(iter(groups.values())))
    followed = max(sum(by_mode[modes[-2]].values()) for by_mode in groups.values())
    top = max(1.3 * followed, 1.15 * capacity) / 1e9
    for group, by_mode in enumerate(groups.values()):
        for bar, kinds in enumerate(by_mode.values()):
            at, floor = _place(group, bar, len(modes)), 0.0
            for kind, value in kinds.items():
                label = kind if group == bar == 0 else None
                axes.bar(at, value / 1e9, 0.72 / len(modes), floor, color=colour(kind), label=label)
                floor += value / 1e9
            text = f"{floor:,.0f}" + ("↑" if floor > top else "")
            axes.text(at, min(floor, top), text, ha="center", va="bottom", fontsize=8)
    axes.set_ylim(0, top)
    axes.grid(False)


def utilisation(bars: Mapping[str, tuple[float, float]]) -> Figure:
    """One bar per entry of (MFU, HFU), shares of the peak: what the model needs, and what was computed again."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.1 + 0.32 * len(bars)))
        names, needed = list(bars), [m for m, _ in bars.values()]
        again = [h - m for m, h in bars.values()]
        axes.barh(names, needed, 0.66, color=KINDS["forward"], label="needed by the model (MFU)")
        axes.barh(names, again, 0.66, needed, color=KINDS["again"], label="with what is computed again: HFU")
        for row, (m, h) in enumerate(bars.values()):
            text = f"MFU {m:.0%}, HFU {h:.0%}"
            axes.annotate(text, (h, row), (5, 0), textcoords="offset points", va="center", fontsize=9)
        axes.set(xlabel="share of the peak", xlim=(0, 1.5 * max(h for _, h in bars.values())))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        axes.invert_yaxis()
        axes.grid(False)
        figure.legend(loc="outside lower center", ncols=2, columnspacing=1.1)
    return figure
