"""What a text of another framework says of a run. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.stages import split
from playbook.planning.job import Job
from playbook.planning.recipes import load_recipe
from playbook.shapes import PRESETS, ModelShape

#: Names, of flags and of fields, that change memory or time, and that no plan holds: they are told apart from others.
MATTERS = re.compile(
    "offload|mtp|exp-avg|fp8-param|zero|checkpoint-activ|activation_check|pad-vocab|transformer-impl|state_dtype|window|"
    "recompute|parallel|fusion|fp4|precision-aware|sp_size|plugin|sharding"
)


@dataclass
class Pasted:
    """A run as ``framework`` is told of it; what its text leaves open is None, or not among the fields of ``layout``.

    ``unknown`` are sentences: what the text says and no plan holds, and what a plan needs and the text does not say.
    ``samples`` are those of a global batch, which say how many micro-batches each replica has.
    """

    framework: str
    shape: ModelShape | None = None
    seq: int | None = None
    layout: dict[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    samples: int | None = None
    precision: str | None = None
    fp8: str = ""
    attention: str | None = None
    fused: str | None = None
    offload: bool = False
    optimizer: str = "adamw"
    unknown: list[str] = field(default_factory=list)

    def job(self, shape: ModelShape | None = None, seq: int | None = None) -> Job:
        """What is trained; ``shape`` and ``seq`` stand in where the text does not say them.

        Raises ConfigError where nothing says them, and what `Layout` and `Job` raise.
        """
        shape = self.shape or shape
        if shape is None:
            raise ConfigError(f"this text of {self.framework} names no model: give one beside it")
        return Job(
            shape,
            Layout(**self.spread()[0]),
            seq=self.seq or seq or shape.max_seq,
            recipe=load_recipe(self.precision or "bf16-mixed").with_fp8(self.fp8),
            attention=self.attention or "sdpa",
            fused=self.fused or "none",  # type: ignore[arg-type]
            offload=self.offload,
            optimizer=self.optimizer,
        )

    def spread(self) -> tuple[dict[str, Any], list[str]]:
        """The fields of the layout with what follows from ``gpus`` and ``samples``, and all sentences on what is open."""
        layout, open_ = dict(self.layout), list(self.unknown)
        others = math.prod(layout.get(axis, 1) for axis in ("tp", "pp", "cp"))
        if "dp" in layout:
            pass
        elif self.gpus is None:
            open_.append("the number of GPUs: the text does not say it, so that dp is 1")
        elif self.gpus % others:
            open_.append(f"{self.gpus} GPUs: no multiple of tp * cp * pp = {others}, so that dp is 1")
        else:
            layout["dp"] = self.gpus // others
        groups, dp = layout.get("replicate") or 1, layout.get("dp", 1)
        if dp % groups or (groups > 1 and not layout.get("zero")):
            open_.append(f"{groups} groups that have all shards: dp is {dp}, so that there is one")
            layout["replicate"] = 1
        each = layout.get("dp", 1) * layout.get("micro_batch", 1)
        if self.samples and self.samples % each:
            open_.append(
                f"a global batch of {self.samples} samples: no multiple of dp * micro_batch = {each}"
            )
        elif self.samples:
            layout["grad_acc"] = self.samples // each
        return layout, open_

    def stages(self, sizes: list[int]) -> None:
        """Layers of each stage in order, be they alike or not."""
        pp = self.layout.get("pp", 1)
        if len(sizes) > pp:
            self.layout |= {"vpp": len(sizes) // pp, "schedule": "interleaved"}
        if sizes != [len(cut) for cut in split(sum(sizes), len(sizes), None)]:
            self.layout["stage_layers"] = tuple(sizes)

    def left(self, names: Iterable[str]) -> None:
        """What the text says beside that, by name: what changes memory or time, and data, learning rates and the like."""
        names = sorted(names)
        for what, found in (
            ("not modelled", [name for name in names if MATTERS.search(name)]),
            ("not read", [name for name in names if not MATTERS.search(name)]),
        ):
            self.unknown += [f"{what}: {', '.join(found)}"] if found else []


def preset_of(shape: ModelShape) -> ModelShape:
    """The preset that has these sizes, or ``shape``: how long its samples may be is no size where positions turn."""
    for same in ({}, {} if shape.positions == "learned" else {"max_seq": 1, "rope_scaling": ""}):
        for preset in PRESETS.values():
            if preset.replace(name="", **same) == shape.replace(name="", **same):
                return preset
    return shape


def number(text: Any) -> int | None:
    """A whole number, or None for what is none: "auto", a variable of a shell."""
    return int(text) if re.fullmatch(r"-?\d+", str(text)) else None
