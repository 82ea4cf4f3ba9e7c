"""What several tests need: small shapes, random tokens, and the one definition of "the same gradients"."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from playbook.shapes import ModelShape

GPT = ModelShape(layers=2, hidden=24, heads=3, vocab=37, max_seq=40)
LLAMA = ModelShape(
    layers=2, hidden=24, heads=6, kv_heads=2, ffn=50, vocab=37, gated=True, activation="silu",
    norm="rmsnorm", positions="rotary", bias=False, tied=False, max_seq=40,
)  # fmt: skip
MIXTRAL = LLAMA.replace(ffn=20, moe={"experts": 5, "top_k": 2, "ffn": 20})
DEEPSEEK = LLAMA.replace(
    layers=3, kv_heads=None, norm_eps=1e-6,
    moe={"experts": 12, "top_k": 4, "ffn": 16, "shared_experts": 2, "dense_layers": 1, "scores": "sigmoid",
         "groups": 4, "top_groups": 2, "scale": 2.5},
    mla={"q_rank": 10, "kv_rank": 12, "nope_dim": 6, "rope_dim": 4, "value_dim": 5},
)  # fmt: skip
#: Arguments of a command that a shell, YAML or a template would change.
ODD_WORDS = [
    "two words", "", "it's", 'a "quote"', "$HOME `id` $(id)", "a\\b", "*", "--", "{x}", "two\nlines", "ü → 🙂", "-m",
]  # fmt: skip
BLOCKS = {"gpt": GPT, "llama": LLAMA}


def tokens(shape: ModelShape, batch: int, seq: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs and targets (batch, seq), at random."""
    generator = torch.Generator().manual_seed(seed)
    both = torch.randint(shape.vocab, (2, batch, seq), generator=generator)
    return both[0], both[1]


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all gradients by parameter name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def relative_error(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """‖a − b‖ / ‖b‖ of the worst tensor; the names must agree.

    A tensor whose gradient is below a ten-thousandth of the whole is measured against that: the bias of the keys has
    gradient zero in exact arithmetic (softmax does not see it), and rounding noise has no relative error.
    """
    assert a.keys() == b.keys()
    floor = 1e-4 * float(torch.stack([t.norm() for t in b.values()]).norm()) + 1e-30
    return max(float((a[n] - b[n]).norm()) / max(float(b[n].norm()), floor) for n in a)
