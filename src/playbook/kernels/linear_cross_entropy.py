"""Cross-entropy of hidden states x and the head's weight W, logits z = x·Wᵀ, without ever holding the logits of all
tokens (Hsu et al. 2024, Liger Kernel, arXiv 2410.10989).

Tokens go through in chunks. A chunk's logits give its losses and, in their place, the gradient dz; then dx = dz·W, and
dW = Σ dzᵀ·x is added up over the chunks. All of it happens in forward: what comes to the loss is a factor, for which
backward need not have the logits again.

Bytes of n tokens and v entries of c bytes, beside the three products: the kernel reads logits and writes dz over them,
n·(2vc + 16), a cache being where a row is read again; each chunk's product reads and writes the sum dW in fp32, 8·v·h.
Backward reads and writes dx and dW, 2·(n + v)·h·c. In memory at a time: the logits of one chunk.
Kept for backward: dx and dW, (n + v)·h·c, where the book's head keeps x and log-probabilities in fp32, n·(hc + 4v).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.cross_entropy import IGNORE, cross_entropy_torch, losses_of
from playbook.kernels.jit import cdiv
from playbook.kernels.rows import accumulator, check_shape, rows
from playbook.model.linear import cast_once
from playbook.model.ops import check_words
from playbook.planning.fusion import chunk_tokens


def linear_cross_entropy_torch(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = IGNORE
) -> tuple[Tensor, Tensor]:
    """The twin in PyTorch: all logits are in memory, and their log-probabilities in fp32."""
    return cross_entropy_torch((x @ weight.T).flatten(0, -2), targets.flatten(), ignore_index)


class LinearCrossEntropy(torch.autograd.Function):
    """Saves the gradients themselves, which backward multiplies by what comes to the loss."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, targets: Tensor, ignore: int, gradient: bool) -> Tensor:
        n, size = len(x), chunk_tokens(len(x), *weight.shape)
        kept = weight.dtype
        x, weight = cast_once(x), cast_once(weight)  # not anew for each chunk
        total = torch.zeros((), dtype=accumulator(x.dtype), device=x.device)
        dx = torch.empty_like(x) if gradient else None
        # Sums over chunks are kept in fp32, as a product keeps its own.
        dw = torch.zeros_like(weight, dtype=total.dtype) if gradient and ctx.needs_input_grad[1] else None
        for start in range(0, n, size):
            part = x[start : start + size]
            z = part @ weight.T  # (tokens of a chunk, v)
            total += losses_of(z, targets[start : start + size], ignore, gradient)[0].sum()
            if dx is not None:
                torch.mm(z, weight, out=dx[start : start + size])
            if dw is not None:
                _add_product(dw, z.T, part)
        ctx.save_for_backward(dx, None if dw is None else dw.to(kept))
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        dx, dw = ctx.saved_tensors
        return dx * upstream, None if dw is None else dw * upstream, None, None, None


def _add_product(total: Tensor, a: Tensor, b: Tensor) -> None:
    """total += a·b, in the dtype of total: rounded to that of a and b, what chunks add would be lost where it cancels."""
    if a.is_cuda and a.dtype != total.dtype:
        torch.addmm(total, a, b, out_dtype=total.dtype, out=total)
        return
    # Some at a time, so that no copy in fp32 takes more than total in 16 bits.
    size = len(b) if a.dtype == total.dtype else max(1, b.shape[1] // 2)
    for left, right in zip(a.split(size, 1), b.split(size), strict=True):
        total.addmm_(left.to(total.dtype), right.to(total.dtype))


def linear_cross_entropy(
    x: Tensor, weight: Tensor, targets: Tensor, ignore_index: int = IGNORE
) -> tuple[Tensor, Tensor]:
    """x (…, h), the head's weight (v, h) in one dtype or under autocast, targets (…,) -> as `cross_entropy` of x·Wᵀ.

    Raises ShapeError where sizes differ, and on a CPU IndexError for a target that is no word.
    """
    check_shape("targets", targets, x.shape[:-1], "one for each row of x")
    check_shape("weight", weight, (len(weight), x.shape[-1]), "a number for each column of x")
    check_words(targets, len(weight), ignore_index)
    gradient = torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad)
    losses = LinearCrossEntropy.apply(rows(x), weight, targets.flatten(), ignore_index, gradient)
    return losses, (targets != ignore_index).sum()


def bytes_forward(n: int, h: int, v: int, c: int) -> int:
    """Bytes that n tokens read and write beside the products, of logits and of the weight's gradient."""
    chunks = cdiv(n, chunk_tokens(n, v, h))
    return n * (2 * v * c + 16) + chunks * v * h * 8


def bytes_backward(n: int, h: int, v: int, c: int) -> int:
    return 2 * (n + v) * h * c
