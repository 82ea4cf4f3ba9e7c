"""An interactive timeline of a `Trace`: what ran when, on which thread or stream, launched by what."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable
from typing import Any

from playbook.figures.style import PALETTE, SETS
from playbook.figures.units import format_seconds
from playbook.instruments.trace import Trace
from playbook_widgets.base import Widget

TICKS_PER_US = 1000  # times travel as whole nanoseconds, the profiler's own resolution


class TraceViewer(Widget):
    """``TraceViewer(trace)`` as the last line of a cell draws the timeline.

    ``title`` names it for the reader and for screen readers. A trace with more than ``max_events`` events is
    reduced to its longest ones, and the viewer says so. ``inputs`` holds what the reader has set: the
    ``search`` text and the ``window`` shown (start and end in µs, or None for all).
    """

    script = "trace_viewer.mjs"

    def __init__(self, trace: Trace, *, title: str = "Trace", max_events: int = 5000, **kwargs: Any):
        shown = trace if len(trace) <= max_events else trace.longest(max_events)
        self._trace, self._dropped, self._title = shown, len(trace) - len(shown), title
        super().__init__(
            {"search": "", "window": None},
            outputs={**compact(shown), "title": title, "dropped": self._dropped},
            **kwargs,
        )

    def summary(self) -> str:
        trace = self._trace
        events, lanes = (
            f"{n:,} {word}{'s' * (n != 1)}" for n, word in ((len(trace), "event"), (len(trace.lanes), "lane"))
        )
        head = f"{self._title}: {events} on {lanes} over {format_seconds(trace.duration / 1e6)}"
        more = f" (the longest of {len(trace) + self._dropped})" if self._dropped else ""
        return f"<p>{html.escape(head + more)}.</p>{_lane_table(trace)}"

    def __repr__(self) -> str:
        return f"TraceViewer({self._trace!r})"


def compact(trace: Trace) -> dict[str, Any]:
    """The trace as columns of whole numbers and tables of the strings they point to.

    Starts are differences to the event before; both they and durations count nanoseconds. About 25 bytes per
    event instead of 150 as objects.
    """
    names, categories, args = _Table(), _Table(), _Table()
    starts = [round(event.start * TICKS_PER_US) for event in trace.events]
    columns = {
        "name": [names.index(event.name) for event in trace.events],
        "lane": [event.lane for event in trace.events],
        "start": [b - a for a, b in zip([0, *starts], starts, strict=False)],
        "duration": [round(event.duration * TICKS_PER_US) for event in trace.events],
        "category": [categories.index(event.category) for event in trace.events],
        "args": [
            args.index(json.dumps(event.args, default=str)) if event.args else -1 for event in trace.events
        ],
    }
    return {
        "unit": "ns",
        "lanes": [[lane.name, lane.kind] for lane in trace.lanes],
        "names": names.entries,
        "categories": [[name, PALETTE[name], _kind(name, categories.entries)] for name in categories.entries],
        "args": [json.loads(text) for text in args.entries],
        "events": columns,
        "links": [[a for a, _ in trace.links], [b for _, b in trace.links]],
    }


def _kind(category: str, used: list[str]) -> str:
    """ "phase" for a category that brackets others: forward and backward around the operators that do the work.

    The two come from different sets of the palette and may share a hue, so they are drawn differently. In a
    trace of phases alone, such as a pipeline's F, B and W, the phases are the work.
    """
    around_work = category not in SETS["time"] and {"compute", "launch"} & set(used)
    return "phase" if around_work else "work"


class _Table:
    """Distinct strings in order of first appearance."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def index(self, entry: str) -> int:
        return self._places.setdefault(entry, len(self._places))

    @property
    def entries(self) -> list[str]:
        return list(self._places)


def _lane_table(trace: Trace) -> str:
    """Busy and idle time of each lane, and what it mostly did."""
    rows = []
    for lane in trace.summary():
        work = {c: t for c, t in lane.by_category.items() if c != "idle"}
        share = lane.busy / trace.duration if trace.duration else 0.0
        mostly = max(work, key=work.__getitem__, default="idle")
        busy, idle = format_seconds(lane.busy / 1e6), format_seconds(lane.idle / 1e6)
        rows.append(_row("td", [lane.lane, f"{busy} ({share:.0%})", idle, mostly]))
    head = _row("th", ["lane", "busy", "idle", "mostly"])
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
