"""The palette and the matplotlib style of the book.

Six hues serve every concept, and a concept keeps its hue in every figure and widget. They were chosen so
that within each set of `SETS` any two stay apart (CIEDE2000 ≥ 12) for readers with normal sight and for
simulated protanopia, deuteranopia and tritanopia, and so that each has a contrast of at least 3:1 on the
light page *and* on the dark one (WCAG 2.1, 1.4.11). ``tests/figures/test_style.py`` measures both.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

BLUE, ORANGE, TEAL = "#2f72d8", "#d77c3a", "#2ea17a"
PLUM, GREY, OLIVE = "#a13e90", "#848c96", "#816702"

PALETTE = MappingProxyType(
    {
        # What fills the memory of a device.
        "parameters": BLUE,
        "gradients": ORANGE,
        "optimizer": TEAL,
        "activations": PLUM,
        "buffers": OLIVE,
        "temporary": GREY,
        # The passes of a pipeline schedule: forward, backward for inputs, backward for weights.
        "F": BLUE,
        "B": ORANGE,
        "W": TEAL,
        # Axes of parallelism.
        "dp": BLUE,
        "tp": ORANGE,
        "cp": TEAL,
        "pp": PLUM,
        "ep": OLIVE,
        # What the time of a device goes to; "memory" is copies, "data" is input.
        "compute": BLUE,
        "communication": ORANGE,
        "idle": GREY,
        "launch": PLUM,
        "memory": TEAL,
        "data": OLIVE,
    }
)

# Concepts that stand beside each other in one figure, and therefore must not share a colour.
SETS = MappingProxyType(
    {
        "memory": ("parameters", "gradients", "optimizer", "activations", "buffers", "temporary"),
        "passes": ("F", "B", "W", "idle"),
        "axes": ("dp", "tp", "cp", "pp", "ep"),
        "time": ("compute", "communication", "idle", "launch", "memory", "data"),
    }
)

CYCLE = (BLUE, ORANGE, TEAL, PLUM, OLIVE, GREY)

LIGHT_PAGE, DARK_PAGE = "#ffffff", "#14181e"

# Stand-ins that `display` turns into the page's own text colour and background. Seen raw (a saved PNG), they
# are what they look like: nearly black and nearly white.
INK, PAPER = "#1f2328", "#fefefe"

FONT_SIZE = 10.5
WIDTH, HEIGHT = 5.8, 3.2  # inches: 557 px wide in the page, so that text stays legible at phone width


def colour(name: str, position: int = 0) -> str:
    """The colour of the concept ``name``; for a name without one, the ``position``-th hue of the cycle."""
    return PALETTE.get(name) or CYCLE[position % len(CYCLE)]


def css_variables(selector: str = ":root") -> str:
    """The palette as CSS custom properties, ``--pb-parameters: #…`` and so on."""
    lines = [f"  --pb-{name}: {value};" for name, value in PALETTE.items()]
    return "\n".join([f"{selector} {{", *lines, "}", ""])


def rc_parameters() -> dict[Any, Any]:
    """The matplotlib settings of the book, as ``plt.rc_context`` and ``matplotlib.style`` take them."""
    from cycler import cycler

    ink = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(ink, INK),
        "figure.figsize": (WIDTH, HEIGHT),
        "figure.facecolor": "none",
        "figure.dpi": 96,
        "figure.constrained_layout.use": True,
        "savefig.facecolor": "none",
        "savefig.transparent": True,
        "axes.facecolor": "none",
        "axes.prop_cycle": cycler(color=list(CYCLE)),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.grid": True,
        "axes.grid.axis": "y",
        "axes.titlesize": FONT_SIZE,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.labelsize": FONT_SIZE,
        "grid.color": INK,
        "grid.alpha": 0.14,
        "grid.linewidth": 0.7,
        "xtick.labelsize": FONT_SIZE - 1,
        "ytick.labelsize": FONT_SIZE - 1,
        "xtick.major.width": 0.8,
        "ytick.major.width": 0.8,
        "xtick.major.size": 3.5,
        "ytick.major.size": 3.5,
        "font.family": "sans-serif",
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT_SIZE,
        "legend.frameon": False,
        "legend.fontsize": FONT_SIZE - 1,
        "legend.handlelength": 1.2,
        "legend.handleheight": 0.9,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "patch.linewidth": 0.0,
        "svg.fonttype": "none",
        "svg.hashsalt": "playbook",
    }


def use() -> None:
    """Make every figure drawn from here on look like the book."""
    import matplotlib

    matplotlib.rcParams.update(rc_parameters())
