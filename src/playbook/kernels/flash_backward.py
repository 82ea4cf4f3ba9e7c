"""The gradients of `flash_attention.py`, without scores in memory (Dao 2023, arXiv 2307.08691, section 3.1.2).

With t the scale, s = t·q·kᵀ, p = e^(s − lse) and o = p·v:

    dv = pᵀ·do      dp = do·vᵀ      ds = p·(dp − delta)      dq = t·ds·k      dk = t·dsᵀ·q      delta = Σ do·o − dlse

delta is a number a row: Σ p·dp over its keys is Σ do·o over its dims, and dlse joins it, since p is the derivative of lse
by the scores. p comes from the scores, computed once more, and from lse: no search for a maximum, no rescaling.

Three launches. The first computes delta. In the second a program has N keys and goes over the queries that see them,
those of all heads of their group one after the other: dk, dv. In the third a program has M queries and goes over the keys
that they see: dq. Scores and dp are computed in both, 7 products of matrices to forward's 2, where one kernel would need
5; but all programs of that kernel would add to dq, in an order that is different each time. Here no program adds to what
another one writes, and results are the same bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from playbook.kernels.jit import cdiv, kernel, lend_scratch, next_power, tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True)
class Blocks:
    """Queries and keys of a block, warps of a program, of how many steps its loads are under way at once, and whether the
    tensor memory accelerator makes them, where it can (`takes_tma`)."""

    queries: int
    keys: int
    warps: int
    stages: int
    tma: bool = False

    @property
    def options(self) -> dict[str, int]:
        """As kernels take them."""
        return {"M": self.queries, "N": self.keys, "num_warps": self.warps, "num_stages": self.stages}


@dataclass(frozen=True)
class Packed:
    """Documents one behind the other in one sample: where each ends, (documents + 1,) int32 from 0 on (others call that
    cu_seqlens), and the tokens of the longest."""

    ends: Tensor
    longest: int


@kernel
def tile(x, start, stride, n, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """Rows from ``start`` on of x (n, D), as (ROWS, WIDTH): zeros beyond."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (start + rows < n)[:, None]
    if D < WIDTH:
        inside = inside & (cols < D)[None, :]
    at = x + tl.cast(start, tl.int64) * stride + rows[:, None] * stride + cols[None, :]
    return tl.load(at, mask=inside, other=0.0)


@kernel
def table(
    x, heads, by_head, n, stride, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr
):
    """Where `take` has tiles of x (heads, n, D) from: x, or its descriptor, by which one thread asks for a whole tile."""
    if TMA:
        return tl.make_tensor_descriptor(x, [heads, n, D], [by_head, stride, 1], [1, ROWS, WIDTH])
    else:
        return x


@kernel
def take(
    x, head, by_head, start, stride, n, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr
):  # fmt: skip
    """`tile` of a head. No thread holds addresses or masks of what the tensor memory accelerator copies."""
    if TMA:
        return x.load([head, start, 0]).reshape(ROWS, WIDTH)
    else:
        return tile(x + tl.cast(head, tl.int64) * by_head, start, stride, n, ROWS, D, WIDTH)


@kernel
def store_tile(x, start, stride, n, values, ROWS: tl.constexpr, D: tl.constexpr, WIDTH: tl.constexpr):
    """``values`` (ROWS, WIDTH) to rows from ``start`` on of x (n, D)."""
    rows, cols = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    at = x + tl.cast(start, tl.int64) * stride + rows[:, None] * stride + cols[None, :]
    tl.store(at, values, mask=(start + rows < n)[:, None] & (cols < D)[None, :])


@kernel
def product(a, b, total):
    """total + a·b. fp32 goes through tensor cores in three parts, which keeps its precision; others are as they are."""
    return tl.dot(a, b, total, input_precision="tf32x3", out_dtype=total.dtype)


@kernel
def sample(ends, n):
    """Of this program's sample: its tokens, those before it in its row, those of a row, and what is between two samples.

    In a batch each is a row of ``n``. Packed documents lie in one: the i-th from ``ends[i]`` to ``ends[i + 1]``.
    """
    if ends is None:
        return n, 0, n, n
    else:
        begin = tl.load(ends + tl.program_id(2))
        return tl.load(ends + tl.program_id(2) + 1) - begin, begin, tl.load(ends + tl.num_programs(2)), 0


