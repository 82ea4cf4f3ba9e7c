"""What a rank did from when to when: what the chapters' timelines are drawn from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """``kind`` is compute, message or waiting; times are seconds of ``time.perf_counter``, one clock for a machine."""

    kind: str
    start: float
    end: float
