"""RMSNorm: y = x·r·w with r = 1/sqrt(mean(x²) + eps), for rows x of h numbers (Zhang & Sennrich 2019, arXiv 1910.07467).

Backward, with n = x·r and g = dy·w:  dx = r·(g − n·mean(g·n)),  dw = Σ dy·n over the rows.

Bytes of N rows of h numbers of c bytes: forward reads x and writes y and r, N·(2hc + 4); backward reads x, dy and r and
writes dx, N·(3hc + 4). Beside that w, and its partial sums in fp32, one row for each program.
"""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import kernel, next_power

#: Programs that add up dw, each over its part of the rows.
PROGRAMS = 264


def rms_norm_torch(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """The twin in PyTorch, which reads and writes x five times."""
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


@kernel
def forward_kernel(x, w, y, r, stride, h, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < h
    xs = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    rstd = 1.0 / tl.sqrt(tl.sum(xs * xs, 0) / h + eps)
    ws = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(r + row, rstd)
    tl.store(y + row * h + at, xs * rstd * ws, mask=inside)


@kernel
def backward_kernel(dy, x, w, r, dx, dw, stride, dy_stride, n, h, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    inside = at < h
    ws = tl.load(w + at, mask=inside, other=0.0).to(tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for row in range(program, n, tl.num_programs(0)):
        rstd = tl.load(r + row)
        normed = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32) * rstd
        dys = tl.load(dy + row * dy_stride + at, mask=inside, other=0.0).to(tl.float32)
        g = dys * ws
        tl.store(dx + row * h + at, rstd * (g - normed * (tl.sum(g * normed, 0) / h)), mask=inside)
        total += dys * normed
    tl.store(dw + program * h + at, total, mask=inside)


class RMSNormFunction(torch.autograd.Function):
    """Saves x and r: as much as `model.norms.RMSNorm`."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows = _rows(x)
        n, h = rows.shape
        y = torch.empty(n, h, dtype=x.dtype, device=x.device)
        rstd = torch.empty(n, dtype=torch.float32, device=x.device)
        block = next_power(h)
        forward_kernel[(n,)](
            rows, weight, y, rstd, rows.stride(0), h, eps, BLOCK=block, num_warps=warps(block)
        )
        ctx.save_for_backward(x, weight, rstd)
        return y.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        x, weight, rstd = ctx.saved_tensors
        rows, dys = _rows(x), _rows(dy)
        n, h = rows.shape
        dx = torch.empty(n, h, dtype=x.dtype, device=x.device)
        programs, block = min(n, PROGRAMS), next_power(h)
        parts = torch.empty(programs, h, dtype=torch.float32, device=x.device)
        backward_kernel[(programs,)](
            dys, rows, weight, rstd, dx, parts, rows.stride(0), dys.stride(0), n, h,
            BLOCK=block, num_warps=warps(block),
        )  # fmt: skip
        return dx.view(x.shape), parts.sum(0).to(weight.dtype), None


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x (…, h), weight (h,) -> (…, h), in the dtype of x. The last dim must be contiguous, or is copied."""
    return RMSNormFunction.apply(x, weight, eps)


def _rows(x: Tensor) -> Tensor:
    """x (…, h) as (n, h), its last dim contiguous."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(1) == 1 else rows.contiguous()


def warps(block: int) -> int:
    """Warps for a row of ``block`` numbers: eight numbers a thread, as far as that goes."""
    return min(max(block // 256, 1), 16)
