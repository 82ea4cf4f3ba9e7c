"""Searches drawn: the best layout for each model and cluster, and regret over evaluations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, INK, PALETTE, WIDTH, rc_parameters

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.searching.compare import Trial

#: What may limit a step, with the hue of each.
LIMITS = {
    "memory": PALETTE["activations"],
    "TP messages": PALETTE["tp"],
    "DP messages": PALETTE["dp"],
    "bubble": PALETTE["idle"],
    "EP messages": PALETTE["ep"],
    "compute": PALETTE["W"],
}


@dataclass(frozen=True)
class Cell:
    """The best layout of one model on one cluster in a few short lines, its MFU, and what limits it most."""

    mfu: float
    lines: tuple[str, ...]
    limit: str


def heat_map(cells: Mapping[tuple[str, int], Cell | None]) -> Figure:
    """Models downwards, nodes to the right: the deeper the colour, the higher the MFU; its hue says what limits. None is
    a model that does not fit."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    models = list(dict.fromkeys(model for model, _ in cells))
    nodes = list(dict.fromkeys(count for _, count in cells))
    known = [cell.mfu for cell in cells.values() if cell]
    low, high = min(known), max(known)
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.86 * len(models)))
        for (model, count), cell in cells.items():
            x, y = nodes.index(count), models.index(model)
            if cell is None:
                _square(axes, x, y, PALETTE["idle"], 0.08)
                axes.text(x, y, "does\nnot fit", ha="center", va="center", fontsize=8.5)
                continue
            share = (cell.mfu - low) / (high - low or 1)
            _square(axes, x, y, LIMITS[cell.limit], 0.12 + 0.38 * share)
            text = "\n".join(cell.lines)
            axes.text(x, y + 0.12, text, ha="center", va="center", fontsize=8.5, linespacing=1.15)
            axes.text(x, y - 0.34, f"{cell.mfu:.0%}", ha="center", va="center", fontsize=9.5, weight="bold")
        axes.set_xticks(range(len(nodes)), [str(count) for count in nodes])
        axes.set_yticks(range(len(models)), models)
        axes.set_xlim(-0.5, len(nodes) - 0.5)
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_xlabel("nodes of eight H100s")
        axes.grid(False)
        axes.tick_params(length=0)
        there = [name for name in LIMITS if any(cell and cell.limit == name for cell in cells.values())]
        handles = [Patch(facecolor=LIMITS[name], alpha=0.5, label=name) for name in there]
        figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=len(handles),
            fontsize=9,
            title="what costs most",
            title_fontsize=9,
        )
    return figure


def beside(squares: Sequence[Mapping[str, Any]]) -> Figure:
    """The squares of ``benchmarks/fit_calibrations.py --squares``: for each model a row of the layouts that were measured
    as the fastest and one of those predicted to be, each with its measured tokens per second and GPU, in thousands."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    hues = {"the same": PALETTE["W"], "up to 10 % slower": PALETTE["tp"], "slower": PALETTE["idle"]}
    kinds = ("measured best", "predicted best")
    names = list(dict.fromkeys(square["table"] for square in squares))
    nodes = sorted({square["nodes"] for square in squares})
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.86 * len(names) * len(kinds)))
        for square in squares:
            slower = square["predicted best"]["seconds"] / square["measured best"]["seconds"] - 1
            verdict = "the same" if slower == 0 else "up to 10 % slower" if slower <= 0.1 else "slower"
            for kind in kinds:
                x = nodes.index(square["nodes"])
                y = names.index(square["table"]) * len(kinds) + kinds.index(kind)
                rate = square["tokens"] / square[kind]["seconds"] / (8 * square["nodes"])
                said = kind == kinds[1]
                _square(axes, x, y, hues[verdict] if said else INK, 0.35 if said else 0.06)
                text = "\n".join(_lines(square[kind]["layout"]))
                axes.text(x, y + 0.12, text, ha="center", va="center", fontsize=8.5, linespacing=1.15)
                bold = f"{rate / 1e3:.1f}"
                axes.text(x, y - 0.34, bold, ha="center", va="center", fontsize=9.5, weight="bold")
        labels = [f"{name.removeprefix('sweep ')}\n{kind.split()[0]}" for name in names for kind in kinds]
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xticks(range(len(nodes)), [str(count) for count in nodes])
        axes.set_xlim(-0.5, len(nodes) - 0.5)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlabel("nodes of eight H100s")
        axes.grid(False)
        axes.tick_params(length=0)
        handles = [Patch(facecolor=hue, alpha=0.5, label=name) for name, hue in hues.items()]
        title = "the predicted best against the measured best"
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9, title=title, title_fontsize=9,
        )  # fmt: skip
    return figure


def _lines(layout: str) -> tuple[str, ...]:
    """A layout as the sweep names it, in three short lines."""
    parts = dict(part.partition("=")[::2] for part in layout.split(","))
    return (
        f"dp {parts['dp']} z{parts['zero']}",
        f"tp {parts['tp']} pp {parts['pp']}",
        f"mb {parts['micro_batch']}",
    )


def _square(axes: Any, x: int, y: int, hue: str, alpha: float) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, facecolor=hue, alpha=alpha, linewidth=0))


def regrets(trials: Sequence[Trial], methods: Sequence[str], most: int) -> Figure:
    """For each method the median regret, over problems and seeds, after 1, 2, … ``most`` evaluations; a band for the
    quarters beside it."""
    import matplotlib.pyplot as plt

    after = list(range(1, most + 1))
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 3.8))
        for method, hue, dash in zip(methods, CYCLE, ("-", "--", "-.", ":", "-"), strict=False):
            mine = [trial for trial in trials if trial.method == method]
            curves = [[_shown(trial.regret(n)) for trial in mine] for n in after]
            quarters = [statistics.quantiles(values, n=4) for values in curves]
            axes.plot(after, [q[1] for q in quarters], dash, color=hue, label=method)
            axes.fill_between(after, [q[0] for q in quarters], [q[2] for q in quarters], color=hue, alpha=0.1)
        axes.axhline(0.01, color=INK, linewidth=0.8, linestyle=":")
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axes.minorticks_off()
        axes.set_xlim(1, most)
        axes.set_yscale("symlog", linthresh=0.01)
        axes.set_yticks([0, 0.01, 0.1, 1.0], ["0", "1 %", "10 %", "100 %"])
        axes.set_ylim(-0.001, 2.2)
        axes.set_xlabel("evaluations")
        axes.set_ylabel("slower than the optimum")
        figure.legend(loc="outside lower center", ncols=3)
    return figure


def _shown(regret: float) -> float:
    """Where nothing fits yet, a line has to be somewhere: at the top."""
    return regret if math.isfinite(regret) else 2.0
