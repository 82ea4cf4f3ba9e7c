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
def shapes(draw):
    """Small shapes of both blocks, odd sizes, grouped heads, every option of the model."""
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
    )  # fmt: skip
