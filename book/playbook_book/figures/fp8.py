"""FP8 drawn: which numbers of a matrix share a scale, and what a run loses when a scale is wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.training import running_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Dashes of runs, so that lines on top of each other can be told apart.
DASHES = ("-", "-", (0, (4, 2)), (0, (1, 1.2)))


def shared_scales(groups: Mapping[str, tuple[int, int]], rows: int, columns: int) -> Figure:
    """A matrix of ``rows`` × ``columns`` cells for each of ``groups``, by title; neighbours of one shade share a scale.

    Groups are (rows, columns) of cells. Raises ``ValueError`` for groups that do not divide the matrix.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    for name, (high, wide) in groups.items():
        if rows % high or columns % wide:
            raise ValueError(f"{name}: groups of {high} × {wide} do not divide {rows} × {columns} cells")
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(groups), figsize=(WIDTH, 1.15), squeeze=False)
        for axes, (name, (high, wide)) in zip(panels.flat, groups.items(), strict=True):
            for i in range(0, rows, high):
                for j in range(0, columns, wide):
                    shade = 0.85 if (i // high + j // wide) % 2 else 0.4
                    box = Rectangle((j, i), wide, high, facecolor=PALETTE["F"], alpha=shade, linewidth=0)
                    axes.add_patch(box)
            axes.set(xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("features")
        panels[0, 0].set_ylabel("tokens")
    return figure


def runs(
    losses: Mapping[str, Sequence[float]], lost: Mapping[str, Sequence[float]], fault: int, window: int = 5
) -> Figure:
    """Losses of runs by step, as running means, and below them the shares that a quantized tensor ``lost`` to 0.

    A line marks the step of the ``fault``. A run has the same colour in both.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    with plt.rc_context(rc_parameters()):
        figure, (above, below) = plt.subplots(2, 1, figsize=(WIDTH, 4.4), sharex=True, height_ratios=(3, 2))
        for i, (name, values) in enumerate(losses.items()):
            look = {"color": CYCLE[i], "linestyle": DASHES[i % len(DASHES)], "label": name}
            above.plot(running_mean(values, window), **look)
            if name in lost:
                below.plot(lost[name], **look)
        for axes in (above, below):
            axes.axvline(fault, color=INK, linewidth=0.8, linestyle=":")
            axes.margins(x=0.01)
        above.set_ylabel("loss (nats per token)")
        above.legend()
        below.set_ylabel("dy lost to 0")
        below.set_ylim(-0.03, 1.05)
        below.yaxis.set_major_formatter(PercentFormatter(1.0))
        below.set_xlabel("step")
    return figure
