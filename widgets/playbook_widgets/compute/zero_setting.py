"""What a reader of the ZeRO widget sets: a model, its replicas, the stage, how numbers are kept, and the network.

Inputs are a flat mapping that holds only what differs from ``DEFAULTS``, so that it fits into a link:
``{"parameters": "70B", "replicas": 128, "zero": 2}``. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from playbook._checks import check_positive, typed_int, unknown
from playbook.errors import ConfigError
from playbook.hardware import Accelerator, load_accelerator
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.parameters import stage_parameters
from playbook.planning.recipes import BytesPerParameter, load_recipe
from playbook.planning.sharding import Kept, UnitSize, kept, share_of
from playbook.planning.terms import maker, symbols
from playbook.shapes import PRESETS, ModelShape
from playbook_book.replica_traffic import Traffic, traffic

#: What a control shows when nothing is set: figure 1 of the ZeRO paper, and four micro-batches.
DEFAULTS: dict[str, Any] = {
    "model": None,  # a preset in place of a bare number of parameters
    "parameters": 7_500_000_000,
    "replicas": 64,
    "zero": 1,
    "grad_acc": 4,
    "precision": "bf16-mixed",
    "optimizer_bytes": None,  # Adam's
    "reshard": True,
    "accelerator": "h100",
    "bandwidth": 360,  # a ring over nodes: NVLink brings its eight adapters, of 50 GB/s each, no more
}
PARAMETERS = (10**6, 10**12)
REPLICAS = (1, 4096)
GRAD_ACC = (1, 64)
OPTIMIZER_BYTES = (0, 64)
BANDWIDTH = (0.01, 10_000)  # GB/s

#: Recipes whose gradients travel as they are kept.
PRECISIONS = ("bf16-mixed", "bf16-mixed-main-grads", "fp32")
STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class ZeroSetting:
    """What a flat mapping of controls comes to. ``units`` are what stage 3 gathers whole; ``bandwidth`` is in bytes/s."""

    shape: ModelShape | None
    units: tuple[UnitSize, ...]
    replicas: int
    zero: int
    grad_acc: int
    precision: str
    optimizer_bytes: int | None
    reshard: bool
    accelerator: Accelerator
    bandwidth: float

    @property
    def parameters(self) -> int:
        return sum(unit.parameters + unit.experts for unit in self.units)

    @property
    def states(self) -> BytesPerParameter:
        return load_recipe(self.precision).with_optimizer(self.optimizer_bytes).states

    def kept(self, zero: int) -> Kept:
        """Bytes that each rank keeps between steps in that stage."""
        return kept(self.units, self.replicas, zero, self.states)

    def gathered(self, zero: int) -> int:
        """Bytes of whole weights that stay from forward to backward beside a rank's own: stage 3 without reshard."""
        if zero < 3 or self.reshard:
            return 0
        return (self.replicas - 1) * share_of(self.units, self.replicas, zero) * self.states.parameters

    def traffic(self, zero: int, grad_acc: int | None = None) -> Traffic:
        """Bytes that each rank sends in a step of that stage."""
        whole = [UnitSize(unit.parameters + unit.experts, unit.again) for unit in self.units]
        return traffic(
            whole,
            self.replicas,
            zero,
            weight_bytes=self.states.parameters,
            gradient_bytes=self.states.gradients,
            grad_acc=grad_acc or self.grad_acc,
            reshard=self.reshard,
        )


def read(inputs: Mapping[str, Any]) -> ZeroSetting:
    """The setting that a flat mapping means; raises :class:`PlaybookError` in one sentence."""
    for key in inputs:
        if key not in DEFAULTS:
            raise ConfigError(f"{key} is not a setting of the ZeRO widget")
    given = {key: value for key, value in inputs.items() if value is not None}
    if "model" in given and "parameters" in given:
        raise ConfigError(f"parameters are those of the model {given['model']!r}: give one of the two")
    values = {**DEFAULTS, **given}
    name = values["model"]
    if name is not None and str(name) not in PRESETS:
        raise ConfigError(unknown("model", str(name), PRESETS))
    shape = None if name is None else PRESETS[str(name)]
    optimizer = values["optimizer_bytes"]
    if values["precision"] not in PRECISIONS:
        raise ConfigError(unknown("precision", str(values["precision"]), PRECISIONS))
    if not isinstance(values["reshard"], bool):
        raise ConfigError(f"reshard must be true or false, got {values['reshard']!r}")
    return ZeroSetting(
        shape,
        units_of(shape) if shape else (UnitSize(read_count(values["parameters"])),),
        _whole("replicas", values["replicas"], REPLICAS),
        _whole("zero", values["zero"], (STAGES[0], STAGES[-1])),
        _whole("grad_acc", values["grad_acc"], GRAD_ACC),
        values["precision"],
        None if optimizer is None else _whole("optimizer_bytes", optimizer, OPTIMIZER_BYTES),
        values["reshard"],
        load_accelerator(str(values["accelerator"])),
        _bandwidth(values["bandwidth"]) * 1e9,
    )


def units_of(shape: ModelShape) -> tuple[UnitSize, ...]:
    """The units of a model on its replicas: embedding, blocks, head."""
    layout = Layout()
    make = maker(symbols(Job(shape, layout, seq=1)))
    return stage_parameters(shape, layout, [shape.blocks()], make).units


def read_count(value: Any) -> int:
    """A number of parameters, or one as people write it: 7.5B, 350 M, 1e9."""
    units = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "g": 10**9, "t": 10**12}
    text = re.sub(r"(?<=\d)[\s,_](?=\d{3})", "", str(value).strip().lower())
    found = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?(?:e\d{1,2})?)\s*([kmbgt]?)", text)
    if not found or isinstance(value, bool):
        raise ConfigError(f"parameters must be a number such as 7.5B or 350M, got {value!r}")
    count = round(Fraction(found[1]) * units[found[2]])
    if not PARAMETERS[0] <= count <= PARAMETERS[1]:
        raise ConfigError(f"parameters must be from 1M to 1T, got {value}")
    return count


def _whole(name: str, value: Any, limits: tuple[int, int]) -> int:
    return typed_int(name, value, ConfigError, least=limits[0], most=limits[1])


def _bandwidth(value: Any) -> float:
    """GB/s, as a number or as its text."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,9}(\.\d{1,9})?\s*", value):
        value = float(value)
    number = check_positive("bandwidth", value, ConfigError)
    if not BANDWIDTH[0] <= number <= BANDWIDTH[1]:
        raise ConfigError(f"bandwidth must be from {BANDWIDTH[0]} to {BANDWIDTH[1]} GB/s, got {value}")
    return number
