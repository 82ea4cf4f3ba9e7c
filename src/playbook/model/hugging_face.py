"""A model in the words of Hugging Face's transformers: its ``config.json``, and what its parameters are called in files.

`playbook.huggingface` reads a config as a shape; here is the way back. Of parameters only names differ, mostly: GPT-2
keeps q, k and v in one matrix, and all matrices of its blocks transposed; files have each expert on its own, where the
book has one tensor for all; and DeepSeek's rotary rows lie in pairs, where ours are two halves. All of these are views
of a tensor, so that the same map serves both directions and copies nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from playbook import rope_scaling
from playbook.errors import ShapeError
from playbook.huggingface import ARCHITECTURES, shape_of
from playbook.model.transformer import Transformer
from playbook.shapes import MLA, ModelShape, MoE
from playbook.training.checkpoint import TRAINING

_STEM = {"embedding": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head"}
_LLAMA: dict[str, str | None] = {
    "norm1": "input_layernorm", "norm2": "post_attention_layernorm", "attention.out": "self_attn.o_proj",
    "attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj", "attention.v": "self_attn.v_proj",
    "attention.q_norm": "self_attn.q_norm", "attention.k_norm": "self_attn.k_norm",
    "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj", "mlp.down": "mlp.down_proj",
    "mlp.router": "mlp.gate", "mlp.router.bias": None, "mlp.experts.gate": "mlp.experts.{}.gate_proj",
    "mlp.experts.up": "mlp.experts.{}.up_proj", "mlp.experts.down": "mlp.experts.{}.down_proj",
}  # fmt: skip
_MIXTRAL = {
    "mlp.router": "block_sparse_moe.gate", "mlp.experts.gate": "block_sparse_moe.experts.{}.w1",
    "mlp.experts.up": "block_sparse_moe.experts.{}.w3", "mlp.experts.down": "block_sparse_moe.experts.{}.w2",
}  # fmt: skip
_DEEPSEEK = {
    "attention.q_down": "self_attn.q_a_proj", "attention.q_norm": "self_attn.q_a_layernorm",
    "attention.q_up": "self_attn.q_b_proj", "attention.kv_down": "self_attn.kv_a_proj_with_mqa",
    "attention.kv_norm": "self_attn.kv_a_layernorm", "attention.kv_up": "self_attn.kv_b_proj",
    "mlp.router.bias": "mlp.gate.e_score_correction_bias", "mlp.shared.gate": "mlp.shared_experts.gate_proj",
    "mlp.shared.up": "mlp.shared_experts.up_proj", "mlp.shared.down": "mlp.shared_experts.down_proj",
}  # fmt: skip
_GPT2_STEM = {
    "embedding": "transformer.wte", "position_embedding": "transformer.wpe", "final_norm": "transformer.ln_f",
    "head": "lm_head",
}  # fmt: skip
_GPT2: dict[str, str | None] = {
    "norm1": "ln_1", "norm2": "ln_2", "attention.q": "attn.c_attn", "attention.k": "attn.c_attn",
    "attention.v": "attn.c_attn", "attention.out": "attn.c_proj", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj",
}  # fmt: skip


@dataclass(frozen=True)
class Names:
    """What files of an architecture call our modules, those of blocks after ``blocks`` and their number.

    ``{}`` stands for the number of an expert; modules with one name have their rows below each other; what is None is in
    no file. ``transposed``: matrices of blocks are (in, out).
    """

    stem: Mapping[str, str]
    block: Mapping[str, str | None]
    blocks: str = "model.layers"
    transposed: bool = False

    def of(self, ours: str) -> str | None:
        """Their name of one of our parameters or buffers, with ``{}`` for the number of an expert."""
        names: Mapping[str, str | None] = self.stem
        where, prefix = ours, ""
        if ours.startswith("blocks."):
            _, layer, where = ours.split(".", 2)
            names, prefix = self.block, f"{self.blocks}.{layer}."
        if where in names:
            found = names[where]
            return None if found is None else prefix + found
        module, _, kind = where.rpartition(".")
        return f"{prefix}{names[module]}.{kind}"


#: By ``model_type``; a shape is written as the first of them that has all of its fields.
NAMES = {
    "llama": Names(_STEM, _LLAMA),
    "gpt2": Names(_GPT2_STEM, _GPT2, "transformer.h", transposed=True),
    "qwen2": Names(_STEM, _LLAMA),
    "qwen3": Names(_STEM, _LLAMA),
    "mixtral": Names(_STEM, _LLAMA | _MIXTRAL),
    "qwen3_moe": Names(_STEM, _LLAMA),
    "deepseek_v3": Names(_STEM, _LLAMA | _DEEPSEEK),
    "mistral": Names(_STEM, _LLAMA),
}


class WeightMap:
    """Which parts of our parameters each tensor of a file is made of.

    ``sizes`` are those of our parameters and buffers by name, ``parts`` the names that each of theirs is made of, each
    with the number of an expert or None. ``buffers`` are those of ours that no gradient trains.
    """

    def __init__(self, shape: ModelShape, model_type: str):
        self.shape, self.names = shape, NAMES[model_type]
        model = Transformer(shape, device="meta")
        kept = model.state_dict()
        if shape.tied:
            del kept["head.weight"]
        self.sizes = {name: tuple(t.shape) for name, t in kept.items()}
        self.buffers = {name for name, _ in model.named_buffers()} & self.sizes.keys()
        self.parts: dict[str, list[tuple[str, int | None]]] = {}
        for ours, size in self.sizes.items():
            theirs = self._name(ours)
            if theirs is None:
                continue
            if "{}" in theirs:
                self.parts |= {theirs.format(expert): [(ours, expert)] for expert in range(size[0])}
            else:
                self.parts.setdefault(theirs, []).append((ours, None))

    def _name(self, ours: str) -> str | None:
        theirs = self.names.of(ours)
        if theirs and self.shape.mla and not self.shape.mla.q_rank:  # queries in one step have another name
            theirs = theirs.replace("q_b_proj", "q_proj")
        return theirs

    def key(self, ours: str) -> str:
        """What a checkpoint calls one of our parameters or buffers."""
        return f"{'buffer' if ours in self.buffers else 'parameter'}/{ours}"

    def size(self, theirs: str) -> tuple[int, ...]:
        """The shape of one of their tensors."""
        parts = [self.sizes[ours][expert is not None :] for ours, expert in self.parts[theirs]]
        size = (sum(part[0] for part in parts), *parts[0][1:])
        return size[::-1] if self._is_transposed(theirs) else size

    def views(self, theirs: str, tensor: Tensor) -> Iterator[tuple[str, tuple[int, ...], Tensor]]:
        """One of their tensors as boxes of ours: our name, where the box begins in ours, a view of it in theirs."""
        rows = tensor.mT if self._is_transposed(theirs) else tensor
        for ours, expert in self.parts[theirs]:
            if expert is not None:
                yield ours, (expert, *(0 for _ in rows.shape)), rows[None]
                continue
            mine, rows = rows.split([n := self.sizes[ours][0], len(rows) - n])
            for start, view in self._halves(ours, mine):
                yield ours, (start, *(0 for _ in view.shape[1:])), view

    def _is_transposed(self, theirs: str) -> bool:
        ours, _ = self.parts[theirs][0]
        return self.names.transposed and ours.startswith("blocks.") and len(self.sizes[ours]) == 2

    def _halves(self, ours: str, rows: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Rows in their order in ours: of latent attention the last of each head turn, and lie in pairs in files."""
        mla = self.shape.mla
        heads, still = 1, len(rows)
        if mla and ours.endswith("attention.q_up.weight"):
            heads, still = self.shape.heads, mla.nope_dim
        elif mla and ours.endswith("attention.kv_down.weight"):
            still = mla.kv_rank
        turning = len(rows) // heads - still
        for at in range(0, len(rows), still + turning):
            yield at, rows[at : at + still]
            for half in range(2 if turning else 0):
                start = at + still
                yield start + half * turning // 2, rows[start + half : start + turning : 2]


