"""Causal self-attention: written out, and through PyTorch's fused kernels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playbook.model.linear import Linear, linears
from playbook.model.norms import RMSNorm
from playbook.model.recompute import checkpoint
from playbook.shapes import ModelShape


def dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Dropout that saves a one-byte mask on every device (plain CPU dropout saves a mask in the dtype of ``x``)."""
    return torch.native_dropout(x, p, True)[0] if training and p > 0 else x


def rotary_table(length: int, head_dim: int, theta: float = 10000.0) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, each (length, head_dim) in fp32.

    Dim pair i turns by position · theta^(−2i/head_dim); the two halves of a head carry the same angles.
    """
    frequencies = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (s, d/2)
    angles = torch.cat([angles, angles], dim=-1)  # (s, d)
    return angles.cos().float(), angles.sin().float()


def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate each head of ``x`` (b, s, heads, d) by the angles of its position; cos and sin are (s, d).

    Computed in fp32 whatever the dtype of ``x``: at position 4 096 a bf16 angle is already off by whole turns.
    Saves nothing for backward but cos and sin, because a rotation is linear in ``x``.
    """
    cos, sin = cos[:, None], sin[:, None]  # (s, 1, d)
    first, second = x.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (x.float() * cos + turned * sin).to(x.dtype)


def reference_attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
) -> Tensor:
    """softmax(q·kᵀ/√d + causal mask)·v as the formula says, with every (s, s) matrix in memory.

    q is (b, heads, s, d); k is (b, kv_heads, s, d) and v (b, kv_heads, s, e), each serving heads/kv_heads neighbouring
    query heads; returns (b, heads, s, e).
    """
    b, heads, s, d = q.shape
    kv_heads = k.shape[1]
    # Query heads that share a key are rows of one product: the keys and values need not be repeated.
    q = (q * d**-0.5).reshape(b, kv_heads, -1, d)  # (b, kv, heads/kv · s, d)
    scores = (q @ k.transpose(-2, -1)).view(b, heads, s, s)
    if causal:
        scores = scores + torch.full((s, s), float("-inf"), dtype=scores.dtype, device=scores.device).triu(1)
    weights = dropout(torch.softmax(scores, dim=-1), p, training)  # (b, heads, s, s)
    return (weights.view(b, kv_heads, -1, s) @ v).view(b, heads, s, -1)


def sdpa_attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
) -> Tensor:
    """The same attention through ``scaled_dot_product_attention``: flash kernels keep no (s, s) matrix.

    The CPU has no such kernel with dropout: torch would fall back to the formula with a mask of floats, ours keeps bytes.
    """
    if p and training and not q.is_cuda:
        return reference_attention(q, k, v, p, training, causal)
    if q.is_cuda and q.dtype == torch.float32 and q.shape[1] != k.shape[1]:
        # Flash kernels are for 16 bits, and the one that takes fp32 (memory-efficient) knows no groups: torch would fall
        # back to the formula.
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    width = v.shape[-1]
    if width < q.shape[-1]:  # flash kernels take values as wide as keys alone
        v = F.pad(v, (0, q.shape[-1] - width))
    y = F.scaled_dot_product_attention(
        q, k, v, is_causal=causal, dropout_p=p if training else 0.0, enable_gqa=q.shape[1] != k.shape[1]
    )
    return y if y.shape[-1] == width else y[..., :width]


ATTENTION = {"reference": reference_attention, "sdpa": sdpa_attention}


class Attention(nn.Module):
    """Multi-head attention with grouped key/value heads (Ainslie et al. 2023); MHA when kv_heads == heads.

    ``causal``: a token sees those before it and itself; otherwise it sees all, as in an encoder.
    """

    def __init__(
        self, shape: ModelShape, attention: str = "sdpa", recompute: str = "none", causal: bool = True
    ):
        super().__init__()
        self.causal = causal
        self.head_dim, self.p, self.recompute = shape.qk_dim, shape.dropout, recompute
        self.core = ATTENTION[attention]
        width, kv_width = shape.heads * shape.qk_dim, shape.n_kv_heads * shape.qk_dim
        qkv_bias = bool(shape.qkv_bias)
        self.q = Linear(shape.hidden, width, bias=qkv_bias)
        self.k = Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.v = Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.out = Linear(width, shape.hidden, bias=shape.bias)
        self.q_norm = RMSNorm(shape.qk_dim, shape.norm_eps) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.qk_dim, shape.norm_eps) if shape.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Tensor | None = None, sin: Tensor | None = None) -> Tensor:
        each = linears(x, (self.q, self.k, self.v))
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in each)  # (b, s, heads, d)
        q, k = self.q_norm(q), self.k_norm(k)
        if cos is not None and sin is not None:
            q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)
        y = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))  # (b, heads, s, d)
        y = self.out(y.transpose(1, 2).flatten(2))  # (b, s, h)
        return dropout(y, self.p, self.training)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The attention core: what *selective* recomputation throws away and computes again."""
        return attend(self, q, k, v)


def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The core of an attention layer, whichever it is, under its kind of recomputation."""
    given = q, k, v, layer.p, layer.training, layer.causal
    if layer.recompute == "selective":
        return checkpoint(layer.core, *given, preserve_rng=layer.p > 0)
    return layer.core(*given)
