"""A mesh of ranks drawn: who is in a group with whom along each axis; strategies compared in memory and in time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import INK, PALETTE, PAPER, WIDTH, colour, rc_parameters
from playbook.figures.units import format_bytes
from playbook_book.figures.axes import tokens_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GIB = 2**30

#: ``axis -> groups of ranks``
Groups = Mapping[str, Sequence[Sequence[int]]]


def groups_of_ranks(rows: Groups, ranks_per_node: int, rank: int = 0) -> Figure:
    """Ranks side by side in their nodes, and a row for each axis: a line for each of its groups, a dot on each member.

    The group of ``rank`` is drawn in full, the others pale. Groups that interleave lie one below the other, so that an
    axis is as high as its neighbours are apart. Raises ``ValueError`` unless ``rank`` is in a group of every row.
    """
    import matplotlib.pyplot as plt

    for axis, groups in rows.items():
        if not any(rank in group for group in groups):
            raise ValueError(f"rank {rank} is in no group of {axis}")
    last = max(max(group) for groups in rows.values() for group in groups)
    lanes = {axis: _lanes(groups) for axis, groups in rows.items()}
    height = sum(len(lane) for lane in lanes.values())
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.7 + 0.16 * height + 0.13 * len(rows)))
        y, middles = 0.0, {}
        for axis, lane in lanes.items():
            middles[axis] = y + (len(lane) - 1) / 2
            for groups in lane:
                for group in groups:
                    _draw_group(axes, group, y, colour(axis), rank in group)
                y += 1
            y += 0.8
        axes.set_yticks(list(middles.values()), list(middles), fontweight="bold")
        axes.set_ylim(y - 0.4, -0.9)
        _draw_nodes(axes, last + 1, ranks_per_node)
    return figure


def _lanes(groups: Sequence[Sequence[int]]) -> list[list[Sequence[int]]]:
    """Groups in as few rows as keep those of a row apart."""
    lanes: list[list[Sequence[int]]] = []
    for group in sorted(groups, key=min):
        for lane in lanes:
            if max(lane[-1]) < min(group):
                lane.append(group)
                break
        else:
            lanes.append([group])
    return lanes


def _draw_group(axes: Any, group: Sequence[int], y: float, hue: str, own: bool) -> None:
    look = {"color": hue, "alpha": 1.0 if own else 0.4, "solid_capstyle": "round"}
    axes.plot([min(group), max(group)], [y, y], linewidth=2.4 if own else 1.2, **look)
    axes.plot(list(group), [y] * len(group), "o", markersize=5.5 if own else 3.5, **look)


def _draw_nodes(axes: Any, ranks: int, ranks_per_node: int) -> None:
    """Numbers of ranks above, and where a node ends."""
    for border in range(ranks_per_node, ranks, ranks_per_node):
        axes.axvline(border - 0.5, color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
    for node, first in enumerate(range(0, ranks, ranks_per_node)):
        middle = (first + min(ranks, first + ranks_per_node) - 1) / 2
        axes.text(
            middle, 1.075, f"node {node}", transform=axes.get_xaxis_transform(), ha="center", fontsize=9.5
        )
    axes.set_xlim(-0.7, ranks - 0.3)
    axes.set_xticks(range(ranks))
    axes.xaxis.tick_top()
    axes.tick_params(axis="both", length=0)
    axes.grid(False)
    for side in ("bottom", "left"):
        axes.spines[side].set_visible(False)


#: Columns of a block with experts, and the weight whose placement says which axes cut it; the core has none.
ALONG = {
    "norm": "norm1", "q, k, v": "attention.q", "core": "", "out": "attention.out", "norm ": "norm2",
    "router": "mlp.router", "experts": "mlp.experts.up",
}  # fmt: skip
#: Axes from the outside in: columns whose activations they divide, and messages at a border (0 is the entry).
AXES: Mapping[str, tuple[Sequence[int], Mapping[float, str]]] = {
    "pp: layers": ((), {0: "from the stage before", 7: "to the next"}),
    "dp: samples": (range(7), {3.5: "gradients, once a step"}),
    "cp: tokens": (range(7), {2.5: "keys and values"}),
    "tp, sp: features": (
        (0, 1, 2, 3, 4, 6),
        {1: "all-gather", 4: "reduce-scatter", 5: "all-gather", 7: "reduce-scatter"},
    ),
    "ep: experts": ((), {6: "dispatch", 7: "combine"}),
}


def along_a_block(cuts: Mapping[str, Collection[str]]) -> Figure:
    """A block with experts from left to right, a row for each axis: what it divides there, and what it sends.

    ``cuts`` are the axes that cut each weight of `ALONG`, by its name in the block. The upper half of a box is
    activations, the lower one weights.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.5))
        for row, (axis, (divided, messages)) in enumerate(AXES.items()):
            hue = colour(axis[:2])
            for x, weight in enumerate(ALONG.values()):
                halves = [(0.0, x in divided, 0.4)] + [(0.27, axis[:2] in cuts[weight], 1.0)] * bool(weight)
                for low, filled, strength in halves:
                    face: Any = (hue, strength) if filled else "none"
                    box = Rectangle((x + 0.14, row + low), 0.72, 0.25, facecolor=face, linewidth=0.5)
                    box.set_edgecolor(PALETTE["idle"])
                    axes.add_patch(box)
            for place, words in messages.items():
                side = "center" if place else "left"
                axes.text(place, row + 0.58, f"▲ {words}", color=INK, ha=side, va="top", fontsize=7)
        axes.set_xticks([x + 0.5 for x in range(len(ALONG))], list(ALONG))
        axes.set_yticks([row + 0.26 for row in range(len(AXES))], list(AXES), fontsize=9)
        axes.set(xlim=(0, len(ALONG) + 0.5), ylim=(len(AXES) - 0.1, -0.1))
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.grid(False)
        for side in ("bottom", "left"):
            axes.spines[side].set_visible(False)
        looks = {"divides activations": 0.4, "divides weights": 1.0}
        handles = [Patch(facecolor=(PALETTE["idle"], strength)) for strength in looks.values()]
        figure.legend(handles, list(looks), loc="outside lower center", ncols=2)
    return figure


