"""The network of a cluster, drawn: nodes of GPUs behind a switch, an adapter for each GPU, and rails between nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playbook.figures.style import INK, PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook.planning.links import AlphaBeta, Network

#: Hues: what computes, what connects the GPUs of a node, what goes to the next one.
GPU, INSIDE, BETWEEN = PALETTE["compute"], PALETTE["memory"], PALETTE["communication"]


def two_levels(network: Network) -> Figure:
    """Two nodes, one the mirror image of the other: GPUs on a switch, and beside every GPU its NIC on a rail."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Rectangle

    g = network.ranks_per_node
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))

        def box(x: float, y: float, wide: float, high: float, hue: str) -> None:
            axes.add_patch(
                Rectangle((x - wide / 2, y - high / 2), wide, high, facecolor=hue, edgecolor="none")
            )

        for node, up in enumerate((1, -1)):
            switch, gpus, adapters = (up * y for y in (2.1, 1.4, 0.75))
            frame = Rectangle((-0.75, up * 1.42 - 1.0), g + 0.5, 2.0, facecolor="none", linewidth=1.2)
            frame.set_edgecolor(PALETTE["idle"])
            axes.add_patch(frame)
            box((g - 1) / 2, switch, g - 0.2, 0.22, INSIDE)
            for gpu in range(g):
                axes.plot([gpu, gpu], [switch, adapters], color=INK, linewidth=0.8, zorder=0)
                box(gpu, gpus, 0.74, 0.46, GPU)
                number = str(node * g + gpu)
                axes.text(gpu, gpus - 0.01, number, ha="center", va="center", fontsize=9, color="white")
                box(gpu, adapters, 0.4, 0.24, BETWEEN)
            for y, said in (
                (switch, f"switch: {_said(network.intra)}"),
                (gpus, f"GPUs of node {node}"),
                (adapters, f"NIC: {_said(network.inter)}"),
            ):
                axes.text(g, y, said, va="center", fontsize=8.5)
        for rail in range(g):
            axes.plot([rail, rail], [-0.75, 0.75], color=BETWEEN, linewidth=1.8, zorder=0)
        said = f"{g} rails: {network.rails.bandwidth / 1e9:.0f} GB/s"
        axes.text(g, 0, said, va="center", fontsize=8.5, weight="bold")
        axes.set(xlim=(-0.85, g + 4.2), ylim=(-2.5, 2.5))
        axes.set_axis_off()
    return figure


def _said(link: AlphaBeta) -> str:
    return f"{link.bandwidth / 1e9:.0f} GB/s, {format_seconds(link.alpha)}"
