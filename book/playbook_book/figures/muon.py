"""Muon drawn: what Newton-Schulz does to singular values, and which rank has which parts of which matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: By matrix, by part: the rank that it comes from, or None where it is not.
Held = Sequence[Sequence[int | None]]
#: Where five iterations leave singular values.
BAND = (0.7, 1.2)


def singular_values(
    starts: Sequence[float], after: Sequence[Sequence[float]], spectra: Mapping[str, Sequence[float]]
) -> Figure:
    """To the left, what each iteration makes of each start; to the right, spectra of one matrix, the largest first."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 2.9))
        for i, values in enumerate(after, 1):
            last = i == len(after)
            left.plot(
                starts,
                values,
                color=PALETTE["optimizer"],
                alpha=0.25 + 0.75 * (i / len(after)) ** 2,
                linewidth=2.4 if last else 1.2,
            )
            # Below a curve that rises through one half there is room for its number.
            x = next(s for s, value in zip(starts, values, strict=True) if value >= 0.5)
            left.text(1.15 * x, 0.5, str(i), fontsize=9, ha="left", va="top", color=INK)
        left.axhspan(*BAND, color=PALETTE["idle"], alpha=0.18)
        left.set_xscale("log")
        left.set(ylim=(0, 1.35), xlim=(starts[0], starts[-1]))
        left.set_xlabel("singular value before")
        left.set_title("after 1 to 5 iterations", fontsize=10)
        for hue, (name, values) in zip(("gradients", "optimizer"), spectra.items(), strict=False):
            right.plot(range(1, len(values) + 1), values, color=PALETTE[hue], label=name)
        right.axhspan(*BAND, color=PALETTE["idle"], alpha=0.18)
        right.set_yscale("log")
        right.set_ylim(bottom=1e-5)
        right.set_xlabel("direction, the largest first")
        right.set_title("singular values of a gradient", fontsize=10)
        right.legend(fontsize=9, loc="lower left")
    return figure


def who_has(panels: Mapping[str, tuple[Sequence[Held], str]], matrices: str) -> Figure:
    """A panel for each moment, in it a row for each rank and a square for each of the ``matrices`` (a letter each), cut
    into parts: filled in the hue of the rank that a part comes from, empty where the rank does not have it. Thick frames
    are whole matrices. ``panels`` maps a title to what ranks hold and to a line of words below."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(1, len(panels), figsize=(WIDTH, 2.4), squeeze=False)
        for axes, (title, (ranks, words)) in zip(row[0], panels.items(), strict=True):
            for y, held in enumerate(ranks):
                for x, parts in enumerate(held):
                    _square(axes, x, y, parts)
            axes.set_title(title, fontsize=9.5, loc="center")
            axes.set_xlabel(words, fontsize=9)
            axes.set_xticks([x + 0.4 for x in range(len(matrices))], list(matrices), fontsize=9)
            axes.set_yticks([y + 0.4 for y in range(len(ranks))], [f"rank {y}" for y in range(len(ranks))])
            axes.set(xlim=(-0.15, len(matrices) - 0.05), ylim=(len(ranks) - 0.05, -0.15), aspect="equal")
            axes.xaxis.tick_top()
            axes.tick_params(length=0)
            axes.grid(visible=False)
            axes.spines[:].set_visible(False)
            if axes is not row[0][0]:
                axes.set_yticklabels([])
    return figure


def _square(axes: Any, x: float, y: float, parts: Sequence[int | None]) -> None:
    from matplotlib.patches import Rectangle

    high, whole = 0.8 / len(parts), None not in parts
    for i, origin in enumerate(parts):
        if origin is not None:
            axes.add_patch(Rectangle((x, y + i * high), 0.8, high, facecolor=CYCLE[origin], alpha=0.85))
    frame: dict[str, Any] = (
        {"edgecolor": INK, "linewidth": 1.6} if whole else {"edgecolor": PALETTE["idle"], "linewidth": 0.7}
    )
    axes.add_patch(Rectangle((x, y), 0.8, 0.8, facecolor="none", **frame))
