"""Compressed gradients drawn: a value between two levels, errors by bits, feedback, sums of sparse vectors, losses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--", "-.", ":")


def rounding(value: float, levels: Sequence[float], shares: Mapping[float, float]) -> Figure:
    """A value on the line of its levels, and how often it went to each of them."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.1))
        axes.hlines(0, levels[0], levels[-1], color=INK, linewidth=1)
        axes.plot(levels, [0] * len(levels), "|", color=INK, markersize=14, markeredgewidth=1.5)
        axes.plot([value], [0], "o", color=PALETTE["gradients"], markersize=8, zorder=3)
        axes.text(value, -0.1, f"{value:g}", ha="center", va="top", color=INK)
        for level, share in shares.items():
            axes.bar(level, share, 0.05, color=PALETTE["compute"], alpha=0.75)
            axes.text(level, share + 0.04, f"{share:.1%}", ha="center", va="bottom", fontsize=9.5)
        axes.set_xticks(levels, [f"{level:g}" for level in levels])
        axes.set(ylim=(-0.26, 0.9), xlim=(levels[0] - 0.06, levels[-1] + 0.06))
        axes.set_yticks([])
        axes.spines[["left", "bottom"]].set_visible(False)
        axes.tick_params(length=0)
        axes.grid(False)
    return figure


def errors_by_bits(points: Mapping[str, Sequence[tuple[str, float, float]]]) -> Figure:
    """Of each kind, named dots: bits a value, and the squared error over the squared length; both axes logarithmic."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import FixedLocator, NullLocator

    ticks = [0.25, 0.5, 1, 2, 4, 8, 16]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.7))
        for (kind, dots), hue, mark in zip(points.items(), CYCLE, "os^D", strict=False):
            axes.plot(
                [x for _, x, _ in dots], [y for *_, y in dots], mark, color=hue, markersize=7, label=kind
            )
            for name, x, y in dots:
                beside = any(0.6 < other / x < 1.7 and y < height < 5 * y for _, other, height in dots)
                axes.annotate(
                    name,
                    (x, y),
                    xytext=(0, -16 if beside else 7),  # below, where the place above is taken
                    textcoords="offset points",
                    ha="center",
                    fontsize=9,
                )
        axes.axhline(1, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_locator(FixedLocator(ticks))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.margins(x=0.12, y=0.12)
        axes.set_xlim(0.2, 16)
        axes.set_xlabel("bits sent for each value of 32")
        axes.set_ylabel("squared error / squared length")
        figure.legend(loc="outside lower center", ncols=len(points))
    return figure


def distances(runs: Mapping[str, Sequence[float]]) -> Figure:
    """How far each run is from the minimum, step by step, on a logarithmic axis."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        for (name, values), hue, dash in zip(runs.items(), CYCLE, DASHES, strict=False):
            axes.plot(range(len(values)), values, dash, color=hue, label=name)
        axes.set_yscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel("distance from the minimum")
        axes.margins(x=0.01)
        figure.legend(loc="outside lower center", ncols=len(runs))
    return figure


def densities(nodes: Sequence[int], series: Mapping[str, Sequence[float]], worth: float) -> Figure:
    """Shares of a sum's values that are not zero, by the number of nodes summed; above ``worth`` dense is smaller."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import PercentFormatter

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0))
        for (name, values), hue, dash in zip(series.items(), CYCLE, DASHES, strict=False):
            axes.plot(nodes, values, dash, color=hue, marker="o", markersize=4, label=name)
        axes.axhline(worth, color=INK, linewidth=0.9, linestyle=":")
        axes.text(nodes[0], worth, "as large as the dense vector", va="bottom", fontsize=9)
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(nodes), [str(n) for n in nodes])
        axes.minorticks_off()
        axes.set_ylim(0, max(worth, *(max(values) for values in series.values())) * 1.12)
        axes.yaxis.set_major_formatter(PercentFormatter(1, 0))
        axes.set_xlabel("nodes whose messages have been added up")
        axes.set_ylabel("values that are not zero")
        figure.legend(loc="outside lower center", ncols=len(series))
    return figure


def losses_by_bytes(runs: Mapping[str, tuple[Sequence[float], float]]) -> Figure:
    """Losses of each run over steps, and over the bytes that a rank has sent: (losses, bytes a step) by name."""
    import matplotlib.pyplot as plt
    from matplotlib.ticker import NullLocator

    with plt.rc_context(rc_parameters()):
        figure, (by_steps, by_bytes) = plt.subplots(1, 2, sharey=True, figsize=(WIDTH, 3.9))
        for i, (name, (losses, each)) in enumerate(runs.items()):
            look: dict[str, Any] = {"color": CYCLE[i % len(CYCLE)], "linestyle": DASHES[i // len(CYCLE)]}
            steps = range(1, len(losses) + 1)
            by_steps.plot(steps, losses, label=name, linewidth=1.5, **look)
            by_bytes.plot([each * step / 1e6 for step in steps], losses, linewidth=1.5, **look)
        by_steps.set_xlabel("step")
        by_steps.set_ylabel("loss (nats per token)")
        by_bytes.set_xscale("log")
        by_bytes.set_xticks([0.01, 0.1, 1, 10], ["0.01", "0.1", "1", "10"])
        by_bytes.xaxis.set_minor_locator(NullLocator())
        by_bytes.set_xlabel("MB sent by a rank")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
