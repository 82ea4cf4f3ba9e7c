"""What a trace is made of: lanes, events, and the categories that events may have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from playbook.errors import DataError
from playbook.figures.style import PALETTE


@dataclass(frozen=True, slots=True)
class Lane:
    """A row of the timeline: ``kind`` is "host" (a thread) or "stream" (a device's queue)."""

    name: str
    kind: str = "host"


@dataclass(frozen=True, slots=True)
class Event:
    """Something that took time. ``lane`` indexes `Trace.lanes`; ``start`` and ``duration`` are microseconds;
    ``category`` is a concept of the palette."""

    name: str
    lane: int
    start: float
    duration: float
    category: str = "compute"
    args: Mapping[str, Any] = field(default_factory=dict)

    @property
    def end(self) -> float:
        return self.start + self.duration


def check_event(event: Event, lanes: int) -> None:
    """Raises ``DataError`` for what no trace can hold; ``lanes`` is how many the trace has."""
    if not 0 <= event.lane < lanes:
        raise DataError(f"event {event.name!r} is on lane {event.lane}, but the trace has {lanes} lanes")
    if not event.duration >= 0:
        raise DataError(f"event {event.name!r} has duration {event.duration}, which must be 0 or more")
    if event.category not in PALETTE:
        raise DataError(
            f"event {event.name!r} has category {event.category!r}; valid are {', '.join(PALETTE)}"
        )
