"""Methods that talk less, drawn: values that spread over graphs, linear speed-up, errors over steps, labels of nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.decentralized.topology import Topology
from playbook.figures.style import BLUE, CYCLE, INK, ORANGE, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: (x, y, half the width of a band around it or 0).
Point = tuple[float, float, float]
Place = tuple[float, float]
#: Hues from the middle to either end of the scale of values.
HUES = 8


def mixing(graphs: Mapping[str, tuple[Topology, Sequence[Sequence[float]]]], steps: Sequence[int]) -> Figure:
    """A row for each graph: its nodes, and their values (of −1 to 1) before each of ``steps``, from blue to orange.

    ``graphs`` gives the topology and the values of all nodes by step. Lines are the messages that made the values.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            len(graphs), len(steps), squeeze=False, figsize=(WIDTH, 0.92 * len(graphs) + 0.3)
        )
        for row, (name, (made, values)) in zip(panels, graphs.items(), strict=True):
            where = _places(made)
            for axes, step in zip(row, steps, strict=True):
                sent = made.at(max(0, step - 1))
                pairs = sorted(
                    {(min(i, j), max(i, j)) for i, own in enumerate(sent) for j, _ in own if i != j}
                )
                _strokes(axes, [(where[i], where[j]) for i, j in pairs], PALETTE["idle"], 0.6)
                _nodes(axes, where, values[step])
                axes.set(xlim=(-1.2, 1.2), ylim=(-1.2, 1.2), aspect="equal")
                axes.set_axis_off()
            said = name.replace("-exp", "-\nexp")
            row[0].text(-1.45, 0, said, ha="right", va="center", fontsize=9, clip_on=False)
        for axes, step in zip(panels[0], steps, strict=True):
            axes.set_title(
                "start" if not step else f"{step} step{'s' * (step > 1)}", fontsize=9, loc="center"
            )
    return figure


def _nodes(axes: Any, where: Sequence[Place], values: Sequence[float]) -> None:
    """Dots, those of one hue as one path: hundreds of nodes would be most of a page's bytes otherwise."""
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    hues = LinearSegmentedColormap.from_list("values", [BLUE, "#e9eaec", ORANGE])
    _strokes(axes, [(place, place) for place in where], INK, 6.6)
    levels = [round(HUES * value) for value in values]
    for level in sorted(set(levels)):
        here = [place for place, own in zip(where, levels, strict=True) if own == level]
        _strokes(axes, [(place, place) for place in here], to_hex(hues((level / HUES + 1) / 2)), 5.6)


def _strokes(axes: Any, lines: Sequence[tuple[Place, Place]], hue: str, wide: float) -> None:
    """Lines from place to place as one path, with round ends: of no length they are dots."""
    x, y = (
        [value for start, end in lines for value in (start[axis], end[axis] + 1e-3, math.nan)]
        for axis in (0, 1)
    )
    axes.plot(x, y, color=hue, linewidth=wide, solid_capstyle="round", clip_on=False)


def _places(made: Topology) -> list[tuple[float, float]]:
    """Where nodes stand: on a square grid, around a centre, or on a circle."""
    n, side = made.n, math.isqrt(made.n)
    if made.name in ("grid", "torus") and side * side == n:
        return [(2 * (i % side) / (side - 1) - 1, 1 - 2 * (i // side) / (side - 1)) for i in range(n)]
    around = n - 1 if made.name == "star" else n
    circle = [(math.sin(2 * math.pi * i / around), math.cos(2 * math.pi * i / around)) for i in range(around)]
    return [(0.0, 0.0), *circle] if made.name == "star" else circle


def speed_up(counts: Mapping[int, Sequence[float]]) -> Figure:
    """Steps to a target by number of nodes, a dot a run, their means as a line, and the line of a speed-up of n."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import ScalarFormatter

    nodes = list(counts)
    means = [sum(runs) / len(runs) for runs in counts.values()]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        axes.plot(
            nodes, [means[0] * nodes[0] / n for n in nodes], ":", color=INK, linewidth=1.2, label="one n-th"
        )
        for n, runs in counts.items():
            axes.plot([n] * len(runs), runs, "o", color=PALETTE["dp"], markersize=3.5, alpha=0.4)
        axes.plot(nodes, means, color=PALETTE["dp"], label="mean of the runs")
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="steps to the target")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(ScalarFormatter())
        axes.set_xticks(nodes, [str(n) for n in nodes])
        axes.minorticks_off()
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def curves(
    panels: Mapping[str, Mapping[str, Sequence[Point]]],
    xlabel: str,
    ylabel: str,
    *,
    log: str = "y",
) -> Figure:
    """Panels side by side on one y axis, in each its curves with bands; ``log`` names the axes that are logarithmic.

    A curve has the same hue in all panels.
    """
    import matplotlib.pyplot as plt

    names = list(dict.fromkeys(name for lines in panels.values() for name in lines))
    hues = dict(zip(names, CYCLE, strict=False))
    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(panels), sharey=True, squeeze=False, figsize=(WIDTH, 3.1))
        for axes, (title, lines) in zip(row[0], panels.items(), strict=True):
            for name, points in lines.items():
                _curve(axes, points, hues[name], name)
            axes.set(
                xlabel=xlabel,
                xscale="log" if "x" in log else "linear",
                yscale="log" if "y" in log else "linear",
            )
            axes.set_title(title if len(panels) > 1 else "", fontsize=9.5)
        row[0][0].set_ylabel(ylabel)
        handles = {line.get_label(): line for axes in row[0] for line in axes.lines}
        figure.legend(handles=[handles[name] for name in names], loc="outside lower center", ncols=3)
    return figure


def _curve(axes: Any, points: Sequence[Point], hue: str, name: str) -> None:
    x, y, half = zip(*points, strict=True)
    axes.plot(x, y, color=hue, label=name)
    if any(half):
        low, high = ([b + sign * h for b, h in zip(y, half, strict=True)] for sign in (-1, 1))
        axes.fill_between(x, low, high, color=hue, alpha=0.2, linewidth=0)


def shares(splits: Mapping[str, Sequence[Sequence[float]]]) -> Figure:
    """Panels side by side: of each node (column) the share of each label (row), as a square of that area."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(splits), sharey=True, squeeze=False, figsize=(WIDTH, 1.75))
        for axes, (title, nodes) in zip(row[0], splits.items(), strict=True):
            squares = []
            for node, labels in enumerate(nodes):
                for label, half in enumerate(math.sqrt(share) / 2 for share in labels):
                    low, high = (node - half, label - half), (node + half, label + half)
                    corners = [low, (high[0], low[1]), high, (low[0], high[1]), low]
                    if half > 0.02:  # what is smaller cannot be seen
                        squares.append(Path(corners, closed=True))
            axes.add_patch(PathPatch(Path.make_compound_path(*squares), facecolor=PALETTE["data"]))
            axes.set(
                xlim=(-0.7, len(nodes) - 0.3), ylim=(-0.7, len(nodes[0]) - 0.3), aspect="equal", xlabel="node"
            )
            axes.set_title(title, fontsize=9.5)
            axes.grid(False)
        row[0][0].set_ylabel("label")
    return figure
