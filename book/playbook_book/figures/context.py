"""Context parallelism drawn: whose the blocks of the mask are, who waits in a ring, what travels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, PAPER, WIDTH, rc_parameters
from playbook.layout import Layout
from playbook.layout.tokens import TokenRanges, source_of
from playbook_book.context_cost import context_traffic
from playbook_book.figures.axes import count_axis, log_bytes_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook.shapes import ModelShape


def mask_by_rank(placements: Mapping[str, TokenRanges]) -> Figure:
    """The causal mask under each placement, keys to the right, queries downwards: blocks in the hue of the rank that
    computes them, with the number of the step of the ring in which it does. 2 to 6 ranks, a hue each; else
    ``ValueError``.
    """
    import matplotlib.pyplot as plt

    _ranks(placements.values())
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(placements), figsize=(WIDTH, 3.5), squeeze=False, sharey=True)
        for axes, (title, ranges) in zip(panels[0], placements.items(), strict=True):
            _mask(axes, ranges)
            axes.set_title(title)
            axes.set(xlabel="position of the key", aspect="equal")
        panels[0, 0].set_ylabel("position of the query")
        rank_legend(figure, next(iter(placements.values())).ranks)
    return figure


def _ranks(placements: Any) -> None:
    for ranges in placements:
        if not 2 <= ranges.ranks <= len(CYCLE):
            raise ValueError(f"ranks must be 2 to {len(CYCLE)}, a hue each, got {ranges.ranks}")


def _mask(axes: Any, ranges: TokenRanges) -> None:
    from matplotlib.patches import Polygon

    parts = [(part, rank) for rank in range(ranges.ranks) for part in ranges.ranges(rank)]
    for queries, rank in parts:
        for keys, source in parts:
            if keys.start > queries.start:
                continue  # masked: nobody computes it
            corners = [(keys.start, queries.start), (keys.start, queries.stop), (keys.stop, queries.stop)]
            whole = keys.start < queries.start
            corners += [(keys.stop, queries.start)] if whole else []
            axes.add_patch(Polygon(corners, facecolor=CYCLE[rank], edgecolor=PAPER, linewidth=1.0))
            x = sum(x for x, _ in corners) / len(corners)
            y = sum(y for _, y in corners) / len(corners)
            step = (rank - source) % ranges.ranks
            axes.text(x, y, str(step), ha="center", va="center", color="#ffffff", fontsize=8)
    ends = sorted({part.start for part, _ in parts} | {ranges.seq})
    axes.set(xlim=(0, ranges.seq), ylim=(ranges.seq, 0), xticks=ends[::2], yticks=ends[::2])
    axes.grid(False)


def rank_legend(figure: Any, ranks: int, *more: Any) -> None:
    from matplotlib.patches import Patch

    patches = [Patch(facecolor=CYCLE[rank], label=f"rank {rank}") for rank in range(ranks)]
    figure.legend(handles=[*patches, *more], loc="outside lower center", ncols=ranks + len(more))


def lockstep(placements: Mapping[str, TokenRanges]) -> Figure:
    """Who computes when, if time is pairs of a query and a key and each step of the ring begins when all have their keys.

    A panel for each placement, in it a row for each rank; a box is a step, what is left of it is waiting. The title says
    how long it takes, over the mean work of a rank.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    _ranks(placements.values())
    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(placements), 1, figsize=(WIDTH, 0.75 + 1.35 * len(placements)), sharex=True, squeeze=False
        )
        for axes, (title, ranges) in zip(column[:, 0], placements.items(), strict=True):
            _steps(axes, title, ranges)
        count_axis(column[-1, 0].xaxis, "time, as pairs of a query and a key")
        rank_legend(
            figure,
            next(iter(placements.values())).ranks,
            Patch(facecolor=(PALETTE["idle"], 0.25), label="waiting"),
        )
    return figure


def _steps(axes: Any, title: str, ranges: TokenRanges) -> None:
    n, now = ranges.ranks, 0
    for step in range(n):
        work = [sum(block.pairs for block in ranges.blocks(r, source_of(r, step, n))) for r in range(n)]
        longest = max(work)
        for rank, pairs in enumerate(work):
            axes.barh(rank, longest, 0.8, now, color=(PALETTE["idle"], 0.25))
            axes.barh(rank, pairs, 0.8, now, color=CYCLE[rank])
            if pairs:
                axes.text(
                    now + pairs / 2, rank, str(step), ha="center", va="center", color="#fff", fontsize=8
                )
        now += longest
        axes.axvline(now, color=PAPER, linewidth=1.2)
    mean = sum(map(ranges.work, range(n))) / n
    axes.set_title(title)
    axes.set_title(f"{now / mean:.2f} × the mean work", loc="right", fontsize=9.5, fontweight="normal")
    axes.set_yticks(range(n), [f"rank {rank}" for rank in range(n)], fontsize=9)
    axes.set_ylim(n - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)


