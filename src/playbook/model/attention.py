"""Multi-head self-attention, with rotary positions or without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from playbook.model.linear import Linear, linears
from playbook.model.norms import RMSNorm
from playbook.model.ops import TORCH_OPS, Ops, dropout, reference_attention
from playbook.model.recompute import checkpoint
from playbook.registry import lab
from playbook.shapes import ModelShape

#: Where tokens stand in their text, (s,) int64, None from its beginning on; or in documents, and these.
Positions = Tensor | tuple[Tensor, Any] | None
Angles = Tensor | None


def places(s: int, positions: Positions) -> Any:
    """Which rows of a table of positions ``s`` tokens have."""
    where = positions[0] if isinstance(positions, tuple) else positions
    return slice(s) if where is None else where


def rotary_table(
    length: int, head_dim: int, theta: float = 10000.0, scaling: str = ""
) -> tuple[Tensor, Tensor]:
    """cos and sin of every position's angles, each (length, head_dim) in fp32.

    Dim pair i turns by position · theta^(−2i/head_dim), or as a ``scaling`` has it (`rope_scaling`); the two halves of a
    head carry the same angles.
    """
    frequencies, by = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim), 1.0
    if scaling:
        stretched, by = lab("rope", "frequencies")(scaling, head_dim, theta)
        frequencies = torch.tensor(stretched, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies  # (s, d/2)
    angles = torch.cat([angles, angles], dim=-1)  # (s, d)
    return angles.cos().mul_(by).float(), angles.sin().mul_(by).float()


#: Kinds of attention: one that keeps no (s, s) matrix, and the formula written out.
ATTENTION = ("reference", "sdpa")


def core_of(attention: str, ops: Ops) -> Callable[..., Tensor]:
    """The attention core of that name, one of ``ATTENTION``."""
    return reference_attention if attention == "reference" else ops.attention


class Attention(nn.Module):
    """Multi-head attention with grouped key/value heads (Ainslie et al. 2023); MHA when kv_heads == heads.

    ``causal``: a token sees those before it and itself; otherwise it sees all, as in an encoder. Of ``documents``
    (`documents.pieces.Documents`) it sees its own.
    """

    recompute = False

    def __init__(self, shape: ModelShape, attention: str = "sdpa", causal: bool = True, ops: Ops = TORCH_OPS):
        super().__init__()
        self.causal, self.ops = causal, ops
        self.head_dim, self.p = shape.qk_dim, shape.dropout
        self.core = core_of(attention, ops)
        width, kv_width = shape.heads * shape.qk_dim, shape.n_kv_heads * shape.qk_dim
        qkv_bias = bool(shape.qkv_bias)
        self.q = Linear(shape.hidden, width, bias=qkv_bias)
        self.k = Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.v = Linear(shape.hidden, kv_width, bias=qkv_bias)
        self.out = Linear(width, shape.hidden, bias=shape.bias)
        self.q_norm = RMSNorm(shape.qk_dim, shape.norm_eps, ops) if shape.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(shape.qk_dim, shape.norm_eps, ops) if shape.qk_norm else nn.Identity()

    def forward(self, x: Tensor, cos: Angles = None, sin: Angles = None, documents: Any = None) -> Tensor:
        each = linears(x, (self.q, self.k, self.v))
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in each)  # (b, s, heads, d)
        q, k = self.q_norm(q), self.k_norm(k)
        if cos is not None and sin is not None:
            q, k = self.ops.rotary(q, cos, sin), self.ops.rotary(k, cos, sin)
        y = self.attend(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), documents
        )  # (b, heads, s, d)
        y = self.out(y.transpose(1, 2).flatten(2))  # (b, s, h)
        return dropout(y, self.p, self.training)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, documents: Any = None) -> Tensor:
        """The attention core: what *selective* recomputation throws away and computes again."""
        return attend(self, q, k, v, documents)


def attend(layer: Any, q: Tensor, k: Tensor, v: Tensor, documents: Any) -> Tensor:
    """The core of an attention layer, whichever it is, under its kind of recomputation."""
    given = q, k, v, layer.p, layer.training, documents or layer.causal
    if layer.recompute:
        return checkpoint(layer.core, *given, preserve_rng=layer.p > 0)
    return layer.core(*given)
