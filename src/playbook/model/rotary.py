"""Rotary position embeddings (Su et al. 2021, arXiv 2104.09864), in the half-split form of the Llama models."""

from __future__ import annotations

import torch
from torch import Tensor


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
