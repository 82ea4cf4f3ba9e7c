"""The pipeline schedule visualizer: one pure function from what a reader sets to all that the page draws.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from playbook.errors import ScheduleError
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import NAMES
from playbook.schedules.timeline import Timeline, simulate
from playbook.schedules.validate import schedule_of, validate
from playbook_widgets.compute.building import Board
from playbook_widgets.compute.pipeline_runs import has_times, measured_times, read_trace
from playbook_widgets.compute.recognise import recognise
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.visualizer_drawing import drawn, moves
from playbook_widgets.compute.visualizer_setting import ScheduleSetting, read
from playbook_widgets.compute.visualizer_times import of_stages
from playbook_widgets.compute.visualizer_words import answer, command, named


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(inputs))


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
        schedule = schedule_of(data)
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
