"""Fusion drawn: what each operator reads and writes, chains of operators beside one kernel, and times by the roofline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_seconds
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

READ, WRITTEN = PALETTE["compute"], PALETTE["communication"]
#: How bars look that stand for a chain of operators, and for one kernel.
CHAIN, FUSED = (PALETTE["idle"], 0.6), PALETTE["compute"]


def operators(chain: Sequence[tuple[str, float, float]], fused: tuple[float, float]) -> Figure:
    """A bar for each operator of ``chain`` (name, read, written), in order, and one for the ``fused`` kernel below.

    Amounts are multiples of what one pass over the input moves. Each bar begins where the one before ends, so that the
    last one's end is the sum.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import MaxNLocator

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.85 + 0.27 * (len(chain) + 1)))
        at, last = 0.0, len(chain) + 0.4
        for place, (_, read, written) in enumerate(chain):
            _moved(axes, place, at, read, written)
            at += read + written
        _moved(axes, last, 0, *fused)
        axes.text(at, len(chain) - 1, f" {at:.0f}", va="center", fontweight="bold")
        axes.text(sum(fused), last, f" {sum(fused):.0f}", va="center", fontweight="bold")
        names = [*(name for name, *_ in chain), "one kernel"]
        axes.set_yticks([*range(len(chain)), last], names)
        axes.axhline(len(chain) - 0.3, color=PALETTE["idle"], linewidth=0.8, linestyle=":")
        axes.set(xlabel="passes over the rows of x", xlim=(0, 1.08 * at), ylim=(len(chain) + 1, -0.6))
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper right")
    return figure


def _moved(axes: Any, place: float, start: float, read: float, written: float) -> None:
    label = {"label": "read"}, {"label": "written"}
    first, second = label if place == 0 else ({}, {})
    axes.barh(place, read, 0.68, start, color=READ, **first)
    axes.barh(place, written, 0.68, start + read, color=WRITTEN, **second)


def time_bounds(times: Mapping[str, tuple[float, float]]) -> Figure:
    """Seconds that parts of a step take at least, as chains of operators and fused; where both are equal, one bar."""
    import matplotlib.pyplot as plt

    totals = [sum(both[i] for both in times.values()) for i in (0, 1)]
    names = [
        f"{name}, together {format_seconds(t)}"
        for name, t in zip(("operators", "fused"), totals, strict=True)
    ]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.55 * len(times)))
        for place, (chain, fused) in enumerate(times.values()):
            axes.barh(place - 0.2, chain, 0.36, color=CHAIN, label=None if place else names[0])
            axes.barh(place + 0.2, fused, 0.36, color=FUSED, label=None if place else names[1])
            for offset, seconds in ((-0.2, chain), (0.2, fused)):
                text = f" {format_seconds(seconds, 2)}"
                axes.text(seconds, place + offset, text, va="center", fontsize=9)
        _named(axes, times)
        seconds_axis(axes.xaxis, "at least, per step")
        axes.margins(x=0.12)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def _named(axes: Any, cases: Mapping[str, Any]) -> None:
    axes.set_yticks(range(len(cases)), list(cases))
    axes.set_ylim(len(cases) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
