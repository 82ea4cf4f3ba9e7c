"""The sizes of a model as the calculator's controls: read over those of a preset, and shown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from playbook.errors import LayoutError
from playbook.shapes import MLA, ModelShape, MoE, load

#: The model where none is named.
PRESET = "llama3-8b"

#: Sizes of the model that a reader may change, each over what the preset says.
SHAPE_CONTROLS = (
    "layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "activation", "gated", "norm", "bias", "tied",
    "dropout",
)  # fmt: skip
#: Sizes of a mixture of experts that change its parameters or its memory, as a dense model shows them. Groups of experts,
#: a capacity and the rate of biases change neither.
MOE_CONTROLS: dict[str, Any] = {
    f"moe.{f.name}": 0 if f.default is MISSING else f.default
    for f in fields(MoE)
    if f.name not in ("scale", "groups", "top_groups", "capacity", "bias_rate")
}


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The preset with the reader's sizes over it."""
    shape = load(config.get("model", PRESET))
    changes = _given(ModelShape, SHAPE_CONTROLS, config)
    experts = _given(MoE, MOE_CONTROLS, config)
    if experts.get("experts", 1) == 0:
        changes["moe"] = None
    elif experts and (shape.moe or "experts" in experts):
        start = shape.moe or MoE(
            experts["experts"], min(2, experts["experts"]), int(changes.get("ffn") or shape.ffn_dim)
        )
        # Groups would bound what no control shows: with another choice of experts there are none.
        groups = {"groups": 1, "top_groups": 1} if {"experts", "top_k"} & set(experts) else {}
        changes["moe"] = replace(start, **{**groups, **experts})
    return shape.replace(**changes, name="") if changes else shape


def _given(
    kind: type[ModelShape | MoE], controls: Iterable[str], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Fields of ``kind`` that are set, whole numbers read as such; controls may say whose field it is: ``moe.ffn``."""
    integers = {f.name for f in fields(kind) if str(f.type).startswith("int")}
    names = {key: key.rpartition(".")[2] for key in controls if key in config}
    return {name: whole(key, config[key]) if name in integers else config[key] for key, name in names.items()}


def whole(name: str, value: Any) -> int:
    """A whole number, or the text of one as a reader types it."""
    if isinstance(value, str) and re.fullmatch(r"\s*\d{1,15}\s*", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise LayoutError(f"{name} must be an integer, got {value!r}")
    return value


def sizes_of(shape: ModelShape) -> dict[str, Any]:
    """What the controls of a model's sizes show."""
    experts = {key: getattr(shape.moe, key[4:], none) for key, none in MOE_CONTROLS.items()}
    return {**{key: getattr(shape, key) for key in SHAPE_CONTROLS}, **experts}


def latent(shape: ModelShape) -> str:
    """The sizes of latent attention, which no control sets; empty without it."""
    if shape.mla is None:
        return ""
    sizes = ", ".join(f"{f.name} {getattr(shape.mla, f.name)}" for f in fields(MLA))
    return f"Latent attention: {sizes}. The command line takes other sizes, in a model's JSON."
