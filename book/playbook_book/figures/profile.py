"""What a profile says, drawn: which operations took the time, and what limits one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from playbook.figures.style import PALETTE, PAPER, WIDTH, rc_parameters
from playbook.figures.units import format_count, format_seconds
from playbook_book.figures.axes import seconds_axis

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PHASE_HUES = {"forward": PALETTE["F"], "backward": PALETTE["B"], "optimizer": PALETTE["optimizer"]}


def operations(rows: Mapping[str, Mapping[str, float]], total: float | None = None) -> Figure:
    """One bar per operation, cut by phase, longest on top, with its time and its share of ``total`` (µs).

    ``rows`` is what `trace_analysis.operations_by_phase` returns; operations whose short names agree share a bar.
    """
    import matplotlib.pyplot as plt

    rows = _merged(rows)
    labels = list(rows)
    places = range(len(labels))
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots(figsize=(WIDTH, 1.0 + 0.29 * len(labels)))
        left, shown = [0.0] * len(labels), {}
        for phase in [*PHASE_HUES, "other"]:
            widths = [parts.get(phase, 0.0) / 1e6 for parts in rows.values()]
            if any(widths):
                shown[phase] = PHASE_HUES.get(phase, PALETTE["temporary"])
                axes.barh(places, widths, 0.72, left, color=shown[phase], edgecolor=PAPER, linewidth=0.5)
                left = [a + b for a, b in zip(left, widths, strict=True)]
        for place, time in zip(places, left, strict=True):
            share = f" ({1e6 * time / total:.0%})" if total else ""
            axes.text(time, place, f" {format_seconds(time)}{share}", va="center", fontsize=9.5)
        axes.set_yticks(places, labels)
        _bars_down(axes)
        axes.set_xlim(0, 1.32 * max(left, default=1.0))
        seconds_axis(axes.xaxis, "self time")
        _legend(figure, shown)
    return figure


def short_name(name: str, limit: int = 34) -> str:
    """An operation's or kernel's name without namespaces, template arguments and return type, at most ``limit`` long.

    A longer one loses its middle: kernels that differ often differ at the end.
    """
    name = (
        name.removeprefix("void ").rsplit("evaluate_function: ", 1)[-1].partition("<")[0].rsplit("::", 1)[-1]
    )
    head = limit // 2
    return name if len(name) <= limit else f"{name[:head]}…{name[head + 1 - limit :]}"


def _merged(rows: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Rows whose short names agree (an operation and autograd's wrapper around it) become one; longest first."""
    merged: dict[str, dict[str, float]] = {}
    for name, parts in rows.items():
        row = merged.setdefault(short_name(name), {})
        for phase, time in parts.items():
            row[phase] = row.get(phase, 0.0) + time
    return dict(sorted(merged.items(), key=lambda row: -sum(row[1].values())))


def roofline(
    peak_flops: float, bandwidth: float, operations: Mapping[str, tuple[float, float]], *, device: str
) -> Figure:
    """The FLOP/s that memory of ``bandwidth`` (bytes/s) lets an operation reach, over its FLOPs per byte.

    ``operations`` maps a name to (FLOPs, bytes moved); each is marked on the roof: under the slope memory is the limit,
    under the flat part arithmetic (Williams, Waterman and Patterson 2009).
    """
    import matplotlib.pyplot as plt

    ridge = peak_flops / bandwidth
    places = {name: flops / moved for name, (flops, moved) in operations.items()}
    low, high = min(0.1, *places.values()) / 2, max(10 * ridge, *places.values()) * 2
    with plt.rc_context(rc_parameters()):
        figure, axes = plt.subplots()
        axes.plot([low, ridge], [low * bandwidth, peak_flops], color=PALETTE["memory"])
        axes.plot([ridge, high], [peak_flops] * 2, color=PALETTE["compute"])
        for name, x in places.items():
            _mark_under_roof(axes, name, x, min(peak_flops, x * bandwidth), x < ridge)
        axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low * bandwidth, 4 * peak_flops))
        axes.set(xlabel="arithmetic intensity (FLOPs per byte moved)", ylabel="FLOP/s at best")
        axes.yaxis.set_major_formatter(lambda value, _: format_count(value))
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.set_title(device)
        _legend(figure, {"limited by memory": PALETTE["memory"], "limited by arithmetic": PALETTE["compute"]})
    return figure


def _mark_under_roof(axes: Any, name: str, x: float, y: float, slope: bool) -> None:
    ink = rc_parameters()["text.color"]
    axes.plot(x, y, "o", color=ink, markersize=6, zorder=4)
    offset, side = ((8, -4), "left") if slope else ((0, 9), "center")
    axes.annotate(name, (x, y), offset, textcoords="offset points", ha=side, va="center")


def _bars_down(axes: Any) -> None:
    """Horizontal bars read from the top, against vertical grid lines."""
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.grid(True, axis="x")
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _legend(figure: Any, hues: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles: Sequence[Patch] = [Patch(color=hue, label=name) for name, hue in hues.items()]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(len(handles), 5),
        columnspacing=1.1,
        handletextpad=0.5,
    )
