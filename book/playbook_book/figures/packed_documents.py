"""Packed documents drawn: their lengths, ways to make rows of them, the mask of a row, and the ranks that compute it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from math import log2
from typing import TYPE_CHECKING, Any

from playbook.documents.pieces import Documents, Piece
from playbook.figures.style import CYCLE, INK, PALETTE, PAPER, WIDTH, rc_parameters
from playbook_book.figures.axes import format_tokens
from playbook_book.figures.context import rank_legend

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A row: documents by number and tokens of each, in order; None is padding.
Row = Sequence[tuple[int | None, int]]


def by_length(lengths: Sequence[int]) -> Figure:
    """By length, from each power of two to the next: the share of documents, and the share of tokens that are in them;
    and both means, that over documents and that over tokens."""
    import matplotlib.pyplot as plt

    total = sum(lengths)
    means = {
        "mean over documents": total / len(lengths),
        "mean over tokens": sum(n * n for n in lengths) / total,
    }
    low, high = min(lengths).bit_length() - 1, max(lengths).bit_length()
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.9))
        for side, hue, name in ((-0.21, "activations", "documents"), (0.21, "cp", "tokens")):
            weights = lengths if name == "tokens" else [1] * len(lengths)
            shares = [
                100
                * sum(w for n, w in zip(lengths, weights, strict=True) if n.bit_length() - 1 == power)
                / sum(weights)
                for power in range(low, high)
            ]
            middle = [power + 0.5 + side for power in range(low, high)]
            axes.bar(middle, shares, 0.4, color=PALETTE[hue], label=f"share of {name}")
        for (name, mean), hue in zip(means.items(), ("activations", "cp"), strict=True):
            axes.axvline(log2(mean), color=PALETTE[hue], linestyle="--", label=f"{name}: {mean:,.0f}")
        axes.set_xticks(range(low, high + 1), [format_tokens(2**power) for power in range(low, high + 1)])
        axes.set(xlabel="tokens of a document", ylabel="percent")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def rows_of(ways: Mapping[str, Sequence[Row]], room: int) -> Figure:
    """Rows of ``room`` tokens, a panel for each way to fill them. Documents are boxes with their letters, each in one
    hue; padding is empty."""
    import matplotlib.pyplot as plt

    counts = [len(rows) for rows in ways.values()]
    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(ways),
            1,
            figsize=(WIDTH, 0.5 + 0.42 * len(ways) + 0.27 * sum(counts)),
            sharex=True,
            height_ratios=counts,
        )
        for axes, (title, rows) in zip(column, ways.items(), strict=True):
            for y, row in enumerate(rows):
                _row(axes, y, row, room)
            axes.set_title(title, fontsize=10)
            axes.set(xlim=(0, room), ylim=(len(rows) - 0.5, -0.5), yticks=[])
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        column[-1].set_xticks([0, room // 2, room])
        column[-1].set_xlabel("tokens of a row")
    return figure


def _row(axes: Any, y: int, row: Row, room: int) -> None:
    ends = list(accumulate((n for _, n in row), initial=0))
    for (document, n), start in zip(row, ends, strict=False):
        hue = "none" if document is None else CYCLE[document % len(CYCLE)]
        look = {"edgecolor": PALETTE["idle"] if document is None else PAPER, "linewidth": 0.8}
        axes.barh(y, n, 0.82, start, color=hue, **look)
        if document is not None and n > room / 40:
            axes.text(
                start + n / 2, y, chr(65 + document), color="#fff", fontsize=9, ha="center", va="center"
            )


def masks_and_positions(panels: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> Figure:
    """Masks of one row: ``panels`` are lengths of what a token sees, and of what positions count from the beginning of.
    Above keys to the right, queries downwards; below the position of each token."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, (masks, below) = plt.subplots(
            2,
            len(panels),
            figsize=(WIDTH, 4.4),
            sharey="row",
            sharex=True,
            height_ratios=(3, 1),
            squeeze=False,
        )
        for mask, line, (title, (seen, counted)) in zip(masks, below, panels.items(), strict=True):
            seq = sum(seen)
            for start, stop in pairwise(accumulate(seen, initial=0)):
                _seen(mask, Piece(start, stop, start), PALETTE["cp"])
            _square(mask, seq)
            mask.set_title(title, fontsize=10)
            for start, stop in pairwise(accumulate(counted, initial=0)):
                line.plot([start, stop], [0, stop - start], color=PALETTE["activations"])
            line.set(xlabel="key, token of the row", ylim=(0, None))
        masks[0].set_ylabel("query")
        below[0].set_ylabel("position")
    return figure