def backward_journey(ranks: int) -> Figure:
    """The keys and values of rank 0 and their gradient on their way around the ring, the gradient a step behind.

    Steps to the right, ranks downwards. A disc is where a rank computes with the keys, a square where its part of the
    gradient is added to what has come; arrows are messages.
    """
    import matplotlib.pyplot as plt

    keys = [(step + 0.25, step) for step in range(ranks)]
    # Rank 1 begins the sum. It reaches each next rank when that has computed its part, and home when all steps are over.
    sums = [*((step + 0.75, step) for step in range(1, ranks)), (ranks + 0.75, 0)]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.85 + 0.5 * ranks))
        for step in range(1, ranks + 1):
            axes.axvline(step, color=rc_parameters()["text.color"], alpha=0.18, linewidth=0.8)
        axes.plot([0.25, ranks + 0.75], [0, 0], ":", color=PALETTE["gradients"], linewidth=1.3)
        axes.text(ranks / 2 + 0.5, -0.12, "its own part stays at home", ha="center", va="bottom", fontsize=9)
        _journey(axes, keys, PALETTE["parameters"], "o", "K, V of rank 0 are used")
        _journey(axes, sums, PALETTE["gradients"], "s", "a part of their gradient is added")
        axes.set_xticks(
            [step + 0.5 for step in range(ranks + 1)], [*(f"step {step}" for step in range(ranks)), "after"]
        )
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
        axes.set(xlim=(0, ranks + 1), ylim=(ranks - 0.5, -0.6))
        axes.grid(False)
        axes.tick_params(length=0)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def _journey(axes: Any, stops: Sequence[tuple[float, int]], hue: str, marker: str, label: str) -> None:
    for before, after in itertools.pairwise(stops):
        arrow = {"arrowstyle": "->", "color": hue, "linewidth": 1.6, "shrinkA": 6, "shrinkB": 6}
        axes.annotate("", after, before, arrowprops=arrow)
    axes.plot([x for x, _ in stops], [y for _, y in stops], marker, color=hue, markersize=9, label=label)


def traffic_over_ranks(shape: ModelShape, seq: int, kv_heads: Sequence[int]) -> Figure:
    """Bytes that a rank sends for one layer in bf16, forward and backward, over cp: ring and Ulysses, as long as there
    are heads to trade; dashed, Ulysses with KV heads replicated until there is one for each rank. A panel for each
    number of KV heads; one sample of ``seq`` tokens.
    """
    import matplotlib.pyplot as plt

    counts = [2, 4, 8, 16, 32, 64]
    replicated = "Ulysses, KV heads replicated"
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(kv_heads), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
        for axes, kv in zip(panels[0], kv_heads, strict=True):
            lines = {
                "ring": (counts, {"marker": "o", "color": PALETTE["cp"]}),
                "Ulysses": ([c for c in counts if kv % c == 0], {"marker": "s", "color": PALETTE["ep"]}),
            }
            if kv < shape.heads:
                more = [c for c in counts if kv <= c <= shape.heads and shape.heads % c == 0]
                lines[replicated] = (more, {"marker": "s", "color": PALETTE["ep"], "fillstyle": "none"})
            for name, (ranks, look) in lines.items():
                sent = [_sent(shape, max(kv, c) if name == replicated else kv, c, seq, name) for c in ranks]
                style = "--" if name == replicated else "-"
                axes.plot(ranks, sent, style, markersize=4.5, label=name, **look)
            where = {"xytext": (0, -26), "textcoords": "offset points", "ha": "center", "fontsize": 9}
            axes.annotate("no more\nheads", (ranks[-1], sent[-1]), **where)
            axes.set_xscale("log", base=2)
            axes.set_xticks(counts, [str(c) for c in counts])
            axes.minorticks_off()
            axes.set_title(f"{kv} KV heads")
            axes.set_xlabel("ranks, cp")
        log_bytes_axis(panels[0, 0].yaxis, [2**24, 2**34], "sent by each rank, per layer")
        panels[0, 0].set_ylim(2**25, 2**34)
        most = max(panels[0], key=lambda axes: len(axes.lines))
        figure.legend(*most.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def _sent(shape: ModelShape, kv_heads: int, ranks: int, seq: int, name: str) -> float:
    """Bytes that each of so many ranks sends for a layer with so many KV heads."""
    context = "ring" if name == "ring" else "ulysses"
    return float(context_traffic(shape.replace(kv_heads=kv_heads), Layout(cp=ranks), seq, context).total)
