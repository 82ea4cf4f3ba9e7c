"""The pipeline schedule visualizer: one pure function from what a reader sets to all that the page draws.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``, so that it fits into a link: ``{"schedule": "zb-h1", "stages": 8}``. Times of an action
are those of a rank's whole part of the model, and so are a micro-batch's activations: a schedule with two stages on a
rank takes half of both for each, so that schedules can stand side by side. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import ScheduleError
from playbook.instruments.pipeline_runs import has_times, measured_times, read_trace
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import NAMES, default_limit, make
from playbook.schedules.solver.heuristic import zero_bubble
from playbook.schedules.timeline import Timeline, Times, simulate
from playbook.schedules.validate import validate
from playbook_widgets.compute.building import Board
from playbook_widgets.compute.recognise import recognise
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.visualizer_drawing import drawn, moves
from playbook_widgets.compute.visualizer_times import of_stages, read_times
from playbook_widgets.compute.visualizer_words import answer, command, named

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


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(inputs))


# --- What a reader has set


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


# --- What the page draws


def describe(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """All that the page shows: one timeline, or two, as columns (see ``visualizer_drawing``), and what they come to."""
    setting = read(inputs)
    if inputs.get("trace") is not None:
        return _brought(setting, inputs)
    plan = setting.made(setting.schedule)
    result = _common(setting)
    if setting.own is None:
        sides = [_side(setting, plan, setting.schedule)]
    else:
        board = Board(plan.schedule, setting.cap, setting.rest).read(setting.own)
        own = simulate(board.schedule(), plan.times)
        sides = [drawn(own, "Your schedule", setting, paper=False)]
        result["board"] = moves(board, own, plan)
    if setting.compare != "none" and (setting.own is not None or setting.compare != setting.schedule):
        sides.append(_side(setting, setting.made(setting.compare), setting.compare))
    return _finished(setting, {**result, "sides": sides})


def _side(setting: ScheduleSetting, line: Timeline, name: str) -> dict[str, Any]:
    return drawn(line, named(name), setting, name=name)


def _brought(setting: ScheduleSetting, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A run's schedule with the times of its own actions above, what really happened below; or a schedule without times,
    with those of the setting."""
    data = inputs["trace"]
    if not isinstance(data, Mapping):
        raise ScheduleError("trace must be the JSON object of a run or of playbook schedule --json")
    if not has_times(data):
        schedule = Schedule.from_json(data)
        validate(schedule)
        times = of_stages(setting.times, len(schedule.ranks), schedule.depth)
        setting = _of(setting, schedule, setting.unit)
        side = drawn(simulate(schedule, times), schedule.name, setting, paper=False)
        known = recognise(schedule)
        return _finished(setting, {**_common(setting), "sides": [side], "brought": known})
    measured, unit = read_trace(data)
    given, sent = measured_times(measured), setting.times
    comm = given.comm if inputs.get("comm") is None else sent.comm
    times = replace(given, comm=comm, transfer=sent.transfer, overlap=sent.overlap)
    setting = replace(_of(setting, measured.schedule, unit), times=times)
    sides = [
        drawn(simulate(measured.schedule, times), "Predicted", setting, paper=False),
        drawn(measured, "Measured", setting, paper=False),
    ]
    return _finished(setting, {**_common(setting), "sides": sides, "traced": str(data.get("name", "a run"))})


def _of(setting: ScheduleSetting, schedule: Schedule, unit: str) -> ScheduleSetting:
    """The setting of a schedule that the reader has brought."""
    name = schedule.name if schedule.name in NAMES else setting.schedule
    stages, microbatches = len(schedule.ranks), schedule.microbatches
    setting = replace(setting, schedule=name, stages=stages, microbatches=microbatches)
    return replace(setting, unit=unit, compare="none", own=None)


def _common(setting: ScheduleSetting) -> dict[str, Any]:
    return {"values": _values(setting), "unit": setting.unit, "cap": setting.cap}


def _finished(setting: ScheduleSetting, result: dict[str, Any]) -> dict[str, Any]:
    own = {"traced", "brought", "board"} & result.keys()
    text = "" if own else command(setting)
    return {**result, "command": text, "answer": answer(setting, result)}


def _values(setting: ScheduleSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    times = setting.times
    return {
        "schedule": setting.schedule,
        "compare": setting.compare,
        "stages": setting.stages,
        "microbatches": setting.microbatches,
        "vpp": setting.vpp,
        "run": setting.run or setting.stages,
        "times": setting.preset,
        **{key: _short(getattr(times, key)) for key in "fbw"},
        "comm": float(f"{times.comm:.4g}"),
        "transfer": times.transfer,
        "overlap": times.overlap,
        "fb": times.fb,
        "limit": setting.limit,
        "rest": round(setting.rest, 4),
    }


def _short(times: Any) -> float | str:
    """One number, or all of them as a reader types them, to four digits."""
    if isinstance(times, int | float):
        return times
    texts = [f"{time:.4g}" for time in times]
    return float(texts[0]) if len(set(texts)) == 1 else "/".join(texts)
