"""The operations of a model by this room's kernels: `playbook.model.ops.Ops` in its place.

What each saves is in its file. Matrix products stay PyTorch's (cuBLAS): `matmul.py` has the book's own. A norm is fused
with the residual before it where both are in one block; what a block adds last is added by itself, as the next block may
be another rank's. PyTorch's are taken where no kernel here does the same: activations other than SiLU, attention that
drops weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from playbook.kernels import flash_attention
from playbook.kernels.adamw import adamw
from playbook.kernels.cross_entropy import vocab_cross_entropy
from playbook.kernels.flash_backward import Packed, flash_backward
from playbook.kernels.jit import check_gpu
from playbook.kernels.layernorm import layer_norm
from playbook.kernels.linear_cross_entropy import linear_cross_entropy
from playbook.kernels.rmsnorm import add_rms_norm, rms_norm
from playbook.kernels.rotary import rotary
from playbook.kernels.swiglu import swiglu
from playbook.layout.tokens import MaskBlock
from playbook.model.attend import BlockAttention
from playbook.model.norms import RMSNorm
from playbook.model.ops import Ops
from playbook.registry import lab


class FusedOps(Ops):
    """Each operation as one kernel."""

    fuses_head = True
    vocab_losses = staticmethod(vocab_cross_entropy)
    adamw = staticmethod(adamw)

    def check(self, device: torch.device | str | None) -> None:
        check_gpu(device)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        return layer_norm(x, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm(x, weight, eps)

    def add_norm(self, x: Tensor, y: Tensor, norm: nn.Module) -> tuple[Tensor, Tensor]:
        if isinstance(norm, RMSNorm):
            return add_rms_norm(x, y, norm.weight, norm.eps)
        return super().add_norm(x, y, norm)

    def gated(self, pair: Iterator[Tensor], activation: str) -> Tensor:
        if activation != "silu":
            return super().gated(pair, activation)
        return swiglu(next(pair), next(pair))

    def rotary(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotary(x, cos, sin)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: Any = True
    ) -> Tensor:
        if p and training:
            return super().attention(q, k, v, p, training, causal)
        packed = None if isinstance(causal, bool) else Packed(*lab("documents", "ends")(causal, q.device))
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (b, s, heads, d)
        return flash_attention.flash_attention(q, k, v, causal=bool(causal), packed=packed).transpose(1, 2)

    def block_attention(self, q: Tensor) -> BlockAttention:
        tuning = flash_attention.tuned(q)
        return BlockAttention(partial(_attend, tuning=tuning), partial(_attend_backward, tuning=tuning))

    def linear_losses(self, x: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        return linear_cross_entropy(x, weight, targets)[0]


def _given(block: MaskBlock, d: int) -> dict[str, Any]:
    """Queries and keys of a causal block are the same tokens."""
    return {"causal": block.causal, "scale": d**-0.5, "offset": 0}


def _attend(
    block: MaskBlock, q: Tensor, k: Tensor, v: Tensor, *, tuning: flash_attention.Tuning
) -> tuple[Tensor, Tensor]:
    """As `model.attend.attend`."""
    q, k, v = (x.transpose(1, 2) for x in (block.queries(q), block.keys(k), block.keys(v)))
    out, lse = flash_attention.flash_forward(q, k, v, **_given(block, q.shape[-1]), blocks=tuning.forward)
    return out.transpose(1, 2), lse


def _attend_backward(
    block: MaskBlock,
    gradient: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    tuning: flash_attention.Tuning,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `model.attend.attend_backward`."""
    given = block.queries(gradient), block.queries(q), block.keys(k), block.keys(v), block.queries(out)
    do, q, k, v, o = (x.transpose(1, 2) for x in given)
    how = _given(block, q.shape[-1])
    dq, dk, dv = flash_backward(
        do, q, k, v, o, block.queries(lse), **how, keys=tuning.keys, queries=tuning.queries
    )
    return dq.transpose(1, 2), dk.transpose(1, 2), dv.transpose(1, 2)
