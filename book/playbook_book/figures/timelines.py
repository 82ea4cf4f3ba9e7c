"""Timelines of a training step on ranks: what was computed, what was sent meanwhile, and what had to wait for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, WIDTH, rc_parameters
from playbook.figures.units import format_seconds
from playbook.instruments.profiled_step import COMPUTE_LANE
from playbook_book.figures.axes import seconds_axis
from playbook_book.instruments.overlap import collectives, hidden
from playbook_book.instruments.trace_analysis import common, complement, working

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from playbook.instruments.trace import Event, Trace

#: What is drawn, in the order of the legend: hue and strength. Exposed communication is strong: it costs time.
LOOKS = {
    "forward": (PALETTE["compute"], 0.25),
    "backward": (PALETTE["compute"], 0.6),
    "optimizer": (PALETTE["optimizer"], 0.6),
    "waiting": (PALETTE["idle"], 0.3),
    "messages, hidden": (PALETTE["communication"], 0.3),
    "messages, exposed": (PALETTE["communication"], 1.0),
}
HIGH = 0.72  # of a bar, in rows
NUMBER = 8  # bytes of a single number, which says nothing of gradients or weights
NAMED = 0.022  # share of the axis that a block must have to carry its number


def timelines(traces: Mapping[str, Trace], *, align: bool = True) -> Figure:
    """A panel for each trace of ``instruments.rank_trace.record_step``, under each other on one time axis.

    In a panel: a row of compute (a box per block, with its number), and a row for each kind of collective. Single numbers
    that ranks exchange are left out. The title says how much of the communication is hidden behind compute. With
    ``align`` each trace begins with its own first forward pass, to compare variants; without, all keep the axis that
    they have in common, as the ranks of one step do. Raises ``ValueError`` when there is no trace.
    """
    import matplotlib.pyplot as plt

    if not traces:
        raise ValueError("timelines() needs at least one trace")
    starts = {name: _first(trace) for name, trace in traces.items()}
    zero = {name: starts[name] if align else min(starts.values()) for name in traces}
    kinds = {name: _kinds(trace) for name, trace in traces.items()}
    rows = [1 + len(kinds[name]) for name in traces]
    ends = (e.end - zero[name] for name, trace in traces.items() for e in trace.events)
    longest = max(ends)
    with plt.rc_context(rc_parameters()):
        figure, panels = plt.subplots(
            len(traces), 1, sharex=True, squeeze=False, height_ratios=rows,
            figsize=(WIDTH, 0.85 + 0.26 * sum(rows) + 0.36 * len(traces)),
        )  # fmt: skip
        shown: dict[str, None] = {}
        for axes, (name, trace) in zip(panels.flat, traces.items(), strict=True):
            _panel(axes, trace, kinds[name], zero[name], longest, shown)
            axes.set_title(name, fontsize=10)
            axes.set_title(_words(trace), fontsize=9.5, loc="right", fontweight="normal")
        for axes in panels[:-1, 0]:
            axes.tick_params(bottom=False)
        seconds_axis(panels[-1, 0].xaxis, "time in the step")
        _legend(figure, [look for look in LOOKS if look in shown])
    return figure


def _first(trace: Trace) -> float:
    """When the first forward pass begins (µs)."""
    return min((e.start for e in trace.events if e.name == "forward"), default=trace.start)


def _sent(trace: Trace) -> list[Event]:
    return [event for event in collectives(trace) if event.args.get("bytes", 0) > NUMBER]


def _kinds(trace: Trace) -> list[str]:
    """Kinds of collectives, the one that comes first on top."""
    return list(dict.fromkeys(event.name for event in _sent(trace)))


def _words(trace: Trace) -> str:
    found = hidden(trace, _sent(trace))
    if not found.communication:
        return "no messages"
    return f"{format_seconds(found.communication / 1e6, 2)} of messages, {found.fraction:.0%} hidden"


def _panel(
    axes: Any, trace: Trace, kinds: list[str], zero: float, longest: float, shown: dict[str, None]
) -> None:
    """One row of compute, then the collectives; times on the axis are seconds."""

    def bar(row: int, start: float, end: float, look: str) -> None:
        hue, strength = LOOKS[look]
        left = max(start - zero, 0.0)
        if end - zero <= left:
            return
        shown.setdefault(look)
        width = (end - zero - left) / 1e6
        edge = 0.0 if look == "waiting" else 0.6
        axes.barh(-row, width, HIGH, left / 1e6, color=(hue, strength), edgecolor=hue, linewidth=edge)

    for event in trace.events:
        look = _look(event)
        if look:
            bar(0, event.start, event.end, look)
            if event.duration > NAMED * longest:
                middle = (event.start + event.end) / 2 - zero
                axes.text(middle / 1e6, -0.03, _number(event), ha="center", va="center", fontsize=8.5)
    busy = working(trace, COMPUTE_LANE)
    idle = complement(busy, min(0.0, trace.start), trace.start + trace.duration)
    for event in _sent(trace):
        for moments, look in ((busy, "messages, hidden"), (idle, "messages, exposed")):
            for start, end in common([(event.start, event.end)], moments):
                bar(1 + kinds.index(event.name), start, end, look)
    names = ["compute", *(kind.replace("_", "-") for kind in kinds)]
    axes.set_yticks([-row for row in range(len(names))], names, fontsize=9)
    axes.set(ylim=(-len(names) + 0.5, 0.5), xlim=(0, longest / 1e6))
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(False)


def _look(event: Event) -> str | None:
    """Blocks, not the passes around them; the update; waits long enough to be seen."""
    if event.lane != COMPUTE_LANE:
        return None
    if "part" in event.args:
        return "backward" if event.args["pass"] == "backward" else "forward"
    return {"optimizer": "optimizer", "wait": "waiting"}.get(event.name)


def _number(event: Event) -> str:
    """Of a block; what is no block has none."""
    kind, _, number = str(event.args.get("part", "")).partition(" ")
    return number if kind == "block" else ""


def _legend(figure: Any, looks: list[str]) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=(hue, strength), edgecolor=hue, linewidth=0.8, label=name)
        for name, (hue, strength) in ((look, LOOKS[look]) for look in looks)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=3)
