"""The network of a cluster, drawn: nodes of GPUs behind a switch, a NIC for each, rails between; and what NCCL takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_seconds
from playbook.planning import nccl
from playbook.planning.communication import bus_bandwidth
from playbook_book.figures.axes import log_bytes_axis

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from playbook.collectives.links import AlphaBeta
    from playbook.hardware import Cluster
    from playbook_book.collectives.network import Network

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
        said = f"{g} rails: {g * network.inter.bandwidth / 1e9:.0f} GB/s"
        axes.text(g, 0, said, va="center", fontsize=8.5, weight="bold")
        axes.set(xlim=(-0.85, g + 4.2), ylim=(-2.5, 2.5))
        axes.set_axis_off()
    return figure


def _said(link: AlphaBeta) -> str:
    return f"{link.bandwidth / 1e9:.0f} GB/s, {format_seconds(link.alpha)}"


#: Hues of algorithms; of a protocol, how strong. Mixed with white on either page, so that their names stay legible.
ALGORITHMS = {
    "ring": PALETTE["dp"], "tree": PALETTE["tp"], "NVLS": PALETTE["cp"], "NVLS tree": PALETTE["pp"], "PAT": PALETTE["ep"]
}  # fmt: skip
STRONG = {"LL": 0.35, "LL128": 0.65, "Simple": 1.0}


def choices(cluster: Cluster) -> Figure:
    """Which way NCCL takes by size and number of GPUs: of an all-reduce, and of an all-gather."""
    import matplotlib.pyplot as plt
    from matplotlib.colors import to_rgb

    def hue(way: nccl.Way) -> tuple[float, ...]:
        strong = STRONG[way.protocol]
        return tuple(1 - strong + strong * part for part in to_rgb(ALGORITHMS[way.algorithm]))

    sizes, gpus = [2**e for e in range(10, 35)], [2**e for e in range(3, 13)]
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, 2, figsize=(WIDTH, 3.3), sharey=True)
        for axes, collective in zip(panels, ("all_reduce", "all_gather"), strict=True):
            taken = [[nccl.on(cluster, collective, size, n) for size in sizes] for n in gpus]
            hues = [[hue(way) for way in row] for row in taken]
            axes.imshow(hues, aspect="auto", origin="lower", interpolation="nearest")
            for name in dict.fromkeys(str(way) for row in taken for way in row):
                here = [
                    (x, y) for y, row in enumerate(taken) for x, way in enumerate(row) if str(way) == name
                ]
                # The widest row of a region has room for its name.
                rows = {y: [x for x, row in here if row == y] for _, y in here}
                y = max(rows, key=lambda row: (len(rows[row]), -abs(row - 5)))
                if len(rows[y]) > 3:
                    middle = sum(rows[y]) / len(rows[y])
                    label = name.replace(" ", "\n", 1) if len(rows[y]) < 7 else name
                    red, green, blue = hue(taken[y][rows[y][0]])
                    ink = "white" if 0.21 * red + 0.72 * green + 0.07 * blue < 0.47 else "#101418"
                    axes.text(middle, y, label, ha="center", va="center", fontsize=8.5, color=ink)
            axes.set_title(collective.replace("_", "-"), fontsize=10)
            axes.set_xticks(range(0, 25, 5), ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"], fontsize=8.5)
            axes.set_xlabel("size of the vector")
            axes.grid(visible=False)
        panels[0].set_yticks(range(0, 10, 3), ["8", "64", "512", "4,096"])
        panels[0].set_ylabel("GPUs")
    return figure


#: Tables of published runs that are drawn, by source and ranks: what each is called.
DRAWN = {
    ("nvidia-llmb-nccl", 8): "8 H100",
    ("vultr-b200-poc", 16): "2 nodes of B200",
    ("nccl-tests-309-gj", 64): "8 nodes of H100",
    ("nccl-tests-322", 1024): "128 nodes of H100, LL128",
}


def published(tables: Sequence[Mapping[str, Any]]) -> Figure:
    """Bus bandwidth of all-reduces that others measured, and what a fit without them predicts."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.3))
        for hue, marker, (which, name) in zip(CYCLE, "os^D", DRAWN.items(), strict=False):
            one = next(
                t for t in tables if (t["source"], t["ranks"]) == which and t["collective"] == "all_reduce"
            )
            sizes, ranks = one["bytes"], one["ranks"]
            times = {"measured": one["seconds"]}
            times["predicted"] = [t * (1 + e) for t, e in zip(one["seconds"], one["errors"], strict=True)]
            speeds = {
                kind: [
                    bus_bandwidth("all_reduce", ranks, b, t) / 1e9 for b, t in zip(sizes, found, strict=True)
                ]
                for kind, found in times.items()
            }
            axes.plot(sizes, speeds["measured"], marker, color=hue, markersize=4, label=name)
            axes.plot(sizes, speeds["predicted"], color=hue)
        axes.set(yscale="log", ylim=(0.01, 1200), ylabel="bus bandwidth, GB/s")
        log_bytes_axis(axes.xaxis, [2**e for e in range(10, 35, 6)], "size of the vector")
        axes.legend(fontsize=8.5)
    return figure
