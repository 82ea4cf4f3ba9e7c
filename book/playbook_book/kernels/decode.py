"""Flash-decoding: attention of one new query a head, with the keys in parts, a program for each (Dao et al. 2023).

    o = decode(q, k, v)               # q (b, 1, heads, d), k and v (b, S, kv_heads, d) -> (b, 1, heads, d)

The kernel is the library's (`flash_attention`), told another shape. The heads of a group, which share their keys (GQA),
are rows of one tile, so that keys are read once a group. And each sample is cut along its keys into samples of their
own, since a GPU has more multiprocessors than a batch has heads; their outputs are merged by their log-sum-exp.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.errors import ShapeError
from playbook.kernels.flash_attention import Tuning, flash_attention_lse
from playbook.kernels.matmul import programs

#: Keys that a part has at least: less are not worth a program.
LEAST = 256


def parts_for(samples: int, keys: int, at_once: int) -> int:
    """How many parts fill ``at_once`` programs, if each has `LEAST` keys: 1 where samples times heads do already."""
    return max(1, min(at_once // samples, keys // LEAST))


def decode(q: Tensor, k: Tensor, v: Tensor, parts: int | None = None, tuning: Tuning | None = None) -> Tensor:
    """q (b, 1, heads, d), k (b, S, kv_heads, d), v (b, S, kv_heads, e) -> o (b, 1, heads, e); a query sees all keys.

    ``parts`` of S, one to a program, by default so many as fill the GPU. Where they do not divide S, keys and values of
    several samples are copied: as samples of their own they would not lie at equal distances. Raises ShapeError for more
    queries than one.
    """
    b, queries, heads, d = q.shape
    keys, kv_heads = k.shape[1:3]
    if queries != 1 or heads % kv_heads:
        raise ShapeError(
            f"q is {tuple(q.shape)}, but must be (b, 1, heads, d), and heads a multiple of {kv_heads}"
        )
    parts = parts or parts_for(b * kv_heads, keys, programs(q))
    size = keys // parts
    rows = q.view(b, kv_heads, heads // kv_heads, d).transpose(1, 2)  # (b, group, kv_heads, d)
    found = []
    for start, count in ((0, parts), (parts * size, 1)):  # what is left over is a part of its own
        length = size if start == 0 else keys - start
        if length:
            many = rows[:, None].expand(b, count, *rows.shape[1:]).flatten(0, 1)
            ours = (
                x[:, start : start + count * length].unflatten(1, (count, length)).flatten(0, 1)
                for x in (k, v)
            )
            o, lse = flash_attention_lse(
                many, *ours, causal=False, tuning=tuning
            )  # (b·count, group, kv_heads, e)
            found.append((o.unflatten(0, (b, count)), lse.transpose(1, 2).unflatten(0, (b, count))))
    out, lse = (torch.cat(of, 1) for of in zip(*found, strict=True))  # (b, parts, group, kv_heads[, e])
    merged = (out.float() * lse.softmax(1)[..., None]).sum(1)  # each part's share of the sum of e^score
    return merged.transpose(1, 2).reshape(b, 1, heads, v.shape[-1]).to(q.dtype)
