"""The model of a page: a preset or a pasted config.json, its sizes as controls that are read over its own, and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any

from playbook.errors import LayoutError, ShapeError
from playbook.shapes import MLA, PRESETS, ModelShape, MoE, load
from playbook_widgets.compute.refusals import field_of

#: The model where none is named.
PRESET = "llama3-8b"
#: Tokens of a sample, where the model takes as many.
SEQ = 8192
#: Characters of a name or a path; a longer text was meant to be JSON.
LONGEST_NAME = 200

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


def model_of(config: Mapping[str, Any]) -> ModelShape:
    """The model that is named or, as the text of a config.json or of a shape's fields, pasted.

    Raises ShapeError, which begins with "model".
    """
    text = str(config.get("model", PRESET)).strip()
    if not text.startswith("{") and len(text) > LONGEST_NAME:
        raise ShapeError("model must be a name, or all of a config.json with its outer braces")
    try:
        return load(text)
    except ShapeError as error:
        message = str(error)
        raise ShapeError(message if field_of(message) == "model" else f"model: {message}") from None


def own_model(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Of a model that is no preset, the text that was ``pasted``, its ``fields`` as a shorter one, and its ``sizes``."""
    shape = model_of(config)
    if PRESETS.get(shape.name) == shape:
        return None
    short = json.dumps(shape.sizes(), separators=(",", ":"))
    return {
        "pasted": config["model"],
        "fields": short,
        "sizes": shown(shape),
    }


def differs(shape: ModelShape) -> str:
    """What a model has that the book's has not, in a sentence; "" for one of the book's."""
    return f"Planned as the book's model of these sizes: {shape.planned}." if shape.planned else ""


def shape_of(config: Mapping[str, Any]) -> ModelShape:
    """The model with the reader's sizes over it."""
    shape = model_of(config)
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
    shape = shape.replace(**changes, name="") if changes else shape
    return load(shape, config.get("train", "full"))


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


def shown(shape: ModelShape) -> dict[str, Any]:
    """What a choice of the model sets: its sizes, and the length of samples."""
    return {**sizes_of(shape), "seq": min(SEQ, shape.max_seq)}


def latent(shape: ModelShape) -> str:
    """The sizes of latent attention, which no control sets; empty without it."""
    if shape.mla is None:
        return ""
    sizes = ", ".join(f"{f.name} {getattr(shape.mla, f.name)}" for f in fields(MLA))
    return f"Latent attention: {sizes}. The command line takes other sizes, in a model's JSON."
