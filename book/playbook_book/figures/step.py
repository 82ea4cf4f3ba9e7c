"""A training step drawn: which box runs when, where the gradients come from, how long it all takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, PAPER, WIDTH, rc_parameters
from playbook.figures.units import format_count
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.by_hand import Box

WIDE, TALL = 0.84, 0.56  # of a box, in units of the grid


def step_flow(row: Sequence[Box], optimizer_s: float) -> Figure:
    """Boxes of the model as columns, passes as rows, numbered in the order they run; below, the same on a time axis.

    ``row`` has been run by ``playbook.instruments.by_hand.step_by_boxes``, ``optimizer_s`` is how long the update took.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, (flow, clock) = plt.subplots(2, 1, figsize=(WIDTH, 4.3), height_ratios=(3.4, 1))
        _flow(flow, row)
        _clock(clock, row, optimizer_s)
    return figure


def _flow(axes: Any, row: Sequence[Box]) -> None:
    n = len(row)
    for i, box in enumerate(row):
        axes.text(i, 3.52, box.name, ha="center", fontsize=9)
        _box(axes, i, 3, "F", f"F {i + 1}")
        _box(axes, i, 2, "B", f"B {2 * n - i}")
        _box(axes, i, 1, "gradients", format_count(box.parameters), hollow=True)
        _box(axes, i, 0, "optimizer", "update")
        _arrow(axes, (i, 2 - TALL / 2), (i, 1 + TALL / 2))
        _arrow(axes, (i, 1 - TALL / 2), (i, TALL / 2))
    for i in range(n - 1):
        _arrow(axes, (i + WIDE / 2, 3), (i + 1 - WIDE / 2, 3))
        _arrow(axes, (i + 1 - WIDE / 2, 2), (i + WIDE / 2, 2))
    _arrow(axes, (n - 1 + WIDE / 2, 3), (n - 1 + WIDE / 2, 2), connectionstyle="arc3,rad=-0.9")
    axes.text(n - 0.3, 2.5, "loss", ha="right", va="center", fontsize=9.5)
    names = ("forward", "backward", "gradients", "optimizer")
    for y, name in zip((3, 2, 1, 0), names, strict=True):
        axes.text(-0.62, y, name, ha="right", va="center", fontsize=9.5)
    axes.set(xlim=(-1.75, n + 0.15), ylim=(-0.4, 3.8))
    axes.set_axis_off()


def _box(axes: Any, x: float, y: float, concept: str, text: str, *, hollow: bool = False) -> None:
    from matplotlib.patches import FancyBboxPatch

    hue = PALETTE[concept]
    axes.add_patch(
        FancyBboxPatch(
            (x - WIDE / 2 + 0.06, y - TALL / 2 + 0.06),
            WIDE - 0.12,
            TALL - 0.12,
            boxstyle="round,pad=0.06",
            facecolor=(hue, 0.0 if hollow else 0.25),
            edgecolor=hue,
            linewidth=1.4,
        )
    )
    axes.text(x, y, text, ha="center", va="center", fontsize=9.5)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], **style: Any) -> None:
    arrow = {
        "arrowstyle": "-|>",
        "linewidth": 1.0,
        "color": rc_parameters()["text.color"],
        "shrinkA": 1,
        "shrinkB": 1,
    }
    axes.annotate("", end, start, arrowprops={**arrow, **style})


def _clock(axes: Any, row: Sequence[Box], optimizer_s: float) -> None:
    spans = [("F", box.forward_s) for box in row] + [("B", box.backward_s) for box in reversed(row)]
    now = 0.0
    for concept, seconds in [*spans, ("optimizer", optimizer_s)]:
        axes.barh(0, seconds, 0.5, now, color=PALETTE[concept], edgecolor=PAPER, linewidth=0.8)
        now += seconds
    begin = 0.0
    parts = {"forward": sum(b.forward_s for b in row), "backward": sum(b.backward_s for b in row)}
    for name, seconds in {**parts, "optimizer": optimizer_s}.items():
        at, side = (now, "right") if name == "optimizer" else (begin + seconds / 2, "center")
        axes.text(at, 0.36, f"{name} {seconds / now:.0%}", ha=side, fontsize=9.5)
        begin += seconds
    axes.set(ylim=(-0.3, 0.75), yticks=[], xlim=(0, now))
    axes.spines["left"].set_visible(False)
    axes.grid(False)
    seconds_axis(axes.xaxis, "time in the step")