@kernel
def head_of(x, by_sample, by_token, by_head, head, begin):
    """Where ``head`` of this program's sample begins in x, with strides in elements."""
    at = x + tl.cast(tl.program_id(2), tl.int64) * by_sample + tl.cast(head, tl.int64) * by_head
    return at + tl.cast(begin, tl.int64) * by_token


@kernel
def dense_head(x, apart, heads, WIDTH: tl.constexpr, head, begin):
    """The same in a contiguous x (b, n, heads, WIDTH)."""
    return head_of(x, apart * heads * WIDTH, heads * WIDTH, WIDTH, head, begin)


@kernel
def keys_seen(first, offset, S, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """For M queries from ``first`` on: where keys end that all of them see, in blocks of N, and those that any sees."""
    whole, end = S // N * N, S
    if CAUSAL:  # query i sees key j where j <= i + offset
        whole = tl.minimum(tl.maximum(first + offset + 1, 0), S) // N * N
        end = tl.minimum(tl.maximum(first + M + offset, 0), S)
    return whole, end


@kernel
def seen(first, start, offset, S, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Which of M queries see which of N keys: (M, N)."""
    rows, cols = first + tl.arange(0, M), start + tl.arange(0, N)
    mask = (cols < S)[None, :]
    if CAUSAL:
        mask = mask & (cols[None, :] <= rows[:, None] + offset)
    return mask


@kernel
def delta_kernel(o, do, dlse, delta, ends, s, E: tl.constexpr, V_WIDTH: tl.constexpr, M: tl.constexpr):
    """delta of M queries of a head."""
    first, head, heads = tl.program_id(0) * M, tl.program_id(1), tl.num_programs(1)
    s, begin, row, apart = sample(ends, s)
    os = tile(dense_head(o, apart, heads, E, head, begin), first, heads * E, s, M, E, V_WIDTH)  # (M, E)
    dos = tile(dense_head(do, apart, heads, E, head, begin), first, heads * E, s, M, E, V_WIDTH)
    rows = first + tl.arange(0, M)
    kind: tl.constexpr = delta.dtype.element_ty
    found = tl.sum(os.to(kind) * dos.to(kind), 1)
    if dlse is not None:
        found -= tl.load(head_of(dlse, heads * apart, 1, row, head, begin) + rows, mask=rows < s, other=0.0)
    tl.store(head_of(delta, heads * apart, 1, row, head, begin) + rows, found, mask=rows < s)


@kernel
def keys_kernel(
    q, k, v, do, lse, delta, dk, dv, ends, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, s, S, offset, scale,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dk, dv of N keys of a head: what the queries of its whole group add. Products are transposed: (N, M)."""
    key, kv_head, kv_heads = tl.program_id(0) * N, tl.program_id(1), tl.num_programs(1)
    heads = kv_heads * GROUP
    s, begin, row, apart = sample(ends, s)
    S, begin, _, S_apart = sample(ends, S)
    if ends is not None and key >= S:  # a document that is shorter than the longest
        return
    ks = tile(head_of(k, k_b, k_s, k_h, kv_head, begin), key, k_s, S, N, D, WIDTH)  # (N, D)
    vs = tile(head_of(v, v_b, v_s, v_h, kv_head, begin), key, v_s, S, N, E, V_WIDTH)  # (N, E)
    kind: tl.constexpr = lse.dtype.element_ty
    dks, dvs = tl.zeros((N, WIDTH), kind), tl.zeros((N, V_WIDTH), kind)
    lowest, whole = 0, 0
    if CAUSAL:  # from the first block with a query that sees a key; from ``whole`` on, all see all of them
        lowest, whole = tl.maximum(key - offset, 0) // M * M, key + N - 1 - offset
    first = kv_head * GROUP
    qh = table(head_of(q, q_b, q_s, q_h, first, begin), GROUP, q_h, s, q_s, M, D, WIDTH, TMA)
    doh = table(dense_head(do, apart, heads, E, first, begin), GROUP, E, s, heads * E, M, E, V_WIDTH, TMA)
    # Not moved out of the loop: what is computed once for all members takes registers.
    for member in tl.range(0, GROUP, disable_licm=True):
        for start in range(lowest, s, M):
            rows = start + tl.arange(0, M)  # beyond s: lse is inf, p 0
            qs = take(qh, member, q_h, start, q_s, s, M, D, WIDTH, TMA)  # (M, D)
            at = head_of(lse, heads * apart, 1, row, first + member, begin) + rows
            base = tl.load(at, mask=rows < s, other=float("inf")) * LOG2E
            p = tl.exp2(product(ks, tl.trans(qs), tl.zeros((N, M), kind)) * (scale * LOG2E) - base[None, :])
            if CAUSAL and start < whole:
                p = tl.where((key + tl.arange(0, N))[:, None] <= rows[None, :] + offset, p, 0.0)
            dos = take(doh, member, E, start, heads * E, s, M, E, V_WIDTH, TMA)  # (M, E)
            dvs = product(p.to(dos.dtype), dos, dvs)
            dp = product(vs, tl.trans(dos), tl.zeros((N, M), kind))
            at = head_of(delta, heads * apart, 1, row, first + member, begin) + rows
            ds = p * (dp - tl.load(at, mask=rows < s, other=0.0)[None, :])
            dks = product(ds.to(qs.dtype), qs, dks)
    dkh = dense_head(dk, S_apart, kv_heads, D, kv_head, begin)
    dvh = dense_head(dv, S_apart, kv_heads, E, kv_head, begin)
    store_tile(dkh, key, kv_heads * D, S, dks * scale, N, D, WIDTH)
    store_tile(dvh, key, kv_heads * E, S, dvs, N, E, V_WIDTH)


@kernel
def add_keys(
    dqs, qs, dos, base, deltas, kh, vh, k_s, v_s, first, start, offset, S, scale, masked, D: tl.constexpr,
    E: tl.constexpr, CAUSAL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr,
    V_WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dq of M queries, and what N keys from ``start`` on add to it; ``masked`` where some query does not see them all."""
    ks = take(kh, 0, 0, start, k_s, S, N, D, WIDTH, TMA)  # (N, D)
    vs = take(vh, 0, 0, start, v_s, S, N, E, V_WIDTH, TMA)  # (N, E)
    zeros = tl.zeros((M, N), base.dtype)
    p = tl.exp2(product(qs, tl.trans(ks), zeros) * (scale * LOG2E) - base[:, None])
    if masked:
        p = tl.where(seen(first, start, offset, S, CAUSAL, M, N), p, 0.0)
    ds = p * (product(dos, tl.trans(vs), zeros) - deltas[:, None])
    return product(ds.to(ks.dtype), ks, dqs)


@kernel
def queries_kernel(
    q, k, v, do, lse, delta, dq, ends, q_b, q_s, q_h, k_b, k_s, k_h, v_b, v_s, v_h, s, S, offset, scale,
    GROUP: tl.constexpr, D: tl.constexpr, E: tl.constexpr, CAUSAL: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr, WIDTH: tl.constexpr, V_WIDTH: tl.constexpr, TMA: tl.constexpr,
):  # fmt: skip
    """dq of M queries of a head."""
    first, head, heads = tl.program_id(0) * M, tl.program_id(1), tl.num_programs(1)
    s, begin, row, apart = sample(ends, s)
    S, begin, _, _ = sample(ends, S)
    rows = first + tl.arange(0, M)
    if ends is not None and first >= s:
        return
    qs = tile(head_of(q, q_b, q_s, q_h, head, begin), first, q_s, s, M, D, WIDTH)  # (M, D)
    dos = tile(dense_head(do, apart, heads, E, head, begin), first, heads * E, s, M, E, V_WIDTH)  # (M, E)
    at = head_of(lse, heads * apart, 1, row, head, begin) + rows
    base = tl.load(at, mask=rows < s, other=float("inf")) * LOG2E
    deltas = tl.load(head_of(delta, heads * apart, 1, row, head, begin) + rows, mask=rows < s, other=0.0)
    kh = table(head_of(k, k_b, k_s, k_h, head // GROUP, begin), 1, k_h, S, k_s, N, D, WIDTH, TMA)
    vh = table(head_of(v, v_b, v_s, v_h, head // GROUP, begin), 1, v_h, S, v_s, N, E, V_WIDTH, TMA)
    whole, end = keys_seen(first, offset, S, CAUSAL, M, N)
    dqs = tl.zeros((M, WIDTH), base.dtype)
    for start in range(0, whole, N):
        dqs = add_keys(
            dqs, qs, dos, base, deltas, kh, vh, k_s, v_s, first, start, offset, S, scale, False,
            D, E, CAUSAL, M, N, WIDTH, V_WIDTH, TMA,
        )  # fmt: skip
    for start in range(whole, end, N):
        dqs = add_keys(
            dqs, qs, dos, base, deltas, kh, vh, k_s, v_s, first, start, offset, S, scale, True,
            D, E, CAUSAL, M, N, WIDTH, V_WIDTH, TMA,
        )  # fmt: skip
    store_tile(dense_head(dq, apart, heads, D, head, begin), first, heads * D, s, dqs * scale, M, D, WIDTH)


def flash_backward(
    do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, dlse: Tensor | None = None, *,
    causal: bool, scale: float, offset: int, keys: Blocks, queries: Blocks, packed: Packed | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dq, dk, dv for the q, k, v, o and lse of `flash_attention.flash_forward`; ``do`` is like o, ``dlse`` like lse.

    ``keys``, ``queries``: blocks of the second launch and of the third. ``packed`` as there.

    A ring gives o and lse of *all* keys with a part of the keys: what comes back is what that part adds. It needs no
    dlse, which is for those who compute with lse and leave the rest to autograd.
    """
    (b, s, heads, d), (_, S, kv_heads, e) = q.shape, v.shape
    do, o, lse = do.contiguous(), o.contiguous(), lse.contiguous()
    dlse = None if dlse is None else dlse.contiguous()
    delta = torch.empty_like(lse)
    dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
    if (
        packed
    ):  # where documents begin takes registers too, of which four warps of a Hopper GPU have none left
        keys = replace(keys, warps=8)
    ends, most, samples = (
        (packed.ends, packed.longest, len(packed.ends) - 1) if packed else (None, max(s, S), b)
    )
    delta_kernel[(cdiv(min(s, most), 64), heads, samples)](
        o, do, dlse, delta, ends, s, E=e, V_WIDTH=width(e), M=64
    )
    given = q, k, v, do, lse, delta
    numbers = *strides(q, packed), *strides(k, packed), *strides(v, packed), s, S, offset, scale
    kind = {
        "GROUP": heads // kv_heads,
        "D": d,
        "E": e,
        "CAUSAL": causal,
        "WIDTH": width(d),
        "V_WIDTH": width(e),
    }
    by_keys, by_queries = keys.tma and takes_tma(q, do), queries.tma and takes_tma(k, v)
    grids = (
        (cdiv(min(S, most), keys.keys), kv_heads, samples),
        (cdiv(min(s, most), queries.queries), heads, samples),
    )
    keys_kernel[grids[0]](*given, dk, dv, ends, *numbers, **kind, TMA=by_keys, **keys.options)
    queries_kernel[grids[1]](*given, dq, ends, *numbers, **kind, TMA=by_queries, **queries.options)
    return dq, dk, dv


def strides(x: Tensor, packed: Packed | None) -> tuple[int, int, int]:
    """Between samples, tokens and heads of x (b, n, heads, d); packed documents are no samples."""
    by_sample, by_token, by_head, _ = x.stride()
    return by_sample if packed is None else 0, by_token, by_head


def takes_tma(*tensors: Tensor) -> bool:
    """Whether each (b, n, heads, dims) lies as the tensor memory accelerator wants: rows of 16-bit numbers that begin at
    multiples of 16 bytes. Memory for descriptors is lent where that is so."""
    for x in tensors:
        sixteen, strides = x.element_size() == 2 and x.device.type != "cpu", x.stride()[:3]
        if (
            not sixteen
            or any(stride % 8 or stride <= 0 for stride in strides)
            or (x.is_cuda and x.data_ptr() % 16)
        ):
            return False
    if tensors[0].is_cuda:
        lend_scratch()
    return True


def width(d: int) -> int:
    """A head's dims as tensor cores take them: a power of two, 64 at least. With 32 and blocks as large as these, a
    backward like this one has read beyond its memory on an H100 (triton-lang/triton#10573)."""
    return max(next_power(d), 64)
