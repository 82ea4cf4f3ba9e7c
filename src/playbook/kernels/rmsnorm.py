"""RMSNorm: y = x·r·w with r = 1/sqrt(mean(x²) + eps), for rows x of h numbers (Zhang & Sennrich 2019, arXiv 1910.07467).

Backward, with n = x·r and g = dy·w:  dx = r·(g − n·mean(g·n)),  dw = Σ dy·n over the rows.

The same kernels add a residual first: s = x + residual, and y is the norm of s. Both are written, as the next layer adds
to s again; ds, the gradient that comes to s from there, is added to that of the norm.

Bytes of N rows of h numbers of c bytes: forward reads x and writes y and r, N·(2hc + 4); backward reads x, dy and r and
writes dx, N·(3hc + 4). A residual adds 2hc a row to forward and hc to backward. Beside that there is w, and backward's
partial sums of dw in fp32, one row for each program.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import kernel, next_power, tl
from playbook.kernels.rows import accumulator, check_shape, programs, rows, warps, wide


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """The twin in PyTorch: each operator reads and writes all rows."""
    xs = x.to(accumulator(x.dtype))
    return (xs * torch.rsqrt(xs.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def add_rms_norm_torch(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """The twin in PyTorch of `add_rms_norm`."""
    total = x + residual
    return total, rms_norm_torch(total, weight, eps)


@kernel
def normalise(xs, ws, h, eps):
    """One row's norm, and its r."""
    rstd = 1.0 / tl.sqrt(tl.sum(xs * xs, 0) / h + eps)
    return xs * rstd * ws, rstd


@kernel
def forward_kernel(
    x, residual, w, total, y, r, stride, residual_stride, h, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * stride + at, mask=inside, other=0.0).to(WIDE)
    if residual is not None:
        xs += tl.load(residual + row * residual_stride + at, mask=inside, other=0.0).to(WIDE)
        xs = xs.to(total.dtype.element_ty).to(WIDE)  # the norm is of what is kept, so that r fits it
        tl.store(total + row * h + at, xs, mask=inside)
    ws = tl.load(w + at, mask=inside, other=0.0).to(WIDE)
    ys, rstd = normalise(xs, ws, h, eps)
    tl.store(r + row, rstd)
    tl.store(y + row * h + at, ys, mask=inside)


@kernel
def backward_kernel(
    dy, ds, x, w, r, dx, dw, dy_stride, ds_stride, stride, n, h, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < h
    ws = tl.load(w + at, mask=inside, other=0.0).to(WIDE)
    dws = tl.zeros((BLOCK,), WIDE)
    for row in range(program, n, tl.num_programs(0)):
        rstd = tl.load(r + row)
        normed = tl.load(x + row * stride + at, mask=inside, other=0.0).to(WIDE) * rstd
        dys = tl.load(dy + row * dy_stride + at, mask=inside, other=0.0).to(WIDE)
        g = dys * ws
        dxs = rstd * (g - normed * (tl.sum(g * normed, 0) / h))
        if ds is not None:
            dxs += tl.load(ds + row * ds_stride + at, mask=inside, other=0.0).to(WIDE)
        tl.store(dx + row * h + at, dxs, mask=inside)
        dws += dys * normed
    tl.store(dw + program * h + at, dws, mask=inside)


def _forward(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """x + residual, or x itself; its norm; r."""
    xs, others = rows(x), None if residual is None else rows(residual)
    n, h = xs.shape
    y = torch.empty(n, h, dtype=x.dtype, device=x.device)
    total = None if others is None else torch.empty_like(y)
    rstd = torch.empty(n, dtype=accumulator(x.dtype), device=x.device)
    block = next_power(h)
    forward_kernel[(n,)](
        xs, others, weight, total, y, rstd, xs.stride(0), 0 if others is None else others.stride(0), h, eps,
        BLOCK=block, WIDE=wide(x.dtype), num_warps=warps(block),
    )  # fmt: skip
    return x if total is None else total.view(x.shape), y.view(x.shape), rstd


def _backward(
    dy: Tensor, ds: Tensor | None, x: Tensor, weight: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor]:
    """dx and dw."""
    xs, dys, others = rows(x), rows(dy), None if ds is None else rows(ds)
    n, h = xs.shape
    dx = torch.empty(n, h, dtype=x.dtype, device=x.device)
    count, block = programs(n, h), next_power(h)
    parts = torch.empty(count, h, dtype=rstd.dtype, device=x.device)
    backward_kernel[(count,)](
        dys, others, xs, weight, rstd, dx, parts,
        dys.stride(0), 0 if others is None else others.stride(0), xs.stride(0), n, h,
        BLOCK=block, WIDE=wide(x.dtype), num_warps=warps(block, 8),
    )  # fmt: skip
    return dx.view(x.shape), parts.sum(0).to(weight.dtype)


class RMSNormFunction(torch.autograd.Function):
    """Saves x and r: as much as `model.norms.RMSNorm`. With a residual, s in the place of x."""

    @staticmethod
    def forward(ctx, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float):
        total, y, rstd = _forward(x, residual, weight, eps)
        ctx.save_for_backward(total, weight, rstd)
        return y if residual is None else (total, y)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        *ds, dy = gradients
        dx, dw = _backward(dy, ds[0] if ds else None, *ctx.saved_tensors)
        return dx, dx if ds else None, dw, None


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x (…, h), weight (h,) -> (…, h), in the dtype of x. The last dim must be contiguous, or is copied."""
    check_shape("weight", weight, x.shape[-1:], "a number for each column of x")
    return RMSNormFunction.apply(x, None, weight, eps)


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float = 1e-5) -> tuple[Tensor, Tensor]:
    """x and residual (…, h), weight (h,) -> x + residual and its norm, both (…, h) in the dtype of x."""
    check_shape("weight", weight, x.shape[-1:], "a number for each column of x")
    check_shape("residual", residual, x.shape, "as x has")
    return RMSNormFunction.apply(x, residual, weight, eps)


def bytes_forward(n: int, h: int, c: int, w: int = 4, residual: bool = False) -> int:
    """Bytes that n rows of h numbers of c bytes read and write, and weights of w bytes."""
    return n * ((4 if residual else 2) * h * c + 4) + h * w


def bytes_backward(n: int, h: int, c: int, w: int = 4, residual: bool = False) -> int:
    return n * ((4 if residual else 3) * h * c + 4) + h * w + programs(n, h) * h * 4
