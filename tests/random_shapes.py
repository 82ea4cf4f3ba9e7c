"""Random small models, and the precisions in which they run on a CPU."""

import torch
from hypothesis import strategies as st

from playbook.shapes import ModelShape

RUNS = {
    "fp32": {"dtype": torch.float32, "autocast": None},
    "bf16-mixed": {"dtype": torch.bfloat16, "autocast": None},
    "autocast": {"dtype": torch.float32, "autocast": torch.bfloat16},
}


@st.composite
def mixtures(draw):
    """Experts that take all that comes."""
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    top_groups = draw(st.integers(1, groups))
    return {
        "experts": groups * each, "top_k": draw(st.integers(1, top_groups * each)), "ffn": draw(st.integers(1, 20)),
        "shared_experts": draw(st.integers(0, 2)), "dense_layers": draw(st.integers(0, 1)),
        "every": draw(st.integers(1, 2)), "scores": draw(st.sampled_from(["softmax", "sigmoid"])),
        "normalized": draw(st.booleans()), "scale": draw(st.sampled_from([1.0, 2.5])),
        "groups": groups, "top_groups": top_groups, "balance_loss": draw(st.sampled_from([0.0, 0.01])),
        "balance_over": draw(st.sampled_from(["sample", "micro_batch", "global_batch"])),
        "z_loss": draw(st.sampled_from([0.0, 0.001])),
    }  # fmt: skip


@st.composite
def latents(draw):
    """Latent attention."""
    nope, rope = draw(st.integers(1, 6)), 2 * draw(st.integers(1, 3))
    return {
        "q_rank": draw(st.none() | st.integers(1, 9)), "kv_rank": draw(st.integers(1, 9)), "nope_dim": nope,
        "rope_dim": rope, "value_dim": draw(st.integers(1, nope + rope)),
    }  # fmt: skip


@st.composite
def shapes(draw, dense=False):
    """Small shapes of all blocks, odd sizes, grouped heads, experts unless ``dense``, every option of the model."""
    if not dense and draw(st.integers(0, 3)) == 0:
        return draw(deepseek_shapes())
    kv = draw(st.integers(1, 3))
    heads = kv * draw(st.integers(1, 3))
    head_dim = 2 * draw(st.integers(1, 5))
    gpt = draw(st.booleans())
    return ModelShape(
        layers=draw(st.integers(1, 3)), hidden=draw(st.integers(3, 40)), heads=heads, kv_heads=kv, head_dim=head_dim,
        ffn=draw(st.integers(1, 70)), vocab=draw(st.integers(2, 90)), gated=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "relu", "silu"])), norm="layernorm" if gpt else "rmsnorm",
        positions=draw(st.sampled_from(["learned", "rotary", "none"])), max_seq=32, bias=draw(st.booleans()),
        qk_norm=draw(st.booleans()), tied=draw(st.booleans()), dropout=draw(st.sampled_from([0.0, 0.1])),
        moe=None if dense else draw(st.none() | mixtures()),
    )  # fmt: skip


@st.composite
def deepseek_shapes(draw, experts=True):
    """Small shapes with latent attention."""
    return ModelShape(
        layers=draw(st.integers(1, 3)), hidden=draw(st.integers(3, 40)), heads=draw(st.integers(1, 5)),
        ffn=draw(st.integers(1, 70)), vocab=draw(st.integers(2, 90)), gated=draw(st.booleans()),
        activation=draw(st.sampled_from(["gelu", "relu", "silu"])), norm=draw(st.sampled_from(["layernorm", "rmsnorm"])),
        positions=draw(st.sampled_from(["learned", "rotary", "none"])), max_seq=32, bias=draw(st.booleans()),
        qkv_bias=False, tied=draw(st.booleans()), dropout=draw(st.sampled_from([0.0, 0.1])),
        moe=draw(st.none() | mixtures()) if experts else None, mla=draw(latents()),
    )  # fmt: skip
