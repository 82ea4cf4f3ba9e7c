"""Answers to the exercises on fused kernels: Triton looks for ``tl`` in the module of a kernel."""

import torch
import triton.language as tl

from playbook.kernels.jit import cdiv, kernel, next_power


@kernel
def relu2_kernel(x, bias, y, n, f, BLOCK: tl.constexpr, MASK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = (at < n) | (not MASK)
    positive = tl.maximum(tl.load(x + at, mask=inside) + tl.load(bias + at % f, mask=inside), 0.0)
    tl.store(y + at, positive * positive, mask=inside)


@kernel
def unwritten_kernel(x):
    raise NotImplementedError


def relu2(x, bias, y=None, mask=True):
    y = torch.empty_like(x) if y is None else y
    relu2_kernel[cdiv(x.numel(), 128),](x, bias, y, x.numel(), len(bias), BLOCK=128, MASK=mask)
    return y


def unwritten(x, bias):
    unwritten_kernel[1,](x)


@kernel
def norm_kernel(x, y, h, eps, BLOCK: tl.constexpr, HOW: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < h
    count = BLOCK if HOW == "of a block" else h
    xs = tl.load(x + row * h + at, mask=inside, other=0.0)
    centred = xs - tl.sum(xs, 0) / count
    if HOW != "planted":
        centred = tl.where(inside, centred, 0.0)
    variance = tl.sum(centred * centred, 0) / count
    if HOW == "cancelling":
        mean = tl.sum(xs, 0) / h
        variance = tl.sum(xs * xs, 0) / h - mean * mean
    tl.store(y + row * h + at, centred / tl.sqrt(variance + eps), mask=inside)


def norm(x, how="right"):
    y = torch.empty_like(x)
    norm_kernel[len(x),](x, y, x.shape[1], 1e-5, BLOCK=next_power(x.shape[1]), HOW=how)
    return y
