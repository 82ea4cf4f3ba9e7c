"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): keys and values out of one small latent.

A token's keys and values of all heads are products of one vector c (kv_rank), beside one rotary key that all heads share.
Generation keeps c and that key, and nothing else. Training multiplies them out and attends as ever.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from playbook.model.attention import Angles, attend, core_of
from playbook.model.linear import Linear, cast_once, linears
from playbook.model.norms import RMSNorm
from playbook.model.ops import Ops, dropout
from playbook.shapes import MLA, ModelShape


class LatentAttention(nn.Module):
    """Queries out of a latent of their own (or, without q_rank, of x); keys and values out of another."""

    recompute = False

    def __init__(self, shape: ModelShape, sizes: MLA, attention: str, causal: bool, ops: Ops):
        super().__init__()
        self.sizes, self.causal, self.p = sizes, causal, shape.dropout
        self.ops, self.core = ops, core_of(attention, ops)
        queries, values = shape.heads * shape.qk_dim, shape.heads * sizes.value_dim
        self.q_down = Linear(shape.hidden, sizes.q_rank, bias=False) if sizes.q_rank else None
        self.q_norm = RMSNorm(sizes.q_rank, shape.norm_eps, ops) if sizes.q_rank else nn.Identity()
        self.q_up = Linear(sizes.q_rank or shape.hidden, queries, bias=False)
        self.kv_down = Linear(shape.hidden, sizes.kv_rank + sizes.rope_dim, bias=False)
        self.kv_norm = RMSNorm(sizes.kv_rank, shape.norm_eps, ops)
        self.kv_up = Linear(sizes.kv_rank, shape.heads * sizes.nope_dim + values, bias=False)
        self.out = Linear(values, shape.hidden, bias=shape.bias)
        self.enter: Callable[[Tensor], Tensor] = lambda key: (
            key
        )  # where a region of tensor parallelism begins

    def forward(self, x: Tensor, cos: Angles = None, sin: Angles = None, documents: Any = None) -> Tensor:
        q, c, key = self.latents(x)
        nope, value = self.sizes.nope_dim, self.sizes.value_dim
        q = self.q_up(q).unflatten(-1, (-1, nope + self.sizes.rope_dim))  # (b, s, heads, d)
        k, v = self.kv_up(c).unflatten(-1, (-1, nope + value)).split([nope, value], -1)
        q_nope, q_rope = q.split([nope, self.sizes.rope_dim], -1)
        key = self.enter(key)[:, :, None]  # (b, s, 1, rope)
        if cos is not None and sin is not None:
            q_rope, key = self.ops.rotary(q_rope, cos, sin), self.ops.rotary(key, cos, sin)
        v = v.contiguous()  # on its own: as a part of both it would keep both
        q = torch.cat([q_nope, q_rope], -1)
        k = torch.cat([k, key.expand(-1, -1, k.shape[2], -1)], -1)  # each head a copy of the rotary key
        y = self.attend(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), documents
        )  # (b, heads, s, value)
        y = self.out(y.transpose(1, 2).flatten(2).contiguous())  # (b, s, h)
        return dropout(y, self.p, self.training)

    def latents(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What queries come from, what keys and values come from, and the rotary key: (b, s, q_rank), (b, s, kv_rank),
        (b, s, rope)."""
        if self.q_down is None:
            q = cast_once(x)
            both = self.kv_down(q)
        else:
            each = linears(x, (self.q_down, self.kv_down))
            q, both = self.q_norm(next(each)), next(each)
        c, key = both.split([self.sizes.kv_rank, self.sizes.rope_dim], -1)
        return q, self.kv_norm(c), key

    def attend(self, q: Tensor, k: Tensor, v: Tensor, documents: Any = None) -> Tensor:
        """The attention core, as `Attention.attend`."""
        return attend(self, q, k, v, documents)
