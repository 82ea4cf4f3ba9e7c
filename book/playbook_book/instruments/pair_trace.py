"""Forward and backward passes side by side: when each of both computed, and when its rows were on their way.

    with PairTrace(engine.pipeline.turns) as watched:
        engine.accumulate(...)
    watched.of(0), watched.hidden()

Of a pipeline whose ranks have experts, with a schedule that has pairs (DualPipe, DualPipeV). What is on its way is
watched by Gloo's threads; on a GPU a profiler says it (`rank_trace`).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from playbook.parallel.expert import Trip
from playbook.parallel.turns import Turns
from playbook_book.instruments.interval import Interval

#: Who (0: the first of a pair, 1: the second), start, end; in seconds.
Span = tuple[int, float, float]


@dataclass
class PairTrace:
    """Watches every pair while it is entered. Of a pair the first is a forward pass, as in all schedules here."""

    turns: Turns
    pairs: list[list[Span]] = field(default_factory=list)  # turns of each
    trips: list[list[float]] = field(default_factory=list)  # who, start, end, which Gloo's threads fill in

    def __enter__(self) -> PairTrace:
        self._run, self._start = self.turns.run, Trip.start
        watched = self

        def run(*both: Any) -> None:
            self.turns.trace = []
            try:
                self._run(*both)
            finally:
                self.pairs.append(self.turns.trace)
                self.turns.trace = None

        def start(trip: Trip, rows: Tensor) -> None:
            watched._start(trip, rows)
            watched._watch(trip)

        self.turns.run = run  # type: ignore[method-assign, assignment]
        Trip.start = start  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *error: Any) -> None:
        del self.turns.run
        Trip.start = self._start  # type: ignore[method-assign]

    def _watch(self, trip: Trip) -> None:
        who, way = self.turns.now, trip.under_way
        if who is not None and trip.turns is self.turns and way is not None:
            span = [who, time.perf_counter(), math.inf]
            self.trips.append(span)
            way[0].get_future().add_done_callback(lambda _: span.__setitem__(2, time.perf_counter()))

    def of(self, pair: int) -> dict[str, list[Interval]]:
        """What the two passes of a pair computed and what was on its way for each, in seconds from its beginning."""
        turns = self.pairs[pair]
        zero, stop = turns[0][1], turns[-1][2]
        trips = [(int(who), start, min(end, stop)) for who, start, end in self.trips if zero <= start <= stop]
        return {
            name: [
                Interval(kind, start - zero, end - zero)
                for kind, spans in (("compute", turns), ("message", trips))
                for of, start, end in spans
                if of == who
            ]
            for who, name in enumerate(("forward", "backward"))
        }

    def hidden(self) -> list[tuple[int, int]]:
        """For each pair, trips of its forward and of its backward pass between whose start and arrival the other has
        computed: it had a turn that began later than the trip, and nobody waits for rows in his own turn."""
        found = []
        for turns in self.pairs:
            count = [0, 0]
            for who, start, _ in self.trips:
                within = turns[0][1] <= start <= turns[-1][2]
                count[int(who)] += within and any(other != who and start <= a for other, a, _ in turns)
            found.append((count[0], count[1]))
        return found
