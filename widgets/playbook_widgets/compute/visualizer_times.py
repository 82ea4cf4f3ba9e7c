"""Times as a reader of the visualizer sets them: presets, numbers, and numbers by stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from playbook._checks import unknown
from playbook.errors import ScheduleError
from playbook.schedules.timeline import Times
from playbook_widgets.compute.published_pipelines import MEASURED, Measured


@dataclass(frozen=True)
class Preset:
    """Times under a name; measured ones belong to so many stages and micro-batches, and have a unit."""

    label: str
    f: float
    b: float
    w: float
    comm: float = 0.0
    rest: float = 1.0
    unit: str = ""
    stages: int | None = None
    microbatches: int | None = None


def _measured(row: Measured) -> Preset:
    label = f"{row.model} on {row.stages} GPUs, {row.microbatches} micro-batches"
    return Preset(label, row.f, row.b, row.w, row.comm, row.rest, "ms", row.stages, row.microbatches)


#: Equal ones, with a forward pass twice for recomputation, and those of real models on A100s (``measured.MEASURED``).
PRESETS: dict[str, Preset] = {
    "equal": Preset("F = B = W = 1", 1, 1, 1),
    "recompute": Preset("F = W = 1, B = 2: everything recomputed", 1, 2, 1),
    **{f"{row.model.lower()}-{row.stages}x{row.microbatches}": _measured(row) for row in MEASURED},
}


def read_times(values: Mapping[str, Any]) -> tuple[Times, Preset]:
    """Times of equal slices of the model, a preset's and what is set over it; and the preset."""
    name = str(values["times"])
    if name not in PRESETS:
        raise ScheduleError(unknown("times", name, PRESETS))
    preset = PRESETS[name]
    found = {
        key: getattr(preset, key) if values[key] is None else _several(key, values[key]) for key in "fbw"
    }
    comm = preset.comm if values["comm"] is None else _one("comm", values["comm"])
    if not isinstance(values["overlap"], bool):
        raise ScheduleError(f"overlap must be true or false, got {values['overlap']!r}")
    fb = None if values["fb"] is None else _one("fb", values["fb"])
    transfer = _one("transfer", values["transfer"])
    return Times(**found, comm=comm, fb=fb, transfer=transfer, overlap=values["overlap"]), preset


def of_stages(times: Times, ranks: int, depth: int) -> Times:
    """Times of ``depth`` stages from those of equal slices of the model; one number is that of a ``ranks``-th of it."""
    share = ranks / depth
    f, b, w = (_sliced(key, getattr(times, key), share, depth) for key in "fbw")
    return replace(times, f=f, b=b, w=w, fb=None if times.fb is None else times.fb * share)


def _sliced(key: str, times: float | Sequence[float], share: float, depth: int) -> float | tuple[float, ...]:
    if isinstance(times, int | float):
        return times * share
    count = len(times)
    if depth % count == 0:
        return tuple(time * count / depth for time in times for _ in range(depth // count))
    if count % depth:
        raise ScheduleError(
            f"{key} has {count} times, but the model is cut into {depth} stages: give each one"
        )
    each = count // depth
    return tuple(sum(times[i : i + each]) for i in range(0, count, each))


def _several(field: str, value: Any) -> float | tuple[float, ...]:
    """One number, or several with / between them, in the order of the model's stages."""
    if isinstance(value, str) and "/" in value:
        return tuple(_one(field, part) for part in value.split("/"))
    return _one(field, value)


def _one(field: str, value: Any) -> float:
    try:
        number = float(value) if not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        number = -1.0
    if not 0 <= number <= 1e6:
        kind = "a number, or one by stage as in 1/1/2," if field in ("f", "b", "w") else "a number"
        raise ScheduleError(f"{field} must be {kind} of at least 0, got {value!r}")
    return number
