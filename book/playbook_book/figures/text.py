"""Text as a model sees it, drawn: tokens in boxes, and how much each one surprised it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import BLUE, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAND_INS = {" ": "␣", "\n": "⏎", "\t": "⇥"}  # what would be invisible in a box
STRONGEST = 0.62  # opacity of the largest surprise: ink on it stays readable in light and in dark


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


def surprise(text: str, losses: Sequence[float], *, columns: int = 40, most: float | None = None) -> Figure:
    """Each character on a ground the stronger the higher its loss (nats), with a scale.

    ``most`` is the loss of the strongest ground (the highest one when None). Raises ``ValueError`` when there
    are not as many losses as characters.
    """
    import matplotlib.pyplot as plt

    if len(text) != len(losses):
        raise ValueError(f"text has {len(text)} characters, but there are {len(losses)} losses")
    most = most or max(losses)
    lines = -(-len(text) // columns)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.27 * lines + 0.55))
        for i, (character, loss) in enumerate(zip(text, losses, strict=True)):
            strength = STRONGEST * min(1.0, loss / most)
            _tile(axes, i % columns, -(i // columns), character, BLUE, strength, high=1.0, fontsize=10)
        _scale(axes, columns, -lines - 0.35, most)
        axes.set(xlim=(-0.6, columns - 0.4), ylim=(-lines - 1.0, 0.6))
        axes.set_axis_off()
    return figure


def _scale(axes: Any, columns: int, y: float, most: float) -> None:
    """Grounds from none to the strongest, with their losses."""
    axes.text(-0.5, y, "loss of the character (nats):", va="center", fontsize=9)
    for i in range(5):
        x = columns * (0.48 + 0.1 * i)
        _tile(axes, x, y, "", BLUE, STRONGEST * i / 4, high=0.8)
        axes.text(x + 0.9, y, f"{most * i / 4:.1f}", va="center", fontsize=9)


def _tile(
    axes: Any,
    x: float,
    y: float,
    character: str,
    hue: str,
    strength: float,
    *,
    high: float = 0.72,
    fontsize: float = 11,
) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.5, y - high / 2), 1.0, high, facecolor=hue, alpha=strength, linewidth=0))
    shown = STAND_INS.get(character, character)
    faint = 0.45 if shown != character else 1.0
    axes.text(
        x, y, shown, ha="center", va="center_baseline", fontsize=fontsize, alpha=faint, family="monospace"
    )
