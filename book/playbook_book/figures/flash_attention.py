"""FlashAttention drawn: a softmax block by block, what is on the chip, what blocks cost, bytes over lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, PAPER, WIDTH, rc_parameters
from playbook_book.figures.axes import format_tokens, log_bytes_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Registers that a thread can have (CUDA C++ programming guide, table of technical specifications).
MOST_REGISTERS = 255


def online_softmax(scores: Sequence[float], block: int) -> Figure:
    """A row of scores taken ``block`` by ``block``, a panel each: e^(score − m) of all scores seen so far as bars.

    The title has m and ℓ, the sum of the bars; where m has grown, also the factor by which the earlier bars shrank.
    Raises ``ValueError`` unless the row is a whole number of blocks.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    if not scores or len(scores) % block:
        raise ValueError(f"a row of {len(scores)} scores is no whole number of blocks of {block}")
    steps = len(scores) // block
    looks = {"seen before": (PALETTE["idle"], 0.6), "this block": (PALETTE["compute"], 1.0)}
    with plt.rc_context(rc_parameters()):
        rows = math.ceil(steps / 2)
        figure, panels = plt.subplots(
            rows, 2, figsize=(WIDTH, 0.7 + 1.55 * rows), sharex=True, sharey=True, squeeze=False
        )
        before = -math.inf
        for step, axes in zip(range(1, steps + 1), panels.flat, strict=False):
            seen = scores[: step * block]
            top = max(seen)
            bars = [math.exp(score - top) for score in seen]
            hues = [
                looks["this block" if i >= len(seen) - block else "seen before"] for i in range(len(seen))
            ]
            axes.bar(range(len(seen)), bars, 0.8, color=hues)
            shrunk = f", earlier × {math.exp(before - top):.2g}" if -math.inf < before < top else ""
            axes.set_title(f"m = {top:g}, ℓ = {sum(bars):.2f}{shrunk}", fontsize=10)
            before = top
        panels[-1, 0].set_xticks(range(0, len(scores), block))
        for axes in panels[-1]:
            axes.set_xlabel("key")
        for axes in panels[:, 0]:
            axes.set_ylabel("$e^{x - m}$")
        figure.legend(
            handles=[Patch(facecolor=look, label=name) for name, look in looks.items()],
            loc="outside lower center",
            ncols=2,
        )
    return figure


