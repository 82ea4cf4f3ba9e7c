"""Text as a model sees it, drawn: tokens in boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAND_INS = {" ": "␣", "\n": "⏎", "\t": "⇥"}  # what would be invisible in a box


def shifted_tokens(inputs: str, targets: str) -> Figure:
    """Two rows of boxes, a character each: what the model reads, and below it what it should say next.

    Raises ``ValueError`` when the rows differ in length.
    """
    import matplotlib.pyplot as plt

    if len(inputs) != len(targets):
        raise ValueError(f"inputs have {len(inputs)} characters, targets {len(targets)}")
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.35))
        for y, text, hue in ((1.0, inputs, PALETTE["F"]), (0.0, targets, PALETTE["B"])):
            for x, character in enumerate(text):
                _tile(axes, x, y, character, hue, 0.25)
        arrow = {
            "arrowstyle": "-|>",
            "linewidth": 0.7,
            "mutation_scale": 7,
            "color": rc_parameters()["text.color"],
        }
        for x in range(len(inputs)):
            axes.annotate("", (x, 0.38), (x, 0.62), arrowprops=arrow)
        for y, name in ((1.0, "inputs"), (0.0, "targets")):
            axes.text(-0.9, y, name, ha="right", va="center", fontsize=9.5)
        axes.set(xlim=(-4.2, len(inputs) - 0.4), ylim=(-0.45, 1.45))
        axes.set_axis_off()
    return figure


def _tile(axes: Any, x: float, y: float, character: str, hue: str, strength: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - 0.36), 1.0, 0.72, facecolor=hue, alpha=strength, linewidth=0))
    shown = STAND_INS.get(character, character)
    faint = 0.45 if shown != character else 1.0
    axes.text(x, y, shown, ha="center", va="center_baseline", fontsize=11, alpha=faint, family="monospace")
