"""Kernels drawn: which numbers each program of a grid has, and where a mask keeps the last one inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def programs(n: int, block: int) -> Figure:
    """A row for each program of the grid over ``n`` numbers, ``block`` positions in each; those from n on are masked.

    A row in memory lies below, each number in the colour of its program.
    """
    import matplotlib.pyplot as plt

    count = -(-n // block)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.55 * (count + 2)))
        for at in range(count * block):
            program = at // block
            _cell(axes, at, -program, str(at), CYCLE[program % len(CYCLE)], inside=at < n)
        for program in range(count):
            axes.text(-0.9, -program, f"program {program}", ha="right", va="center", fontsize=9.5)
        if masked := count * block - n:
            axes.text(n + masked / 2 - 0.5, 1.5 - count, "masked", ha="center", va="center", fontsize=9)
        below = -count - 0.35
        for at in range(n):
            _cell(axes, at, below, f"x[{at}]", CYCLE[at // block % len(CYCLE)], inside=True)
        axes.text(-0.9, below, "memory", ha="right", va="center", fontsize=9.5)
        axes.text(count * block - 0.5, below, "end of x", ha="right", va="center", fontsize=9, style="italic")
        axes.axvline(n - 0.5, color=PALETTE["communication"], linewidth=1.4, linestyle="--")
        axes.set(xlim=(-3.3, count * block - 0.4), ylim=(below - 0.6, 0.6))
        axes.set_axis_off()
    return figure


def _cell(axes: Any, x: float, y: float, text: str, hue: str, *, inside: bool) -> None:
    from matplotlib.patches import Rectangle

    look = {"facecolor": hue, "alpha": 0.35} if inside else {"facecolor": "none", "linestyle": ":"}
    axes.add_patch(Rectangle((x - 0.46, y - 0.36), 0.92, 0.72, edgecolor=hue, linewidth=1.0, **look))
    axes.text(x, y, text, ha="center", va="center_baseline", fontsize=9)
