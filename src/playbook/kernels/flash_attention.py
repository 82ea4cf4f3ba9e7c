"""o = softmax(t·q·kᵀ + mask)·v without the scores in memory: FlashAttention-2 (Dao 2023, arXiv 2307.08691).

A program has M queries and goes over the keys they see, N at a time. What it keeps of those it has seen are, for each
query, the largest score m, the sum ℓ of e^(score − m) and the sum a of e^(score − m)·v. With the scores x of N more keys
(the online softmax: Milakov & Gimelshein 2018, arXiv 1805.02867):

    m' = max(m, max x)      p = e^(x − m')      ℓ' = e^(m − m')·ℓ + Σp      a' = e^(m − m')·a + p·v

In the end o = a/ℓ, and lse = m + log ℓ is kept for backward (`flash_backward.py`). Blocks that no query sees are skipped;
only those that some queries see in part are masked: on the diagonal, and where the keys end.

FLOPs of s queries, S keys and heads of d and e dims, without a mask: 2sS(d + e) a head forward, 2sS(4d + 3e) backward,
half of it under a causal mask with s = S. Bytes: `requested_bytes`. Each block of queries reads the keys and values of
its head once, so that larger M means fewer bytes; attention with the scores in memory (`standard_bytes`) writes and reads
s·S numbers twice (Dao et al. 2022, arXiv 2205.14135, theorem 2). A head's dims are padded to a power of two from 64 on in
registers, not in memory: 192 are computed as 256.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.errors import ConfigError
from playbook.kernels.flash_backward import (
    LOG2E,
    Blocks,
    Packed,
    dense_head,
    flash_backward,
    head_of,
    keys_seen,
    product,
    sample,
    seen,
    store_tile,
    strides,
    table,
    take,
    takes_tma,
    tile,
    width,
)
from playbook.kernels.flash_hopper import forward_in_groups, takes_groups
from playbook.kernels.jit import cdiv, kernel, tl


def attention_torch(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None = None, offset: int | None = None
) -> tuple[Tensor, Tensor]:
    """The twin of `flash_attention_lse` in PyTorch, with all scores in memory, once for each head."""
    group, s, S = q.shape[2] // k.shape[2], q.shape[1], k.shape[1]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bihd,bjhd->bhij", q, k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        last = torch.arange(s, device=q.device) + (S - s if offset is None else offset)
        scores = scores.masked_fill(torch.arange(S, device=q.device) > last[:, None], float("-inf"))
    top = scores.detach().amax(-1).clamp(min=torch.finfo(scores.dtype).min)
    p = (scores - top[..., None]).exp()
    total = p.sum(-1)
    none = total == 0  # queries that see no key
    total = total.masked_fill(none, 1.0)
    o = torch.einsum("bhij,bjhd->bihd", p / total[..., None], v)
    return o, (top + total.log()).masked_fill(none, float("-inf"))


class Tuning(NamedTuple):
    """Blocks of the three kernels with a loop: forward's, and backward's over keys and over queries."""

    forward: Blocks
    keys: Blocks
    queries: Blocks


#: By compute capability, from which on, and by dims of q's heads, up to which: for 16 bits. Compiled for d = 64, 128 and
#: 192, none spills, with a causal mask or without, and their products are mma.sync, wgmma or tcgen05. Those of 9.0 are
#: the fastest of some twenty each on an H200; the others were chosen by what the compiler says. Found on the way:
#: - Small blocks win on 9.0: two or three programs of 4 warps on a multiprocessor, of which one multiplies while another
#:   is at its softmax, beat one program of 8 warps with blocks of 128 × 128 by 12 % forward at d = 128, 56 % at d = 64.
#: - There the tensor memory accelerator makes dk and dv 19 % faster, dq 15 %, and forward 8 % at d = 128, where it frees
#:   29 registers of 168; forward at d = 64 it makes 7 % slower.
#: - One loop over whole blocks and a second one over masked blocks spill (forward on 8.0 at d = 128: 112 bytes), but not
#:   for dq. A branch around the mask in a single loop, taken by all threads or none, does not.
#: - mma.sync has its operands in registers, so blocks are smaller on 8.0. They keep to the 99 KiB of 8.6 and 8.9, too.
TUNED = {
    80: {
        64: Tuning(Blocks(128, 128, 8, 2), Blocks(32, 128, 8, 2), Blocks(128, 64, 8, 2)),
        128: Tuning(Blocks(128, 64, 8, 2), Blocks(64, 64, 8, 2), Blocks(64, 64, 8, 2)),
        256: Tuning(Blocks(64, 64, 8, 2), Blocks(32, 64, 8, 1), Blocks(64, 32, 8, 2)),
    },
    90: {
        64: Tuning(Blocks(64, 64, 4, 3), Blocks(64, 64, 4, 2, True), Blocks(64, 64, 4, 3, True)),
        128: Tuning(Blocks(64, 64, 4, 3, True), Blocks(64, 64, 4, 2, True), Blocks(128, 64, 8, 3, True)),
        256: Tuning(Blocks(128, 64, 8, 2), Blocks(32, 64, 8, 2), Blocks(64, 32, 4, 3, True)),
    },
    100: {
        64: Tuning(Blocks(128, 128, 8, 2), Blocks(64, 128, 8, 2), Blocks(128, 64, 8, 2)),
        128: Tuning(Blocks(128, 128, 8, 2), Blocks(64, 64, 8, 2), Blocks(128, 64, 8, 2)),
        256: Tuning(Blocks(128, 64, 8, 2), Blocks(32, 64, 8, 1), Blocks(64, 32, 8, 2)),
    },
}
TUNED[120] = TUNED[80]  # no more shared memory than 8.9
#: For fp32, whose every product is three products of parts.
WIDE = Tuning(Blocks(16, 16, 4, 1), Blocks(16, 16, 4, 1), Blocks(16, 16, 4, 1))


def tuned(q: Tensor) -> Tuning:
    """Blocks for the GPU that ``q`` is on, those of an H100 where there is none."""
    if not q.is_cuda:
        return blocks_for(90, q.shape[-1])
    major, minor = torch.cuda.get_device_capability(q.device)
    return blocks_for(10 * major + minor, q.shape[-1]) if q.element_size() <= 2 else WIDE


def blocks_for(capability: int, d: int) -> Tuning:
    """Blocks for heads of ``d`` dims, at most 256, in 16 bits on GPUs of a compute capability."""
    rows = TUNED[max((known for known in TUNED if known <= capability), default=80)]
    return rows[min(known for known in rows if known >= d)]


@kernel
def forward_kernel(
    q, k, v, o, lse, ends, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, s, S, offset, scale,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """o and lse of M queries of a head."""
    block = tl.program_id(0)
    if CAUSAL:  # the last queries see the most keys: begun first, none of them is left for the end
        block = tl.num_programs(0) - 1 - block
    first, head, heads = block * M, tl.program_id(1), tl.num_programs(1)
    s, begin, row, apart = sample(ends, s)
    S, begin, _, _ = sample(ends, S)
    if ends is not None and first >= s:  # a document that is shorter than the longest
        return
    kind: tl.constexpr = lse.dtype.element_ty
    qs = tile(head_of(q, q_b, q_s, q_h, head, begin), first, q_s, s, M, D, WIDTH)  # (M, D)
    kh = table(head_of(k, k_b, k_s, k_h, head // GROUP, begin), 1, k_h, S, k_s, N, D, WIDTH, TMA)
    vh = table(head_of(v, v_b, v_s, v_h, head // GROUP, begin), 1, v_h, S, v_s, N, E, V_WIDTH, TMA)
    acc, total = tl.zeros((M, V_WIDTH), kind), tl.zeros((M,), kind)
    top = total - float("inf")
    whole, end = keys_seen(first, offset, S, CAUSAL, M, N)
    scale *= LOG2E  # scores in powers of two: a GPU has an instruction for these
    for start in range(0, end, N):
        ks = take(kh, 0, 0, start, k_s, S, N, D, WIDTH, TMA)  # (N, D)
        scores = product(qs, tl.trans(ks), tl.zeros((M, N), kind))  # (M, N)
        if start >= whole:
            scores = tl.where(seen(first, start, offset, S, CAUSAL, M, N), scores, float("-inf"))
        now = tl.maximum(top, tl.max(scores, 1) * scale)  # (M,)
        base = tl.where(now == float("-inf"), 0.0, now)  # no key seen yet: −inf − (−inf) is not a number
        p, shrink = tl.exp2(scores * scale - base[:, None]), tl.exp2(top - base)
        vs = take(vh, 0, 0, start, v_s, S, N, E, V_WIDTH, TMA)  # (N, E)
        acc = product(p.to(vs.dtype), vs, acc * shrink[:, None])
        top, total = now, total * shrink + tl.sum(p, 1)
    none = total == 0.0
    total = tl.where(none, 1.0, total)
    oh = dense_head(o, apart, heads, E, head, begin)
    store_tile(oh, first, heads * E, s, acc / total[:, None], M, E, V_WIDTH)
    found = tl.where(none, float("-inf"), (top + tl.log2(total)) / LOG2E)
    rows = first + tl.arange(0, M)
    tl.store(head_of(lse, heads * apart, 1, row, head, begin) + rows, found, mask=rows < s)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float, offset: int, blocks: Blocks,
    packed: Packed | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o (b, s, heads, e) in the dtype of q, and lse (b, heads, s) in fp32: what `flash_attention_lse` launches.

    Of ``packed`` documents all in one launch: as many programs for each as the longest needs, of which some end at once.
    """
    (b, s, heads, d), (_, S, kv_heads, e) = q.shape, v.shape
    o = torch.empty(b, s, heads, e, dtype=q.dtype, device=q.device)
    kind = torch.float64 if q.dtype == torch.float64 else torch.float32
    lse = torch.empty(b, heads, s, dtype=kind, device=q.device)
    ends, most, samples = (packed.ends, packed.longest, len(packed.ends) - 1) if packed else (None, s, b)
    forward_kernel[(cdiv(most, blocks.queries), heads, samples)](
        q, k, v, o, lse, ends, *strides(q, packed), *strides(k, packed), *strides(v, packed), s, S, offset, scale,
        GROUP=heads // kv_heads, D=d, E=e, CAUSAL=causal, WIDTH=width(d), V_WIDTH=width(e),
        TMA=blocks.tma and takes_tma(k, v), **blocks.options,
    )  # fmt: skip
    return o, lse


