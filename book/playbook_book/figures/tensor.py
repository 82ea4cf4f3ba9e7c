"""Tensor parallelism drawn: matrices cut by columns and by rows, heads sharded over ranks, masks of dropout, gradients
that are off, and what sending and memory come to over the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import bytes_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = rc_parameters()["text.color"]
PALE = 0.3

Matrix = Sequence[Sequence[float]]
#: The rank that has a cell, by row and column; None where all have it.
Owner = Callable[[int, int], int | None]


def two_cuts(a: Matrix, b: Matrix) -> Figure:
    """A·B on two ranks, number by number: above B cut by columns, below B cut by rows and A by columns.

    Cells have the hue of the rank that holds or computes them, none where both do. The inner size and the width of B must
    be even.
    """
    import matplotlib.pyplot as plt

    inner, width = len(b), len(b[0])
    if inner % 2 or width % 2:
        raise ValueError(f"b must have an even number of rows and columns, got {inner} and {width}")

    def left(i: int, j: int) -> int:
        return 2 * j // width

    halves = slice(0, inner // 2), slice(inner // 2, inner)
    partial = [_product([row[half] for row in a], b[half]) for half in halves]
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 0.9 + 0.8 * max(len(a), inner)))
        _equation(panels[0], [(a, None), "·", (b, left), "=", (_product(a, b), left)])
        panels[0].set_title("by columns: results side by side", fontsize=10)
        _equation(
            panels[1],
            [
                (a, lambda i, j: 2 * j // inner), "·", (b, lambda i, j: 2 * i // inner), "=",
                (partial[0], lambda i, j: 0), "+", (partial[1], lambda i, j: 1), "=", (_product(a, b), None),
            ],
        )  # fmt: skip
        panels[1].set_title("by rows: results added up", fontsize=10)
        limits = (-0.1, max(axes.get_xlim()[1] for axes in panels))
        for axes in panels:
            axes.set_xlim(*limits)
        _legend(figure, 2)
    return figure


def _product(a: Matrix, b: Matrix) -> Matrix:
    return [[sum(x * row[j] for x, row in zip(line, b, strict=True)) for j in range(len(b[0]))] for line in a]


def _equation(axes: Any, parts: Sequence[str | tuple[Matrix, Owner | None]]) -> None:
    """Matrices and signs from left to right, all on one middle line."""
    x, tall = 0.0, max(len(part[0]) for part in parts if not isinstance(part, str))
    for part in parts:
        if isinstance(part, str):
            axes.text(x + 0.4, 0, part, ha="center", va="center", fontsize=13)
            x += 0.8
            continue
        matrix, owner = part
        for i, row in enumerate(matrix):
            for j, value in enumerate(row):
                rank = owner(i, j) if owner else None
                y = len(matrix) / 2 - i - 1
                _cell(axes, x + j, y, 1, 1, f"{value:g}", rank)
        x += len(matrix[0])
    axes.set(xlim=(-0.1, x + 0.1), ylim=(-tall / 2 - 0.1, tall / 2 + 0.1), aspect="equal", anchor="W")
    axes.set_axis_off()


def _cell(axes: Any, x: float, y: float, wide: float, high: float, text: str, rank: int | None) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    hue = PALETTE["idle"] if rank is None else CYCLE[rank]
    face = to_rgba(hue, 0.0 if rank is None else PALE)
    axes.add_patch(Rectangle((x, y), wide, high, facecolor=face, edgecolor=hue, linewidth=1.0))
    axes.text(x + wide / 2, y + high / 2, text, ha="center", va="center", fontsize=9.5)


def _legend(figure: Any, ranks: int, *, shared: bool = True) -> None:
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=to_rgba(hue, PALE), edgecolor=hue, linewidth=1, label=f"rank {rank}")
        for rank, hue in enumerate(CYCLE[:ranks])
    ]
    if shared:
        patches.append(Patch(facecolor="none", edgecolor=PALETTE["idle"], linewidth=1, label="every rank"))
    figure.legend(handles=patches, loc="outside lower center", ncols=len(patches))


def column_then_row(ranks: int = 2) -> Figure:
    """An MLP as its matrices, from x to z: the first cut by columns, the second by rows, f and f* at the borders.

    ``ranks`` is 2 to 6, as many as there are hues.
    """
    import matplotlib.pyplot as plt

    _check_ranks(ranks)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.0))
        across, down = (1.9, 1.5), (0.95, 1.9)  # wide and high, of an activation of width 4h and of W₂
        _whole(axes, 0.0, 0.95, 1.5, "x\n(b·s, h)")
        _arrow(axes, 1.0, 1.55, "f")
        _slabs(axes, 1.6, (1.9, 0.95), ranks, "W₁  (h, 4h)", columns=True)
        _arrow(axes, 3.55, 4.1, "φ")
        _slabs(axes, 4.15, across, ranks, "φ(x·W₁)", columns=True)
        axes.text(6.25, 0, "·", ha="center", va="center", fontsize=15)
        _slabs(axes, 6.45, down, ranks, "W₂  (4h, h)", columns=False)
        _arrow(axes, 7.45, 8.0, "f*")
        _whole(axes, 8.05, 0.95, 1.5, "z\n(b·s, h)")
        axes.set(xlim=(-0.05, 9.05), ylim=(-1.05, 1.4), aspect="equal")
        axes.set_axis_off()
        _legend(figure, ranks)
    return figure


def _check_ranks(ranks: int) -> None:
    if not 2 <= ranks <= len(CYCLE):
        raise ValueError(f"ranks must be 2 to {len(CYCLE)}, a hue each, got {ranks}")


def _whole(axes: Any, x: float, wide: float, high: float, text: str) -> None:
    _cell(axes, x, -high / 2, wide, high, text, None)


def _slabs(axes: Any, x: float, size: tuple[float, float], ranks: int, text: str, *, columns: bool) -> None:
    """A matrix in as many slabs as there are ranks, side by side or under each other; its name stands above."""
    wide, high = size
    for rank in range(ranks):
        if columns:
            _cell(axes, x + rank * wide / ranks, -high / 2, wide / ranks, high, str(rank), rank)
        else:
            top = high / 2 - (rank + 1) * high / ranks
            _cell(axes, x, top, wide, high / ranks, str(rank), rank)
    axes.text(x + wide / 2, high / 2 + 0.1, text, ha="center", va="bottom", fontsize=9.5)


def _arrow(axes: Any, x: float, end: float, text: str) -> None:
    axes.annotate("", (end, 0), (x, 0), arrowprops={"arrowstyle": "-|>", "linewidth": 1.1, "color": INK})
    axes.text((x + end) / 2, 0.12, text, ha="center", va="bottom", fontsize=11, style="italic")


def heads(dealt: Mapping[str, Sequence[tuple[range, range]]]) -> Figure:
    """Which heads each rank has: a panel for each title, a row of query heads above one of key/value heads.

    ``dealt`` maps a title to (query heads, key/value heads) of every rank, at most 6 ranks. A key/value head stands under
    the query heads that read it, in as many slabs as ranks have it.
    """
    import matplotlib.pyplot as plt

    most = max(len(ranks) for ranks in dealt.values())
    _check_ranks(most)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(len(dealt), 1, figsize=(WIDTH, 0.5 + 1.15 * len(dealt)), squeeze=False)
        for axes, (title, ranks) in zip(panels[:, 0], dealt.items(), strict=True):
            _dealt(axes, ranks)
            axes.set_title(title, fontsize=10)
        _legend(figure, most, shared=False)
    return figure


def _dealt(axes: Any, ranks: Sequence[tuple[range, range]]) -> None:
    queries = 1 + max(head for mine, _ in ranks for head in mine)
    kv = 1 + max(head for _, mine in ranks for head in mine)
    for rank, (own, _) in enumerate(ranks):
        for head in own:
            _cell(axes, head, 1.1, 0.94, 0.9, str(head), rank)
    for head in range(kv):
        having = [rank for rank, (_, mine) in enumerate(ranks) if head in mine]
        wide = queries / kv / len(having)
        for i, rank in enumerate(having):
            _cell(axes, head * queries / kv + i * wide, 0, wide - 0.06, 0.9, str(head), rank)
    for y, name in ((1.55, "query heads"), (0.45, "key/value heads")):
        axes.text(-0.15, y, name, ha="right", va="center", fontsize=9)
    axes.set(xlim=(-2.4, queries), ylim=(-0.1, 2.1))
    axes.set_axis_off()


def masks(shown: Mapping[str, Sequence[Matrix]]) -> Figure:
    """What dropout left on each rank: a row of panels for each title, a panel for each rank; dropped is dark.

    ``shown`` maps a title to a matrix for each rank, in which 0 is dropped.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    ranks = max(len(row) for row in shown.values())
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            len(shown), ranks, figsize=(WIDTH, 0.4 + 1.25 * len(shown)), squeeze=False
        )
        for row, (title, matrices) in zip(panels, shown.items(), strict=True):
            for rank, (axes, matrix) in enumerate(zip(row, matrices, strict=True)):
                # One path with a square for each: a page that draws them one by one is heavy.
                squares = [
                    Path([(x, y), (x + 1, y), (x + 1, y + 1), (x, y + 1), (x, y)], closed=True)
                    for y, line in enumerate(matrix)
                    for x, kept in enumerate(line)
                    if not kept
                ]
                if squares:
                    dropped = Path.make_compound_path(*squares)
                    axes.add_patch(PathPatch(dropped, color=PALETTE["activations"], linewidth=0))
                axes.set(xticks=[], yticks=[], xlim=(0, len(matrix[0])), ylim=(len(matrix), 0))
                axes.grid(False)
                for side in axes.spines.values():
                    side.set_visible(True)
                axes.set_title(f"{title}, rank {rank}", fontsize=9, fontweight="normal")
    return figure