def tiles(blocks: int, program: int) -> Figure:
    """What one program under a causal mask has on the chip: a panel for each block of keys it sees, and one for its end.

    Scores are a square of ``blocks`` × ``blocks`` tiles, with the queries at its left, keys and values above it and the
    output at its right. ``program`` counts from 0.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    if not 0 <= program < blocks:
        raise ValueError(f"program is {program}, but must be one of the {blocks} blocks, counted from 0")
    steps = program + 2
    with plt.rc_context(rc_parameters()):
        rows = math.ceil(steps / 2)
        figure, panels = plt.subplots(rows, 2, figsize=(WIDTH, 0.5 + 2.75 * rows), squeeze=False)
        for step, axes in enumerate(panels.flat):
            axes.axis("off")
            if step < steps:
                _panel(axes, blocks, program, step)
        names = {"on the chip": "compute", "computed, not stored": "idle", "written to memory": "gradients"}
        handles = [Patch(facecolor=_hue(name), label=label) for label, name in names.items()]
        handles.append(Patch(facecolor=PAPER, edgecolor=_ink(), hatch="///", label="masked: skipped"))
        figure.legend(handles=handles, loc="outside lower center", ncols=2)
    return figure


def _hue(name: str) -> Any:
    return (PALETTE[name], 0.55) if name == "idle" else PALETTE[name]


def _ink() -> str:
    return str(rc_parameters()["text.color"])


def _panel(axes: Any, blocks: int, program: int, step: int) -> None:
    from matplotlib.patches import Polygon, Rectangle

    done = step > program

    def square(x: float, y: float, width: float, height: float, face: Any = "none", **more: Any) -> None:
        axes.add_patch(
            Rectangle((x, y), width, height, facecolor=face, edgecolor=_ink(), linewidth=0.6, **more)
        )

    for i in range(blocks):
        square(-0.9, i, 0.5, 1, _hue("compute") if i == program and not done else "none")  # queries
        square(i, -1.0, 1, 0.6, _hue("compute") if i == step and not done else "none")  # keys and values
        mine = _hue("gradients" if done else "compute")
        square(blocks + 0.4, i, 0.5, 1, mine if i == program else "none")  # output, first its accumulator
        for j in range(blocks):
            masked = j > i
            square(j, i, 1, 1, **({"hatch": "///", "alpha": 0.35} if masked else {}))
    for j in range(min(step, program + 1)):
        axes.add_patch(Polygon(_corners(program, j), facecolor=_hue("idle"), edgecolor="none"))
    if not done:
        axes.add_patch(Polygon(_corners(program, step), facecolor=_hue("compute"), edgecolor="none"))
    title = "end: O and lse written" if done else f"step {step + 1}: keys of block {step}"
    axes.set_title(title + (", masked" if step == program else ""), fontsize=9.5)
    axes.text(-1.05, program + 0.5, "Q", ha="right", va="center", fontsize=9)
    axes.text(-0.1, -0.7, "K, V", ha="right", va="center", fontsize=9)
    axes.text(blocks + 1.05, program + 0.5, "O", ha="left", va="center", fontsize=9)
    axes.set(xlim=(-1.7, blocks + 1.6), ylim=(blocks + 0.1, -1.1), aspect="equal")


def _corners(row: int, column: int) -> list[tuple[int, int]]:
    """A tile, or on the diagonal the half of it that the mask leaves."""
    if column < row:
        return [(column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1)]
    return [(column, row), (column + 1, row + 1), (column, row + 1)]


def block_costs(made: Mapping[int, tuple[float, int, int]]) -> Figure:
    """Over the queries of a block: bytes asked for (as a share of standard attention's), and registers of a thread.

    ``made`` has for each size that share, the registers, and the bytes that a thread spills.
    """
    import matplotlib.pyplot as plt

    sizes = list(made)
    places = range(len(sizes))
    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.0))
        shares = [made[size][0] for size in sizes]
        left.bar(places, shares, 0.65, color=PALETTE["memory"])
        left.axhline(1, color=_ink(), linewidth=0.9, linestyle=":")
        left.text(len(sizes) - 0.5, 1.04, "standard", ha="right", va="bottom", fontsize=9)
        left.set_ylim(0, 1.12 * max(shares))
        for place, share in zip(places, shares, strict=True):
            left.text(place, share, f"{share:.2f}", ha="center", va="bottom", fontsize=8.5)
        left.set_title("bytes, over standard's", fontsize=10)
        right.bar(places, [made[size][1] for size in sizes], 0.65, color=PALETTE["compute"])
        right.axhline(MOST_REGISTERS, color=_ink(), linewidth=0.9, linestyle=":")
        right.text(-0.4, MOST_REGISTERS + 4, "at most 255", fontsize=9, va="bottom")
        right.set_ylim(0, 315)
        for place, size in zip(places, sizes, strict=True):
            if made[size][2]:
                text = f"{made[size][2]:,} B\nspilled"
                right.text(place, MOST_REGISTERS + 4, text, ha="center", va="bottom", fontsize=8.5)
        right.set_title("registers of a thread", fontsize=10)
        for axes in (left, right):
            axes.set_xticks(places, [str(size) for size in sizes])
            axes.set_xlabel("queries of a block, M")
            axes.grid(False, axis="x")
    return figure


def bytes_over_length(lengths: Sequence[int], lines: Mapping[str, Sequence[float]]) -> Figure:
    """Bytes that attention moves, a line for each way to compute it, over the length of a sample; both logarithmic."""
    import matplotlib.pyplot as plt

    looks = (("gradients", "-", "o"), ("compute", "-", "s"), ("memory", "--", "^"))
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(5.8, 3.5))
        for (name, moved), (hue, dash, marker) in zip(lines.items(), looks, strict=False):
            axes.plot(lengths, moved, dash, marker=marker, markersize=4, color=PALETTE[hue], label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(lengths[::2], [format_tokens(length) for length in lengths[::2]])
        axes.minorticks_off()
        axes.set_xlabel("tokens of a sample")
        every = [moved for line in lines.values() for moved in line]
        log_bytes_axis(axes.yaxis, [min(every) / 2, max(every) * 2], "bytes, one layer")
        axes.legend()
    return figure