# ---- config.json


def config_of(shape: ModelShape) -> dict[str, Any]:
    """The config.json of a shape, which `transformers` makes the same model of.

    Raises ShapeError for a shape that no architecture has, with the field in which the nearest one differs.
    """
    if shape.lora:
        raise ShapeError(
            f"train is {shape.train}: a model of Hugging Face has no place for adapters beside its weights"
        )
    found = {kind: _differences(shape, kind) for kind in NAMES}
    kind = min(found, key=lambda kind: len(found[kind]))
    for field, (own, theirs) in found[kind].items():
        raise ShapeError(
            f"{field} must be {theirs!r} for a model of Hugging Face (the nearest is {kind}), got {own!r}"
        )
    return _config(shape, kind)


def _config(shape: ModelShape, kind: str) -> dict[str, Any]:
    architecture, fields = ARCHITECTURES[kind], _fields(shape)
    config: dict[str, Any] = {"model_type": kind, "architectures": [architecture.causal_lm]}
    for name, key in (architecture.needed | architecture.optional).items():
        if name in fields:
            config[key] = fields[name]
            if name == "activation" and config[key] == "gelu":
                config[key] = "gelu_new"  # ours is the tanh form, and "gelu" the exact one
    if shape.positions == "rotary":
        config["rope_parameters"] = {
            "rope_theta": shape.rope_theta,
            **rope_scaling.to_config(shape.rope_scaling),
        }
    if kind == "gpt2":
        config |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), shape.dropout)
    if kind == "qwen3_moe" and shape.moe:
        config["mlp_only_layers"] = list(range(shape.moe.dense_layers))
    if kind == "deepseek_v3":
        config["num_key_value_heads"] = shape.heads
        config.pop("scoring_func", None)  # it has sigmoids, whatever is said there
    return {**config, "bos_token_id": None, "eos_token_id": None}


