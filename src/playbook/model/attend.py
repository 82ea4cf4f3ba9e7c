"""Attention to a block of keys: output and log-sum-exp, to be merged with those of other blocks; and its gradients.

Twice: as formulas, and through PyTorch's flash kernels, which never write the scores down. Those take the log-sum-exp of
*all* keys in backward, whatever part of the keys they are given: just what is needed here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from playbook.layout.tokens import MaskBlock

_aten = torch.ops.aten


def scores(block: MaskBlock, q: Tensor, k: Tensor) -> Tensor:
    """q·kᵀ/√d with the mask: (b, kv, heads/kv · sq, sk) in fp32; query heads that share a key are rows of one product."""
    b, _, sq, d = q.shape
    kv = k.shape[1]
    found = (q.float() * d**-0.5).reshape(b, kv, -1, d) @ k.float().transpose(-2, -1)
    if block.causal:
        mask = torch.ones(sq, sq, dtype=torch.bool, device=q.device).triu(1)
        found = found.view(b, kv, -1, sq, sq).masked_fill_(mask, float("-inf")).view(b, kv, -1, sq)
    return found


def attend(block: MaskBlock, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Output (b, heads, sq, d) and log-sum-exp (b, heads, sq) of the block, in fp32, by the formula."""
    q, k, v = block.queries(q), block.keys(k), block.keys(v)
    b, heads, sq, d = q.shape
    with _no_autocast(q):
        s = scores(block, q, k)
        lse = s.logsumexp(-1, keepdim=True)
        out = (s - lse).exp_() @ v.float()
    return out.view(b, heads, sq, d), lse.view(b, heads, sq)


def attend_backward(
    block: MaskBlock, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What a block adds to dq of its queries and to dk, dv of its keys. ``out`` and ``lse`` are those of all keys.

    p = e^(s − lse) are the weights that the softmax over all keys gave; ds = p·(dp − Σ do·o) needs the whole output alone
    (Dao et al. 2022, arXiv 2205.14135, appendix B.2).
    """
    do, o = block.queries(gradient).float(), block.queries(out).float()
    q, k, v = block.queries(q), block.keys(k), block.keys(v)
    b, heads, sq, d = q.shape
    kv = k.shape[1]
    rows = (b, kv, heads // kv * sq)
    do = do.reshape(*rows, d)
    with _no_autocast(q):
        p = (scores(block, q, k) - block.queries(lse).reshape(*rows, 1)).exp_()
        delta = (do * o.reshape(*rows, d)).sum(-1, keepdim=True)
        ds = p * (do @ v.float().transpose(-2, -1) - delta)
        dq = (ds @ k.float()).view(b, heads, sq, d) * d**-0.5
        return dq, ds.transpose(-2, -1) @ (q.float().reshape(*rows, d) * d**-0.5), p.transpose(-2, -1) @ do


def _no_autocast(q: Tensor) -> torch.autocast:
    """Formulas are in fp32 whatever autocast says around them: it would round the factors of products to 16 bits."""
    return torch.autocast(q.device.type, enabled=False)


def has_kernel(q: Tensor) -> bool:
    """Is there a flash kernel for tensors like this? On CPU for all floats; on CUDA for those of 16 bits, from compute
    capability 8.0 (Ampere) on."""
    if q.is_cuda:
        fits = q.dtype in (torch.float16, torch.bfloat16) and q.shape[-1] % 8 == 0 and q.shape[-1] <= 256
        return fits and torch.cuda.get_device_capability(q.device) >= (8, 0)
    return q.device.type == "cpu"


def flash(block: MaskBlock, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """As `attend`, by a flash kernel; the output in the dtype of ``q``."""
    q, k, v = block.queries(q), block.keys(k), block.keys(v)
    if q.is_cuda:
        return _aten._scaled_dot_product_flash_attention(q, k, v, 0.0, block.causal, False)[:2]
    return _aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, block.causal)


def flash_backward(
    block: MaskBlock, gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """As `attend_backward`, by a flash kernel."""
    do, o, lse = block.queries(gradient), block.queries(out), block.queries(lse)
    q, k, v = block.queries(q), block.keys(k), block.keys(v)
    if not q.is_cuda:
        backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward
        return backward(do, q, k, v, o, lse, 0.0, block.causal)
    state = torch.zeros(2, dtype=torch.uint64, device=q.device)  # of a dropout that there is not
    more: Any = (None, None, q.shape[2], k.shape[2], 0.0, block.causal, state, state.new_empty(0))
    return _aten._scaled_dot_product_flash_attention_backward(do, q, k, v, o, lse.contiguous(), *more)


class BlockAttention(NamedTuple):
    """Attention to a block of keys, as `attend`, and its gradients, as `attend_backward`."""

    forward: Callable[[MaskBlock, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    backward: Callable[..., tuple[Tensor, Tensor, Tensor]]


def best(q: Tensor) -> BlockAttention:
    """A flash kernel for tensors like ``q`` or, where PyTorch has none, the formulas."""
    return BlockAttention(flash, flash_backward) if has_kernel(q) else BlockAttention(attend, attend_backward)


class OnlineSoftmax:
    """Output and log-sum-exp of some queries, for all the blocks of keys seen so far.

    The results of two blocks merge with weights e^(lse − L), L = log(e^lse₁ + e^lse₂): each part's softmax had its own
    denominator, and this is its share of the common one (Milakov & Gimelshein 2018, arXiv 1805.02867).
    """

    def __init__(self, attend_to: Callable[[MaskBlock, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]):
        self.attend_to = attend_to
        self.out: Tensor | None = None
        self.lse: Tensor | None = None

    def add(self, block: MaskBlock, q: Tensor, k: Tensor, v: Tensor) -> None:
        """Attend to one more block."""
        new_out, new_lse = self.attend_to(block, q, k, v)
        if self.out is None and new_out.shape[2] < q.shape[2]:  # the first block is of some queries alone
            b, heads, s, _ = q.shape
            self.out = new_out.new_zeros(b, s, heads, new_out.shape[3], dtype=torch.float32).transpose(1, 2)
            self.lse = new_lse.new_full((b, heads, s), -torch.inf)
        if self.out is None or self.lse is None:
            # In memory (b, s, heads, d), as kernels lay it out: the projection that follows reads it as it is.
            self.out = new_out.float().transpose(1, 2).contiguous().transpose(1, 2)
            self.lse = new_lse
            return
        out, lse = block.queries(self.out), block.queries(self.lse)
        total = torch.logaddexp(lse, new_lse)
        out.mul_((lse - total).exp_()[..., None]).addcmul_(new_out, (new_lse - total).exp_()[..., None])
        lse.copy_(total)

    def result(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Output (b, heads, sq, d) in ``dtype`` and log-sum-exp (b, heads, sq) in fp32."""
        assert self.out is not None and self.lse is not None, "no block was added"  # noqa: PT018
        return self.out.to(dtype), self.lse
