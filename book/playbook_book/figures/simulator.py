"""A simulator drawn: a step that gains a term at a time, waves of tiles, a block's operations under the roof, errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_count
from playbook.planning.operations import Operation
from playbook.planning.roofline import Device

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
#: Bytes of an element of a product.
SIZE = 2


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


def by_size(sizes: Sequence[int], curves: Mapping[str, Sequence[float]], *, xlabel: str) -> Figure:
    """Shares of what large products reach over a size, a curve for each name."""
    import matplotlib.pyplot as plt

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 2.9))
        for (name, values), hue in zip(curves.items(), CYCLE, strict=False):
            axes.plot(sizes, values, color=hue, linewidth=1.3, label=name)
        axes.set(xlim=(0, sizes[-1]), ylim=(0, 1.05), xlabel=xlabel, ylabel="of the speed of large ones")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="lower right")
    return figure


def under_the_roof(device: Device, operations: Iterable[Operation]) -> Figure:
    """Operations of a block at the FLOP/s that they reach over their FLOPs for each byte moved, under the datasheet roof.

    A product moves its two inputs and its output once. A pass has no FLOPs worth counting: it is drawn at one for each
    byte, so that its height is its bytes per second. Those of one name and place are drawn once.
    """
    import matplotlib.pyplot as plt

    peak, bandwidth = device.accelerator.peak(device.dtype), device.accelerator.memory_bandwidth
    points: dict[str, tuple[float, float, str]] = {}
    for o in operations:
        if o.kind == "product":
            moved = SIZE * o.batch * (o.m * o.k + o.k * o.n + o.m * o.n)
            points[o.name] = (o.work / moved, o.work / device.seconds(o), "product")
        elif o.kind == "pass":
            points[o.name] = (1.0, o.bytes / device.seconds(o), "pass")
    ridge, high = peak / bandwidth, 4 * max(x for x, _, _ in points.values())
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.9))
        axes.plot([0.4, ridge], [0.4 * bandwidth, peak], color=PALETTE["memory"], label="memory")
        axes.plot([ridge, high], [peak, peak], color=PALETTE["compute"], label="arithmetic")
        for x, y, kind in points.values():
            product = kind == "product"
            hue, mark = PALETTE["compute" if product else "memory"], "o" if product else "s"
            axes.plot(x, y, mark, color=hue, markersize=6)
        for names in _near(points):
            x, y, kind = points[names[0]]
            place, side = ((9, 3), "left") if kind == "pass" else ((0, -11), "center")
            axes.annotate(
                "\n".join(names), (x, y), place, textcoords="offset points", fontsize=8.5, ha=side, va="top"
            )
        axes.set(xscale="log", yscale="log", xlim=(0.4, high), ylim=(bandwidth * 0.06, 3 * peak))
        axes.set(xlabel="FLOPs for each byte moved", ylabel="FLOP/s")
        axes.yaxis.set_major_formatter(lambda value, _: format_count(value))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    return figure


def _near(points: Mapping[str, tuple[float, float, str]]) -> list[list[str]]:
    """Names of points that lie so close together that their names would overlap, the leftmost first."""
    found: list[list[str]] = []
    for name in sorted(points, key=lambda name: points[name]):
        for group in found:
            x, y, _ = points[group[0]]
            if points[name][0] < 3 * x and 1 / 2 < points[name][1] / y < 2:
                group.append(name)
                break
        else:
            found.append([name])
    return found


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
