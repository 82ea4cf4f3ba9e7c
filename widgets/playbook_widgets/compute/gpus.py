"""The GPU that a page plans for: one of the library's or, over it, memory of one's own, and what a plan leaves free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from playbook.hardware import UNITS, Accelerator, default_reserve, load_accelerator, read_bytes, usable_memory

#: What the controls of a GPU show when nothing is set; no memory is that of the accelerator, no reserve the default one.
GPU_DEFAULTS: dict[str, Any] = {"accelerator": "h100", "memory": None, "reserve": None}


@dataclass(frozen=True)
class Gpu:
    """An accelerator, its memory as it was set; of its bytes a plan leaves ``reserve``, and may fill ``usable``."""

    accelerator: Accelerator
    reserve: int
    usable: int


def gpu_of(config: Mapping[str, Any]) -> Gpu:
    """The GPU that is set. Raises ConfigError, which begins with the control to change."""
    values = {**GPU_DEFAULTS, **config}
    accelerator = load_accelerator(str(values["accelerator"]))
    if values["memory"] is not None:
        accelerator = replace(accelerator, memory_bytes=read_bytes("memory", str(values["memory"])))
    reserve = default_reserve(accelerator.memory_bytes)
    if values["reserve"] is not None:
        reserve = read_bytes("reserve", str(values["reserve"]), least=0)
    return Gpu(accelerator, reserve, usable_memory(accelerator.memory_bytes, reserve))


def gpu_flags(config: Mapping[str, Any]) -> list[str]:
    """The same as flags of a command."""
    values = {**GPU_DEFAULTS, **config}
    given = ["accelerator"] if values["memory"] is None else ["memory"]
    given += ["reserve"] if values["reserve"] is not None else []
    return [word for key in given for word in (f"--{key}", str(values[key]))]


def gpu_values(gpu: Gpu, config: Mapping[str, Any], unit: str) -> dict[str, str]:
    """What the controls of its memory show: texts as they were typed, else numbers in ``unit``."""
    sizes = {"memory": gpu.accelerator.memory_bytes, "reserve": gpu.reserve}
    return {key: str(config.get(key) or f"{size / UNITS[unit]:.4g}{unit}") for key, size in sizes.items()}
