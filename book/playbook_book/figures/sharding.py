"""ZeRO drawn: which rank owns what of a flat vector, the memory of every rank, weights that come and go."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, PAPER, WIDTH, colour, rc_parameters
from playbook.figures.units import format_bytes
from playbook_book.figures.axes import bytes_axis
from playbook_book.figures.memory import bracket_phases

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: From the floor up: what a rank keeps, then what passes through. Other names follow.
STACKING = ("parameters", "gradients", "optimizer", "gathered weights", "buffers", "activations", "temporary")
#: Gathered weights have the hue of what is on its way.
HUES = {"gathered weights": PALETTE["buffers"]}

#: ``(name, first element, one past the last)``
NamedRange = tuple[str, int, int]


def rank_memory(
    measured: Mapping[str, Sequence[Mapping[str, float]]],
    predicted: Mapping[str, Mapping[str, float]] | None = None,
) -> Figure:
    """A panel for each configuration, in it a bar for each rank, stacked by category; pale beside them, the prediction.

    ``measured`` maps a title to category → bytes of every rank, ``predicted`` the same title to category → bytes of the
    rank with the highest peak. A title is followed by the total of its highest bar. Raises ``ValueError`` for a
    prediction whose title was not measured.
    """
    import matplotlib.pyplot as plt

    predicted = predicted or {}
    for title in predicted:
        if title not in measured:
            raise ValueError(f"prediction {title!r} has no measurement: there are {', '.join(measured)}")
    names = _order([*(bar for bars in measured.values() for bar in bars), *predicted.values()])
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(1, len(measured), figsize=(WIDTH, 3.3), sharey=True, squeeze=False)
        for axes, (title, bars) in zip(panels[0], measured.items(), strict=True):
            _rank_bars(axes, names, bars, predicted.get(title))
            axes.set_title(
                f"{title}\n{format_bytes(max(sum(bar.values()) for bar in bars))}", fontsize=9.5, loc="center"
            )
        bytes_axis(panels[0, 0].yaxis, "memory of each rank")
        handles, labels = panels[0, 0].get_legend_handles_labels()
        if predicted:
            handles.append(plt.Rectangle((0, 0), 1, 1, **_pale(PALETTE["temporary"])))
            labels.append("predicted")
        figure.legend(
            handles,
            labels,
            loc="outside lower center",
            ncols=len(labels) if len(labels) <= 4 else -(-len(labels) // 2),
            columnspacing=1.1,
            handletextpad=0.5,
        )
    return figure


def _order(bars: Iterable[Mapping[str, float]]) -> list[str]:
    """Categories that are more than nothing somewhere, in the order of stacking."""
    found = {name: None for bar in bars for name, size in bar.items() if size}
    return [name for name in STACKING if name in found] + [name for name in found if name not in STACKING]


def _hue(name: str, position: int) -> str:
    return HUES.get(name) or colour(name, position)


def _pale(hue: str) -> dict[str, Any]:
    from matplotlib.colors import to_rgba

    return {"facecolor": to_rgba(hue, 0.3), "edgecolor": hue, "linewidth": 1.1}


def _rank_bars(
    axes: Any, names: list[str], bars: Sequence[Mapping[str, float]], predicted: Mapping[str, float] | None
) -> None:
    places = [float(rank) for rank in range(len(bars))]
    floor = [0.0] * len(bars)
    below = 0.0
    for i, name in enumerate(names):
        heights = [bar.get(name, 0.0) for bar in bars]
        axes.bar(
            places, heights, 0.82, floor, color=_hue(name, i), label=name, edgecolor=PAPER, linewidth=0.7
        )
        floor = [a + b for a, b in zip(floor, heights, strict=True)]
        if predicted is not None:
            height = predicted.get(name, 0.0)
            axes.bar(len(bars) + 0.35, height, 0.74, below, **_pale(_hue(name, i)))
            below += height
    axes.set_xticks(places, [str(rank) for rank in range(len(bars))])
    axes.set_xlabel("rank")
    axes.tick_params(axis="x", length=0)


def ownership(
    panels: Mapping[str, tuple[Sequence[NamedRange], Sequence[tuple[int, int, int]], int]], ranks: int
) -> Figure:
    """Parameters in a flat vector as a staircase, a stair each, coloured by the rank that owns what is below.

    ``panels`` maps a title to (spans of the parameters in the order of the vector, (rank, first, one past the last) of
    every shard, length of the vector). What no parameter covers is padding. ``ranks`` is 2 to 6, as many as there are
    hues; ``ValueError`` otherwise.
    """
    import matplotlib.pyplot as plt

    if not 2 <= ranks <= len(CYCLE):
        raise ValueError(f"ranks must be 2 to {len(CYCLE)}, a hue each, got {ranks}")
    rows = max(len(spans) for spans, _, _ in panels.values())
    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(panels), 1, figsize=(WIDTH, 0.9 + len(panels) * (0.55 + 0.215 * rows)), squeeze=False
        )
        for axes, (title, (spans, shares, length)) in zip(column[:, 0], panels.items(), strict=True):
            _stairs(axes, spans, shares)
            axes.set_xlim(0, length)
            axes.set_title(title)
        column[-1, 0].set_xlabel("place in the flat vector (elements)")
        handles = [plt.Rectangle((0, 0), 1, 1, color=CYCLE[rank]) for rank in range(ranks)]
        figure.legend(
            handles, [f"rank {rank}" for rank in range(ranks)], loc="outside lower center", ncols=ranks
        )
    return figure


def _stairs(axes: Any, spans: Sequence[NamedRange], shares: Sequence[tuple[int, int, int]]) -> None:
    for row, (_, first, last) in enumerate(spans):
        for rank, start, stop in shares:
            left, right = max(first, start), min(last, stop)
            if left < right:
                axes.barh(row, right - left, 0.8, left, color=CYCLE[rank], edgecolor=PAPER, linewidth=0.6)
    for _, start, _ in shares[1:]:
        axes.axvline(start, color=rc_parameters()["text.color"], alpha=0.3, linewidth=0.7)
    axes.set_yticks(range(len(spans)), [name for name, _, _ in spans], fontsize=8.5)
    axes.set_ylim(len(spans) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(False)


def weights_over_step(
    runs: Mapping[str, Sequence[float]],
    phases: Mapping[str, Sequence[tuple[str, int, int]]],
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Bytes of weights that a rank has, a panel for each run, after each change of them in a step.

    ``runs`` maps a title to bytes after each event, ``phases`` the same title to (name, first event, last event); events
    at which the weights stay as they are take no room. ``levels`` are lines to compare with, by name.
    """
    import matplotlib.pyplot as plt

    top = max([*(max(values) for values in runs.values()), *(levels or {}).values()])
    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(runs), 1, figsize=(WIDTH, 0.45 + 1.55 * len(runs)), sharey=True, squeeze=False
        )
        for axes, (title, values) in zip(column[:, 0], runs.items(), strict=True):
            changes = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
            heights = [values[i] for i in changes]
            axes.stairs(heights, range(len(heights) + 1), fill=True, color=PALETTE["parameters"])
            axes.set_title(f"{title}: up to {format_bytes(max(values))}", pad=20)
            bracket_phases(axes, _among(changes, phases[title]))
            for name, level in (levels or {}).items():
                axes.axhline(level, linestyle=(0, (4, 3)), linewidth=1.1, color=rc_parameters()["text.color"])
                axes.text(1.01, level, name, transform=axes.get_yaxis_transform(), va="center", fontsize=9)
            axes.set(xlim=(0, len(heights)), ylim=(0, top * 1.05), xticks=[])
            bytes_axis(axes.yaxis, "weights")
        column[-1, 0].set_xlabel("each time that weights come or go")
    return figure


def _among(changes: Sequence[int], phases: Iterable[tuple[str, int, int]]) -> list[tuple[str, float, float]]:
    """Phases given by events, by the changes that fall into them instead; those in which nothing changes are left out."""
    found = []
    for name, start, end in phases:
        first, last = bisect_left(changes, start), bisect_left(changes, end)
        if first < last:
            found.append((name, float(first), float(last)))
    if found:
        found[-1] = (*found[-1][:2], float(len(changes)))
    return found
