"""The ZeRO widget: one pure function from what a reader sets to what every stage keeps and sends.

``compute`` runs in a kernel and, as the same file, in the reader's browser. What a rank keeps and sends is
``planning.sharding``'s; here it is laid side by side and put into words. Standard library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from playbook.planning.sharding import Kept, share_of
from playbook_book.replica_traffic import Traffic
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.zero_setting import STAGES, ZeroSetting, read
from playbook_widgets.compute.zero_words import answer, command, memory_terms, traffic_terms

COLLECTIVES = tuple(f.name for f in fields(Traffic))
#: Numbers of micro-batches at which the growth of the traffic is computed.
GROWTH = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


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
