"""Questions to a trace: what did everybody do while the device stood idle? Which operation took the time, in which pass?

All times are microseconds. Where events nest, a moment counts for the innermost one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from playbook.errors import DataError
from playbook.instruments.trace import Event, Lane, Trace

Intervals = list[tuple[float, float]]

PHASES = {"F": "forward", "B": "backward", "optimizer": "optimizer"}


def lane_number(trace: Trace, lane: str) -> int:
    """The place of the lane called ``lane``; raises ``DataError`` when the trace has none of that name."""
    names = [known.name for known in trace.lanes]
    if lane not in names:
        raise DataError(f"the trace has no lane {lane!r}; its lanes are {', '.join(map(repr, names))}")
    return names.index(lane)


def idle_fraction(trace: Trace, lane: str) -> float:
    """Share of the trace, first start to last end, in which ``lane`` did nothing or only waited."""
    return trace.summary()[lane_number(trace, lane)].idle / trace.duration if len(trace) else 0.0


def meanwhile(trace: Trace, lane: str) -> dict[str, float]:
    """What the other lanes did while ``lane`` stood idle: µs by category, longest first.

    "idle" is the time in which nobody worked. Two lanes that work at once both count, each in its category, so
    the values may add up to more than the idle time.
    """
    number = lane_number(trace, lane)
    work: dict[str, Intervals] = defaultdict(list)
    own: Intervals = []
    for i in range(len(trace.lanes)):
        for start, end, category in _innermost(trace, i):
            if category != "idle":
                (own if i == number else work[category]).append((start, end))
    gaps = complement(union(own), trace.start, trace.start + trace.duration)
    found = {category: length(common(union(spans), gaps)) for category, spans in work.items()}
    anybody = length(common(union(span for spans in work.values() for span in spans), gaps))
    found["idle"] = length(gaps) - anybody
    return dict(sorted(((c, t) for c, t in found.items() if t > 0), key=lambda row: -row[1]))


def working(trace: Trace, lane: int) -> Intervals:
    """When the lane of that number did something other than wait: disjoint intervals (µs), in order."""
    return union((start, end) for start, end, category in _innermost(trace, lane) if category != "idle")


def operations_by_phase(trace: Trace, count: int = 12) -> dict[str, dict[str, float]]:
    """The ``count`` operations with most time of their own, and in which phase of the step they spent it.

    Name → phase → µs, longest first. With device streams the operations are kernels, and a kernel belongs to the phase
    that launched it; without, they are the host's operators. Phases are the spans called forward, backward and
    optimizer; "other" lies outside of them.
    """
    streams = any(lane.kind == "stream" for lane in trace.lanes)
    launched_at = {kernel: trace.events[launch].start for launch, kernel in trace.links}
    phase_at = _phase_lookup(trace)
    rows: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for i, (event, own) in enumerate(zip(trace.events, trace.self_times(), strict=True)):
        on_stream = trace.lanes[event.lane].kind == "stream"
        if on_stream == streams and event.category not in {*PHASES, "idle", "data"}:
            rows[event.name][phase_at(launched_at.get(i, event.start))] += own
    ranked = sorted(rows, key=lambda name: -sum(rows[name].values()))[:count]
    return {name: dict(rows[name]) for name in ranked}


def side_by_side(traces: Mapping[str, Trace]) -> Trace:
    """Several traces on one time axis, each from 0; lanes are called "name · lane"."""
    lanes: list[Lane] = []
    events: list[Event] = []
    links: list[tuple[int, int]] = []
    for name, trace in traces.items():
        first_lane, first_event = len(lanes), len(events)
        lanes += [Lane(f"{name} · {lane.name}", lane.kind) for lane in trace.lanes]
        events += [
            replace(event, lane=event.lane + first_lane, start=event.start - trace.start)
            for event in trace.events
        ]
        links += [(a + first_event, b + first_event) for a, b in trace.links]
    return Trace(lanes, events, links)


def _phase_lookup(trace: Trace) -> Callable[[float], str]:
    """A function from a moment to the phase that the host was in."""
    spans = sorted((e.start, e.end, PHASES[e.category]) for e in trace.events if e.category in PHASES)
    starts = [start for start, _, _ in spans]

    def phase_at(moment: float) -> str:
        before = spans[: bisect_right(starts, moment)]
        return next((name for _, end, name in reversed(before) if moment < end), "other")

    return phase_at


def _innermost(trace: Trace, lane: int) -> Iterable[tuple[float, float, str]]:
    """The lane cut into disjoint pieces (start, end, category of the innermost event), in order."""
    open_events: list[tuple[float, str]] = []
    now = trace.start
    for event in trace.events:
        if event.lane != lane:
            continue
        while open_events and open_events[-1][0] <= event.start:
            end, category = open_events.pop()
            yield now, max(end, now), category
            now = max(end, now)
        if open_events:
            yield now, event.start, open_events[-1][1]
        now = event.start
        open_events.append((event.end, event.category))
    while open_events:
        end, category = open_events.pop()
        yield now, max(end, now), category
        now = max(end, now)


def union(spans: Iterable[tuple[float, float]]) -> Intervals:
    """The moments that lie in any of the intervals, as disjoint ones in order."""
    merged: Intervals = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def complement(spans: Intervals, low: float, high: float) -> Intervals:
    """What ordered disjoint intervals leave of [low, high]."""
    edges = [low, *(edge for span in spans for edge in span), high]
    return [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]


def common(first: Intervals, second: Intervals) -> Intervals:
    """What two ordered lists of disjoint intervals share."""
    shared, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        start, end = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if start < end:
            shared.append((start, end))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return shared


def length(spans: Intervals) -> float:
    """How long they are together."""
    return sum(end - start for start, end in spans)