class FlashAttention(torch.autograd.Function):
    """Saves q, k, v, o and lse."""

    @staticmethod
    def forward(
        ctx, q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, offset: int, tuning: Tuning | None,
        packed: Packed | None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
        given: dict[str, Any] = {"causal": causal, "scale": scale, "offset": offset}
        if tuning is None and packed is None and takes_groups(q, k, v):
            o, lse = forward_in_groups(q, k, v, **given)
        else:
            given["packed"] = packed
            o, lse = flash_forward(q, k, v, **given, blocks=(tuning or tuned(q)).forward)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.given, ctx.tuning = given, tuning or tuned(q)
        ctx.set_materialize_grads(False)
        return o, lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do: Tensor | None, dlse: Tensor | None):
        q, k, v, o, lse = ctx.saved_tensors
        do = torch.zeros_like(o) if do is None else do
        blocks = {"keys": ctx.tuning.keys, "queries": ctx.tuning.queries}
        return *flash_backward(do, q, k, v, o, lse, dlse, **ctx.given, **blocks), None, None, None, None, None


def flash_attention_lse(
    q: Tensor, k: Tensor, v: Tensor, *,
    causal: bool, scale: float | None = None, offset: int | None = None, tuning: Tuning | None = None,
    packed: Packed | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """q (b, s, heads, d), k (b, S, kv_heads, d), v (b, S, kv_heads, e) -> o (b, s, heads, e), lse (b, heads, s).

    Query head h has the keys of head h // (heads // kv_heads). ``causal``: query i sees key j where j ≤ i + ``offset``,
    by default S − s, so that the last query sees all keys; for a rank of a ring it is the position of its first query
    less that of the first key. ``scale`` is 1/√d by default, ``tuning`` what `tuned` says, and for heads of 128 dims on
    Hopper the forward of `flash_hopper`. Of ``packed`` documents in one sample, s = S, each keeps to itself. A query that
    sees no key has o = 0 and lse = −inf. Strides are any; a last dim that is not contiguous is copied.

    Raises ConfigError for shapes and dtypes that do not fit each other.
    """
    _check(q, k, v, scale)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    offset = k.shape[1] - q.shape[1] if offset is None else offset
    return FlashAttention.apply(q, k, v, causal, scale, offset, tuning, packed)


def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, scale: float | None = None, offset: int | None = None,
    packed: Packed | None = None,
) -> Tensor:  # fmt: skip
    """The output of `flash_attention_lse` alone."""
    return flash_attention_lse(q, k, v, causal=causal, scale=scale, offset=offset, packed=packed)[0]


