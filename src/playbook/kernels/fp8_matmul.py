"""FP8 products: y = a·bᵀ for quantised a (m, k) and b (n, k), whose scales come in while it adds up.

Both matrices lie row by row, k being contiguous ("NT", K-major): Hopper's tensor cores take FP8 in no other order. So a
linear layer needs W for y = x·Wᵀ, a transposed copy Wᵀ for dx = dy·W, and transposed copies of both for dW = dyᵀ·x
(`kernels.quantize` makes them while it quantises).

Hopper's tensor cores add products of FP8 numbers with about 14 bits. So none of their sums is longer than 128 products
(DeepSeek-V3, arXiv 2412.19437, section 3.3.2): for each 128 of k

    total += (a_block · b_blockᵀ) · scales of a's rows · scales of b's rows      in fp32

which is also where groups of 128 along k need their scales. Scales that hold for all of k (one for a tensor, or for each
row) are multiplied in once, at the end. Numbers are E4M3 or E5M2, in any mixture.

Such sums cost time: ``fast`` leaves all of k to the tensor cores where it has one scale, which is what libraries call
fast accumulation. What is lost grows with k.

Variants: "tiles", a program for each tile of y; "tma", persistent, with blocks copied by the tensor memory accelerator
(compute capability 9.0 and later); "groups", for 9.0 alone, in `fp8_hopper.py`. Two tiles of fp32 are in registers, the
total and what is new, so that tiles are half as large as those of `kernels.matmul`. 2·m·n·k FLOPs.
"""

from __future__ import annotations

import playbook.kernels.jit  # noqa: F401 - first: it says so where there is no Triton

# isort: split
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from playbook.errors import ConfigError, ShapeError
from playbook.kernels import fp8_hopper
from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.matmul import (
    Tiles,
    allocate_descriptors,
    capability_of,
    places,
    programs,
    takes_tma,
    tile_of,
)
from playbook.precision.products import by_groups
from playbook.precision.scaling import Quantized, spread

Variant = Literal["tiles", "tma", "groups"]

#: How many products are added up before fp32 takes over: the groups of k that have a scale of their own, too.
GROUP_K = 128
FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
#: By compute capability, each also for what comes after it: tiles whose two sums stay in registers, as the compiler
#: counts them, and whose blocks fit into shared memory.
TUNED = {
    89: Tiles(64, 128, GROUP_K, warps=4, stages=2),
    90: Tiles(128, 128, GROUP_K, stages=4),
    120: Tiles(64, 128, GROUP_K, warps=4, stages=2),
}
#: On 9.0, "tma": two small programs on a multiprocessor, of which one multiplies while the other scales; and sums that
#: nothing interrupts. The fastest of nine and of five on an H200.
SCALED = Tiles(64, 128, GROUP_K, warps=4, stages=3, group=16, resident=2)
FAST = Tiles(128, 256, GROUP_K)


def tuned(
    capability: int,
    variant: Variant = "tiles",
    scales_by_row: bool = False,
    once: bool = False,
    fast: bool = False,
) -> Tiles:
    """The entry of `TUNED` for the newest generation that is no newer than ``capability`` (90: H100).

    Where rows of a and rows of b have scales along k (``scales_by_row``), a thread keeps those of its columns, too: with
    the addresses of "tiles", too much for tiles of 128 × 128. ``once``: all of k has one scale.
    Raises ConfigError for GPUs without FP8.
    """
    known = [entry for entry in TUNED if entry <= capability]
    if not known:
        raise ConfigError(f"capability is {capability}, but FP8 products need 89 (L40, RTX 4090) or later")
    tiles = TUNED[max(known)]
    if variant == "tma" and max(known) == 90 and (fast or not once):
        return FAST if fast else SCALED
    return (
        replace(tiles, m=64, warps=4, stages=3)
        if scales_by_row and variant == "tiles" and tiles.m > 64
        else tiles
    )


