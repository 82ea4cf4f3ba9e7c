"""Sequence parallelism drawn: what ranks hold along a block, what they save and what they drop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, PAPER, WIDTH, rc_parameters
from playbook_book.figures.axes import bytes_axis, tokens_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.shape_table import ShapeTable

#: Along a block: the region, and what its output is called below the drawing.
ALONG = {
    "norm 1": "norm", "q": "queries", "attention core": "core", "out": "out", "residual 1": "+", "norm 2": "norm",
    "up": "up", "down": "down", "residual 2": "+",
}  # fmt: skip
SIDE, GAP, SHIFT = 0.62, 0.38, 0.09  # of a drawn tensor, between two of them, of a second copy


def held(tables: Mapping[str, ShapeTable], ranks: int = 2) -> Figure:
    """What leaves each region of a block, as a square of tokens (down) by features (across) in the hues of its owners.

    A tensor that all ranks have is drawn once for each; one that they share is cut. ``tables`` maps a title to what
    ``instruments.shape_table`` printed of a live model on ``ranks`` tensor-parallel ranks.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(tables), 1, figsize=(WIDTH, 0.45 + 0.95 * len(tables)), squeeze=False
        )
        for axes, (title, found) in zip(column[:, 0], tables.items(), strict=True):
            _square(axes, 0, found["embedding"].out.parts, ranks)
            _name(axes, 0, "x")
            for i, (region, name) in enumerate(ALONG.items(), 1):
                _square(axes, i, found[region].out.parts, ranks)
                _name(axes, i, name)
                # A gated MLP enters its region by the gate.
                entry = next(
                    (row for row in found.rows if (region, row.region) == ("up", "gate")), found[region]
                )
                _arrow(axes, i, entry.border)
            axes.set_title(title, fontsize=10)
            axes.set(xlim=(-0.1, len(ALONG) + SIDE + 0.15), ylim=(SIDE + 0.36, -0.3), aspect="equal")
            axes.set_axis_off()
        handles = [plt.Rectangle((0, 0), 1, 1, color=CYCLE[rank]) for rank in range(ranks)]
        figure.legend(
            handles, [f"rank {rank}" for rank in range(ranks)], loc="outside lower center", ncols=ranks
        )
    return figure


def _square(axes: Any, x: float, parts: Mapping[str, int], ranks: int) -> None:
    from matplotlib.patches import Rectangle

    def box(left: float, top: float, width: float, height: float, rank: int) -> None:
        axes.add_patch(
            Rectangle((x + left, top), width, height, facecolor=CYCLE[rank], edgecolor=PAPER, linewidth=0.8)
        )

    part = SIDE / ranks
    across = any(count > 1 for name, count in parts.items() if name not in ("b", "s"))
    for rank in range(ranks):
        if across:
            box(rank * part, 0, part, SIDE, rank)
        elif parts["s"] > 1:
            box(0, rank * part, SIDE, part, rank)
        else:
            behind = ranks - 1 - rank
            box(behind * SHIFT, -behind * SHIFT, SIDE, SIDE, ranks - 1 - rank)


def _name(axes: Any, x: float, name: str) -> None:
    axes.text(x + SIDE / 2, SIDE + 0.07, name, ha="center", va="top", fontsize=8.5)


def _arrow(axes: Any, x: float, border: str) -> None:
    """From the tensor before; with the name of the border that is crossed."""
    ink = rc_parameters()["text.color"]
    style = {"arrowstyle": "-|>", "linewidth": 0.7, "mutation_scale": 6, "color": ink}
    axes.annotate("", (x, SIDE / 2), (x - GAP + 0.05, SIDE / 2), arrowprops=style)
    if border:
        middle = x - GAP / 2 + 0.02
        axes.text(
            middle, SIDE / 2 - 0.07, f"${border.replace('*', '^*')}$", ha="center", va="bottom", fontsize=11
        )


