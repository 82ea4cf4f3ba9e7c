"""Latent attention as generation computes it (DeepSeek-V2, arXiv 2405.04434, section 2.1)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.model.mla import LatentAttention


def absorbed(layer: LatentAttention, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
    """The same output, attending to latents: q·W_k is a query for c, and W_v waits until the values are mixed.

    All heads share one key of kv_rank + rope dims, and one value of kv_rank: keys and values of the heads are never made.
    """
    sizes = layer.sizes
    q, c, key = layer.latents(x)
    q = layer.q_up(q).unflatten(-1, (-1, sizes.nope_dim + sizes.rope_dim))
    q_nope, q_rope = q.split([sizes.nope_dim, sizes.rope_dim], -1)
    key = key[:, :, None]
    if cos is not None and sin is not None:
        q_rope, key = layer.ops.rotary(q_rope, cos, sin), layer.ops.rotary(key, cos, sin)
    # (heads, nope + value, kv_rank)
    up = layer.kv_up.weight.view(-1, sizes.nope_dim + sizes.value_dim, sizes.kv_rank)
    of_keys, of_values = up.split([sizes.nope_dim, sizes.value_dim], 1)
    # (b, s, heads, kv_rank + rope)
    queries = torch.cat([torch.einsum("bshd,hdc->bshc", q_nope, of_keys), q_rope], -1)
    keys = torch.cat([c[:, :, None], key], -1)  # (b, s, 1, kv_rank + rope)
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys.transpose(1, 2),
        c[:, None],
        is_causal=layer.causal,
        scale=q.shape[-1] ** -0.5,
        enable_gqa=True,
    )  # (b, heads, s, kv_rank)
    return layer.out(torch.einsum("bhsc,hdc->bshd", mixed, of_values).flatten(2))
