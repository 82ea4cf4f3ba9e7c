"""SwiGLU: y = silu(g)·u with silu(g) = g·σ(g), for a gate g and a value u of one shape (Shazeer 2020, arXiv 2002.05202).

Backward, with σ = σ(g):  du = dy·g·σ,  dg = dy·u·σ·(1 + g·(1 − σ)). The activation is computed again and so need not be
kept: written with PyTorch's operators, the product keeps silu(g) beside g and u.

Bytes of n numbers of c bytes: forward reads g and u and writes y, 3nc; backward reads g, u and dy and writes dg and du,
5nc. Kept for backward: 2nc in place of 3nc.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import cdiv, kernel, tl
from playbook.kernels.rows import BLOCK, check_shape, wide


def swiglu_torch(gate: Tensor, up: Tensor) -> Tensor:
    """The twin in PyTorch, as in `model.mlp.MLP`: the activation is written, kept, and read again."""
    return F.silu(gate) * up


@kernel
def activate(g, u):
    return g * tl.sigmoid(g) * u


@kernel
def forward_kernel(gate, up, y, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    g = tl.load(gate + at, mask=inside, other=0.0).to(WIDE)
    u = tl.load(up + at, mask=inside, other=0.0).to(WIDE)
    tl.store(y + at, activate(g, u), mask=inside)


@kernel
def backward_kernel(dy, gate, up, dgate, dup, n, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    g = tl.load(gate + at, mask=inside, other=0.0).to(WIDE)
    u = tl.load(up + at, mask=inside, other=0.0).to(WIDE)
    dys = tl.load(dy + at, mask=inside, other=0.0).to(WIDE)
    sigma = tl.sigmoid(g)
    tl.store(dgate + at, dys * u * sigma * (1.0 + g * (1.0 - sigma)), mask=inside)
    tl.store(dup + at, dys * g * sigma, mask=inside)


class SwiGLU(torch.autograd.Function):
    """Saves gate and up."""

    @staticmethod
    def forward(ctx, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        gate, up = gate.contiguous(), up.contiguous()
        y = torch.empty_like(gate)
        n = gate.numel()
        forward_kernel[(cdiv(n, BLOCK),)](gate, up, y, n, BLOCK=BLOCK, WIDE=wide(y.dtype))
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        gate, up, dy = (x.contiguous() for x in (*ctx.saved_tensors, dy))
        dgate, dup = torch.empty_like(gate), torch.empty_like(up)
        n = gate.numel()
        backward_kernel[(cdiv(n, BLOCK),)](dy, gate, up, dgate, dup, n, BLOCK=BLOCK, WIDE=wide(dy.dtype))
        return dgate, dup


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate)·up, of two tensors of one shape and dtype. Raises ShapeError for others' shapes."""
    check_shape("up", up, gate.shape, "as gate has")
    return SwiGLU.apply(gate, up)


def bytes_forward(n: int, c: int) -> int:
    """Bytes that n numbers of c bytes read and write."""
    return 3 * n * c


def bytes_backward(n: int, c: int) -> int:
    return 5 * n * c
