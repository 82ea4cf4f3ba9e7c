"""LayerNorm: y = (x − m)·r·w + b, m = mean(x), r = 1/sqrt(mean((x − m)²) + eps), for rows x of h numbers (Ba et al. 2016,
arXiv 1607.06450). The bias b may be left out.

Backward, with n = (x − m)·r and g = dy·w:  dx = r·(g − mean(g) − n·mean(g·n)),  dw = Σ dy·n and db = Σ dy over the rows.

Bytes of N rows of h numbers of c bytes: forward reads x and writes y, m and r, N·(2hc + 8); backward reads x, dy, m and
r and writes dx, N·(3hc + 8). Beside that there are w and b in forward, w and partial sums of dw and db in backward,
these in fp32, one row for each program.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import kernel, next_power, tl
from playbook.kernels.rows import accumulator, check_shape, programs, rows, warps, wide


def layer_norm_torch(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """The twin in PyTorch, which has a kernel of its own for it."""
    return F.layer_norm(x, weight.shape, weight, bias, eps)


@kernel
def forward_kernel(x, w, b, y, m, r, stride, h, eps, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * stride + at, mask=inside, other=0.0).to(WIDE)
    mean = tl.sum(xs, 0) / h
    # The row is on the chip: its variance is taken from differences, not from mean(x²) − m², which cancels.
    centred = tl.where(inside, xs - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(centred * centred, 0) / h + eps)
    ys = centred * rstd * tl.load(w + at, mask=inside, other=0.0).to(WIDE)
    if b is not None:
        ys += tl.load(b + at, mask=inside, other=0.0).to(WIDE)
    tl.store(m + row, mean)
    tl.store(r + row, rstd)
    tl.store(y + row * h + at, ys, mask=inside)


@kernel
def backward_kernel(
    dy, x, w, m, r, dx, dw, db, dy_stride, stride, n, h, BLOCK: tl.constexpr, WIDE: tl.constexpr
):
    program = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < h
    ws = tl.load(w + at, mask=inside, other=0.0).to(WIDE)
    dws = tl.zeros((BLOCK,), WIDE)
    dbs = tl.zeros((BLOCK,), WIDE)
    for row in range(program, n, tl.num_programs(0)):
        mean, rstd = tl.load(m + row), tl.load(r + row)
        normed = (tl.load(x + row * stride + at, mask=inside, other=0.0).to(WIDE) - mean) * rstd
        dys = tl.load(dy + row * dy_stride + at, mask=inside, other=0.0).to(WIDE)
        g = dys * ws
        dxs = rstd * (g - tl.sum(g, 0) / h - normed * (tl.sum(g * normed, 0) / h))
        tl.store(dx + row * h + at, dxs, mask=inside)
        dws += dys * normed
        dbs += dys
    tl.store(dw + program * h + at, dws, mask=inside)
    if db is not None:
        tl.store(db + program * h + at, dbs, mask=inside)


class LayerNormFunction(torch.autograd.Function):
    """Saves x, m and r: as much as `model.norms.LayerNorm`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        xs = rows(x)
        n, h = xs.shape
        y = torch.empty(n, h, dtype=x.dtype, device=x.device)
        mean, rstd = torch.empty(2, n, dtype=accumulator(x.dtype), device=x.device)
        block = next_power(h)
        forward_kernel[(n,)](
            xs, weight, bias, y, mean, rstd, xs.stride(0), h, eps,
            BLOCK=block, WIDE=wide(x.dtype), num_warps=warps(block),
        )  # fmt: skip
        ctx.save_for_backward(x, weight, mean, rstd)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight, mean, rstd = ctx.saved_tensors
        xs, dys = rows(x), rows(dy)
        n, h = xs.shape
        dx = torch.empty(n, h, dtype=x.dtype, device=x.device)
        count, block = programs(n, h), next_power(h)
        dw = torch.empty(count, h, dtype=rstd.dtype, device=x.device)
        db = None if ctx.bias_dtype is None else torch.empty_like(dw)
        backward_kernel[(count,)](
            dys, xs, weight, mean, rstd, dx, dw, db, dys.stride(0), xs.stride(0), n, h,
            BLOCK=block, WIDE=wide(x.dtype), num_warps=warps(block),
        )  # fmt: skip
        dbias = None if db is None else db.sum(0).to(ctx.bias_dtype)
        return dx.view(x.shape), dw.sum(0).to(weight.dtype), dbias, None


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """x (…, h), weight and bias (h,) -> (…, h), in the dtype of x. The last dim must be contiguous, or is copied."""
    check_shape("weight", weight, x.shape[-1:], "a number for each column of x")
    if bias is not None:
        check_shape("bias", bias, x.shape[-1:], "a number for each column of x")
    return LayerNormFunction.apply(x, weight, bias, eps)


def bytes_forward(n: int, h: int, c: int, w: int = 4, bias: bool = True) -> int:
    """Bytes that n rows of h numbers of c bytes read and write, and weights and biases of w bytes."""
    return n * (2 * h * c + 8) + h * w * (1 + bias)


def bytes_backward(n: int, h: int, c: int, w: int = 4, bias: bool = True) -> int:
    return n * (3 * h * c + 8) + h * w + programs(n, h) * h * 4 * (1 + bias)
