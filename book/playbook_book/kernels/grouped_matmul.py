"""Grouped products, in one launch: rows of x up to ends[0] times w[0], the next up to ends[1] times w[1], and so on.

Experts are such groups (`model.moe`): their rows lie side by side, as many for each as the router sent, none for some.
A loop over experts launches a kernel for each, and a small group leaves most multiprocessors idle. Here one launch has a
program for each tile of all groups: program p finds out which group the p-th tile is in. It reads where groups end from
the GPU's memory, so that the CPU waits for nothing, and starts as many programs as there may be tiles at most.

The weight gradient, dyᵀ·x of the rows of each group, has tiles of the same size for all groups; here groups differ in
how many rows a tile adds up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.errors import ConfigError, ShapeError
from playbook.kernels.jit import cdiv, kernel, next_power, tl
from playbook.kernels.matmul import Tiles, capability_of, compute_tile, tile_of, tuned


def grouped_matmul_torch(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The twin in PyTorch: a loop, which waits for the counts."""
    parts = x.tensor_split(ends[:-1].long().cpu())
    return torch.cat([part @ one for part, one in zip(parts, w.unbind(), strict=True)])


def grouped_gradient_torch(dy: Tensor, x: Tensor, ends: Tensor) -> Tensor:
    """The twin of `grouped_gradient`."""
    cuts = ends[:-1].long().cpu()
    pairs = zip(dy.tensor_split(cuts), x.tensor_split(cuts), strict=True)
    return torch.stack([d.t() @ rows for d, rows in pairs])


@kernel
def grouped_kernel(
    x, w, y, ends, groups, n, k, x_m, x_k, w_e, w_k, w_n, y_m, y_n, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    tile, at = tl.program_id(0), tl.arange(0, GROUPS)
    inside = at < groups
    stops = tl.load(ends + at, mask=inside, other=0).to(tl.int32)
    starts = tl.load(ends + at - 1, mask=inside & (at > 0), other=0).to(tl.int32)
    tiles = tl.where(inside, tl.cdiv(stops - starts, BLOCK_M) * tl.cdiv(n, BLOCK_N), 0)
    e = tl.sum(
        (inside & (tl.cumsum(tiles, 0) <= tile)).to(tl.int32), 0
    )  # groups whose tiles lie before this one
    if e < groups:
        own = at == e
        start, m = tl.sum(tl.where(own, starts, 0), 0), tl.sum(tl.where(own, stops - starts, 0), 0)
        tile -= tl.sum(tl.where(at < e, tiles, 0), 0)
        row, column = tile_of(tile, m, n, BLOCK_M, BLOCK_N, GROUP)
        first = start.to(tl.int64)
        compute_tile(
            x + first * x_m, w + e.to(tl.int64) * w_e, y + first * y_m, row, column, m, n, k,
            x_m, x_k, w_k, w_n, y_m, y_n, False, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
        )  # fmt: skip


@kernel
def gradient_kernel(
    dy, x, dw, ends, m, n, dy_m, dy_k, x_k, x_n, dw_e, dw_m, dw_n, ADD: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    e = tl.program_id(1)
    start = tl.load(ends + e - 1, mask=e > 0, other=0).to(tl.int32)
    rows = tl.load(ends + e).to(tl.int32) - start  # none: zeros are stored
    first = start.to(tl.int64)
    row, column = tile_of(tl.program_id(0), m, n, BLOCK_M, BLOCK_N, GROUP)
    compute_tile(
        dy + first * dy_k, x + first * x_k, dw + e.to(tl.int64) * dw_e, row, column, m, n, rows,
        dy_m, dy_k, x_k, x_n, dw_m, dw_n, ADD, PRECISION, BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


def grouped_matmul(x: Tensor, w: Tensor, ends: Tensor, tiles: Tiles | None = None) -> Tensor:
    """x (n, in), w (E, in, out) in any strides, ends (E,) int32 or int64, not falling, the last one n -> (n, out).

    Raises ShapeError for sizes and ConfigError for dtypes that do not match.
    """
    if x.dim() != 2 or w.dim() != 3 or ends.shape != w.shape[:1] or w.shape[1] != x.shape[1]:
        raise ShapeError(
            f"x {tuple(x.shape)}, w {tuple(w.shape)} and ends {tuple(ends.shape)} must be (n, in), (E, in, out) and (E,)"
        )
    _check(x, w, ends)
    (rows, k), (groups, _, n) = x.shape, w.shape
    y = torch.empty(rows, n, dtype=x.dtype, device=x.device)
    if not y.numel() or not groups:
        return y
    tiles = (tiles or tuned(x.dtype, capability_of(x))).fitted(rows, n)
    most = (cdiv(rows, tiles.m) + groups) * cdiv(n, tiles.n)  # the last tile of each group may be a part
    grouped_kernel[(most,)](
        x,
        w,
        y,
        ends,
        groups,
        n,
        k,
        *x.stride(),
        *w.stride(),
        *y.stride(),
        GROUPS=next_power(groups),
        **tiles.named(),
    )
    return y


def grouped_gradient(
    dy: Tensor, x: Tensor, ends: Tensor, onto: Tensor | None = None, tiles: Tiles | None = None
) -> Tensor:
    """dyᵀ·x of the rows of each group: dy (n, out), x (n, in), ends (E,) -> (E, out, in); added to ``onto`` if given.

    Raises as `grouped_matmul`.
    """
    if dy.dim() != 2 or x.dim() != 2 or len(dy) != len(x) or ends.dim() != 1:
        raise ShapeError(
            f"dy {tuple(dy.shape)}, x {tuple(x.shape)} and ends {tuple(ends.shape)} must be (n, out), (n, in) and (E,)"
        )
    _check(x, dy, ends)
    groups, m, n = len(ends), dy.shape[1], x.shape[1]
    if onto is not None and (onto.shape != (groups, m, n) or onto.dtype != x.dtype):
        raise ShapeError(
            f"onto must be ({groups}, {m}, {n}) of {x.dtype}, but is {tuple(onto.shape)} of {onto.dtype}"
        )
    dw = torch.empty(groups, m, n, dtype=x.dtype, device=x.device) if onto is None else onto
    if not dw.numel():
        return dw
    tiles = (tiles or tuned(x.dtype, capability_of(x))).fitted(m, n)
    grid = (cdiv(m, tiles.m) * cdiv(n, tiles.n), groups)
    gradient_kernel[grid](
        dy, x, dw, ends, m, n, dy.stride(1), dy.stride(0), *x.stride(), *dw.stride(), ADD=onto is not None,
        **tiles.named(),
    )  # fmt: skip
    return dw


def _check(x: Tensor, other: Tensor, ends: Tensor) -> None:
    if other.dtype != x.dtype or ends.dtype not in (torch.int32, torch.int64):
        raise ConfigError(
            f"dtypes are {x.dtype}, {other.dtype} and, of ends, {ends.dtype}, but the first two must be the same and "
            "the last int32 or int64"
        )
