"""What a reader of the schedule visualizer sets: schedules, how large they are, times, and the memory there is.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link:
``{"schedule": "zb-h1", "stages": 8}``. Times of an action are those of a rank's whole part of the model, and so are a
micro-batch's activations: a schedule with two stages on a rank takes half of both for each, so that schedules can stand
side by side. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ScheduleError
from playbook.schedules.catalogue import NAMES, default_limit, make
from playbook.schedules.solver.heuristic import zero_bubble
from playbook.schedules.timeline import Timeline, Times, simulate
from playbook_widgets.compute.visualizer_times import of_stages, read_times

#: What a control shows when nothing is set. ``step`` is the page's place in the schedule.
DEFAULTS: dict[str, Any] = {
    "schedule": "1f1b",
    "compare": "none",
    "stages": 4,
    "microbatches": 8,
    "vpp": 2,  # of the interleaved ones
    "run": None,  # as many as there are stages
    "times": "equal",
    "f": None,  # the preset's, as the next three
    "b": None,
    "w": None,
    "comm": None,
    "transfer": 0,
    "overlap": True,
    "fb": None,  # the sum of both
    "limit": None,  # nothing is too much
    "rest": None,  # the preset's
    "own": None,  # a schedule by hand, as ``building.Board`` reads it
    "trace": None,  # a run's trace, as ``traces.read_trace`` reads it
    "path": False,  # whether the critical path is drawn; as the next one, the page's own
    "step": None,
}
STAGES, MICROBATCHES, CHUNKS = (1, 32), (1, 256), (1, 8)
CHUNKED = ("interleaved", "breadth-first")
OVERLAPPING = ("dualpipe", "dualpipev")
FITTED = ("zb-1p", "zb-2p")
#: Micro-batches times stages up to which a browser has the time to search for more than a first guess.
SEARCHED = 2048


@dataclass(frozen=True)
class ScheduleSetting:
    """What a flat mapping of controls comes to. ``times`` are those of equal slices of the model, in ``unit``."""

    schedule: str
    compare: str
    stages: int
    microbatches: int
    vpp: int
    run: int | None
    preset: str
    times: Times
    unit: str
    limit: float | None
    rest: float
    own: str | None

    @property
    def cap(self) -> float | None:
        """Micro-batches' activations that fit: what is set, or what ZB-1p and ZB-2p keep to."""
        if self.limit is not None or self.schedule not in FITTED:
            return self.limit
        return default_limit(self.schedule, self.stages)

    def made(self, name: str) -> Timeline:
        """A schedule of this setting, in time."""
        vpp, run = (self.vpp, self.run if name == "interleaved" else None) if name in CHUNKED else (1, None)
        return _made(name, self.stages, self.microbatches, vpp, run, self.times, self.limit, self.rest)


def read(inputs: Mapping[str, Any]) -> ScheduleSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ScheduleError(f"{key} is not a setting of the schedule visualizer")
    values = {**DEFAULTS, **{key: value for key, value in inputs.items() if value is not None}}
    schedule, compare = str(values["schedule"]), str(values["compare"])
    for field, name, names in (("schedule", schedule, NAMES), ("compare", compare, ("none", *NAMES))):
        if name not in names:
            raise ScheduleError(unknown(field, name, names))
    whole = {
        field: typed_int(field, values[field], ScheduleError, least=limits[0], most=limits[1])
        for field, limits in (("stages", STAGES), ("microbatches", MICROBATCHES), ("vpp", CHUNKS))
    }
    run = values["run"]
    times, preset = read_times(values)
    return ScheduleSetting(
        schedule,
        compare,
        **whole,
        run=None if run is None else typed_int("run", run, ScheduleError, most=MICROBATCHES[1]),
        preset=str(values["times"]),
        times=times,
        unit=preset.unit,
        limit=None if values["limit"] is None else _number("limit", values["limit"], 1, 10_000),
        rest=preset.rest if values["rest"] is None else _number("rest", values["rest"], 0, 1),
        own=None if values["own"] is None else str(values["own"]),
    )


def _number(field: str, value: Any, least: float, most: float) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else float("nan")
    except (TypeError, ValueError):
        number = float("nan")
    if not least <= number <= most:
        raise ScheduleError(f"{field} must be a number from {least} to {most}, got {value!r}")
    return number


@lru_cache(maxsize=8)
def _made(
    name: str,
    stages: int,
    microbatches: int,
    vpp: int,
    run: int | None,
    times: Times,
    limit: float | None,
    rest: float,
) -> Timeline:
    # Only those that are fitted ask for times; the stages of all others are known once they are made.
    if name in FITTED:
        fitted = of_stages(times, stages, stages)
        if stages * microbatches <= SEARCHED:
            return simulate(make(name, stages, microbatches, times=fitted, limit=limit, rest=rest), fitted)
        room = default_limit(name, stages) if limit is None else limit
        found = zero_bubble(stages, microbatches, room, fitted, rest=rest, tries=0, name=name)
        return simulate(found, fitted)
    schedule = make(name, stages, microbatches, vpp, run=run)
    return simulate(schedule, of_stages(times, stages, schedule.depth))
