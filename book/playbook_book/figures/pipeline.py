"""Pipeline schedules drawn: who does what when, what a rank keeps meanwhile, and why it waits where it does.

A box is an action: F in blue; B, the gradient of activations, in orange; W, that of weights, in teal; both at once in
orange with a teal foot. It carries its micro-batch where that fits. Where a rank has several stages, each further
one is fainter, as in the schedule visualizer. Gaps are grey, with a pattern that tells the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import INK, PALETTE, WIDTH, rc_parameters
from playbook.schedules.timeline import PerStage, Timeline
from playbook_book.figures.axes import seconds_axis
from playbook_book.figures.pipeline_rows import (
    GAPS,
    HIGH,
    STRIP,
    draw_memory,
    draw_path,
    draw_phases,
    draw_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Legend of the boxes.
OPS = {"F": "forward, F", "B": "gradient of activations, B", "W": "gradient of weights, W"}
OPS["BW"] = "backward, B and W"


def timeline(
    line: Timeline,
    *,
    memory: bool = True,
    gaps: bool = True,
    path: bool = False,
    phases: bool = False,
    full: PerStage | None = None,
    rest: PerStage | None = None,
    unit: str = "",
) -> Figure:
    """A schedule in time, a row for each rank.

    Under a row is what the rank keeps (``memory``): micro-batches' activations, of its whole part of the model unless
    ``full`` and ``rest`` say what each stage saves with F and keeps from B to W. ``gaps`` shades what a rank waits for,
    ``path`` frames the critical path. ``phases`` marks warm-up, steady state and cool-down of each rank, in place of the
    memory. ``unit`` is "s" for seconds.
    """
    return timelines(
        {"": line}, memory=memory, gaps=gaps, path=path, phases=phases, full=full, rest=rest, unit=unit
    )


def timelines(
    lines: Mapping[str, Timeline],
    *,
    memory: bool = False,
    gaps: bool = True,
    path: bool = False,
    phases: bool = False,
    full: PerStage | None = None,
    rest: PerStage | None = None,
    unit: str = "",
    until: float | None = None,
    words: Callable[[Timeline], str] = lambda line: f"{line.bubble_fraction:.1%} bubble",
) -> Figure:
    """Several schedules under each other on one time axis; the options are those of `timeline`.

    The title of each says in ``words`` what part of the step is bubble, or anything else. Only what happens up to
    ``until`` is drawn. Raises ``ValueError`` when there is no schedule.
    """
    import matplotlib.pyplot as plt

    if not lines:
        raise ValueError("timelines() needs at least one schedule")
    memory = memory and not phases  # one strip under each row
    pitch = 1 + STRIP * (memory or phases)
    rows = [len(line.ranks) * pitch for line in lines.values()]
    longest = until or max(line.makespan for line in lines.values())
    with plt.rc_context(_settings()):
        figure, panels = _panels(rows, longest, unit)
        shown: dict[str, None] = {}
        for axes, (name, line) in zip(panels, lines.items(), strict=True):
            at = [rank * pitch for rank in range(len(line.ranks))]
            draw_rows(axes, line, at, HIGH, shown, gaps)
            if memory:
                draw_memory(axes, line, at, full, rest)
            if phases:
                draw_phases(axes, line, at)
            if path:
                draw_path(axes, line, at)
            _names(axes, at, [f"rank {rank}" for rank in range(len(at))], at[-1] + pitch - 0.5)
            _title(axes, name, words(line))
        _legend(figure, list(shown), memory, path)
    return figure


def overlay(pairs: Mapping[str, tuple[Timeline, Timeline]], *, unit: str = "s") -> Figure:
    """Predicted and measured timelines of one schedule on one time axis: for each rank the prediction above, what was
    measured below. The title says how much longer the prediction is. Raises ``ValueError`` when there is no pair.
    """
    import matplotlib.pyplot as plt

    if not pairs:
        raise ValueError("overlay() needs at least one pair of timelines")
    pitch = 1.95
    rows = [len(predicted.ranks) * pitch for predicted, _ in pairs.values()]
    longest = max(line.makespan for pair in pairs.values() for line in pair)
    with plt.rc_context(_settings()):
        figure, panels = _panels(rows, longest, unit, row=0.24)
        shown: dict[str, None] = {}
        for axes, (name, both) in zip(panels, pairs.items(), strict=True):
            names: list[tuple[float, str]] = []
            for line, down, word in zip(both, (0.0, 0.82), ("predicted", "measured"), strict=True):
                at = [rank * pitch + down for rank in range(len(line.ranks))]
                draw_rows(axes, line, at, 0.74, shown, gaps=False)
                names += [(y, word if down else f"rank {rank}  {word}") for rank, y in enumerate(at)]
                axes.axvline(line.makespan, color=INK, linewidth=1.2, linestyle="-" if down else ":")
            _names(
                axes, [y for y, _ in names], [text for _, text in names], len(both[0].ranks) * pitch - 0.65
            )
            error = both[0].makespan / both[1].makespan - 1
            _title(axes, name, f"prediction {error:+.1%}".replace("-", "−"))
        _legend(figure, list(shown), False, False)
    return figure


def _settings() -> dict[Any, Any]:
    return {**rc_parameters(), "hatch.linewidth": 0.5, "hatch.color": PALETTE["idle"]}


def _panels(rows: Sequence[float], longest: float, unit: str, row: float = 0.3) -> tuple[Any, list[Any]]:
    import matplotlib.pyplot as plt

    height = 1.1 + row * sum(rows) + 0.3 * len(rows)
    figure, panels = plt.subplots(
        len(rows), 1, sharex=True, squeeze=False, height_ratios=list(rows), figsize=(WIDTH, height)
    )
    for axes in panels[:, 0]:
        axes.grid(False)
        axes.set_xlim(0, 1.02 * longest)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
    for axes in panels[:-1, 0]:
        axes.tick_params(bottom=False)
    last = panels[-1, 0]
    if unit == "s":
        seconds_axis(last.xaxis, "time in the step")
    else:
        last.set_xlabel(f"time, {unit}" if unit else "time")
    return figure, list(panels[:, 0])


def _names(axes: Any, at: Sequence[float], names: Sequence[str], end: float) -> None:
    axes.set_yticks(list(at), list(names), fontsize=9)
    axes.set_ylim(end, -0.5)


def _title(axes: Any, name: str, words: str) -> None:
    axes.set_title(name, fontsize=10)
    axes.set_title(words, fontsize=9.5, loc="right", fontweight="normal")


def _legend(figure: Any, shown: list[str], memory: bool, path: bool) -> None:
    from matplotlib.legend_handler import HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    over: dict[Any, Any] = {tuple: HandlerTuple(ndivide=None, pad=0)}
    for op, words in OPS.items():
        if op in shown:
            hue = PALETTE["B" if op == "BW" else op]
            looks = (
                (Patch(facecolor=hue), Patch(facecolor=PALETTE["W"])) if op == "BW" else Patch(facecolor=hue)
            )
            handles.append((looks, words))
    for cause, (hue, strength, hatch) in GAPS.items():
        if cause in shown:
            look = (
                Patch(facecolor=(hue, strength)),
                Patch(facecolor="none", hatch=hatch, edgecolor=hue, linewidth=0),
            )
            over[look] = HandlerTuple(ndivide=1)  # one upon the other
            handles.append((look, cause))
    if memory:
        handles.append((Patch(facecolor=(PALETTE["activations"], 0.4)), "activations kept; their peak"))
    if path:
        handles.append((Line2D([], [], color=INK, linewidth=1.3), "critical path"))
    columns = 3 if all(len(words) < 24 for _, words in handles) else 2
    figure.legend(
        [look for look, _ in handles],
        [words for _, words in handles],
        loc="outside lower center",
        ncols=columns,
        handler_map=over,
    )
