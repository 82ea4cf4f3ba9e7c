"""Answers to the exercises on writing kernels: Triton looks for ``tl`` in the module of a kernel."""

import torch
import torch.nn.functional as F
import triton.language as tl

from playbook.kernels.jit import cdiv, kernel


@kernel
def gelu_kernel(
    x, bias, y, n, width, BLOCK: tl.constexpr, MASK: tl.constexpr, INSIDE: tl.constexpr, BY_ROW: tl.constexpr
):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) | (not MASK)
    z = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + (at // width if BY_ROW else at % width), mask=inside, other=0.0).to(tl.float32)
    z += b * INSIDE
    result = 0.5 * z * (1 + tl.erf(z * 0.7071067811865476))
    tl.store(y + at, result + b * (1 - INSIDE), mask=inside)


def fused(x, bias, y=None, mask=True, inside=1, by_row=False):
    y = torch.empty_like(x) if y is None else y
    n, width = x.numel(), x.shape[1]
    gelu_kernel[cdiv(n, 256),](x, bias, y, n, width, BLOCK=256, MASK=mask, INSIDE=inside, BY_ROW=by_row)
    return y


def with_tanh(x, bias):
    fused(x, bias)
    return F.gelu(x + bias, approximate="tanh")


@kernel
def sums_kernel(x, out, columns, apart, beside, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    numbers = tl.load(x + row * apart + at * beside, mask=at < columns, other=0.0)
    tl.store(out + row, tl.sum(numbers, 0))


def sums(x, strides=torch.Tensor.stride):
    out = torch.empty(len(x))
    sums_kernel[len(x),](x, out, x.shape[1], *strides(x), BLOCK=16)
    return out
