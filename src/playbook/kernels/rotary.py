"""Rotary positions: each pair of a head's numbers, one from either half, turned by an angle of its position (Su et al.
2021, RoFormer, arXiv 2104.09864):

    y₁ = x₁·cos − x₂·sin,   y₂ = x₂·cos + x₁·sin

Backward turns dy by the negative angles: the same kernel, with sin of the other sign. Nothing is kept but cos and sin.

Bytes of b·s tokens with a heads of d numbers of c bytes: x is read and y written, 2·b·s·a·d·c, forward and backward;
beside it cos and sin in fp32, of which only the first half is read, as both halves carry the same angles: 4·s·d.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import cdiv, kernel, next_power, tl
from playbook.kernels.rows import check_shape, wide

#: Pairs that a program turns.
PAIRS = 2048


def rotary_torch(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The twin in PyTorch, `model.ops.apply_rotary` without its casts: five kernels."""
    first, second = x.chunk(2, dim=-1)
    return x * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


@kernel
def rotary_kernel(
    x, cos, sin, y, batch_stride, token_stride, head_stride, angle_stride, s, heads, half,
    SIGN: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """A program turns some heads of one token: the grid is tokens × groups of ``HEADS`` heads."""
    token = tl.program_id(0).to(tl.int64)
    sample, position = token // s, token % s
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    at = tl.arange(0, HALF)[None, :]
    inside = (head < heads) & (at < half)
    c = tl.load(cos + position * angle_stride + at, mask=at < half, other=0.0).to(WIDE)
    d = tl.load(sin + position * angle_stride + at, mask=at < half, other=0.0).to(WIDE) * SIGN
    x += sample * batch_stride + position * token_stride
    first = tl.load(x + head * head_stride + at, mask=inside, other=0.0).to(WIDE)
    second = tl.load(x + head * head_stride + half + at, mask=inside, other=0.0).to(WIDE)
    y += (token * heads + head) * 2 * half + at
    tl.store(y, first * c - second * d, mask=inside)
    tl.store(y + half, second * c + first * d, mask=inside)


def _turn(x: Tensor, cos: Tensor, sin: Tensor, sign: int) -> Tensor:
    x = x if x.stride(-1) == 1 else x.contiguous()
    b, s, heads, d = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    half = next_power(d // 2)
    some = min(next_power(heads), max(1, PAIRS // half))
    rotary_kernel[(b * s, cdiv(heads, some))](
        x, cos, sin, y, *x.stride()[:3], cos.stride(0), s, heads, d // 2,
        SIGN=sign, HEADS=some, HALF=half, WIDE=wide(x.dtype),
    )  # fmt: skip
    return y


class Rotary(torch.autograd.Function):
    """Saves cos and sin, which a model has anyway."""

    @staticmethod
    def forward(ctx, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx, dy: Tensor):
        cos, sin = ctx.saved_tensors
        return _turn(dy, cos, sin, -1), None, None


def rotary(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (b, s, heads, d), cos and sin (s, d) from `model.attention.rotary_table` -> (b, s, heads, d), in the dtype of x.

    The angles get no gradient. Raises ShapeError where they are not one for each token and number of a head.
    """
    for name, angles in (("cos", cos), ("sin", sin)):
        check_shape(name, angles, (x.shape[1], x.shape[3]), "one for each token and number of a head of x")
    return Rotary.apply(x, cos.contiguous(), sin.contiguous())


def bytes_forward(b: int, s: int, heads: int, d: int, c: int) -> int:
    """Bytes that b samples of s tokens read and write, with heads of d numbers of c bytes."""
    return 2 * b * s * heads * d * c + 4 * s * d


bytes_backward = bytes_forward
