"""Four bits drawn: the numbers that there are, what outliers cost, and where runs end without an ingredient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Markers of lines, so that they can be told apart without colour.
MARKERS = "osD^"


def number_lines(numbers: Mapping[str, Sequence[float]], low: float, high: float) -> Figure:
    """The numbers of each format from ``low`` to ``high`` as strokes on a line of its own."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.5 + 0.55 * len(numbers)))
        for i, values in enumerate(numbers.values()):
            inside = [value for value in values if low <= value <= high]
            axes.vlines(
                inside, i - 0.32, i + 0.32, color=CYCLE[i], linewidth=2.0 if len(inside) < 40 else 0.8
            )
        axes.set_yticks(range(len(numbers)), list(numbers))
        axes.set(xlim=(low - 0.2, high + 0.2), ylim=(len(numbers) - 0.5, -0.5))
        axes.set_xlabel("number")
    return figure


def lines(
    places: Sequence[float],
    values: Mapping[str, Sequence[float]],
    along: str,
    up: str,
    *,
    percent: bool = True,
) -> Figure:
    """A line for each of ``values`` over ``places``, on a logarithmic axis."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        for i, (name, line) in enumerate(values.items()):
            axes.plot(places, line, color=CYCLE[i], marker=MARKERS[i % 4], markersize=4, label=name)
        axes.set_xscale("log")
        axes.set_xlabel(along)
        axes.set_ylabel(up)
        if percent:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(bottom=0)
        axes.legend()
    return figure


def blocks(panels: Mapping[str, tuple[Sequence[float], Sequence[float]]]) -> Figure:
    """For each title the numbers of a block as bars, and what they became as marks."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, each = plt.subplots(1, len(panels), figsize=(WIDTH, 2.6), squeeze=False)
        for axes, (title, (numbers, became)) in zip(each.flat, panels.items(), strict=True):
            at = range(len(numbers))
            axes.bar(at, numbers, color=PALETTE["idle"], label="numbers")
            axes.plot(at, became, "o", color=PALETTE["F"], markersize=4, label="in four bits")
            axes.axhline(0, color=INK, linewidth=0.6)
            axes.set_title(title, fontsize=10)
            axes.set_xlabel("token of the block")
        each[0, 0].legend(fontsize=9)
    return figure


def left_out(ends: Mapping[str, Sequence[float]]) -> Figure:
    """A row for each recipe: the difference of each seed as a dot, their mean and its 95 % interval as a bar."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.7 + 0.36 * len(ends)))
        for i, values in enumerate(ends.values()):
            mean, half = interval(values)
            axes.plot(values, [i] * len(values), "o", color=PALETTE["idle"], markersize=4)
            axes.errorbar(mean, i, xerr=half, color=PALETTE["F"], fmt="s", markersize=5, capsize=3)
        axes.axvline(0, color=INK, linewidth=0.8, linestyle=":")
        axes.set_yticks(range(len(ends)), list(ends))
        axes.invert_yaxis()
        axes.set_xlabel("loss above fp32 of the same seed (nats)")
    return figure


#: Student's t for a 95 % interval of a mean, by the number of values.
T = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and half of its 95 % interval. Raises KeyError for fewer than two values, or more than eight."""
    n = len(values)
    mean = sum(values) / n
    variance = sum((value - mean) ** 2 for value in values) / max(1, n - 1)
    return mean, T[n] * (variance / n) ** 0.5
