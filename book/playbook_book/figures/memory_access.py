"""What a warp asks of memory, drawn: sectors of a matrix, banks of a tile, rooflines of a product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, PAPER, WIDTH, rc_parameters
from playbook_book.kernels.warps import BANKS, SECTOR, WARP, Step, load, touched

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook.hardware import Accelerator

WANTED, MOVED = PALETTE["compute"], (PALETTE["memory"], 0.35)


def warp_over_matrix(patterns: Mapping[str, Callable[[int], int]], columns: int = 32) -> Figure:
    """What one load of a warp asks of a matrix of fp32 with so many columns, 32 rows of it, a panel for each pattern.

    A pattern gives the index that a thread reads. Sectors that move are pale, the numbers that threads want are dark.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    each = SECTOR // 4
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(patterns), figsize=(WIDTH, 3.5), squeeze=False)
        for axes, (title, index) in zip(panels[0], patterns.items(), strict=True):
            request: list[Step] = [load("x", index(i)) for i in range(WARP)]
            moved = touched(request)
            for sector in moved:
                place = sector * each % columns, sector * each // columns
                axes.add_patch(Rectangle(place, each, 1, facecolor=MOVED, edgecolor=PAPER, linewidth=0.8))
            for step in request:
                i = step.address // 4
                corner = i % columns + 0.1, i // columns + 0.1
                axes.add_patch(Rectangle(corner, 0.8, 0.8, facecolor=WANTED))
            _plain(axes, columns, WARP, every=each)
            axes.set_title(title, fontsize=10)
            axes.set_title(
                f"{len(moved)} sector{'s' * (len(moved) > 1)}", loc="right", fontsize=9.5, fontweight="normal"
            )
        handles = [
            Patch(facecolor=WANTED, label="a number that a thread wants"),
            Patch(facecolor=MOVED, label="a sector that moves for it"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _plain(axes: Any, columns: int, rows: int, every: int) -> None:
    """Axes of a matrix, rows downwards, with lines between groups of columns."""
    for x in range(0, columns + 1, every):
        axes.axvline(x, color=INK, alpha=0.18, linewidth=0.6)
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    axes.set_xticks(range(0, columns + 1, 8))
    axes.set_yticks(range(0, rows + 1, 8))
    axes.grid(False)


def bank_map(layouts: Mapping[str, Callable[[int, int], int]], column: int = 3) -> Figure:
    """A tile of 32 × 32 words under each layout, which says at which word of shared memory (row, column) is: dark are the
    numbers that lie in one bank, the one of ``(0, column)``; a frame is around the column that a warp reads.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(layouts), figsize=(WIDTH, 2.95), squeeze=False)
        for axes, (title, word) in zip(panels[0], layouts.items(), strict=True):
            bank = word(0, column) % BANKS
            hits = 0
            for row in range(BANKS):
                for x in range(BANKS):
                    if word(row, x) % BANKS != bank:
                        continue
                    hue = PALETTE["gradients"] if x == column else (PALETTE["idle"], 0.8)
                    hits += x == column
                    axes.add_patch(Rectangle((x + 0.06, row + 0.06), 0.88, 0.88, facecolor=hue))
            axes.add_patch(Rectangle((column, 0), 1, BANKS, fill=False, edgecolor=WANTED, linewidth=1.4))
            _plain(axes, BANKS, BANKS, every=8)
            axes.set_title(f"{title}\n{hits} wavefront{'s' if hits > 1 else ''}", fontsize=10)
        handles = [
            Patch(fill=False, edgecolor=WANTED, linewidth=1.4, label="a warp reads"),
            Patch(facecolor=PALETTE["gradients"], label=f"of these in bank {column}"),
            Patch(facecolor=PALETTE["idle"], label="others in that bank"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
    return figure


def product_rooflines(
    steps: Mapping[str, tuple[float, float, str]], gpu: Accelerator, shared_bandwidth: float
) -> Figure:
    """Each step of a product twice: under the roof of shared memory and L1, at its FLOPs per byte that these deliver, and
    under that of device memory, at its FLOPs per byte that blocks ask for. ``steps`` are (the one, the other, dtype).
    """
    import matplotlib.pyplot as plt

    roofs = {"device memory": (gpu.memory_bandwidth, "o"), "shared memory and L1": (shared_bandwidth, "s")}
    reach = [0.04, 400.0]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.1))
        for (name, (bandwidth, _)), style in zip(roofs.items(), ("-", "--"), strict=True):
            top = gpu.peak("fp16") / bandwidth
            axes.plot(
                [reach[0], top], [reach[0] * bandwidth / 1e12, gpu.peak("fp16") / 1e12], style, color=INK
            )
            axes.text(
                0.05, 0.05 * bandwidth / 1e12 * 1.35, name, fontsize=9, rotation=33, rotation_mode="anchor"
            )
        for dtype, label in (("fp32", "fp32 peak"), ("fp16", "tensor cores, fp16")):
            peak = gpu.peak(dtype) / 1e12
            axes.axhline(peak, color=INK, linewidth=1, linestyle=":")
            axes.text(reach[1], peak * 1.1, label, fontsize=9, ha="right")
        for (name, (near, far, dtype)), hue in zip(steps.items(), CYCLE, strict=False):
            for (bandwidth, marker), intensity in zip(roofs.values(), (far, near), strict=True):
                bound = min(intensity * bandwidth, gpu.peak(dtype)) / 1e12
                label = name if marker == "o" else ""
                axes.plot(intensity, bound, marker, color=hue, markersize=8, label=label, linestyle="")
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set(xlim=reach, ylim=(0.1, 3000), xlabel="FLOPs for each byte", ylabel="at most, TFLOP/s")
        figure.legend(loc="outside lower center", ncols=5, handletextpad=0.1, columnspacing=1.0)
    return figure
