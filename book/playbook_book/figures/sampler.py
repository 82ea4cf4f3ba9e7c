"""From trainer to sampler, drawn: which rows of a matrix come from which rank, and what a sampler learns to write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import count_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Of a rank, rows of a matrix from the first on, up to the second, and the rank that they come from.
Rows = Sequence[tuple[float, float, int]]


def rows_of_ranks(panels: Mapping[str, tuple[Sequence[Rows], str]]) -> Figure:
    """A panel for each layout, in it a bar for each rank: the rows that it has, in the hue of the rank that they come
    from, framed where they are its own. ``panels`` maps a title to the rows of each rank and to a line of words below."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH, 2.1), squeeze=False)
        for axes, (title, (ranks, words)) in zip(row[0], panels.items(), strict=True):
            for y, parts in enumerate(ranks):
                axes.barh(y, 1, height=0.72, color="none", edgecolor=PALETTE["idle"], linewidth=0.8)
                for start, stop, source in parts:
                    own = source == y
                    axes.barh(
                        y, stop - start, left=start, height=0.72, color=CYCLE[source],
                        edgecolor=INK if own else "none", linewidth=1.6 if own else 0, alpha=1 if own else 0.65,
                    )  # fmt: skip
            axes.set_title(title, fontsize=9.5, loc="center")
            axes.set_xlabel(words, fontsize=9)
            axes.set_xticks([])
            axes.set_yticks(range(len(ranks)), [f"rank {y}" for y in range(len(ranks))], fontsize=9)
            axes.set(xlim=(-0.03, 1.03), ylim=(len(ranks) - 0.4, -0.6))
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            if axes is not row[0][0]:
                axes.set_yticklabels([])
    return figure


def learning(runs: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """To the left, the mean reward of each round; to the right, how far an importance ratio is from 1 at most. ``runs``
    maps a name to both. Zero stands at the foot of the right axis, which is logarithmic above."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.1), layout="constrained")
        for i, (name, (rewards, off)) in enumerate(runs.items()):
            rounds, hue = range(1, len(rewards) + 1), CYCLE[i]
            # Curves that agree lie on each other: the first shows beside the dashes of the second.
            left.plot(
                rounds,
                rewards,
                color=hue,
                label=name,
                linewidth=3 if i == 0 else 1.6,
                dashes=(4, 2) if i == 1 else (),
            )
            right.plot(rounds, off, color=hue, label=name, marker="o", markersize=3)
        right.set_yscale("symlog", linthresh=1e-8, linscale=0.5)
        right.set_yticks([0, 1e-6, 1e-4, 1e-2, 1], ["0", "10⁻⁶", "10⁻⁴", "10⁻²", "1"])
        right.set_ylim(bottom=-2e-9)
        left.set_title("share of vowels", fontsize=10)
        right.set_title("largest |ratio − 1|", fontsize=10)
        for axes in (left, right):
            count_axis(axes.xaxis, "round")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        figure.legend(*left.get_legend_handles_labels(), fontsize=9, loc="outside lower center", ncols=3)
    return figure
