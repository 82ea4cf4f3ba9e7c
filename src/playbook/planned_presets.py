"""Sizes of published models that the book plans and does not train, in the words of `presets`."""

from __future__ import annotations

from typing import Any

from playbook.presets import deepseek, llama

# fmt: off

#: In what they differ from the book's, for `huggingface` and for presets.
GEMMA = "embeddings are multiplied by the square root of hidden_size"
GEMMA2 = f"{GEMMA}, scores and logits are capped"
PARTLY = "a part of each head turns with the position"
SINKS = "each head has a sink in its softmax, each router biases"
STATE = "a state stands for attention in most blocks"


def _gemma(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, ffn: int, **more: Any) -> dict[str, Any]:
    """Gemma 2 and 3: norms before and after, a gate with GELU, blocks that see a window between those that see all."""
    common = {"head_dim": head_dim, "activation": "gelu", "norms": "both", "tied": True, "norm_eps": 1e-6}
    return llama(layers, hidden, heads, kv_heads, ffn, more.pop("vocab"), **common, **more)


def _glm(layers: int, hidden: int, ffn: int, moe: tuple[int, int, int, float], **more: Any) -> dict[str, Any]:
    """GLM-4.5: ``moe`` are experts, their width, dense layers and what the router's weights are multiplied by."""
    experts, width, dense, scale = moe
    routed = {"experts": experts, "top_k": 8, "ffn": width, "shared_experts": 1, "dense_layers": dense, "scale": scale}
    common = {"head_dim": 128, "qkv_bias": True, "max_seq": 131072, "rope_theta": 1e6, "differs": PARTLY}
    return llama(layers, hidden, 96, 8, ffn, 151552, moe=routed | {"scores": "sigmoid"}, **common, **more)


def _gpt_oss(layers: int, experts: int) -> dict[str, Any]:
    """gpt-oss: biases everywhere, every second block sees 128 tokens. Sinks and the routers' biases are not counted."""
    sizes = {"head_dim": 64, "max_seq": 131072, "rope_theta": 150000.0, "bias": True, "windows": (128, 0)}
    moe = {"experts": experts, "top_k": 4, "ffn": 2880}
    return llama(layers, 2880, 64, 8, 2880, 201088, moe=moe, differs=SINKS, **sizes)


_GEMMA2: dict[str, Any] = {"vocab": 256000, "max_seq": 8192, "windows": (4096, 0), "differs": GEMMA2}
_GEMMA3: dict[str, Any] = {
    "vocab": 262208, "max_seq": 131072, "rope_theta": 1e6, "qk_norm": True, "windows": (1024,) * 5 + (0,),
    "differs": GEMMA,
}
#: Qwen3-Next and 3.5: Gated DeltaNet in three blocks of four, attention with a gate in one.
_QWEN_NEXT: dict[str, Any] = {
    "recurrent": {"rule": "delta", "heads": 32, "head_dim": 128, "state": 128, "groups": 16, "gate": True},
    "windows": (-1, -1, -1, 0), "head_dim": 256, "qk_norm": True, "max_seq": 262144, "norm_eps": 1e-6, "rope_theta": 1e7,
    "differs": STATE,
}
#: Kimi Linear: a key's features decay each by itself, and the attention of the other blocks knows no positions.
_KIMI_LINEAR: dict[str, Any] = {
    "recurrent": {"rule": "kda", "heads": 32, "head_dim": 128, "state": 128, "groups": 32},
    "windows": (-1, -1, -1, 0) * 6 + (-1, -1, 0), "positions": "none", "norm_eps": 1e-5, "differs": STATE,
}

SIZES: dict[str, dict[str, Any]] = {
    "glm-4.5": _glm(92, 5120, 12288, (160, 1536, 3, 2.5), qk_norm=True),
    "glm-4.5-air": _glm(46, 4096, 10944, (128, 1408, 1, 1.0)),
    "gpt-oss-20b": _gpt_oss(24, 32),
    "gpt-oss-120b": _gpt_oss(36, 128),
    "gemma2-2b": _gemma(26, 2304, 8, 4, 256, 9216, **_GEMMA2),
    "gemma2-9b": _gemma(42, 3584, 16, 8, 256, 14336, **_GEMMA2),
    "gemma2-27b": _gemma(46, 4608, 32, 16, 128, 36864, **_GEMMA2),
    "gemma3-1b": _gemma(
        26, 1152, 4, 1, 256, 6912, **{**_GEMMA3, "vocab": 262144, "max_seq": 32768, "windows": (512,) * 5 + (0,)}
    ),
    "gemma3-4b": _gemma(34, 2560, 8, 4, 256, 10240, **_GEMMA3),
    "gemma3-12b": _gemma(48, 3840, 16, 8, 256, 15360, **_GEMMA3),
    "gemma3-27b": _gemma(62, 5376, 32, 16, 128, 21504, **_GEMMA3),
    "qwen3-next-80b-a3b": llama(
        48, 2048, 16, 2, 5120, 151936, moe={"experts": 512, "top_k": 10, "ffn": 512, "shared_experts": 1}, **_QWEN_NEXT
    ),
    "qwen3.5-35b-a3b": llama(
        40, 2048, 16, 2, 512, 248320, moe={"experts": 256, "top_k": 8, "ffn": 512, "shared_experts": 1}, **_QWEN_NEXT
    ),
    "kimi-linear-48b-a3b": deepseek(
        27, 2304, 32, 9216, 163840, 1048576, {"experts": 256, "top_k": 8, "ffn": 1024, "shared_experts": 1,
                                              "dense_layers": 1, "scores": "sigmoid", "scale": 2.446},
        {"q_rank": None, "kv_rank": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128},
    ) | _KIMI_LINEAR,
}
