"""Cross-entropy of logits z and a target t: −z[t] + log Σ exp(z), for rows z of v numbers.

One pass over a row finds its peak m and Σ exp(z − m), which is scaled anew whenever m rises (online softmax: Milakov &
Gimelshein 2018, arXiv 1805.02867). The gradient, softmax(z) − onehot(t), is written over the logits.

Bytes of n tokens and v entries of c bytes: forward reads the logits and targets and writes a loss and log Σ exp(z) of
each token, n·(vc + 16); backward reads and writes the logits, n·(2vc + 12). Kept for backward: the logits as they are,
nvc, where PyTorch keeps log-probabilities in fp32, 4nv.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.kernels.jit import kernel, next_power, tl
from playbook.kernels.rows import accumulator, check_shape, rows, wide
from playbook.model.ops import check_words

#: Logits of a row that are looked at together, and the warps that do it.
COLUMNS, WARPS = 8192, 16
#: Of these, what one thread reads at once: 16 bytes of 16-bit numbers.
EACH = 8
#: A target with this value counts neither in the loss nor in the number of tokens, as in `model.transformer`.
IGNORE = -100


def cross_entropy_torch(logits: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> tuple[Tensor, Tensor]:
    """The twin in PyTorch: sum of the losses, and how many targets count."""
    z = logits.to(accumulator(logits.dtype))
    losses = F.cross_entropy(z, targets, ignore_index=ignore_index, reduction="sum")
    return losses, (targets != ignore_index).sum()


@kernel
def loss_kernel(
    z,
    targets,
    losses,
    lse,
    stride,
    v,
    ignore,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH: tl.constexpr,
    WIDE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    z += row * stride
    target = tl.load(targets + row)
    picked = tl.load(z + target, mask=(target >= 0) & (target < v), other=0.0).to(WIDE)
    # Each thread has a peak and a total of its own until the end, so that the loop waits for no other thread.
    within = tl.arange(0, BLOCK // EACH)[:, None] * EACH + tl.arange(0, EACH)[None, :]
    peak = tl.full((BLOCK // EACH,), float("-inf"), WIDE)
    total = tl.zeros((BLOCK // EACH,), WIDE)
    for start in range(0, v, BLOCK):
        at = start + within
        zs = tl.load(z + at, mask=at < v, other=float("-inf")).to(WIDE)  # (BLOCK / EACH, EACH)
        higher = tl.maximum(peak, tl.max(zs, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # none seen yet: −inf − (−inf) is not a number
        total = total * tl.exp(peak - base) + tl.sum(tl.exp(zs - base[:, None]), 1)
        peak = higher
    top = tl.max(peak, 0)
    log_total = top + tl.log(tl.sum(total * tl.exp(peak - top), 0))
    tl.store(lse + row, log_total)
    tl.store(losses + row, tl.where(target == ignore, 0.0, log_total - picked))
    if GRADIENT:
        _write_gradient(z, log_total, target, tl.where(target == ignore, 0.0, 1.0).to(WIDE), v, BLOCK, WIDE)


@kernel
def gradient_kernel(z, targets, lse, upstream, stride, v, ignore, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    target = tl.load(targets + row)
    scale = tl.where(target == ignore, 0.0, tl.load(upstream)).to(WIDE)
    _write_gradient(z + row * stride, tl.load(lse + row), target, scale, v, BLOCK, WIDE)


@kernel
def _write_gradient(z, log_total, target, scale, v, BLOCK: tl.constexpr, WIDE: tl.constexpr):
    """(softmax(z) − onehot(target))·scale over the row z."""
    for start in range(0, v, BLOCK):
        at = start + tl.arange(0, BLOCK)
        zs = tl.load(z + at, mask=at < v, other=float("-inf")).to(WIDE)
        hot = tl.where(at == target, 1.0, 0.0)
        tl.store(z + at, (tl.exp(zs - log_total) - hot) * scale, mask=at < v)


def losses_of(z: Tensor, targets: Tensor, ignore: int, gradient: bool) -> tuple[Tensor, Tensor]:
    """Of each row of z (n, v) its loss and log Σ exp(z); with ``gradient`` this takes the place of z."""
    n, v = z.shape
    kind = accumulator(z.dtype)
    losses, lse = (
        torch.empty(n, dtype=kind, device=z.device) for _ in range(2)
    )  # lse is kept, losses are not
    loss_kernel[(n,)](
        z, targets, losses, lse, z.stride(0), v, ignore,
        GRADIENT=gradient, BLOCK=max(min(next_power(v), COLUMNS), EACH), EACH=EACH, WIDE=wide(z.dtype), num_warps=WARPS,
    )  # fmt: skip
    return losses, lse


def write_gradient(z: Tensor, targets: Tensor, lse: Tensor, upstream: Tensor, ignore: int) -> None:
    """Over the logits z (n, v) their gradient, times ``upstream``; a target that is no column picks none."""
    n, v = z.shape
    gradient_kernel[(n,)](
        z, targets, lse, upstream, z.stride(0), v, ignore,
        BLOCK=min(next_power(v), COLUMNS), WIDE=wide(z.dtype), num_warps=WARPS,
    )  # fmt: skip


class CrossEntropy(torch.autograd.Function):
    """Saves the logits, over which backward writes their gradient, and log Σ exp(z)."""

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, ignore: int) -> Tensor:
        losses, lse = losses_of(logits, targets, ignore, gradient=False)
        ctx.save_for_backward(logits, targets, lse)
        ctx.ignore = ignore
        return losses.sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        z, targets, lse = ctx.saved_tensors
        write_gradient(z, targets, lse, upstream, ctx.ignore)
        torch.autograd.graph.increment_version(z)  # a second backward is told that the logits are gone
        return z.detach(), None, None


def cross_entropy(logits: Tensor, targets: Tensor, ignore_index: int = IGNORE) -> tuple[Tensor, Tensor]:
    """logits (…, v), targets (…,) -> sum of the losses in fp32, and how many targets count, as `Transformer.loss` does.

    Backward destroys the logits: nothing else may need them then. Raises ShapeError unless each row has a
    target, and on a CPU IndexError for one that is no column.
    """
    check_shape("targets", targets, logits.shape[:-1], "one for each row of logits")
    check_words(targets, logits.shape[-1], ignore_index)
    losses = CrossEntropy.apply(rows(logits), targets.flatten(), ignore_index)
    return losses, (targets != ignore_index).sum()


class VocabCrossEntropy(torch.autograd.Function):
    """As `CrossEntropy`, each rank of a group having some columns of the logits, and keeping these and the lse of all.

    Two numbers per token travel: the log-sum-exp of a rank's columns, and the target's logit where the target is among
    them. log Σ exp(z) over all columns is that of the ranks' log-sum-exps.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, targets: Tensor, words: range, group: dist.ProcessGroup) -> Tensor:
        here = (targets >= words.start) & (targets < words.stop)
        # A target of another rank's is none of the columns here, but counts.
        own = torch.where(here, targets - words.start, torch.where(targets == IGNORE, IGNORE, -1))
        n = len(targets)
        if words:
            losses, lse = losses_of(logits[:, : len(words)], own, IGNORE, gradient=False)
            picked = torch.where(here, lse - losses, 0.0)
        else:  # nothing but padding
            lse = torch.full((n,), float("-inf"), dtype=accumulator(logits.dtype), device=logits.device)
            picked = torch.zeros_like(lse)
        peak = lse.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX, group)
        both = torch.stack([(lse - peak).exp(), picked])
        dist.all_reduce(both, group=group)
        lse = peak + both[0].log()
        ctx.save_for_backward(logits, own, lse)
        ctx.columns = len(words)
        return (lse - both[1]).masked_fill_(targets == IGNORE, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream: Tensor):
        z, targets, lse = ctx.saved_tensors
        real = z[:, : ctx.columns]
        if ctx.columns:
            write_gradient(real, targets, lse, upstream, IGNORE)
        z[:, ctx.columns :] = 0.0
        torch.autograd.graph.increment_version(z)
        return z.detach(), None, None, None


def vocab_cross_entropy(logits: Tensor, targets: Tensor, words: range, group: dist.ProcessGroup) -> Tensor:
    """Sum of the losses in fp32, on every rank: logits (n, columns) of ``words`` and then of padding, targets (n,) -> ().

    Backward destroys the logits.
    """
    return VocabCrossEntropy.apply(rows(logits), targets, words, group)


def bytes_forward(n: int, v: int, c: int, gradient: bool = False) -> int:
    """Bytes that n rows of v logits of c bytes read and write; with ``gradient`` it is made at once."""
    return n * ((2 if gradient else 1) * v * c + 16)


def bytes_backward(n: int, v: int, c: int) -> int:
    return n * (2 * v * c + 12)
