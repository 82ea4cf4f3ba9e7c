"""A GPU drawn: its multiprocessors, a grid of blocks and warps, rooflines, what hides latency, how waves fill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_bytes, format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from playbook_book.chips import Chip

INK = rc_parameters()["text.color"]
COMPUTE, MEMORY, TENSOR, IDLE = (
    PALETTE["compute"],
    PALETTE["memory"],
    PALETTE["communication"],
    PALETTE["idle"],
)
PALE = 0.25


def chip(gpu: Chip, on_chip: Mapping[str, int], memory: int) -> Figure:
    """The GPU on the left, one of its multiprocessors on the right.

    ``on_chip`` are bytes of "registers", "L1 and shared memory" (both of a multiprocessor) and "L2"; ``memory`` those of
    the device memory.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.9))
        axes.axis("off")
        columns = 11
        rows = -(-gpu.multiprocessors // columns)
        for i in range(gpu.multiprocessors):
            x, y = 4.2 * (i % columns) / columns, 9.2 - 5.4 * (i // columns) / rows
            _box(axes, x, y, 0.32, 0.36, COMPUTE, pale=0.9 if i == columns - 1 else PALE)
        axes.text(2.1, 9.9, f"{gpu.multiprocessors} multiprocessors", ha="center")
        _named(axes, (0, 2.6, 4.14, 1.0), f"L2 cache, {format_bytes(on_chip['L2'])}", MEMORY)
        _named(axes, (0, 0.2, 4.14, 1.9), f"device memory\n{format_bytes(memory)}", MEMORY)
        _multiprocessor(axes, gpu, on_chip)
        right = 4.2 * (columns - 1) / columns + 0.32
        for end in (9.62, 0.2):  # the lines of a magnifying glass
            axes.plot([right, 5.2], [9.56 if end > 5 else 9.2, end], color=INK, linewidth=0.6, alpha=0.5)
        axes.set(xlim=(-0.1, 10.3), ylim=(0, 10.4))
    return figure


def _multiprocessor(axes: Axes, gpu: Chip, on_chip: Mapping[str, int]) -> None:
    """Four quarters with a scheduler each, over the memory that they share."""
    axes.text(7.7, 9.9, "one multiprocessor", ha="center")
    _box(axes, 5.2, 0.2, 5.0, 9.42, INK, pale=0)
    each = gpu.cores_each // 4
    for i in range(4):
        x, y = 5.35 + 2.45 * (i % 2), 6.0 - 3.5 * (i // 2)
        _box(axes, x, y, 2.25, 3.3, INK, pale=0)
        _named(axes, (x + 0.1, y + 2.5, 2.05, 0.65), "scheduler", IDLE)
        _named(axes, (x + 0.1, y + 1.7, 2.05, 0.65), f"{each} cores", COMPUTE)
        _named(axes, (x + 0.1, y + 0.9, 2.05, 0.65), f"{gpu.tensor_cores_each // 4} tensor core", TENSOR)
        _named(axes, (x + 0.1, y + 0.1, 2.05, 0.65), f"reg. {format_bytes(on_chip['registers'] / 4)}", MEMORY)
    text = f"L1 and shared memory\n{format_bytes(on_chip['L1 and shared memory'])}"
    _named(axes, (5.35, 0.4, 4.7, 1.9), text, MEMORY)


def _box(
    axes: Axes, x: float, y: float, width: float, height: float, hue: str, *, pale: float = PALE
) -> None:
    """A box in a hue, filled with a ``pale`` one; 0 leaves it empty."""
    from matplotlib.colors import to_rgba
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=to_rgba(hue, pale), edgecolor=hue, linewidth=0.9)
    )


def _named(axes: Axes, place: tuple[float, float, float, float], text: str, hue: str) -> None:
    x, y, width, height = place
    _box(axes, x, y, width, height, hue)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=9)


