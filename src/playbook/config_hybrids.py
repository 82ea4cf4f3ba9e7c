"""Families on Hugging Face in most of whose blocks a state stands for attention (`recurrent`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from playbook import config_families as known
from playbook._checks import check_int
from playbook.config_families import Architecture, Config, Sizes, must, planned
from playbook.errors import ShapeError
from playbook.planned_presets import STATE

#: What families call a block that has a state, and one that has attention.
STATES, ATTENDS = ("linear_attention", "mamba", "conv"), ("full_attention", "attention")
#: Where it is not said which blocks attend: every fourth, but in these families every so many, from a first one on; all,
#: or none.
EVERY = {"minimax": (2, 0), "kimi_linear": (4, 4)}
ALL = {"bamba": False, "granitemoehybrid": False, "lfm2": True}


def _attends(config: Config) -> list[bool]:
    """Of each block whether it has attention: by a list of kinds, of places (Kimi's begin at 1), or every so many."""
    layers = check_int("num_hidden_layers", config["num_hidden_layers"], ShapeError)
    kinds = config.get("layer_types") or config.get("layers_block_type")
    if kinds is not None:
        if not isinstance(kinds, list) or any(kind not in (*STATES, *ATTENDS) for kind in kinds):
            raise must("layer_types", f"a list of {', '.join((*STATES, *ATTENDS))}", {"layer_types": kinds})
        return [kind in ATTENDS for kind in kinds]
    table = config.get("linear_attn_config")
    key = next((key for key in ("attn_layer_indices", "full_attn_idxs") if config.get(key) is not None), "")
    places, first = (config[key], 0) if key else (None, 0)
    if isinstance(table, Mapping):
        key, places, first = "linear_attn_config.full_attn_layers", table.get("full_attn_layers"), 1
    if key:
        if not isinstance(places, list) or any(not isinstance(place, int) for place in places):
            raise ShapeError(f"{key} must be a list of blocks, got {places!r}")
        return [layer + first in places for layer in range(layers)]
    if (kind := config["model_type"]) in ALL:
        return [ALL[kind]] * layers
    every, start = EVERY.get(kind, (config.get("full_attention_interval") or 4, -1))
    every = check_int("full_attention_interval", every, ShapeError)
    return [layer >= start and (layer - start) % every == 0 for layer in range(layers)]


def _states(rule: str, keys: Mapping[str, str], **more: Any) -> Callable[[Config], Sizes]:
    """Blocks with a state and those with attention, and the sizes of a state, which have these ``keys``."""

    def kinds(config: Config) -> Sizes:
        each = _attends(config)
        if all(each):
            return {}
        found = {"rule": rule, **more, **{name: config.get(key) for name, key in keys.items()}}
        for name, key in keys.items():
            check_int(key, found[name], ShapeError)
        return {
            **{f"recurrent.{k}": v for k, v in found.items()},
            "windows": known.period_of([a - 1 for a in each]),
        }

    return kinds


_SSM = {
    "heads": "mamba_n_heads", "head_dim": "mamba_d_head", "groups": "mamba_n_groups", "state": "mamba_d_state",
    "kernel": "mamba_d_conv",
}  # fmt: skip
_DELTA = {
    "heads": "linear_num_value_heads", "head_dim": "linear_value_head_dim", "groups": "linear_num_key_heads",
    "state": "linear_key_head_dim", "kernel": "linear_conv_kernel_dim",
}  # fmt: skip
_KDA = {
    "heads": "linear_num_heads", "head_dim": "linear_head_dim", "groups": "linear_num_heads", "state": "linear_head_dim",
    "kernel": "linear_conv_kernel_dim",
}  # fmt: skip
#: Kimi's own names of these, in a table.
_KIMI = {
    "num_heads": "linear_num_heads",
    "head_dim": "linear_head_dim",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def _mamba(config: Config) -> Sizes:
    width = config.get("mamba_d_head", "auto")
    if width == "auto":
        heads, hidden = (
            check_int(key, config.get(key), ShapeError) for key in ("mamba_n_heads", "hidden_size")
        )
        width = check_int("mamba_expand", config.get("mamba_expand", 2), ShapeError) * hidden // heads
    return _states("mamba2", _SSM)({**config, "mamba_d_head": width})


def _granite(config: Config) -> Sizes:
    """Experts beside an MLP that sees every token, or that MLP alone."""
    positions = {"positions": "rotary" if config.get("position_embedding_type") == "rope" else "none"}
    key = "shared_intermediate_size"
    shared, one = (check_int(name, config.get(name), ShapeError) for name in (key, "intermediate_size"))
    if not config.get("num_experts"):
        return {**positions, "ffn": shared}
    if shared % one:
        raise must(key, f"a multiple of intermediate_size = {one}", config)
    moe = {name: config.get(theirs) for name, theirs in known.ALL_EXPERTS.items()}
    return {**positions, **moe, "moe.shared_experts": shared // one, **known.balance(config)}


def _kda(config: Config) -> Sizes:
    table = config.get("linear_attn_config")
    table = table if isinstance(table, Mapping) else {}
    return _states("kda", _KDA)(
        {**config, **{theirs: table[own] for own, theirs in _KIMI.items() if own in table}}
    )


def _kimi(config: Config) -> Sizes:
    kinds = config.get("mlp_layer_types")
    dense = kinds.count("dense") if isinstance(kinds, list) else config.get("first_k_dense_replace", 1)
    return {**known.deepseek(config), "moe.dense_layers": dense}


def _lightning(config: Config) -> Sizes:
    heads, hidden = (
        check_int(key, config[key], ShapeError) for key in ("num_attention_heads", "hidden_size")
    )
    width = {"head_dim": config.get("head_dim") or hidden // heads}
    keys = {
        "heads": "num_attention_heads",
        "groups": "num_attention_heads",
        "head_dim": "head_dim",
        "state": "head_dim",
    }
    return _states("lightning", keys)({**config, **width})


def _lfm2(config: Config) -> Sizes:
    """The MLP is two thirds as wide as what stands there, and by a round number."""
    key = "block_ff_dim" if "block_ff_dim" in config else "intermediate_size"
    width = check_int(key, config[key], ShapeError)
    if config.get("block_auto_adjust_ff_dim", True):
        multiple = check_int("block_multiple_of", config.get("block_multiple_of", 256), ShapeError)
        share = config.get("block_ffn_dim_multiplier", 1.0)
        if not isinstance(share, int | float):
            raise must("block_ffn_dim_multiplier", "a number", config)
        width = -(-int(share * int(2 * width / 3)) // multiple) * multiple
    return {"ffn": width}


_NORMED: Sizes = {"qk_norm": True}
_NEXT = {**known.CHOICE, **known.QWEN_SHARED, "moe.experts": "num_experts"}
_NO_BIAS = {"mamba_proj_bias": False, "mamba_conv_bias": True}
_EACH_CHANNEL = {"heads": "hidden_size", "groups": "hidden_size", "kernel": "conv_L_cache"}
_gated = _states("delta", _DELTA, gate=True)

#: By ``model_type``.
HYBRIDS: dict[str, Architecture] = {
    "bamba": planned("BambaForCausalLM", STATE, musts=_NO_BIAS, kinds=_mamba),
    "granitemoehybrid": planned(
        "GraniteMoeHybridForCausalLM", f"{STATE}, {known.GRANITE}", musts=_NO_BIAS, more=_granite, kinds=_mamba
    ),
    "kimi_linear": planned(
        "KimiLinearForCausalLM", STATE, {**known.DEEPSEEK_ROUTER, "kv_heads": "", "head_dim": ""},
        {"moe.scores": "sigmoid", "positions": "none"}, more=_kimi, kinds=_kda,
        needed={k: v for k, v in known.DEEPSEEK.items() if k != "moe.dense_layers"} | {"moe.experts": "num_experts"},
    ),
    "lfm2": planned(
        "Lfm2ForCausalLM", "a gated convolution stands for attention in most blocks", {"norm_eps": "norm_eps"},
        {**_NORMED, "tied": True}, {"conv_bias": False}, more=_lfm2,
        kinds=_states("convolution", _EACH_CHANNEL, head_dim=1, state=1),
    ),
    "minimax": planned(
        "MiniMaxForCausalLM", f"{STATE}, residuals are multiplied by factors", needed=known.ALL_EXPERTS,
        more=known.balance, kinds=_lightning,
    ),
    "olmo_hybrid": planned(
        "OlmoHybridForCausalLM", f"{STATE}, in the others norms come after attention and MLP",
        sizes={**_NORMED, "qk_norm_over": "heads"}, kinds=_states("delta", _DELTA),
    ),
    "qwen3_5_text": planned("Qwen3_5ForCausalLM", STATE, sizes=_NORMED, kinds=_gated),
    "qwen3_5_moe_text": planned(
        "Qwen3_5MoeForCausalLM", STATE, known.LOSS, _NORMED, needed={**_NEXT, "ffn": "moe_intermediate_size"},
        more=known.qwen_moe, kinds=_gated,
    ),
    "qwen3_next": planned(
        "Qwen3NextForCausalLM", STATE, known.QWEN_ROUTER, _NORMED, needed=_NEXT, more=known.qwen_moe, kinds=_gated
    ),
}  # fmt: skip
