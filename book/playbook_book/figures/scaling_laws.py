"""Scaling laws drawn: profiles of equal compute, the frontier beside real runs, over-training, exponents over size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import BLUE, CYCLE, GREY, INK, ORANGE, PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_count

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.published_runs import Run
    from playbook_book.scaling_laws import Law

#: ``budget in FLOPs -> (parameters, loss) of each of its runs``
Profiles = Mapping[float, Sequence[tuple[float, float]]]


def isoflop_profiles(profiles: Profiles, minima: Mapping[float, tuple[float, float]]) -> Figure:
    """Left, the losses of each budget over parameters with a parabola through them and its minimum, a ring.

    Right, the parameters of the minima over compute, with the power law of least squares through them; its exponent is
    the title. At most six budgets, a hue each, else ``ValueError``.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import FixedLocator

    if len(profiles) > len(CYCLE):
        raise ValueError(f"profiles must be at most {len(CYCLE)}, a hue each, got {len(profiles)}")
    with plt.rc_context(rc_parameters()):
        figure, (left, right) = plt.subplots(1, 2, figsize=(WIDTH, 3.3), width_ratios=(3, 2))
        for hue, (budget, runs) in zip(CYCLE, profiles.items(), strict=False):
            sizes, losses = zip(*sorted(runs), strict=True)
            left.plot(sizes, losses, "o", color=hue, markersize=5, label=f"{_flops(budget)} FLOPs")
            parabola = np.polynomial.Polynomial.fit(np.log(sizes), losses, 2)
            along = np.geomspace(sizes[0], sizes[-1], 60)
            left.plot(along, parabola(np.log(along)), color=hue, linewidth=1.3)
            ring: dict[str, Any] = {
                "markersize": 9,
                "markeredgewidth": 1.6,
                "fillstyle": "none",
                "color": hue,
            }
            left.plot(*minima[budget], "o", **ring)
            right.plot(budget, minima[budget][0], "o", **ring)
        compute, best = np.array([(c, n) for c, (n, _) in minima.items()]).T
        slope, start = np.polyfit(np.log(compute), np.log(best), 1)
        right.plot(compute, np.exp(start) * compute**slope, "--", color=INK, linewidth=1.2)
        left.set(ylabel="loss on held-out text, nats per byte", title="Equal compute")
        right.set(title=f"Exponent {slope:.2f}")
        _log_counts(left.xaxis, [n for runs in profiles.values() for n, _ in runs], "parameters", (1, 2, 5))
        _log_counts(right.yaxis, [0.7 * min(best), 1.4 * max(best)], "parameters", tuple(range(1, 10)))
        _log_flops(right.xaxis, compute)
        right.xaxis.set_major_locator(FixedLocator(list(profiles)[::2]))
        figure.legend(
            *left.get_legend_handles_labels(), loc="outside lower center", ncols=min(4, len(profiles))
        )
    return figure


def _flops(compute: float) -> str:
    """``3e9`` → ``3·10⁹``."""
    power = math.floor(math.log10(compute) + 1e-9)
    digits = f"{compute / 10**power:.2g}"
    return ("" if digits == "1" else f"{digits}·") + "10" + str(power).translate(_SUPERSCRIPTS)


_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _log_counts(axis: Any, values: Sequence[float], label: str, steps: Sequence[int] = (1,)) -> None:
    """A logarithmic axis with ticks at ``steps`` times powers of ten, written 10k, 20k."""
    from matplotlib.ticker import FuncFormatter

    _log(axis, values, steps, label)
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def _log_flops(axis: Any, values: Sequence[float], steps: Sequence[int] = (1,), every: int = 1) -> None:
    from matplotlib.ticker import FuncFormatter

    _log(axis, values, steps, "training compute, FLOPs", every)
    axis.set_major_formatter(FuncFormatter(lambda value, _: _flops(value)))