#: ``strategy -> category -> bytes``
Bars = Mapping[str, Mapping[str, float]]


def memory_of_strategies(
    panels: Mapping[str, Bars],
    marks: Mapping[str, Mapping[str, float]],
    capacity: float,
    mark: str,
    top: float | None = None,
) -> Figure:
    """A panel for each title, in it a horizontal bar for each strategy, cut into categories.

    ``marks`` are other totals of the same bars, by title and strategy, drawn as ticks that ``mark`` explains;
    ``capacity`` (bytes) is a dashed line. Bars beyond ``top`` end at the edge of the panel, their total written there.
    """
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for bars in panels.values() for parts in bars.values() for name in parts))
    most = max(sum(parts.values()) for bars in panels.values() for parts in bars.values())
    top = min(top or most, most)
    with plt.rc_context(rc_parameters()):
        count = len(next(iter(panels.values())))
        figure, row = plt.subplots(
            1, len(panels), figsize=(WIDTH, 1.3 + 0.235 * count), sharey=True, squeeze=False
        )
        for axes, (title, bars) in zip(row[0], panels.items(), strict=True):
            _bars(axes, names, bars, top)
            for place, (strategy, parts) in enumerate(bars.items()):
                at = marks[title][strategy]
                axes.plot([at, at], [place - 0.42, place + 0.42], color=INK, linewidth=1.8)
                _write_beyond(axes, place, sum(parts.values()), at, top)
            axes.axvline(capacity, color=INK, linestyle=(0, (4, 3)), linewidth=1.1)
            axes.set_title(title, fontsize=9.5)
        row[0][0].invert_yaxis()
        handles, labels = row[0][0].get_legend_handles_labels()
        handles.append(plt.Line2D([], [], color=INK, linewidth=1.8))
        handles.append(plt.Line2D([], [], color=INK, linestyle=(0, (4, 3)), linewidth=1.1))
        labels += [mark, f"a GPU, {format_bytes(capacity)}"]
        figure.legend(handles, labels, loc="outside lower center", ncols=3, columnspacing=1.1)
    return figure


def _bars(axes: Any, names: Sequence[str], bars: Bars, top: float) -> None:
    left = [0.0] * len(bars)
    for i, name in enumerate(names):
        widths = [parts.get(name, 0.0) for parts in bars.values()]
        axes.barh(
            range(len(bars)), widths, 0.72, left, color=colour(name, i), label=name, edgecolor=PAPER, linewidth=0.6
        )  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), list(bars))
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.set_xlim(0, top)
    axes.set_xticks([i * top / 3 for i in range(4)], [f"{i * top / 3 / GIB:,.0f}" for i in range(4)])
    axes.set_xlabel("GiB")


def _write_beyond(axes: Any, place: int, total: float, mark: float, top: float) -> None:
    """The total of a bar that does not end in its panel, clear of its mark."""
    if total > top:
        right = mark - 0.03 * top if 0.75 * top < mark < top else 0.98 * top
        text = f"{total / GIB:,.0f} →"
        plate = {"facecolor": INK, "linewidth": 0.0, "boxstyle": "square,pad=0.12"}  # readable on two hues
        axes.text(right, place, text, ha="right", va="center", fontsize=8, color=PAPER, bbox=plate)


#: ``name -> (tokens of a step, time over that of the arithmetic)``
Curves = Mapping[str, tuple[Sequence[float], Sequence[float]]]

_DASHES = ("-", (0, (5, 2)), (0, (1.2, 1.6)))


def times_over_batch(pipeline: Curves, zero: Curves, crossings: Sequence[tuple[float, float]] = ()) -> Figure:
    """Time of a step over the time of its arithmetic, against the tokens of a step: pipelines beside ZeRO-3.

    A technique has a hue, a name a dash, the same in both; ``crossings`` are dots. At most three names each.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.3))
        for technique, hue, curves in (
            ("pipeline", PALETTE["pp"], pipeline),
            ("ZeRO-3", PALETTE["dp"], zero),
        ):
            for dash, (name, (tokens, times)) in zip(_DASHES, curves.items(), strict=False):
                axes.plot(tokens, times, linestyle=dash, color=hue, label=f"{technique}, {name}")
        for point in crossings:
            axes.plot(*([x] for x in point), "o", color=INK, markersize=6, zorder=5)
        axes.set_xscale("log", base=2)
        lengths = [t for curve in (*pipeline.values(), *zero.values()) for t in curve[0]]
        tokens_axis(axes.xaxis, sorted({int(t) for t in lengths})[::2], "tokens of a step")
        axes.set_ylabel("time over arithmetic")
        axes.set_ylim(0.9, None)
        figure.legend(loc="outside lower center", ncols=2, columnspacing=1.4)
    return figure
