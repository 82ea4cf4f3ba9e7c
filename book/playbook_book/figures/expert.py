"""Mixtures of experts drawn: which token goes where, the load over a run, who waits for whom, rows under way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, PAPER, WIDTH, rc_parameters
from playbook_book.figures.axes import count_axis, seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.instruments.expert_load import Loads
    from playbook_book.instruments.interval import Interval

#: What a rank does around its experts, in the order of the legend: hue and strength.
LOOKS = {
    "shared expert": (PALETTE["compute"], 0.85),
    "routed experts": (PALETTE["compute"], 0.35),
    "waiting": (PALETTE["idle"], 0.4),
    "rows under way": (PALETTE["communication"], 0.75),
}


def mixture(
    tokens: Sequence[str],
    chosen: Sequence[Sequence[int]],
    weights: Sequence[Sequence[float]],
    experts: int,
    ranks: int = 1,
) -> Figure:
    """Tokens, the experts that each of them has ``chosen``, and the sums of what these give: thick lines weigh much.

    With several ``ranks`` each has neighbouring tokens and neighbouring experts, in its hue; lines that stay on a rank
    are pale.
    """
    import matplotlib.pyplot as plt

    high = max(len(tokens), experts)
    token_y = [(i + 0.5) * high / len(tokens) for i in range(len(tokens))]
    expert_y = [(e + 0.5) * high / experts for e in range(experts)]
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.75 + 0.3 * high))
        for i, (some, shares) in enumerate(zip(chosen, weights, strict=True)):
            for e, share in zip(some, shares, strict=True):
                home = ranks > 1 and i * ranks // len(tokens) == e * ranks // experts
                look: dict[str, Any] = {
                    "color": _hue(e, experts, ranks),
                    "alpha": 0.3 if home else 0.9,
                    "zorder": 1,
                }
                axes.plot([0, 1], [token_y[i], expert_y[e]], linewidth=1.2, **look)
                axes.plot([1, 2], [expert_y[e], token_y[i]], linewidth=0.6 + 4 * share, **look)
        for i, token in enumerate(tokens):
            hue = CYCLE[i * ranks // len(tokens)] if ranks > 1 else PALETTE["idle"]
            for x in (0, 2):
                _box(axes, x, token_y[i], token, hue)
        for e in range(experts):
            _box(axes, 1, expert_y[e], f"expert {e}", _hue(e, experts, ranks), wide=0.4)
        for x, text in enumerate(("tokens", "their experts", "weighted sums")):
            axes.text(x, -0.25, text, ha="center", va="bottom", fontweight="bold")
        for rank in range(1, ranks):
            axes.axhline(rank * high / ranks, color=PALETTE["idle"], linewidth=0.8, linestyle=":")
        for rank in range(ranks if ranks > 1 else 0):
            axes.text(-0.2, (rank + 0.5) * high / ranks, f"rank {rank}", ha="right", va="center", fontsize=9)
        axes.set(xlim=(-0.45 if ranks > 1 else -0.2, 2.2), ylim=(high + 0.1, -0.7))
        axes.axis("off")
    return figure


def _hue(expert: int, experts: int, ranks: int) -> str:
    return CYCLE[expert * ranks // experts if ranks > 1 else expert % len(CYCLE)]


def _box(axes: Any, x: float, y: float, text: str, hue: str, wide: float = 0.2) -> None:
    look = {"boxstyle": "round,pad=0.28", "facecolor": hue, "edgecolor": "none"}
    axes.text(x, y, text, ha="center", va="center", color="#fff", fontsize=9, bbox=look, zorder=3)


def shares_over_steps(panels: Mapping[str, Loads], layer: int, ranks: int, window: int) -> Figure:
    """Each expert's share of the rows of a layer over a run, ``window`` steps together: a panel for each run.

    Experts lie one above the other, two shades for those of a rank; dotted lines are where the borders of ``ranks``
    would be if all had as many rows.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with plt.rc_context(rc_parameters()):
        figure, row = plt.subplots(
            1, len(panels), figsize=(WIDTH, 3.1), sharey=True, squeeze=False, sharex=True
        )
        for axes, (title, loads) in zip(row[0], panels.items(), strict=True):
            steps = range(0, len(loads.rows) - window + 1, window)
            shares = [loads.together(s, s + window).shares[0, layer].tolist() for s in steps]
            experts = len(shares[0])
            hues = [(CYCLE[e * ranks // experts], 0.85 - 0.35 * (e % 2)) for e in range(experts)]
            middle = [s + window / 2 for s in steps]
            axes.stackplot(
                middle, list(zip(*shares, strict=True)), colors=hues, edgecolor=PAPER, linewidth=0.5
            )
            for rank in range(1, ranks):
                axes.axhline(rank / ranks, linestyle=":", linewidth=1.2, color=PAPER)
            axes.set_title(title)
            axes.set(xlim=(middle[0], middle[-1]), ylim=(0, 1), xlabel="step")
            axes.grid(False)
        row[0, 0].yaxis.set_major_formatter(lambda v, _: f"{v:.0%}")
        row[0, 0].set_ylabel("share of the rows")
        handles = [Patch(facecolor=(CYCLE[r], 0.7), label=f"rank {r}") for r in range(ranks)]
        figure.legend(handles=handles, loc="outside lower center", ncols=ranks)
    return figure


def waiting(cases: Mapping[str, Sequence[float]]) -> Figure:
    """Rows of each rank in a mean step, a group of bars for each case; up to the busiest rank, the others wait."""
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.9 + 0.62 * len(cases)))
        for place, rows in enumerate(cases.values()):
            high = 0.8 / len(rows)
            for rank, n in enumerate(rows):
                y = place - 0.4 + (rank + 0.5) * high
                axes.barh(y, n, 0.85 * high, color=CYCLE[rank % len(CYCLE)])
                axes.barh(y, max(rows) - n, 0.85 * high, n, color=(PALETTE["idle"], 0.3))
        some = next(iter(cases.values()))
        axes.axvline(sum(some) / len(some), color=PALETTE["idle"], linestyle=":", linewidth=1.4)
        axes.set_yticks(range(len(cases)), list(cases))
        axes.set_ylim(len(cases) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.grid(False, axis="y")
        count_axis(axes.xaxis, "rows in a mean step")
        ranks = [Patch(facecolor=CYCLE[r % len(CYCLE)], label=f"rank {r}") for r in range(len(some))]
        handles = [*ranks, Patch(facecolor=(PALETTE["idle"], 0.3), label="waiting")]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def rows_under_way(panels: Mapping[str, Sequence[Interval]]) -> Figure:
    """What a rank does in a layer of experts, and what travels meanwhile; a panel for each run, one scale for all.

    The kinds of intervals are the keys of `LOOKS`.
    """
    import matplotlib.pyplot as plt
    from matplotlib.patches import Patch

    with plt.rc_context(rc_parameters()):
        figure, column = plt.subplots(
            len(panels), 1, figsize=(WIDTH, 0.85 + 0.95 * len(panels)), sharex=True, squeeze=False
        )
        for axes, (title, spans) in zip(column[:, 0], panels.items(), strict=True):
            zero = min(span.start for span in spans)
            for span in spans:
                row = 1 if span.kind == "rows under way" else 0
                axes.barh(row, span.end - span.start, 0.7, span.start - zero, color=LOOKS[span.kind])
            axes.set_title(title, fontsize=10)
            axes.set_yticks([0, 1], ["the rank", "rows"], fontsize=9)
            axes.set_ylim(1.5, -0.5)
            axes.tick_params(axis="y", length=0)
            axes.grid(False)
        seconds_axis(column[-1, 0].xaxis, "time in the forward pass of one layer")
        figure.legend(
            handles=[Patch(facecolor=look, label=name) for name, look in LOOKS.items()],
            loc="outside lower center",
            ncols=len(LOOKS),
        )
    return figure