def _log(axis: Any, values: Sequence[float], steps: Sequence[int], label: str, every: int = 1) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    low, high = min(values), max(values)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    ticks = [step * 10.0**power for power in powers if power % every == 0 for step in steps]
    axis.set_major_locator(FixedLocator([tick for tick in ticks if 0.99 * low <= tick <= 1.01 * high]))
    axis.set_minor_locator(NullLocator())
    axis.set_label_text(label)


def frontier(
    lines: Mapping[str, Callable[[float], float]],
    runs: Mapping[str, Run],
    names: Mapping[str, tuple[str, float, float]],
    compute: tuple[float, float] = (5e19, 6e26),
) -> Figure:
    """The parameters that each of ``lines`` names as best for a compute budget, and those of published ``runs``.

    ``names`` has the names of some, and how many points to the right of its dot and above it a name stands: it ends there
    if that is to the left, and at 0 it is centred.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    looks = ((BLUE, "-"), (ORANGE, "-"), (ORANGE, "--"), (GREY, "-."), *((hue, ":") for hue in CYCLE[2:]))
    budgets = np.geomspace(*compute, 40)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 4.4))
        for (name, best), (hue, dash) in zip(lines.items(), looks, strict=False):
            axes.plot(budgets, [best(c) for c in budgets], dash, color=hue, label=name)
        dots = [(run.compute, run.parameters) for run in runs.values()]
        axes.plot(*zip(*dots, strict=True), "o", color=INK, markersize=4.5)
        for name, (label, dx, dy) in names.items():
            side = "center" if not dx else "left" if dx > 0 else "right"
            where: dict[str, Any] = {
                "xytext": (dx, dy),
                "textcoords": "offset points",
                "ha": side,
                "va": "center",
            }
            axes.annotate(label, (runs[name].compute, runs[name].parameters), fontsize=9, **where)
        axes.set(xlim=compute, ylim=(8e7, 2e12))
        _log_counts(axes.yaxis, [1e8, 1e12], "parameters N")
        _log_flops(axes.xaxis, compute)
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def overtraining_curve(law: Law, marks: Sequence[float]) -> Figure:
    """Compute and tokens for the loss of the optimum over the size of the model, all relative to the optimum.

    ``marks`` are sizes at which the compute is written. The line at the left is the size below which no number of tokens
    is enough.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    wall = law.exponents[0] ** (1 / law.alpha)
    sizes = np.geomspace(wall * 1.02, 2.2, 160)
    tokens, compute = np.array([law.overtraining(float(size)) for size in sizes]).T
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.4))
        axes.plot(sizes, compute, color=PALETTE["compute"], label="training compute")
        axes.plot(sizes, tokens, "--", color=PALETTE["data"], label="tokens")
        axes.plot(sizes, sizes, ":", color=PALETTE["parameters"], label="compute per generated token")
        axes.axvline(wall, color=INK, linewidth=1.2)
        axes.text(wall * 1.02, 0.6, f"wall at {wall:.3f}", fontsize=9.5, rotation=90, va="bottom")
        for mark in marks:
            cost = law.overtraining(mark)[1]
            axes.plot(mark, cost, "o", color=PALETTE["compute"], markersize=6)
            where: dict[str, Any] = {
                "xytext": (-5, -11),
                "textcoords": "offset points",
                "ha": "right",
                "fontsize": 9.5,
            }
            axes.annotate(f"{cost:.2f}×", (mark, cost), **where)
        axes.set(xscale="log", yscale="log", xlim=(wall * 0.93, 2.2), ylim=(0.1, 60))
        ticks = [0.15, 0.2, 0.25, 0.35, 0.5, 0.7, 1, 1.5, 2]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([0.1, 0.3, 1, 3, 10, 30], ["0.1×", "0.3×", "1×", "3×", "10×", "30×"])
        axes.minorticks_off()
        axes.set_xlabel("parameters over the compute-optimal number")
        axes.set_ylabel("for the same loss")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