def kept(sizes: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Bytes that a rank saves for backward over the number of ranks, stacked: one panel for each way to shard them.

    ``panels`` maps a title to name → bytes at each of ``sizes``.
    """
    import matplotlib.pyplot as plt

    hues = (PALETTE["activations"], PALETTE["buffers"])
    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH, 3.1), sharey=True, squeeze=False)
        for axes, (title, parts) in zip(row[0], panels.items(), strict=True):
            floor = [0.0] * len(sizes)
            for (name, values), hue in zip(parts.items(), hues, strict=False):
                places = range(len(sizes))
                axes.bar(places, values, 0.78, floor, color=hue, label=name, edgecolor=PAPER, linewidth=0.7)
                floor = [a + b for a, b in zip(floor, values, strict=True)]
            axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
            axes.set_xlabel("ranks (tp)")
            axes.tick_params(axis="x", length=0)
            axes.set_title(title, fontsize=10)
        bytes_axis(row[0, 0].yaxis, "saved for backward by a rank")
        handles, labels = row[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=1)
    return figure


def over_sequence(
    lengths: Sequence[int],
    models: Mapping[str, Mapping[str, Sequence[float]]],
    capacity: tuple[str, float],
) -> Figure:
    """Memory of a rank over tokens per sample, a panel for each model and a line for each layout; both axes logarithmic.

    ``models`` maps a title to layout → bytes at each of ``lengths``; ``capacity`` is (name, bytes) of a device.
    """
    import matplotlib.pyplot as plt

    looks = (("tp", ":", "o"), ("dp", "--", "s"), ("cp", "-", "^"), ("pp", "-.", "D"))
    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(models), figsize=(WIDTH, 3.4), sharey=True, squeeze=False)
        for axes, (title, lines) in zip(row[0], models.items(), strict=True):
            for (name, values), (hue, dash, mark) in zip(lines.items(), looks, strict=False):
                axes.plot(
                    lengths,
                    values,
                    dash,
                    marker=mark,
                    markersize=3.5,
                    color=PALETTE[hue],
                    label=name,
                    linewidth=1.5,
                )
            axes.axhline(capacity[1], color=rc_parameters()["text.color"], linewidth=1.1, label=capacity[0])
            axes.set_title(title, fontsize=10)
            tokens_axis(axes.xaxis, lengths, "tokens in a sample")
            _memory_axis(axes)
        row[0, 0].set_ylabel("memory of a rank")
        handles, labels = row[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _memory_axis(axes: Any) -> None:
    """Logarithmic, with ticks at 5, 10, 20, 40, 80 … GB: memory of devices is sold in such."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_locator(FixedLocator([5e9 * 2**i for i in range(0, 12, 2)]))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e9:.0f} GB"))


def masks(drawn: Mapping[str, Sequence[Sequence[bool]]], ranks: int) -> Figure:
    """What dropout kept of a residual stream: tokens down, features across, dark where a number was dropped.

    ``drawn`` maps a title to rows of tokens, those of rank 0 first; the hue at the side says whose they are.
    """
    import matplotlib.pyplot as plt
    from matplotlib.colors import ListedColormap

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(drawn), figsize=(WIDTH, 2.7), squeeze=False)
        for axes, (title, kept_numbers) in zip(row[0], drawn.items(), strict=True):
            tokens, features = len(kept_numbers), len(kept_numbers[0])
            picture = [[0.0 if kept else 1.0 for kept in line] for line in kept_numbers]
            axes.imshow(picture, cmap=ListedColormap(["#00000000", PALETTE["activations"]]), aspect="auto")
            for rank in range(ranks):
                span = ((rank + 0.03) / ranks * tokens - 0.5, (rank + 0.97) / ranks * tokens - 0.5)
                axes.plot(
                    [-2.2] * 2, span, color=CYCLE[rank], linewidth=4, clip_on=False, solid_capstyle="butt"
                )
            axes.set(xlim=(-2.8, features - 0.5), xticks=[], yticks=[], xlabel="features")
            axes.set_title(title, fontsize=9.5, loc="center")
            axes.grid(False)
        row[0, 0].set_ylabel("tokens")
        handles = [plt.Rectangle((0, 0), 1, 1, color=CYCLE[rank]) for rank in range(ranks)]
        handles.append(plt.Rectangle((0, 0), 1, 1, color=PALETTE["activations"]))
        labels = [*(f"tokens of rank {rank}" for rank in range(ranks)), "dropped"]
        figure.legend(handles, labels, loc="outside lower center", ncols=ranks + 1)
    return figure
