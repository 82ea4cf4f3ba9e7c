"""ELU: y = x where x > 0, α·(exp(x) − 1) elsewhere (Clevert et al. 2015, arXiv 1511.07289).

In PyTorch's operators it is a chain of kernels, each of which reads and writes everything; here one does it all.
Backward: dx = dy where x > 0, dy·α·exp(x) elsewhere.

Bytes of n numbers of c bytes: forward reads x and writes y, 2nc; backward reads x and dy and writes dx, 3nc.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.rows import BLOCK, wide


def elu_torch(x: Tensor, alpha: float = 1.0) -> Tensor:
    """The twin in PyTorch: five kernels, which move n numbers ten times, and a mask of n bytes twice."""
    return torch.where(x > 0, x, alpha * (torch.exp(x) - 1))


@kernel
def forward_kernel(x, y, n, alpha, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    xs = tl.load(x + at, mask=inside, other=0.0).to(WIDE)
    negative = alpha * (tl.exp(tl.minimum(xs, 0.0)) - 1.0)
    tl.store(y + at, tl.where(xs > 0, xs, negative), mask=inside)


@kernel
def backward_kernel(dy, x, dx, n, alpha, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    xs = tl.load(x + at, mask=inside, other=0.0).to(WIDE)
    dys = tl.load(dy + at, mask=inside, other=0.0).to(WIDE)
    slope = tl.where(xs > 0, 1.0, alpha * tl.exp(tl.minimum(xs, 0.0)))
    tl.store(dx + at, dys * slope, mask=inside)


class ELU(torch.autograd.Function):
    """Saves x, as PyTorch's own does."""

    @staticmethod
    def forward(ctx, x: Tensor, alpha: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.alpha = alpha
        x = x.contiguous()
        y = torch.empty_like(x)
        forward_kernel[(cdiv(x.numel(), BLOCK),)](x, y, x.numel(), alpha, BLOCK=BLOCK, WIDE=wide(x.dtype))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        (x,) = ctx.saved_tensors
        x, dy = x.contiguous(), dy.contiguous()
        dx = torch.empty_like(x)
        grid = (cdiv(x.numel(), BLOCK),)
        backward_kernel[grid](dy, x, dx, x.numel(), ctx.alpha, BLOCK=BLOCK, WIDE=wide(x.dtype))
        return dx, None


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x of any shape -> the same shape and dtype."""
    return ELU.apply(x, alpha)


def bytes_forward(n: int, c: int) -> int:
    """Bytes that n numbers of c bytes read and write."""
    return 2 * n * c


def bytes_backward(n: int, c: int) -> int:
    return 3 * n * c