def masks_by_rank(placements: Mapping[str, Documents]) -> Figure:
    """The mask of one row under each placement in the hues of the ranks that compute it, 2 to 6 of them, else
    ``ValueError``; below each mask the work of every rank, over the mean."""
    import matplotlib.pyplot as plt

    ranks = next(iter(placements.values())).ranks
    if not 2 <= ranks <= len(CYCLE):
        raise ValueError(f"ranks must be 2 to {len(CYCLE)}, a hue each, got {ranks}")
    pairs_of_panels = -(-len(placements) // 2)
    with plt.rc_context(rc_parameters()):
        figure, grid = plt.subplots(
            2 * pairs_of_panels,
            2,
            figsize=(WIDTH, 3.75 * pairs_of_panels),
            height_ratios=(3.4, 1) * pairs_of_panels,
        )
        for i, (title, documents) in enumerate(placements.items()):
            mask, bars = grid[2 * (i // 2), i % 2], grid[2 * (i // 2) + 1, i % 2]
            for rank, pieces in enumerate(documents.pieces):
                for piece in pieces:
                    _seen(mask, piece, CYCLE[rank])
            _square(mask, documents.seq)
            _work(bars, documents)
            mask.set_title(title, fontsize=10)
        rank_legend(figure, ranks)
    return figure


def _seen(axes: Any, piece: Piece, hue: str) -> None:
    """What the queries of a piece see: the tokens of their document, up to themselves."""
    from matplotlib.patches import Polygon

    start, stop, first = piece
    corners = [(first, start), (start, start), (stop, stop), (first, stop)]
    axes.add_patch(Polygon(corners, facecolor=hue, edgecolor=PAPER, linewidth=0.4))


def _square(axes: Any, seq: int) -> None:
    ticks = [0, seq // 2, seq]
    axes.set(xlim=(0, seq), ylim=(seq, 0), aspect="equal", xticks=ticks, yticks=ticks)
    axes.set_xticklabels(map(format_tokens, ticks))
    axes.set_yticklabels(map(format_tokens, ticks))
    axes.plot([0, seq], [0, seq], color=PALETTE["idle"], linewidth=0.6, zorder=0)
    axes.grid(visible=False)


def _work(axes: Any, documents: Documents) -> None:
    work = [documents.work(rank) for rank in range(documents.ranks)]
    over = [n * documents.ranks / sum(work) for n in work]
    axes.bar(range(documents.ranks), over, 0.7, color=CYCLE[: documents.ranks])
    axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
    for rank, height in enumerate(over):
        above = max(height, 1.0) if height > 0.5 else height  # not on the line of the mean
        axes.text(rank, above, f"{height:.2f}", ha="center", va="bottom", fontsize=9)
    axes.set(ylim=(0, 1.3 * max(over)), xticks=[], yticks=[0, 1])
    axes.set_ylabel("work", fontsize=9)


def busiest_ranks(panels: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """How much more than the mean the busiest rank computes: a dot for each row, a column for each placement, with the
    mean of the rows in ink; a panel for each way to make rows."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH, 3.1), sharey=True, squeeze=False)
        for axes, (title, found) in zip(row[0], panels.items(), strict=True):
            for x, (values, hue) in enumerate(zip(found.values(), CYCLE, strict=False)):
                # Neighbours in order lie beside each other, so that all can be seen.
                beside = [x + 0.22 * (i % 5 - 2) / 2 for i in range(len(values))]
                axes.plot(beside, sorted(values), "o", color=hue, markersize=3.5, alpha=0.75)
                axes.plot([x - 0.34, x + 0.34], [sum(values) / len(values)] * 2, color=INK, linewidth=1.6)
            axes.set_xticks(range(len(found)), list(found), fontsize=8.5, rotation=25)
            axes.set_title(title, fontsize=10)
            axes.set(xlim=(-0.6, len(found) - 0.4))
        most = max(max(values) for found in panels.values() for values in found.values())
        row[0, 0].set_ylim(0.9, 1.05 * most)
        row[0, 0].set_ylabel("busiest rank over mean")
    return figure