def grid(n: int, block: int, warp: int = 32) -> Figure:
    """n numbers over blocks of threads, one number a thread, and the warps of the last block.

    Threads beyond n are drawn empty. Raises ValueError unless whole warps make up a block.
    """
    import matplotlib.pyplot as plt

    if block % warp:
        raise ValueError(f"block must be a multiple of {warp}, got {block}")
    blocks, warps = -(-n // block), block // warp
    with plt.rc_context(rc_parameters()):
        figure, (top, below) = plt.subplots(2, 1, figsize=(WIDTH, 3.3), height_ratios=[1, 2.6])
        for i in range(blocks):
            hue = CYCLE[i % 3]
            have = min(block, n - i * block) / block
            _box(top, i + 0.03, 0, 0.94 * have, 1, hue)
            if have < 1:
                _box(top, i + 0.03 + 0.94 * have, 0, 0.94 * (1 - have), 1, hue, pale=0)
            top.text(i + 0.5, 0.5, f"block {i}", ha="center", va="center")
        last = (blocks - 1) * block
        top.set(xlim=(0, blocks), ylim=(-0.1, 1.1), title=f"a grid of {blocks} blocks for {n:,} numbers")
        for w in range(warps):
            for t in range(warp):
                inside = last + w * warp + t < n
                _box(below, t + 0.1, warps - 1 - w, 0.8, 0.8, CYCLE[(blocks - 1) % 3], pale=PALE * inside)
            below.text(-0.5, warps - 0.6 - w, f"warp {w}", ha="right", va="center", fontsize=9)
        title = f"block {blocks - 1}: {warps} warps of {warp} threads"
        below.set(xlim=(-4.2, warp), ylim=(-0.2, warps), title=title)
        for axes in (top, below):
            axes.axis("off")
    return figure


def rooflines(
    gpus: Mapping[str, tuple[float, float]], kernels: Mapping[str, float], *, ylabel: str = "FLOP/s at best"
) -> Figure:
    """The roofs of several GPUs (peak FLOP/s, bytes/s), and where kernels of so many FLOPs per byte stand under them.

    A kernel is marked on the first GPU's roof (Williams, Waterman and Patterson 2009).
    """
    import matplotlib.pyplot as plt

    ridges = [peak / bandwidth for peak, bandwidth in gpus.values()]
    low, high = min(kernels.values()) / 2, max(*kernels.values(), *ridges) * 4
    floor = low * min(bandwidth for _, bandwidth in gpus.values()) / 60
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.4))
        for i, (name, (peak, bandwidth)) in enumerate(gpus.items()):
            points = [(low, low * bandwidth), (peak / bandwidth, peak), (high, peak)]
            dash = "-" if not i else (0, (4, 1 + i))
            axes.plot(*zip(*points, strict=True), linestyle=dash, color=CYCLE[i], label=name, zorder=3 - i)
        peak, bandwidth = next(iter(gpus.values()))
        beside = 0.0
        for name, x in sorted(kernels.items(), key=lambda one: one[1]):
            beside = max(x, 1.45 * beside)  # names keep apart, points stay
            line = {"arrowstyle": "-", "color": INK, "linewidth": 0.6, "alpha": 0.5, "shrinkB": 0}
            axes.annotate(
                name, (x, min(peak, x * bandwidth)), (beside, 1.3 * floor), rotation=90, ha="center", va="bottom",
                fontsize=9, arrowprops=line,
            )  # fmt: skip
            axes.plot(x, min(peak, x * bandwidth), "o", color=INK, markersize=5, zorder=5)
        axes.set(
            xscale="log", yscale="log", xlim=(low, high), ylim=(floor, 3 * max(p for p, _ in gpus.values()))
        )
        axes.set(xlabel="arithmetic intensity (FLOPs per byte)", ylabel=ylabel)
        axes.yaxis.set_major_formatter(lambda value, _: format_count(value))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(loc="upper left")
    return figure


def bandwidth_reached(
    loads: Mapping[str, int], needed: float, threads: int, marks: Sequence[float]
) -> Figure:
    """At most so much of the bandwidth can be used up, over the occupancy, if each thread waits for so many bytes.

    ``loads`` names bytes per thread; ``needed`` bytes must be in flight in a multiprocessor of so many ``threads``.
    ``marks`` are shares of occupancy with a tick.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for i, (name, size) in enumerate(loads.items()):
            full = min(1.0, needed / (size * threads))
            shares = [0.0, full, 1.0]
            axes.plot(shares, [min(1.0, share * size * threads / needed) for share in shares], label=name,
                      color=CYCLE[i])  # fmt: skip
        axes.set(xlim=(0, 1), ylim=(0, 1.08), xticks=list(marks))
        axes.set(xlabel="occupancy", ylabel="of the bandwidth, at most")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
        axes.legend(title="a thread waits for", loc="lower right")
    return figure


def tail(sizes: Sequence[int], shares: Mapping[str, Sequence[float]], *, xlabel: str) -> Figure:
    """Shares of the multiprocessors' time in which they have a block, over sizes, a curve of steps for each grid."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        for i, (name, values) in enumerate(shares.items()):
            axes.plot(sizes, values, color=CYCLE[i], linewidth=1.2, label=name, drawstyle="steps-post")
        axes.set(xlim=(0, sizes[-1]), ylim=(0, 1.05), xlabel=xlabel, ylabel="of the SMs' time used")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        _legend(figure, axes)
    return figure


def _legend(figure: Any, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