def _check(q: Tensor, k: Tensor, v: Tensor, scale: float | None) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.dim() != 4 or not x.numel():
            raise ConfigError(
                f"{name} is {tuple(x.shape)}, but must be (batch, length, heads, dims), none of them 0"
            )
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3] or v.shape[:3] != k.shape[:3]:
        shapes = ", ".join(str(tuple(x.shape)) for x in (q, k, v))
        raise ConfigError(
            f"q, k, v are {shapes}, but must be (b, s, heads, d), (b, S, kv_heads, d), (b, S, kv_heads, e)"
        )
    if q.shape[2] % k.shape[2]:
        raise ConfigError(
            f"q has {q.shape[2]} heads, but must have a multiple of the {k.shape[2]} heads of k"
        )
    if not q.dtype == k.dtype == v.dtype:
        raise ConfigError(f"q, k, v are {q.dtype}, {k.dtype}, {v.dtype}, but must be of one dtype")
    if max(q.shape[3], v.shape[3]) > 256:
        raise ConfigError(f"heads have {max(q.shape[3], v.shape[3])} dims, but may have at most 256")
    if scale is not None and not 0 < scale < math.inf:
        raise ConfigError(f"scale is {scale}, but must be positive")


def requested_bytes(
    q: Tensor, k: Tensor, v: Tensor, *, causal: bool, offset: int | None = None, blocks: Blocks
) -> int:
    """Bytes that forward's programs read and write: each block of queries the keys and values that it sees.

    What caches have of them does not come from memory, where q, k, v, o and lse go through once at least.
    """
    (b, s, heads, d), (_, S, _, e) = q.shape, v.shape
    offset = S - s if offset is None else offset
    keys = 0
    for first in range(0, s, blocks.queries):
        end = min(max(first + blocks.queries + offset, 0), S) if causal else S
        keys += min(cdiv(end, blocks.keys) * blocks.keys, S)
    return b * heads * (q.element_size() * (s + keys) * (d + e) + 4 * s)


def standard_bytes(q: Tensor, k: Tensor, v: Tensor) -> int:
    """Bytes with the scores in memory: written, read for the softmax, written, read for its product with v."""
    (b, s, heads, _), S = q.shape, k.shape[1]
    o = b * s * heads * v.shape[3]
    return q.element_size() * (q.numel() + k.numel() + v.numel() + o + 4 * b * heads * s * S)
