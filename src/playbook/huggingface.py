"""A model's ``config.json``, as Hugging Face's transformers writes it, read as a :class:`ModelShape`.

What is read is what a parameter, a product or a routed token depends on, and a scaling of rotary frequencies, if it is
one of the book's (`rope_scaling`); dtypes and token ids are left out. A loss that balances experts is taken where
transformers adds it, which is where ``output_router_logits`` is true; the rate at which DeepSeek-V3 moves its biases is
in no config. DeepSeek-V2 ranks groups by their best expert, the book's router by their best few.

Some families differ from the book's model in what costs no parameter: they are read to be planned, and the shape says in
what it ``differs``. So is a ``model_type`` that is not known here, if its config has the common names.

Two counts differ, by what :class:`ModelShape` has no place for: the gate of Qwen's shared experts (hidden_size parameters
in each block with experts), and DeepSeek-V3's biases, which no gradient trains.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress

from playbook import rope_scaling
from playbook.config_families import BLOCK, FAMILIES, Architecture, Config, Sizes, choice, must, planned
from playbook.config_hybrids import HYBRIDS
from playbook.errors import ShapeError
from playbook.shapes import ModelShape

#: Every ``model_type`` that is read.
ARCHITECTURES = {**FAMILIES, **HYBRIDS}

#: Names of activations. The exact GELU and its tanh form are one name in a shape: they cost the same.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "relu": "relu"} | dict.fromkeys(
    ("gelu", "gelu_new", "gelu_fast", "gelu_pytorch_tanh"), "gelu"
)
#: Keys of what no Llama has: experts, latent attention, layers without attention.
STRANGE = re.compile("expert|lora_rank|mamba|ssm|linear|conv|state_size|cross_attention|encoder")
#: Names that some files have for what others name as follows; transformers 5 writes Qwen3-MoE's by Mixtral's.
ALIASES = {
    "num_local_experts": "num_experts", "num_experts_per_token": "num_experts_per_tok",
    "num_shared_experts": "n_shared_experts", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "model_max_length": "max_position_embeddings",
}  # fmt: skip
#: Keys that a config must have, but may set to null: queries without a latent, no shared experts.
NULLABLE = ("q_lora_rank", "n_shared_experts")


def shape_of(config: Config) -> ModelShape:
    """The shape that a config describes. Raises :class:`ShapeError` in one sentence, with the config's own keys."""
    inner = config.get("text_config")
    if isinstance(inner, Mapping) and "hidden_size" not in config:  # of a model that sees or hears as well
        config = inner
    architecture = _architecture(config)
    renamed = {theirs: config[other] for other, theirs in ALIASES.items() if config.get(other) is not None}
    config = {**config, **{key: value for key, value in renamed.items() if config.get(key) is None}}
    for key in architecture.needed.values():
        if config.get(key) is None and not (key in NULLABLE and key in config):
            raise ShapeError(f"{key} is missing: the config.json of a {config['model_type']} must have it")
    for key, valid in architecture.musts.items():
        if config.get(key) not in (None, valid):
            raise must(key, json.dumps(valid), config)
    keys = architecture.needed | architecture.optional
    given = {name: config[key] for name, key in keys.items() if config.get(key) is not None}
    if "activation" in given:
        more = {"relu2": "relu"} if architecture.differs else {}  # the square of a ReLU costs as much
        given["activation"] = choice(keys["activation"], ACTIVATIONS | more, config)
    if "rope_theta" in keys:
        planned = bool(architecture.differs) or config["model_type"] == "gpt_neox"  # which says it itself
        given |= _rope_theta(keys["rope_theta"], config, planned)
        with suppress(ShapeError):  # no size depends on others
            given["rope_scaling"] = "" if planned else rope_scaling.of_config(config)
    fields = {**architecture.sizes, **given, "differs": architecture.differs, **architecture.more(config)}
    try:
        return ModelShape(**_nested(fields))
    except ShapeError as error:
        raise ShapeError(_in_their_words(str(error), keys)) from None


def _architecture(config: Config) -> Architecture:
    kind, known = config.get("model_type"), ", ".join(ARCHITECTURES)
    if kind is None:
        raise ShapeError(f"model_type is missing: a config.json must have it, one of {known}")
    if not isinstance(kind, str):
        raise ShapeError(f"model_type must be one of {known}, got {kind!r}")
    if kind not in ARCHITECTURES:
        strange = [key for key, value in {kind: True, **config}.items() if value and STRANGE.search(key)]
        if strange or any(config.get(key) is None for key in BLOCK.values()):
            why = f": {', '.join(strange[:3])} may change its sizes" if strange else ""
            raise ShapeError(
                f"model_type must be one of {known}, or have the sizes of a Llama, got {kind!r}{why}"
            )
        if config.get("hidden_act", "silu") not in ("silu", "swish", "gelu_pytorch_tanh"):
            raise ShapeError(
                f"model_type {kind!r} is not known here, and hidden_act {config['hidden_act']!r} leaves open whether its "
                "MLP has a gate"
            )
        differs = (
            f"model_type {kind!r} is not known here, and read as a Llama, whose sizes may differ from its own"
        )
        eps = next((key for key in ("layer_norm_eps", "norm_epsilon") if key in config), None)
        norm = {"norm": "layernorm"} if eps else {}
        return planned("", differs, {"qkv_bias": "attention_bias", "norm_eps": eps or "rms_norm_eps"}, norm)
    found, classes = ARCHITECTURES[kind], config.get("architectures")
    if classes and (not isinstance(classes, list) or found.causal_lm not in classes):
        raise ShapeError(
            f"architectures must name {found.causal_lm} where model_type is {kind!r}, got {classes!r}"
        )
    return found


def _rope_theta(key: str, config: Config, partial: bool) -> Sizes:
    """The base of the rotary frequencies, where it stands (since transformers 5) in a table with their scaling."""
    table = config.get("rope_parameters")
    if table is None:
        return {}
    if not isinstance(table, Mapping):
        raise must("rope_parameters", "a table", config)
    if table.get("partial_rotary_factor") not in (None, 1) and not partial:
        raise must("rope_parameters", "without a partial_rotary_factor other than 1", config)
    inner = table.get("rope_theta")
    if inner is not None and config.get(key) not in (None, inner):
        raise ShapeError(f"{key} must be rope_parameters.rope_theta = {inner!r}, got {config[key]!r}")
    return {} if inner is None else {"rope_theta": inner}


def _nested(sizes: Sizes) -> Sizes:
    """Fields with a dot in tables: ``{"moe.top_k": 2}`` to ``{"moe": {"top_k": 2}}``."""
    nested: Sizes = {}
    for name, value in sizes.items():
        table, _, inner = name.rpartition(".")
        (nested.setdefault(table, {}) if table else nested)[inner] = value
    return nested


def _in_their_words(message: str, keys: Mapping[str, str]) -> str:
    """A refusal of the shape with the config's keys in the place of its fields."""
    words = {name.removeprefix("mla."): key for name, key in keys.items()} | dict(keys)
    return re.sub(r"\b(?:moe\.|mla\.)?[a-z_]+\b", lambda match: words.get(match[0], match[0]), message)