def fp8_matmul_torch(
    a: Quantized, b: Quantized, *, dtype: torch.dtype = torch.bfloat16, onto: Tensor | None = None
) -> Tensor:
    """The twin in PyTorch, which adds up in the same order: each 128 of k in fp32, scaled, then added."""
    if _scaled_once(a, b):
        total = by_groups(_unscaled(a), _unscaled(b)) * (_by_row(a) * _by_row(b).t())
    else:
        total = by_groups(a, b)
    return total.to(dtype) if onto is None else onto.copy_(total + onto)


def _unscaled(x: Quantized) -> Quantized:
    shape = x.codes.shape
    return Quantized(x.codes, x.scales.new_ones(1, 1), (max(shape[0], 1), max(shape[1], 1)))


def _by_row(x: Quantized) -> Tensor:
    """The only scale of each row, (n, 1)."""
    return spread(x.scales, (x.size[0], 1), torch.Size((len(x.codes), 1)))


@kernel
def scales_of(scales, first, count, stride, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """The scales of BLOCK rows from ``first`` of ``count``, of which ROWS share one (0: all of them)."""
    if ROWS == 0:
        return tl.load(scales) + tl.zeros((BLOCK,), tl.float32)
    elif ROWS % BLOCK == 0:  # one for the whole tile, which a thread keeps in one register
        return tl.load(scales + first // ROWS * stride) + tl.zeros((BLOCK,), tl.float32)
    else:
        rows = first + tl.arange(0, BLOCK)
        return tl.load(scales + rows // ROWS * stride, mask=rows < count, other=0.0)


@kernel
def add_block(
    total, x, w, step, of_a, of_b, row, column, m, n, of_a_m, of_a_k, of_b_n, of_b_k, ONCE: tl.constexpr,
    FAST: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    if FAST:
        return tl.dot(x, w, total)
    elif ONCE:  # the sum of these products is added to the total in fp32, as below
        return tl.dot(x, w, total, max_num_imprecise_acc=BLOCK_K)
    else:
        a_scales = scales_of(of_a + step * of_a_k, row, m, of_a_m, A_ROWS, BLOCK_M)
        of_b += step * of_b_k
        if B_ROWS % BLOCK_N == 0:  # one for the whole tile: a factor for each row, and none for each number
            a_scales *= tl.load(of_b if B_ROWS == 0 else of_b + column // B_ROWS * of_b_n)
            return total + tl.dot(x, w) * a_scales[:, None]
        else:
            b_scales = scales_of(of_b, column, n, of_b_n, B_ROWS, BLOCK_N)
            return total + tl.dot(x, w) * (a_scales[:, None] * b_scales[None, :])


@kernel
def scaled(
    total, of_a, of_b, row, column, m, n, of_a_m, of_b_n, ONCE: tl.constexpr,
    A_ROWS: tl.constexpr, B_ROWS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    if ONCE:
        a_scales = scales_of(of_a, row, m, of_a_m, A_ROWS, BLOCK_M)
        b_scales = scales_of(of_b, column, n, of_b_n, B_ROWS, BLOCK_N)
        return total * (a_scales[:, None] * b_scales[None, :])
    else:
        return total


@kernel
def fp8_tiles_kernel(
    a, b, y, of_a, of_b, m, n, k, a_m, b_n, y_m, y_n, of_a_m, of_a_k, of_b_n, of_b_k,
    ONCE: tl.constexpr, FAST: tl.constexpr, ADD: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    rows, columns, at = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    xs = a + row.to(tl.int64) * a_m + (rows[:, None] * a_m + at[None, :])
    ws = b + column.to(tl.int64) * b_n + (at[:, None] + columns[None, :] * b_n)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(0, tl.cdiv(k, BLOCK_K)):
        inside = at < k - step * BLOCK_K
        x = tl.load(xs, mask=(rows[:, None] < m - row) & inside[None, :], other=0.0)
        w = tl.load(ws, mask=inside[:, None] & (columns[None, :] < n - column), other=0.0)
        total = add_block(
            total, x, w, step, of_a, of_b, row, column, m, n, of_a_m, of_a_k, of_b_n, of_b_k,
            ONCE, FAST, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip
        xs += BLOCK_K
        ws += BLOCK_K
    total = scaled(
        total, of_a, of_b, row, column, m, n, of_a_m, of_b_n, ONCE, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N
    )
    ys, inside = places(y, row, column, m, n, y_m, y_n, BLOCK_M, BLOCK_N)
    if ADD:
        total += tl.load(ys, mask=inside, other=0.0).to(tl.float32)
    tl.store(ys, total.to(y.dtype.element_ty), mask=inside)


@kernel
def fp8_tma_kernel(
    a, b, y, of_a, of_b, m, n, k, a_m, b_n, y_m, of_a_m, of_a_k, of_b_n, of_b_k,
    ONCE: tl.constexpr, FAST: tl.constexpr, ADD: tl.constexpr, A_ROWS: tl.constexpr, B_ROWS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    xs = tl.make_tensor_descriptor(a, [m, k], [a_m, 1], [BLOCK_M, BLOCK_K])
    ws = tl.make_tensor_descriptor(b, [n, k], [b_n, 1], [BLOCK_N, BLOCK_K])
    ys = tl.make_tensor_descriptor(y, [m, n], [y_m, 1], [BLOCK_M, BLOCK_N])
    tiles = tl.cdiv(m, BLOCK_M) * tl.cdiv(n, BLOCK_N)
    for tile in range(tl.program_id(0), tiles, tl.num_programs(0)):
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for step in range(0, tl.cdiv(k, BLOCK_K)):
            x = xs.load([row, step * BLOCK_K])
            w = ws.load([column, step * BLOCK_K]).T
            total = add_block(
                total, x, w, step, of_a, of_b, row, column, m, n, of_a_m, of_a_k, of_b_n, of_b_k,
                ONCE, FAST, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
        total = scaled(
            total, of_a, of_b, row, column, m, n, of_a_m, of_b_n, ONCE, A_ROWS, B_ROWS, BLOCK_M, BLOCK_N
        )
        if ADD:
            total += ys.load([row, column]).to(tl.float32)
        ys.store([row, column], total.to(y.dtype.element_ty))


def fp8_matmul(
    a: Quantized,
    b: Quantized,
    *,
    dtype: torch.dtype = torch.bfloat16,
    onto: Tensor | None = None,
    variant: Variant | None = None,
    tiles: Tiles | None = None,
    fast: bool = False,
) -> Tensor:
    """a (m, k), b (n, k) -> a·bᵀ (m, n) in ``dtype``; added to ``onto`` (m, n), in its dtype, if that is given.

    Groups of a and b may have any number of rows, and 128 columns or all of k: what has one scale for a tensor, one for
    each row, 1 × 128 and 128 × 128. ``variant`` is "groups" or "tma" where it can be, else "tiles", with ``tiles`` as
    `tuned`. ``fast``: tensor cores add up all of k, in the few bits that they have; ConfigError unless all of k has one
    scale. Raises ShapeError for sizes that do not match, ConfigError for what is not FP8 or not K-major, and for other
    groups.
    """
    m, n, k = _check(a, b, onto)
    y = torch.empty(m, n, dtype=dtype, device=a.codes.device) if onto is None else onto
    if not m * n * k:
        return y if onto is not None else y.zero_()
    found = capability_of(a.codes) if a.codes.is_cuda else 90
    once, rows = _scaled_once(a, b), (_rows(a), _rows(b))
    grouped = rows == (1, GROUP_K) and not once and onto is None
    if variant is None:
        variant = "tma" if a.codes.is_cuda and found >= 90 and takes_tma(a.codes, b.codes, y) else "tiles"
        if variant == "tma" and found == 90 and grouped and fp8_hopper.tiles(m, n) >= programs(y):
            variant = "groups"
    if fast and not once:
        raise ConfigError("fast is on, but it needs scales that hold for all of k: of a tensor, or of a row")
    if variant == "groups":
        if not grouped:
            raise ConfigError(
                'variant is "groups", but that needs scales of 1 × 128 and 128 × 128, and no onto'
            )
        fp8_hopper.multiply_in_groups(y, a.codes, b.codes, a.scales, b.scales, programs(y))
        return y
    tiles = (tiles or tuned(found, variant, rows == (1, 1) and not once, once, fast)).fitted(m, n)
    options = {"ONCE": once, "FAST": fast, "ADD": onto is not None} | tiles.named()
    options |= {"A_ROWS": rows[0], "B_ROWS": rows[1]}
    del options["PRECISION"]  # which is that of fp32
    count, given = cdiv(m, tiles.m) * cdiv(n, tiles.n), (a.codes, b.codes, y, a.scales, b.scales, m, n, k)
    steps = (a.codes.stride(0), b.codes.stride(0))
    if variant == "tiles":
        fp8_tiles_kernel[(count,)](*given, *steps, *y.stride(), *_strides(a), *_strides(b), **options)
        return y
    allocate_descriptors(a.codes, b.codes, y)
    grid = (min(count, programs(y) * tiles.resident),)
    fp8_tma_kernel[grid](*given, *steps, y.stride(0), *_strides(a), *_strides(b), **options)
    return y


def _has_groups(x: Quantized) -> bool:
    return x.size[1] == GROUP_K or x.size[1] >= x.codes.shape[1]


def flops(m: int, n: int, k: int) -> int:
    """Of the product, without its scales."""
    return 2 * m * n * k


def bytes_moved(
    m: int, n: int, k: int, a_size: tuple[int, int], b_size: tuple[int, int], c: int = 2, onto: bool = False
) -> int:
    """Bytes read and written once each: codes, scales of groups of these sizes in fp32, and results of ``c`` bytes."""
    scales = sum(cdiv(rows, size[0]) * cdiv(k, size[1]) for rows, size in ((m, a_size), (n, b_size)))
    return (m + n) * k + 4 * scales + m * n * c * (2 if onto else 1)


def _scaled_once(a: Quantized, b: Quantized) -> bool:
    """Whether all of k has one scale, in both."""
    return a.scales.shape[1] <= 1 and b.scales.shape[1] <= 1


def _rows(x: Quantized) -> int:
    """How many rows share a scale; 0: all."""
    return 0 if len(x.scales) == 1 else x.size[0]


def _strides(x: Quantized) -> tuple[int, int]:
    """Of the scales; the only one along k holds for every 128."""
    return x.scales.stride(0), 0 if x.scales.shape[1] == 1 else x.scales.stride(1)


def _check(a: Quantized, b: Quantized, onto: Tensor | None) -> tuple[int, int, int]:
    shapes = tuple(a.codes.shape), tuple(b.codes.shape)
    if a.codes.dim() != 2 or b.codes.dim() != 2 or shapes[0][1] != shapes[1][1]:
        raise ShapeError(f"a {shapes[0]} and b {shapes[1]} must be (m, k) and (n, k)")
    (m, k), n = shapes[0], shapes[1][0]
    if onto is not None and onto.shape != (m, n):
        raise ShapeError(f"onto {tuple(onto.shape)} must be ({m}, {n}), as a·bᵀ is")
    for name, x, length in (("a", a, m), ("b", b, n)):
        rows, columns = x.size
        if x.codes.dtype not in FP8:
            raise ConfigError(f"{name} has codes of {x.codes.dtype}, but they must be of e4m3 or e5m2")
        if x.codes.stride(1) != 1 and k > 1:
            raise ConfigError(
                f"{name} must lie row by row, ({'m' if name == 'a' else 'n'}, k): for a transposed matrix quantise a "
                "transposed copy"
            )
        if not _has_groups(x):
            raise ConfigError(
                f"{name} has groups of {rows} × {columns}, but they must have {GROUP_K} columns or all {k}"
            )
        expected = (cdiv(length, rows), cdiv(k, columns)) if length and k else tuple(x.scales.shape)
        if x.scales.shape != expected:
            raise ShapeError(f"the scales of {name} are {tuple(x.scales.shape)}, but must be {expected}")
    return m, n, k
