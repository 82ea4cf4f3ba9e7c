"""Ranks talking to each other, drawn: who holds what before, between and after the messages, and when they travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import CYCLE, PALETTE, WIDTH, rc_parameters
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook_book.collective_costs import MessageTimeline
    from playbook_book.collectives.plans import Plan

INK = rc_parameters()["text.color"]
LETTERS = "abcdefgh"
TITLES = {
    "broadcast": "broadcast",
    "reduce": "reduce",
    "all_reduce": "all-reduce",
    "gather": "gather",
    "all_gather": "all-gather",
    "scatter": "scatter",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
}
#: What a cell of a memory holds: the ranks whose contributions are in it, and which chunk of theirs it is.
Cell = tuple[frozenset[int], int] | None


def conversations(ranks: int = 3) -> Figure:
    """Each collective, before and after: a row of cells per rank, a hue and a letter for whose numbers they hold.

    ``ranks`` is 2 to 6, as many as there are hues.
    """
    import matplotlib.pyplot as plt

    if not 2 <= ranks <= len(CYCLE):
        raise ValueError(f"ranks must be 2 to {len(CYCLE)}, a hue each, got {ranks}")
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(4, 2, figsize=(WIDTH, 1.05 + 1.45 * ranks), squeeze=False)
        for axes, (collective, title) in zip(panels.flat, TITLES.items(), strict=True):
            before, after = _before_after(collective, ranks)
            _memory(axes, 0.0, before)
            _memory(axes, ranks + 1.4, after)
            arrow = {"arrowstyle": "-|>", "linewidth": 1.1, "color": INK}
            axes.annotate(
                "", (ranks + 1.2, -(ranks - 1) / 2), (ranks + 0.2, -(ranks - 1) / 2), arrowprops=arrow
            )
            for rank in range(ranks):
                axes.text(-0.2, -rank, f"rank {rank}", ha="right", va="center", fontsize=8.5)
            axes.set(xlim=(-1.9, 2 * ranks + 1.5), ylim=(-ranks + 0.4, 0.6), aspect="equal")
            axes.set_title(title, fontsize=10)
            axes.set_axis_off()
    return figure


def _before_after(collective: str, n: int) -> tuple[list[list[Cell]], list[list[Cell]]]:
    """The cells of every rank, as a plan of the collective starts and ends."""
    from playbook_book.collectives.plans import plan
    from playbook_book.replay import end, start

    if collective == "all_to_all":
        # Its plan speaks of places in the result; here the vectors that are sent are of interest.
        mine = [[_cell({rank}, chunk) for chunk in range(n)] for rank in range(n)]
        return mine, [[mine[sender][rank] for sender in range(n)] for rank in range(n)]
    both = plan(collective, ranks=n, elements=n)
    before, after = (
        [[_cell(held, chunk) for chunk, held in enumerate(row)] for row in rows]
        for rows in (start(both), end(both))
    )
    if collective == "broadcast":
        return before, after
    # What a rank has and the result does not speak of stays where it is.
    kept = collective in ("reduce", "gather")
    after = [
        [now or (was if kept else None) for was, now in zip(*rows, strict=True)]
        for rows in zip(before, after, strict=True)
    ]
    return before, after


def _cell(held: Any, chunk: int) -> Cell:
    return (frozenset(held), chunk) if held else None


def _memory(axes: Any, x: float, rows: Sequence[Sequence[Cell]]) -> None:
    """A row of cells for each rank: a stripe for each contribution, nothing but an outline where there is none."""
    for rank, row in enumerate(rows):
        for column, cell in enumerate(row):
            left, low = x + column, -rank - 0.42
            if cell is None:
                _box(axes, left, low, 0.92, 0.84, PALETTE["idle"], 0.0, style=(0, (2, 2)))
                continue
            held, chunk = cell
            for i, contributor in enumerate(sorted(held)):
                share = 0.92 / len(held)
                _box(axes, left + i * share, low, share, 0.84, CYCLE[contributor], 0.38, width=0)
            name = "Σ" if len(held) > 1 else LETTERS[min(held)]
            axes.text(
                left + 0.46, -rank - 0.02, f"{name}{_subscript(chunk)}", ha="center", va="center", fontsize=9
            )


def _subscript(number: int) -> str:
    return chr(0x2080 + number)


def _box(
    axes: Any,
    x: float,
    y: float,
    wide: float,
    high: float,
    hue: str,
    strength: float,
    *,
    style: Any = "-",
    width: float = 1.1,
) -> None:
    from matplotlib.patches import Rectangle

    face = (hue, strength) if strength else "none"
    axes.add_patch(
        Rectangle((x, y), wide, high, facecolor=face, edgecolor=hue, linestyle=style, linewidth=width)
    )


def transcript(plan: Plan, columns: int = 3) -> Figure:
    """What every rank holds, step by step: a cell for each chunk, in it the number of contributions that it holds.

    What has just arrived has a frame; what is complete has the hue of "optimizer". One panel for the start, and one for
    each step.
    """
    import matplotlib.pyplot as plt

    from playbook_book.replay import replay

    states = replay(plan)
    rows = -(-len(states) // columns)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            rows, columns, figsize=(WIDTH, rows * (0.35 + WIDTH / columns * 0.85)), squeeze=False
        )
        for step, axes in enumerate(panels.flat):
            axes.set_axis_off()
            if step < len(states):
                _state(axes, plan, states[step], step - 1)
    return figure


def _state(axes: Any, plan: Plan, held: list[list[frozenset[int]]], step: int) -> None:
    """One panel: who holds what after ``step``; −1 is the start."""
    n = plan.ranks
    messages = [m for m in plan.messages if m.step == step]
    arrived = {
        (m.target, chunk) for m in messages for chunk in range(n) if m.start <= plan.cuts[chunk] < m.stop
    }
    for rank, row in enumerate(held):
        for chunk, contributions in enumerate(row):
            full = len(contributions) == n
            hue = PALETTE["optimizer" if full else "communication"]
            strength = 0.5 if full else 0.55 * len(contributions) / n
            _box(axes, chunk - 0.46, -rank - 0.46, 0.92, 0.92, hue, strength, width=0)
            if (rank, chunk) in arrived:
                _box(axes, chunk - 0.42, -rank - 0.42, 0.84, 0.84, INK, 0.0, width=1.5)
            axes.text(chunk, -rank - 0.02, len(contributions) or "", ha="center", va="center", fontsize=8.5)
        axes.text(-0.75, -rank, rank, ha="right", va="center", fontsize=8)
    kind = "add" if messages and messages[0].reduce else "copy"
    axes.set_title(f"step {step + 1}: {kind}" if step >= 0 else "start", fontsize=9.5)
    axes.set(xlim=(-1.3, n - 0.4), ylim=(-n + 0.4, 0.6), aspect="equal")


def reduction(plan: Plan, values: Sequence[float]) -> Figure:
    """A reduce to one rank: a column per rank, a row per step, the partial sums of those that go on."""
    import matplotlib.pyplot as plt

    held = list(values)
    going = set(range(plan.ranks))
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 0.5 + 0.72 * (plan.steps + 1)))
        for rank in range(plan.ranks):
            axes.text(rank, 0.62, f"rank {rank}", ha="center", fontsize=8.5)
            _value(axes, rank, 0, held[rank], "gradients")
        for step in range(plan.steps):
            messages = [m for m in plan.messages if m.step == step]
            for m in messages:
                held[m.target] += held[m.source]
                going.discard(m.source)
            for rank in sorted(going):
                _value(axes, rank, -step - 1, held[rank], "optimizer" if len(going) == 1 else "gradients")
                _arrow(axes, (rank, -step - 0.26), (rank, -step - 0.74))
            for m in messages:
                _arrow(axes, (m.source - 0.1, -step - 0.26), (m.target + 0.42, -step - 0.92))
            axes.text(-0.72, -step - 1, f"step {step + 1}", ha="right", va="center", fontsize=9)
        axes.set(xlim=(-1.6, plan.ranks - 0.5), ylim=(-plan.steps - 0.35, 0.85))
        axes.set_axis_off()
    return figure


def _value(axes: Any, x: float, y: float, value: float, concept: str) -> None:
    _box(axes, x - 0.4, y - 0.24, 0.8, 0.48, PALETTE[concept], 0.25)
    text = f"{value:+.1f}".replace("-", "−")
    axes.text(x, y - 0.02, text, ha="center", va="center", fontsize=9.5)


def _arrow(axes: Any, start: tuple[float, float], end: tuple[float, float]) -> None:
    style = {"arrowstyle": "-|>", "linewidth": 1.0, "color": INK, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**style, "mutation_scale": 9})


def space_time(panels: Mapping[str, MessageTimeline]) -> Figure:
    """A panel per timeline, over the same time: a lane per rank, a slanted arrow per message from when it leaves to when
    it has arrived.

    A lane is strong from the moment on from which its rank has received all that it will.
    """
    import matplotlib.pyplot as plt

    ranks = max(timeline.plan.ranks for timeline in panels.values())
    longest = max(timeline.seconds for timeline in panels.values())
    with plt.rc_context(rc_parameters()):
        figure, drawn = plt.subplots(
            len(panels),
            1,
            figsize=(WIDTH, len(panels) * (0.6 + 0.2 * ranks)),
            sharex=True,
            squeeze=False,
        )
        for axes, (name, timeline) in zip(drawn.flat, panels.items(), strict=True):
            _lanes(axes, timeline, longest)
            axes.set_title(name, fontsize=10)
        seconds_axis(drawn[-1, 0].xaxis, "time")
    return figure


def _has_all(plan: Plan, rank: int) -> bool:
    """Whether a rank has all from the start, though some algorithms send parts of it back to it."""
    return plan.collective == "broadcast" and rank == plan.root


def _lanes(axes: Any, timeline: MessageTimeline, longest: float) -> None:
    n = timeline.plan.ranks
    for rank in range(n):
        arrivals = [span.end for span in timeline.spans if span.message.target == rank]
        complete = 0.0 if _has_all(timeline.plan, rank) else max(arrivals, default=0.0)
        axes.plot([0, complete], [-rank] * 2, color=PALETTE["idle"], linewidth=0.8, alpha=0.7)
        axes.plot([complete, longest], [-rank] * 2, color=PALETTE["optimizer"], linewidth=3.2, alpha=0.75)
    for span in timeline.spans:
        style = {"arrowstyle": "-|>", "linewidth": 1.0, "color": PALETTE["communication"]}
        ends = (span.end, -span.message.target), (span.start, -span.message.source)
        axes.annotate("", *ends, arrowprops={**style, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8})
    axes.set(xlim=(0, longest * 1.02), ylim=(-n + 0.5, 0.5))
    axes.set_yticks([-rank for rank in range(n)], [str(rank) for rank in range(n)], fontsize=8)
    axes.set_ylabel("rank")
    axes.grid(False)
