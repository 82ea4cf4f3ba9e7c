"""A trace: what ran when, on which lane (a host thread or a device stream), and what launched it.

Traces come from three places and look the same afterwards: ``torch.profiler`` (`Trace.from_profiler`), a file
it exported (`Trace.from_chrome`), or a program that writes down its own events. Times are microseconds from the start.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from playbook.errors import DataError
from playbook.instruments.chrome_trace import Event, Lane, check_event, read_chrome

_exported: WeakKeyDictionary[Any, Trace] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class LaneSummary:
    """Where the time of one lane went (microseconds). ``by_category`` counts each moment once, for the
    innermost event; busy is its sum without "idle", and busy + idle is the length of the trace."""

    lane: str
    busy: float
    idle: float
    by_category: dict[str, float]


@dataclass(frozen=True, slots=True)
class NameSummary:
    """All events of one name: how many, their summed and mean duration (µs), the category of the first."""

    name: str
    category: str
    count: int
    total: float
    mean: float


class Trace:
    """Lanes, events sorted by start, and links (launch, kernel) as pairs of event indices."""

    unit = "us"

    def __init__(self, lanes: Iterable[Lane], events: Iterable[Event], links: Iterable[tuple[int, int]] = ()):
        """Raises ``DataError`` for an event on a lane that is not there, a negative duration, a category
        outside the palette, or a link to an event that is not there."""
        self.lanes, given = tuple(lanes), list(events)
        for event in given:
            check_event(event, len(self.lanes))
        # At equal starts the longer event is the one around the other.
        order = sorted(range(len(given)), key=lambda i: (given[i].start, -given[i].duration))
        place = {old: new for new, old in enumerate(order)}
        self.events = tuple(given[i] for i in order)
        try:
            self.links = tuple(sorted((place[a], place[b]) for a, b in links))
        except KeyError as error:
            raise DataError(f"a link names event {error}, but the trace has {len(given)} events") from None

    @classmethod
    def from_profiler(cls, profiler: Any) -> Trace:
        """The trace of a finished ``torch.profiler.profile``: operators, and kernels with their launches."""
        # A profiler writes its trace only once; running a cell again must not fail.
        if profiler not in _exported:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "trace.json"
                profiler.export_chrome_trace(str(path))
                _exported[profiler] = cls.from_chrome(path)
        return _exported[profiler]

    @classmethod
    def from_chrome(cls, source: str | Path | Mapping[str, Any]) -> Trace:
        """A trace in Chrome's format, as ``export_chrome_trace`` writes it (``.json`` or ``.json.gz``)."""
        return cls(*read_chrome(source))

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | str) -> Trace:
        """The inverse of `to_json`; also takes its text. Raises ``DataError`` when it is something else."""
        try:
            data = json.loads(data) if isinstance(data, str) else data
            lanes = [Lane(**lane) for lane in data["lanes"]]
            events = [Event(**event) for event in data["events"]]
            links = [(link["from"], link["to"]) for link in data.get("links", ())]
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise DataError(f"not a trace: {type(error).__name__}: {error}") from error
        return cls(lanes, events, links)

    def to_json(self) -> dict[str, Any]:
        """Plain data: ``{"unit", "lanes", "events", "links"}``."""
        return {
            "unit": self.unit,
            "lanes": [asdict(lane) for lane in self.lanes],
            "events": [asdict(event) for event in self.events],
            "links": [{"from": a, "to": b} for a, b in self.links],
        }

    def __len__(self) -> int:
        return len(self.events)

    def __repr__(self) -> str:
        return f"Trace({len(self)} events on {len(self.lanes)} lanes over {self.duration / 1e3:.3f} ms)"

    @property
    def start(self) -> float:
        return min((event.start for event in self.events), default=0.0)

    @property
    def duration(self) -> float:
        """Microseconds from the first start to the last end."""
        return max((event.end for event in self.events), default=0.0) - self.start

    def keep(self, events: Mapping[int, Event]) -> Trace:
        """Only these (index → event, perhaps changed), with the links and lanes that still have events."""
        used = sorted({event.lane for event in events.values()})
        lane = {old: new for new, old in enumerate(used)}
        place = {index: new for new, index in enumerate(events)}
        links = [(place[a], place[b]) for a, b in self.links if a in place and b in place]
        moved = [replace(event, lane=lane[event.lane]) for event in events.values()]
        return Trace([self.lanes[i] for i in used], moved, links)

    def trim(self, start: float, end: float) -> Trace:
        """What happened in [start, end) µs: events that reach over an end are cut, and 0 is ``start``."""
        inside = {}
        for i, event in enumerate(self.events):
            first, last = max(event.start, start), min(event.end, end)
            if first < last or (event.duration == 0 and start <= event.start < end):
                inside[i] = replace(event, start=first - start, duration=max(last - first, 0.0))
        return self.keep(inside)

    def min_duration(self, microseconds: float) -> Trace:
        """Without the events shorter than that, so that a page stays small."""
        return self.keep({i: e for i, e in enumerate(self.events) if e.duration >= microseconds})

    def longest(self, count: int) -> Trace:
        """Only the ``count`` longest events."""
        ranked = sorted(range(len(self)), key=lambda i: -self.events[i].duration)[:count]
        return self.keep({i: self.events[i] for i in sorted(ranked)})

    def span(self, name: str, occurrence: int = 0) -> tuple[float, float]:
        """Start and end (µs) of the ``occurrence``-th event called ``name``, for `trim`."""
        found = [event for event in self.events if event.name == name]
        if not -len(found) <= occurrence < len(found):
            raise DataError(f"the trace has {len(found)} events named {name!r}, not number {occurrence}")
        return found[occurrence].start, found[occurrence].end

    def self_times(self) -> list[float]:
        """For each event its duration without the events nested in it on the same lane (µs)."""
        own = [event.duration for event in self.events]
        open_on: dict[int, list[int]] = defaultdict(list)
        for i, event in enumerate(self.events):
            stack = open_on[event.lane]
            while stack and self.events[stack[-1]].end <= event.start:
                stack.pop()
            if stack:
                own[stack[-1]] -= min(event.end, self.events[stack[-1]].end) - event.start
            stack.append(i)
        return [max(t, 0.0) for t in own]

    def summary(self) -> list[LaneSummary]:
        """Busy and idle time of each lane, and what kept it busy."""
        totals: list[dict[str, float]] = [defaultdict(float) for _ in self.lanes]
        for event, own in zip(self.events, self.self_times(), strict=True):
            totals[event.lane][event.category] += own
        return [self._lane_summary(lane, dict(parts)) for lane, parts in zip(self.lanes, totals, strict=True)]

    def _lane_summary(self, lane: Lane, parts: dict[str, float]) -> LaneSummary:
        busy = sum(time for category, time in parts.items() if category != "idle")
        return LaneSummary(lane.name, busy, max(self.duration - busy, 0.0), parts)

    def top(self, count: int = 10) -> list[NameSummary]:
        """The names that took most time (summed durations, so nested events count in their parents too)."""
        groups: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            groups[event.name].append(event)
        rows = [_named(name, events) for name, events in groups.items()]
        return sorted(rows, key=lambda row: (-row.total, row.name))[:count]

    def overlap(self, first: str, second: str) -> float:
        """Microseconds in which streams ran an event of category ``first`` and one of ``second`` at once."""
        a, b = (self._covered(category) for category in (first, second))
        return sum(max(0.0, min(x[1], y[1]) - max(x[0], y[0])) for x in a for y in b)

    def _covered(self, category: str) -> list[tuple[float, float]]:
        """The union of the intervals of that category on stream lanes, in order and disjoint."""
        merged: list[tuple[float, float]] = []
        for event in self.events:
            if event.category != category or self.lanes[event.lane].kind != "stream":
                continue
            if merged and event.start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(merged[-1][1], event.end))
            else:
                merged.append((event.start, event.end))
        return merged


def _named(name: str, events: list[Event]) -> NameSummary:
    total = sum(event.duration for event in events)
    return NameSummary(name, events[0].category, len(events), total, total / len(events))
