"""The ZeRO widget: one pure function from what a reader sets to what every stage keeps and sends.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping that holds only
what differs from ``DEFAULTS``, so that it fits into a link: ``{"parameters": "70B", "replicas": 128, "zero": 2}``. What
a rank keeps and sends is ``planning.sharding``'s; here it is laid side by side and put into words. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any

from playbook._checks import check_positive, typed_int, unknown
from playbook.errors import ConfigError
from playbook.hardware import Accelerator, load_accelerator
from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.planning.parameters import stage_parameters
from playbook.planning.recipes import load_recipe
from playbook.planning.sharding import Kept, Traffic, UnitSize, kept, share_of, traffic
from playbook.planning.states import BytesPerParameter
from playbook.planning.terms import maker, symbols
from playbook.shapes import PRESETS, ModelShape
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.zero_words import answer, command, memory_terms, traffic_terms

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
    "bandwidth": 400,  # a node's eight adapters of 50 GB/s, which rings between nodes use side by side
}
PARAMETERS = (10**6, 10**12)
REPLICAS = (1, 4096)
GRAD_ACC = (1, 64)
OPTIMIZER_BYTES = (0, 64)
BANDWIDTH = (0.01, 10_000)  # GB/s

#: Recipes whose gradients travel as they are kept.
PRECISIONS = ("bf16-mixed", "bf16-mixed-main-grads", "fp32")
STAGES = (0, 1, 2, 3)
COLLECTIVES = tuple(f.name for f in fields(Traffic))
#: Numbers of micro-batches at which the growth of the traffic is computed.
GROWTH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


# --- What a reader has set


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


# --- What the page draws


def describe(setting: ZeroSetting) -> dict[str, Any]:
    """All that the page shows of a setting; sizes in bytes of one rank, traffic also in units of Ψ elements."""
    stages = [_stage(setting, zero) for zero in STAGES]
    states = setting.states
    return {
        "values": _values(setting),
        "bytes_per_parameter": {
            "parameters": states.parameters,
            "gradients": states.gradients,
            "optimizer": states.master + states.optimizer,
        },
        "units": len(setting.units),
        "stages": stages,
        "capacity": setting.accelerator.memory_bytes,
        "least": next((stage["zero"] for stage in stages if stage["fits"]), None),
        "growth": _growth(setting),
        "answer": answer(setting, stages),
        "command": command(setting),
    }


def _values(setting: ZeroSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    states = setting.states
    return {
        "model": setting.shape.name if setting.shape else None,
        "parameters": setting.parameters,
        "optimizer_bytes": states.master + states.optimizer,
        "accelerator": setting.accelerator.name,
        "bandwidth": setting.bandwidth / 1e9,
        **{name: getattr(setting, name) for name in ("replicas", "zero", "grad_acc", "precision", "reshard")},
    }


def _stage(setting: ZeroSetting, zero: int) -> dict[str, Any]:
    """What a rank keeps and sends in one stage, and by which formulas."""
    held, sent, gathered = setting.kept(zero), setting.traffic(zero), setting.gathered(zero)
    spare = setting.accelerator.memory_bytes - held.total - gathered
    return {
        "zero": zero,
        **{f.name: getattr(held, f.name) for f in fields(Kept)},
        "total": held.total,
        "gathered": gathered,
        "spare": spare,
        "fits": spare >= 0,
        "share": share_of(setting.units, setting.replicas, zero) if zero else setting.parameters,
        "sent": {name: float(getattr(sent, name)) for name in COLLECTIVES},
        "traffic": float(sent.total),
        "elements": _elements(setting, sent),
        "seconds": float(sent.total) / setting.bandwidth,
        "memory_terms": memory_terms(setting, zero),
        "traffic_terms": traffic_terms(setting, zero),
    }


def _elements(setting: ZeroSetting, sent: Traffic) -> float:
    """Elements sent, in units of Ψ."""
    gradients = (sent.all_reduce + sent.reduce_scatter) / setting.states.gradients
    return float((gradients + sent.all_gather / setting.states.parameters) / setting.parameters)


def _growth(setting: ZeroSetting) -> dict[str, Any]:
    """Elements that each stage sends in units of Ψ, over the number of micro-batches."""
    counts = sorted({*GROWTH, setting.grad_acc})
    elements = [[_elements(setting, setting.traffic(zero, count)) for count in counts] for zero in STAGES]
    return {"grad_acc": counts, "elements": elements}