def wrong_gradients(
    losses: Mapping[str, Sequence[float]], errors: Mapping[str, Sequence[float]], rounding: float = 1e-5
) -> Figure:
    """A loss curve that hides a bug beside the gradients that show it.

    ``losses`` maps runs to their loss by step, the right one first and the one with the bug last; ``errors`` maps parts
    of the model to the relative errors of their gradients, which rounding keeps below ``rounding``.
    """
    import matplotlib.pyplot as plt

    looks = (("idle", "-", 3.2), ("F", "-", 1.4), ("B", "--", 1.6))
    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.9), width_ratios=(1, 1.15))
        for (name, values), (hue, dash, thick) in zip(losses.items(), looks, strict=True):
            left.plot(range(len(values)), values, dash, color=PALETTE[hue], label=name, linewidth=thick)
        left.set(xlabel="step", ylabel="loss", title="loss")
        left.legend()
        for i, values in enumerate(errors.values()):
            far = [max(value, 1e-8) for value in values]
            right.plot(far, [i] * len(far), "o", color=PALETTE["B"], markersize=4, alpha=0.6)
        right.axvline(rounding, color=PALETTE["idle"], linestyle="--", linewidth=1)
        right.set(xscale="log", xlim=(3e-9, 30), xlabel="relative error", title="gradients of the first step")
        right.set(yticks=range(len(errors)), yticklabels=list(errors), ylim=(len(errors) - 0.5, -0.5))
    return figure


