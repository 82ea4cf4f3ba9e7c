"""Memory drawn: over the time of a training step, and side by side for several configurations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, PAPER, WIDTH, colour, rc_parameters
from playbook.figures.units import format_bytes
from playbook_book.figures.axes import bytes_axis, count_axis, seconds_axis, tokens_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# From the floor up: what stays between steps lies below what comes and goes.
STACKING = ("parameters", "optimizer", "gradients", "activations", "temporary")


def memory_timeline(
    times: Sequence[float],
    series: Mapping[str, Sequence[float]],
    *,
    phases: Iterable[tuple[str, float, float]] = (),
    capacity: float | None = None,
    title: str | None = None,
    xlabel: str | None = None,
) -> Figure:
    """Bytes held by each category over time, stacked, the peak marked.

    ``times`` are seconds, or what ``xlabel`` says they are; ``series`` maps a category to bytes at those
    times (each value holds until the next), ``phases`` are (name, start, end) on the same axis and are
    bracketed above the plot, ``capacity`` draws the device's memory as a line. Raises ``ValueError`` when a
    series and ``times`` differ in length.
    """
    import matplotlib.pyplot as plt

    for name, values in series.items():
        if len(values) != len(times):
            raise ValueError(f"series {name!r} has {len(values)} values for {len(times)} times")
    names, phases = _stacked_order(series), list(phases)
    times, rows = _thinned(times, [series[name] for name in names])
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.6))
        colours = [colour(name, i) for i, name in enumerate(names)]
        axes.stackplot(times, rows, labels=names, colors=colours, step="post", linewidth=0)
        totals = [sum(column) for column in zip(*rows, strict=True)]
        _mark_peak(axes, times, totals)
        _capacity_line(axes, capacity)
        axes.set_xlim(min(times), max(times))
        axes.set_ylim(0, max([*totals, capacity or 0.0]) * 1.14)
        if xlabel is None:
            seconds_axis(axes.xaxis, "time in the step")
        else:
            count_axis(axes.xaxis, xlabel)
        bytes_axis(axes.yaxis, "memory")
        bracket_phases(axes, phases)
        _legend_below(figure, axes)
        _title(axes, title, raised=bool(phases))
    return figure


def memory_bars(
    configurations: Mapping[str, Mapping[str, float]],
    *,
    capacity: float | None = None,
    title: str | None = None,
) -> Figure:
    """One horizontal bar per configuration, cut into categories, its total written beside it.

    ``configurations`` maps a label to category → bytes. ``capacity`` (bytes) is drawn as a line; a total
    above it is written in bold with "does not fit", so the message does not hang on colour alone.
    """
    import matplotlib.pyplot as plt

    names = _stacked_order({name: () for parts in configurations.values() for name in parts})
    labels = list(configurations)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.25 + 0.42 * len(labels)))
        left = [0.0] * len(labels)
        for i, name in enumerate(names):
            widths = [configurations[label].get(name, 0.0) for label in labels]
            axes.barh(
                labels, widths, 0.68, left, color=colour(name, i), label=name, edgecolor=PAPER, linewidth=1
            )
            left = [a + b for a, b in zip(left, widths, strict=True)]
        _write_totals(axes, left, capacity)
        _capacity_line(axes, capacity, vertical=True)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, max([*left, capacity or 0.0]) * 1.04)
        bytes_axis(axes.xaxis, "memory")
        _legend_below(figure, axes)
        _title(axes, title)
    return figure


def memory_over_sequence(
    lengths: Sequence[int],
    models: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    dashed: tuple[str, Mapping[str, Sequence[float]]] | None = None,
    capacity: tuple[str, float] | None = None,
) -> Figure:
    """One panel per model: bytes by category, stacked, over sequence length; decimal GB, as devices are sold.

    ``lengths`` are tokens, ``models`` maps a title to category → bytes at each length. ``dashed`` is (name,
    title → bytes), drawn over the panels as far as they reach: the y axis follows the stacks. ``capacity``
    is (name, bytes) of a device. Raises ``ValueError`` when a series and ``lengths`` differ in length.
    """
    import matplotlib.pyplot as plt

    for title, series in models.items():
        for name, values in series.items():
            if len(values) != len(lengths):
                raise ValueError(f"{title}: {name!r} has {len(values)} values for {len(lengths)} lengths")
    with plt.rc_context(rc_parameters()):
        figure, rows = plt.subplots(
            len(models), 1, figsize=(WIDTH, 0.8 + 1.9 * len(models)), sharex=True, squeeze=False
        )
        for axes, (title, series) in zip(rows[:, 0], models.items(), strict=True):
            names = _stacked_order(series)
            stacks = [[value / 1e9 for value in series[name]] for name in names]
            colours = [colour(name, i) for i, name in enumerate(names)]
            axes.stackplot(lengths, stacks, labels=names, colors=colours, linewidth=0)
            _panel(axes, title, max(sum(column) for column in zip(*stacks, strict=True)))
            if dashed:
                over = [value / 1e9 for value in dashed[1][title]]
                axes.plot(lengths, over, linestyle=(0, (2, 2)), color=PALETTE["activations"], label=dashed[0])
            if capacity:
                axes.axhline(
                    capacity[1] / 1e9, linewidth=1.3, color=rc_parameters()["text.color"], label=capacity[0]
                )
            axes.set_xlim(min(lengths), max(lengths))
        tokens_axis(rows[-1, 0].xaxis, lengths)
        _legend_below(figure, rows[0, 0])
    return figure


def _panel(axes: Any, title: str, top: float) -> None:
    axes.set_title(title)
    axes.set_ylabel("memory (GB)")
    axes.set_ylim(0, top * 1.08)


def _stacked_order(series: Mapping[str, Any]) -> list[str]:
    known = [name for name in STACKING if name in series]
    return known + [name for name in series if name not in known]


def _thinned(
    times: Sequence[float], rows: Sequence[Sequence[float]], limit: int = 300
) -> tuple[list[float], list[list[float]]]:
    """At most ``limit`` + 2 moments: of each stretch the one with the highest total, and both ends.

    A step has thousands of allocations and the figure 400 points; what it must not lose are the peaks.
    """
    totals = [sum(column) for column in zip(*rows, strict=True)]
    stretch = max(1, -(-len(times) // limit))
    starts = range(0, len(times), stretch)
    highest = {max(range(i, min(i + stretch, len(times))), key=totals.__getitem__) for i in starts}
    keep = sorted(highest | {0, len(times) - 1})
    return [times[i] for i in keep], [[row[i] for i in keep] for row in rows]


def _mark_peak(axes: Any, times: Sequence[float], totals: Sequence[float]) -> None:
    """A dot at the highest total, its size beside it, on the side with room."""
    at = max(range(len(totals)), key=totals.__getitem__)
    late = times[at] - times[0] > 0.6 * (times[-1] - times[0])
    axes.plot(times[at], totals[at], "o", color=rc_parameters()["text.color"], markersize=4, zorder=5)
    axes.annotate(
        f"peak {format_bytes(totals[at])}",
        (times[at], totals[at]),
        xytext=(-6 if late else 6, 5),
        textcoords="offset points",
        ha="right" if late else "left",
    )


def _capacity_line(axes: Any, capacity: float | None, *, vertical: bool = False) -> None:
    if capacity is None:
        return
    draw = axes.axvline if vertical else axes.axhline
    draw(capacity, linestyle=(0, (4, 3)), linewidth=1.3, color=rc_parameters()["text.color"])
    text = f"device: {format_bytes(capacity)}"
    if vertical:
        axes.text(capacity, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", va="bottom")
    else:
        axes.text(0.99, capacity, text, transform=axes.get_yaxis_transform(), ha="right", va="bottom")


def bracket_phases(axes: Any, phases: list[tuple[str, float, float]]) -> None:
    """Named spans above the plot: a rule in the colour of the concept and its name."""
    tint = {"forward": PALETTE["F"], "backward": PALETTE["B"], "optimizer": PALETTE["optimizer"]}
    above = axes.get_xaxis_transform()
    for i, (name, start, end) in enumerate(phases):
        hue = tint.get(name, colour(name, i))
        axes.plot([start, end], [1.03, 1.03], transform=above, color=hue, linewidth=3, clip_on=False)
        axes.text((start + end) / 2, 1.055, name, transform=above, ha="center", va="bottom", fontsize=9.5)
        axes.axvline(end, color=rc_parameters()["text.color"], alpha=0.25, linewidth=0.7)


def _write_totals(axes: Any, totals: Sequence[float], capacity: float | None) -> None:
    for row, total in enumerate(totals):
        over = capacity is not None and total > capacity
        text = format_bytes(total) + (", does not fit" if over else "")
        weight = "bold" if over else "normal"
        axes.text(1.02, row, text, transform=axes.get_yaxis_transform(), va="center", fontweight=weight)


def _legend_below(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels) if len(labels) <= 5 else -(-len(labels) // 2),
        columnspacing=1.1,
        handletextpad=0.5,
    )


def _title(axes: Any, title: str | None, *, raised: bool = False) -> None:
    if title:
        axes.set_title(title, pad=22 if raised else None)
