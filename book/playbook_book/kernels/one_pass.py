"""FlashAttention's backward in one pass over keys: five products in place of seven, and sums in no fixed order.

`flash_backward` computes scores and dp twice, once for dk and dv and once for dq, so that each result has one program
that adds it up, and the same bits every time. FlashAttention-2 and -3 compute them once: a program of keys adds its part
of dq, in fp32, to memory that all programs of a head share, by atomic additions. Which comes first differs from run to
run, and so do the last bits of dq (arXiv 2307.08691, section 3.2; deterministic versions order the programs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.kernels.flash_backward import (
    LOG2E,
    Blocks,
    delta_kernel,
    product,
    store_tile,
    strides,
    tile,
    width,
)
from playbook.kernels.jit import cdiv, kernel, tl

#: Keys and queries of a program, by the largest head; with another product's sums fewer fit than in two passes.
TUNED = {64: Blocks(64, 64, 4, 2), 128: Blocks(64, 64, 8, 2)}


@kernel
def one_pass_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, s, S, offset, scale,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr,
):  # fmt: skip
    """dk, dv of N keys of a head, and what these add to dq (b, s, heads, D), which is fp32 and 0 before."""
    key, kv_head, sample = tl.program_id(0) * N, tl.program_id(1), tl.cast(tl.program_id(2), tl.int64)
    kv_heads = tl.num_programs(1)
    heads = kv_heads * GROUP
    ks = tile(k + sample * k_b + kv_head * k_h, key, k_s, S, N, D, WIDTH)  # (N, D)
    vs = tile(v + sample * v_b + kv_head * v_h, key, v_s, S, N, E, V_WIDTH)  # (N, E)
    dks, dvs = tl.zeros((N, WIDTH), tl.float32), tl.zeros((N, V_WIDTH), tl.float32)
    lowest = 0
    if CAUSAL:  # from the first block with a query that sees a key
        lowest = tl.maximum(key - offset, 0) // M * M
    cols, dims = tl.arange(0, N), tl.arange(0, WIDTH)
    for member in tl.range(0, GROUP, disable_licm=True):
        head = kv_head * GROUP + member
        qh, doh = q + sample * q_b + head * q_h, do + (sample * s * heads + head) * E
        dqh, row = dq + (sample * s * heads + head) * D, (sample * heads + head) * s
        for start in range(lowest, s, M):
            rows = start + tl.arange(0, M)
            qs = tile(qh, start, q_s, s, M, D, WIDTH)  # (M, D)
            base = tl.load(lse + row + rows, mask=rows < s, other=float("inf")) * LOG2E
            p = tl.exp2(
                product(ks, tl.trans(qs), tl.zeros((N, M), tl.float32)) * (scale * LOG2E) - base[None, :]
            )
            if CAUSAL:
                p = tl.where((key + cols)[:, None] <= rows[None, :] + offset, p, 0.0)
            dos = tile(doh, start, heads * E, s, M, E, V_WIDTH)  # (M, E)
            dvs = product(p.to(dos.dtype), dos, dvs)
            dp = product(vs, tl.trans(dos), tl.zeros((N, M), tl.float32))
            deltas = tl.load(delta + row + rows, mask=rows < s, other=0.0)
            ds = (p * (dp - deltas[None, :])).to(qs.dtype)  # (N, M)
            dks = product(ds, qs, dks)
            dqs = product(tl.trans(ds), ks, tl.zeros((M, WIDTH), tl.float32)) * scale
            places = dqh + rows[:, None] * (heads * D) + dims[None, :]
            tl.atomic_add(places, dqs, mask=(rows < s)[:, None] & (dims < D)[None, :], sem="relaxed")
    store_tile(dk + (sample * S * kv_heads + kv_head) * D, key, kv_heads * D, S, dks * scale, N, D, WIDTH)
    store_tile(dv + (sample * S * kv_heads + kv_head) * E, key, kv_heads * E, S, dvs, N, E, V_WIDTH)


def backward_in_one_pass(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, *,
    causal: bool, scale: float, offset: int, blocks: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv as `flash_backward` gives them for tensors in 16 or 32 bits, dq up to the order of its sums."""
    (b, s, heads, d), (_, S, kv_heads, e) = q.shape, v.shape
    do, o, lse, delta = do.contiguous(), o.contiguous(), lse.contiguous(), torch.empty_like(lse)
    dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (k, v))
    dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
    delta_kernel[(cdiv(s, 64), heads, b)](o, do, None, delta, None, s, E=e, V_WIDTH=width(e), M=64)
    blocks = blocks or TUNED[64 if d <= 64 else 128]
    one_pass_kernel[(cdiv(S, blocks.keys), kv_heads, b)](
        q, k, v, do, lse, delta, dq, dk, dv, *strides(q, None), *strides(k, None), *strides(v, None), s, S, offset, scale,
        GROUP=heads // kv_heads, D=d, E=e, CAUSAL=causal, WIDTH=width(d), V_WIDTH=width(e), **blocks.options,
    )  # fmt: skip
    return dq.to(q.dtype), dk, dv