def share_of_step(
    over_tp: Mapping[str, Sequence[float]],
    tps: Sequence[int],
    over_speed: Mapping[str, Sequence[float]],
    speeds: Sequence[float],
    marks: Mapping[float, str],
) -> Figure:
    """The share of a step that goes into all-reduces: left over tp, right over the bandwidth of a link.

    ``over_tp`` maps labels to shares at ``tps``, two lines for each model, solid and dashed; ``over_speed`` maps models
    to shares at ``speeds`` in bytes/s; ``marks`` names some of these.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.4), sharey=True)
        for i, (label, shares) in enumerate(over_tp.items()):
            look = {"color": PALETTE["FB"[i // 2]], "marker": "o", "markersize": 3}
            left.plot(tps, shares, "--" if i % 2 else "-", label=label, **look)
        left.set(xscale="log", xticks=tps, xticklabels=tps, xlabel="tp", ylim=(0, 1), title="over tp")
        left.set_ylabel("share of the step in all-reduces")
        left.minorticks_off()
        left.yaxis.set_major_formatter(lambda x, _: f"{x:.0%}")
        for hue, shares in zip("FB", over_speed.values(), strict=True):
            right.plot([x / 1e9 for x in speeds], shares, color=PALETTE[hue])
        for speed, text in marks.items():
            right.axvline(speed / 1e9, color=PALETTE["idle"], linewidth=1, linestyle=":")
            low = speed < 100e9  # where the curves are high
            place: dict[str, Any] = {"y": 0.03, "va": "bottom"} if low else {"y": 0.97, "va": "top"}
            right.text(speed / 1e9 * 0.94, s=text, rotation=90, ha="right", fontsize=9, **place)
        right.set(xscale="log", xticks=[25, 100, 400], xticklabels=[25, 100, 400])
        right.set(xlabel="GB/s per GPU", title="tp=8, over bandwidth")
        right.minorticks_off()
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def memory_over_tp(
    models: Mapping[str, Sequence[tuple[float, float, float]]],
    tps: Sequence[int],
    capacity: tuple[str, float],
) -> Figure:
    """Stacked bars of a rank's memory over tp: states, activations that tp divides, activations that are whole.

    ``models`` maps a title to these three, in bytes, at each of ``tps``; ``capacity`` is (name, bytes) of a device.
    """
    import matplotlib.pyplot as plt

    looks = (
        ("parameters, gradients, optimizer", "parameters", 1.0),
        ("activations, divided", "activations", 0.35),
        ("activations, whole on every rank", "activations", 1.0),
    )
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(models), figsize=(WIDTH, 3.3), squeeze=False)
        for axes, (title, parts) in zip(panels[0], models.items(), strict=True):
            floor = [0.0] * len(tps)
            for i, (label, hue, strength) in enumerate(looks):
                heights = [part[i] for part in parts]
                named = label if axes is panels[0, 0] else None
                color, edge = (PALETTE[hue], strength), PALETTE[hue]
                axes.bar(
                    range(len(tps)),
                    heights,
                    0.8,
                    floor,
                    color=color,
                    edgecolor=edge,
                    linewidth=0.7,
                    label=named,
                )
                floor = [a + b for a, b in zip(floor, heights, strict=True)]
            axes.axhline(capacity[1], color=PALETTE["idle"], linestyle="--", linewidth=1)
            where = axes.get_yaxis_transform()
            axes.text(1.01, capacity[1], capacity[0], transform=where, va="center", fontsize=9)
            axes.set_xticks(range(len(tps)), [str(tp) for tp in tps])
            axes.set(xlabel="tp", title=title)
            bytes_axis(axes.yaxis, "bytes on a rank" if axes is panels[0, 0] else None)
        figure.legend(loc="outside lower center", ncols=1)
    return figure
