"""Our own trace: what a program says about itself while it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from playbook.errors import ConfigError
from playbook.figures.style import PALETTE
from playbook.instruments.chrome_trace import Event, Lane, check_event
from playbook.instruments.trace import Trace


class Recorder:
    """Spans written down as they happen, from any thread.

    >>> recorder = Recorder()
    >>> with recorder.span("forward", category="F"):
    ...     ...
    >>> recorder.trace()
    """

    def __init__(self) -> None:
        self._origin = time.perf_counter_ns()
        self._lock = threading.Lock()
        self._lanes: dict[str, Lane] = {}
        self._events: list[Event] = []
        self._links: list[tuple[int, int]] = []

    def now(self) -> float:
        """Microseconds since the recorder was made."""
        return (time.perf_counter_ns() - self._origin) / 1e3

    def lane(self, name: str, kind: str = "host") -> str:
        """Make sure the lane exists (lanes keep the order in which they first appear); returns its name."""
        with self._lock:
            self._lanes.setdefault(name, Lane(name, kind))
        return name

    def add(
        self,
        name: str,
        start: float,
        end: float,
        *,
        category: str = "compute",
        lane: str = "host",
        **args: Any,
    ) -> int:
        """Write down an event that ran from ``start`` to ``end`` (µs, see `now`); returns its number."""
        with self._lock:
            self._lanes.setdefault(lane, Lane(lane))
            event = Event(name, list(self._lanes).index(lane), start, end - start, category, args)
            check_event(event, len(self._lanes))
            self._events.append(event)
            return len(self._events) - 1

    def link(self, launch: int, kernel: int) -> None:
        """Say that event ``launch`` started event ``kernel`` (numbers from `add`)."""
        with self._lock:
            self._links.append((launch, kernel))

    @contextmanager
    def span(
        self, name: str, *, category: str = "compute", lane: str = "host", **args: Any
    ) -> Iterator[None]:
        """Record the body of the ``with``, also when it raises."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, start, self.now(), category=category, lane=lane, **args)

    def trace(self) -> Trace:
        """What has been recorded so far, shifted so that the first event starts at 0."""
        with self._lock:
            first = min((event.start for event in self._events), default=0.0)
            events = [replace(event, start=event.start - first) for event in self._events]
            return Trace(self._lanes.values(), events, self._links)


def label_of(function: Callable[..., Any], name: str | None, category: str) -> str:
    """What the trace calls a task. Raises ``ConfigError`` for a category that the palette does not have."""
    if category not in PALETTE:
        raise ConfigError(f"category is {category!r}; valid are {', '.join(PALETTE)}")
    return name or str(getattr(function, "__name__", "task"))
