"""A simulator drawn: a step that gains a term at a time, waves of tiles, errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Terms of a step in the order in which the chapter adds them: hue and strength.
TERMS = {
    "FLOPs at peak": ("compute", 1.0),
    "at the speed of large products": ("compute", 0.6),
    "tiles and waves": ("compute", 0.3),
    "attention, passes, launches": ("memory", 0.85),
    "tensor parallelism": ("tp", 0.85),
    "pipeline": ("pp", 0.85),
    "data parallelism, optimizer": ("data", 0.85),
    "stragglers": ("idle", 0.85),
}


def growing(models: Mapping[str, Mapping[str, float]]) -> Figure:
    """A bar for each model, stacked of the terms that it has so far, as shares of the measured time: the line at 1.

    The inner mappings are by term, of `TERMS`. Raises ValueError for another term, and without a model.
    """
    import matplotlib.pyplot as plt

    if not models:
        raise ValueError("growing() needs at least one model")
    shown = [term for term in TERMS if any(term in parts for parts in models.values())]
    for name, parts in models.items():
        if unknown := set(parts) - set(TERMS):
            raise ValueError(f"{name} has the term {min(unknown)!r}, which is none of {', '.join(TERMS)}")
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.0 + 0.18 * (len(shown) // 2)))
        for place, parts in enumerate(models.values()):
            below = 0.0
            for term in shown:
                hue, strength = TERMS[term]
                value = parts.get(term, 0.0)
                axes.bar(
                    place, value, 0.74, bottom=below, color=(PALETTE[hue], strength),
                    label=term if not place else None,
                )  # fmt: skip
                below += value
        axes.axhline(1.0, color=INK, linewidth=1.2)
        axes.text(-0.4, 1.03, "measured", va="bottom", fontsize=9)
        axes.set_xticks(range(len(models)), list(models), rotation=45, ha="right", rotation_mode="anchor")
        axes.set(ylim=(0, 1.18), ylabel="predicted ÷ measured")
        figure.legend(loc="outside lower center", ncols=2)
    return figure


def waves(sizes: Mapping[str, tuple[int, int]], tile: tuple[int, int], processors: int) -> Figure:
    """The tiles of products of (m, n) by the wave that computes them, a panel each. Waves go row by row.

    Tiles of a last wave that is not full stand out; processors that are idle in it stand below as empty boxes.
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            1, len(sizes), figsize=(WIDTH, 3.3), squeeze=False, sharex=True, sharey=True
        )
        high = 0.0
        for axes, (name, (m, n)) in zip(panels[0], sizes.items(), strict=True):
            rows, columns = -(-m // tile[0]), -(-n // tile[1])
            tiles = rows * columns
            count = -(-tiles // processors)
            idle = count * processors - tiles
            for i in range(tiles):
                wave = i // processors
                last = idle and wave == count - 1
                look = PALETTE["gradients"] if last else (PALETTE["compute"], 0.35 + 0.4 * (wave % 2))
                _tile(axes, *divmod(i, columns), facecolor=look)
            for i in range(idle):
                row, column = divmod(i, columns)
                _tile(axes, rows + 1.2 + row, column, fill=False, linewidth=0.6, edgecolor=PALETTE["idle"])
            high = max(high, rows + (1.2 + -(-idle // columns)) * bool(idle))
            axes.set(
                xlim=(-0.1, columns), ylim=(high, -0.1), aspect="equal", anchor="NW", xticks=[], yticks=[]
            )
            axes.spines[:].set_visible(False)
            axes.grid(False)
            full = tiles / (count * processors)
            words = f"{tiles} tile{'s' * (tiles > 1)}, {count} wave{'s' * (count > 1)}, {full:.0%} used"
            axes.set_title(f"{name}\n{words}", fontsize=10)
    return figure


def _tile(axes: Any, row: float, column: float, **look: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((column, row), 0.9, 0.9, **look))


def ratios(tables: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Predicted over measured times, row by row of each table, for several predictors; exact ones lie on the line at 1.

    ``tables`` are by table, by predictor (at most three, the same in each).
    """
    import matplotlib.pyplot as plt

    predictors = list(next(iter(tables.values())))
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.0 + 0.55 * len(tables)))
        for row, by_predictor in enumerate(tables.values()):
            for i, name in enumerate(predictors):
                y = row + 0.34 * (i - (len(predictors) - 1) / 2)
                axes.plot(
                    by_predictor[name], [y] * len(by_predictor[name]), "oxs"[i], color=CYCLE[i], markersize=5.5,
                    alpha=0.75, label=name if not row else None, linestyle="",
                )  # fmt: skip
        axes.axvline(1.0, color=INK, linewidth=1.2)
        values = [v for each in tables.values() for one in each.values() for v in one]
        ticks = [
            t
            for t in (0.2, 0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0)
            if min(values) / 1.4 < t < max(values) * 1.4
        ]
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(tables)), list(tables))
        axes.set(ylim=(len(tables) - 0.5, -0.5), xlabel="predicted ÷ measured")
        axes.grid(False, axis="y")
        axes.grid(True, axis="x")
        figure.legend(loc="outside lower center", ncols=len(predictors))
    return figure


def scaled(curves: Sequence[Mapping[str, Any]]) -> Figure:
    """Tokens per second and GPU over degrees of dp (left), and of tp and pp (right): dots measured, lines predicted.

    ``curves`` are points as ``benchmarks/fit_calibrations.py --squares`` writes them, under "scaling".
    """
    import matplotlib.pyplot as plt

    panels = {"1B, more GPUs": ("dp",), "8B on 32 GPUs": ("tp", "pp")}
    hues, markers = {"dp": "data", "tp": "tp", "pp": "pp"}, {"dp": "o", "tp": "s", "pp": "o"}
    with plt.rc_context(rc_parameters()):
        figure, both = plt.subplots(1, 2, figsize=(WIDTH, 3.0))
        for axes, (title, names) in zip(both, panels.items(), strict=True):
            for name in names:
                mine = [point for point in curves if point["axis"] == name]
                degrees, color = [point["degree"] for point in mine], PALETTE[hues[name]]
                predicted, measured = (
                    [point[key] / 1e3 for point in mine] for key in ("predicted", "measured")
                )
                axes.plot(degrees, predicted, color=color, label=f"{name}, predicted")
                axes.plot(degrees, measured, markers[name], color=color, label=f"{name}, measured")
            axes.set_xscale("log", base=2)
            ticks = sorted({point["degree"] for point in curves if point["axis"] in names})
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.set(title=title, xlabel="GPUs, all dp" if names == ("dp",) else "tp or pp")
        both[0].set_ylabel("thousand tokens/s/GPU")
        figure.legend(loc="outside lower center", ncols=3)
    return figure