def _fields(shape: ModelShape) -> dict[str, Any]:
    """Fields by name, those of experts and of latent attention with a dot."""
    fields: dict[str, Any] = {}
    for name, value in ((f.name, getattr(shape, f.name)) for f in dataclasses.fields(shape)):
        inner = dataclasses.asdict(value) if isinstance(value, MoE | MLA) else {}
        fields |= {f"{name}.{key}": one for key, one in inner.items()} if inner else {name: value}
    return fields


def _differences(shape: ModelShape, kind: str) -> dict[str, tuple[Any, Any]]:
    """Fields that matter and that an architecture does not have as the shape does: (the shape's, its own)."""
    own = _fields(shape)
    try:
        theirs = _fields(shape_of(_config(shape, kind)))
    except (
        ShapeError
    ):  # the config wants experts or latents that this shape has not, or heads of another width
        lacking = {name.split(".")[0] for name in ARCHITECTURES[kind].needed if "." in name} & own.keys()
        first: dict[str, tuple[Any, Any]] = dict.fromkeys(sorted(lacking), (None, "a table"))
        first = first or {"head_dim": (shape.head_dim, "hidden / heads")}
        return first | dict.fromkeys(own.keys() - first.keys(), (None, None))
    ignored = {name for name in own if name.rpartition(".")[2] in (*TRAINING, "name")}
    ignored |= {"ffn"} if all(kind.experts for kind in shape.blocks()) else set()
    ignored |= {"rope_theta"} if shape.positions != "rotary" else set()
    if kind != "deepseek_v3" and shape.moe and shape.moe.bias_rate:  # its files alone have biases
        ignored.remove("moe.bias_rate")
    names = sorted((own.keys() | theirs.keys()) - ignored)
    found = {name: (own.get(name, "a table"), theirs.get(name, "a table")) for name in names}
    return {name: pair for name, pair in found.items() if pair[0] != pair[1]} | _groups(shape)


def _groups(shape: ModelShape) -> dict[str, tuple[Any, Any]]:
    """The field that differs in the choice of groups: DeepSeek-V3 ranks groups by their best two experts, the book's
    router by as many as a chosen group gives on average."""
    moe = shape.moe
    if moe is None or moe.top_groups == moe.groups or moe.top_k // moe.top_groups == 2:
        return {}
    return {"moe.top_k": (moe.top_k, 2 * moe.top_groups)}


def model_of(config: Mapping[str, Any]) -> ModelShape:
    """The shape of a config with whose weights the book's model gives the same logits.

    Stricter than `huggingface.shape_of`, which leaves out a scaling of rotary positions that the book has not. Raises
    ShapeError.
    """
    kind = config.get("model_type")
    if isinstance(kind, str) and kind not in NAMES:
        raise ShapeError(
            f"model_type must be one of {', '.join(NAMES)} for its weights to be read, got {kind!r}"
        )
    shape = shape_of(config)
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    activation = next((config[key] for key in ("hidden_act", "activation_function") if key in config), None)
    rope_scaling.of_config(config)
    if window is not None and window < shape.max_seq:
        raise ShapeError(
            f"sliding_window must be null or at least max_position_embeddings = {shape.max_seq}, got {window}: make that "
            "smaller to train on texts within the window"
        )
    if activation == "gelu":
        raise ShapeError("activation must be gelu_new, the tanh form that the book has, got the exact 'gelu'")
    if config.get("rope_interleave", True) is not True:
        raise ShapeError(f"rope_interleave must be true, got {config['rope_interleave']!r}")
    for field, (own, valid) in _groups(shape).items():
        raise ShapeError(f"{field} must be {valid} for the same choice of groups, got {own}")
    return shape
