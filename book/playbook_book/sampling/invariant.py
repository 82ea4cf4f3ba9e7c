"""Operators whose results for a row depend on that row alone: not on how many others are computed with it, nor on how
many ranks share the work.

Kernels choose how they add up by the shape that they are given, and floating-point sums depend on their order: so one
token decoded by itself gets other bits than the same token in a sequence ("Defeating Nondeterminism in LLM Inference",
Thinking Machines 2025). Here every sum has one order. A product adds up in chunks of its inner dim, each from its first
element to its last, chunks by pairs, as a tree: ranks of tensor parallelism have whole branches, and finish the tree
after a gather (as TBIK, arXiv 2511.17826). All is done by additions and multiplications of elements, which round alike
on any machine, and take many times as long as kernels: a GPU would use tiles of one size and no split-K.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from playbook.errors import ConfigError
from playbook.model.attention import Attention
from playbook.model.linear import Linear, Products
from playbook.model.mla import LatentAttention
from playbook.model.mlp import MLP
from playbook.model.ops import Ops, reference_attention
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import all_gather
from playbook.parallel.regions import Region
from playbook.parallel.sequence import Crossing, gather_tokens
from playbook.parallel.tensor import RowLinear

#: Keys of a block of attention.
KEYS = 16


def tree(parts: Sequence[Tensor]) -> Tensor:
    """The sum of tensors by pairs of neighbours; of a power of two of them, branches of as many can be added apart."""
    while len(parts) > 1:
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*pairs, *parts[2 * len(pairs) :]]
    return parts[0]


def chunk_sums(x: Tensor, w: Tensor, length: int) -> Tensor:
    """Products of rows, in chunks of the inner dim: (…, n, K), (…, m, K) -> (…, C, n, m) with C = ⌈K / length⌉."""
    count = -(-x.shape[-1] // length)
    x, w = (F.pad(t, (0, count * length - t.shape[-1])).unflatten(-1, (count, length)) for t in (x, w))
    x, w = x.movedim(-2, -3), w.movedim(-2, -3)  # (…, C, n, length), (…, C, m, length)
    total = x[..., :1] * w[..., 0][..., None, :]
    one = torch.empty_like(total)
    for k in range(1, length):
        total += torch.mul(x[..., k : k + 1], w[..., k][..., None, :], out=one)
    return total


def product(x: Tensor, w: Tensor, chunks: int) -> Tensor:
    """x·wᵀ with the inner dim in so many chunks, added up as a tree: (…, n, K), (…, m, K) -> (…, n, m)."""
    return tree(chunk_sums(x, w, -(-x.shape[-1] // chunks)).unbind(-3))


class RowSum(torch.autograd.Function):
    """The sum over the last dim, halves onto halves: (…, h) -> (…, 1)."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.width = x.shape[-1]
        x = F.pad(x, (0, (1 << (ctx.width - 1).bit_length()) - ctx.width))
        while x.shape[-1] > 1:
            x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient.expand(*gradient.shape[:-1], ctx.width)


def exp(x: Tensor) -> Tensor:
    """e^x, in fp64 before it is rounded: vectors and what is left at their end are computed by other code, which fp32
    would show."""
    return x.double().exp().to(x.dtype)


def log_softmax(x: Tensor) -> Tensor:
    """Over the last dim, (…, v)."""
    x = x - x.detach().amax(-1, keepdim=True)
    return x - RowSum.apply(exp(x)).double().log().to(x.dtype)


class InvariantAttention(torch.autograd.Function):
    """softmax(q·kᵀ/√d + mask)·v row by row, keys in blocks of `KEYS` from the first on; backward as the formula's."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(q, k, v)
        b, heads, n, d = q.shape
        kv, m = k.shape[1:3]
        rows = (q * d**-0.5).reshape(b, kv, -1, d)  # (b, kv, heads/kv · n, d)
        scores = product(rows, k, -(-d // KEYS)).view(b, heads, n, m)
        hidden = torch.ones(n, m, dtype=torch.bool, device=q.device).triu(
            m - n + 1
        )  # queries are the last n tokens
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = exp(scores - scores.amax(-1, keepdim=True)).view(b, kv, -1, m)
        # Beside the values a column of ones, for the denominator; what is hidden adds zeros, at the end.
        values = torch.cat([v, v.new_ones(*v.shape[:-1], 1)], -1).transpose(-1, -2)
        blocks = chunk_sums(weights, values, KEYS).unbind(-3)
        total = blocks[0]
        for block in blocks[1:]:
            total = total + block
        return (total[..., :-1] / total[..., -1:]).view(b, heads, n, -1)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        q, k, v = (t.detach().requires_grad_() for t in ctx.saved_tensors)
        with torch.enable_grad():
            y = reference_attention(q, k, v)
        return torch.autograd.grad(y, (q, k, v), gradient)


def attention(
    q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
) -> Tensor:
    """A causal attention core, of the last n of m tokens: (b, heads, n, d), (b, kv, m, d), (b, kv, m, e)."""
    return InvariantAttention.apply(q, k, v)


class InvariantOps(Ops):
    """What is between products, with one order for every sum."""

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        x = x - RowSum.apply(x) / x.shape[-1]
        return self.rms_norm(x, weight, eps) + (0 if bias is None else bias)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return x * torch.rsqrt(RowSum.apply(x * x) / x.shape[-1] + eps) * weight

    def gated(self, pair: Any, activation: str) -> Tensor:
        return activate(next(pair), activation) * next(pair)

    def attention(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
    ) -> Tensor:
        return attention(q, k, v)


def activate(x: Tensor, kind: str) -> Tensor:
    """As `model.ops.activate`: GELU by tanh(u) = 1 − 2/(e^2u + 1)."""
    if kind == "relu":
        return F.relu(x)
    if kind == "silu":
        return x / (1 + exp(-x))
    u = 0.7978845608028654 * (x + 0.044715 * x * x * x)
    return 0.5 * x * (2 - 2 / (exp(2 * u) + 1))


class InvariantProducts(Products):
    """x·Wᵀ in one order, the inner dim in so many ``chunks``; backward is PyTorch's."""

    def __init__(self, chunks: int):
        self.chunks = chunks

    def output(self, x: Any, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        y = product(x, weight.to(x.dtype), self.chunks)
        return y if bias is None else y + bias


class TreeRegion(Region):
    """A region whose partial sums are gathered, and added up as the branches of one tree."""

    def leave(self, x: Tensor) -> Tensor:
        if self.sequence:
            return Crossing.apply(x, self.group, self._own_tokens, gather_tokens)
        return Crossing.apply(x, self.group, self._sum, lambda gradient, _: gradient.view_as(gradient))

    @staticmethod
    def _sum(x: Tensor, group: dist.ProcessGroup) -> Tensor:
        every = x.new_empty(group.size(), *x.shape)
        all_gather(every.view(-1), x.contiguous().view(-1), group)
        return tree(every.unbind())

    @staticmethod
    def _own_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
        return TreeRegion._sum(x, group).chunk(group.size(), 1)[group.rank()].contiguous()


def use_invariant(model: Transformer, finest: int = 4) -> None:
    """Have a model, whole or cut over ranks, compute with these operators.

    Models with the same weights then agree to the last bit over tp = 1, 2, 4, … up to ``finest``, in which the inner
    dim of a row-parallel layer must come apart evenly. Raises ConfigError for what has no such operators: mixtures of
    experts, ranks that share a sequence (cp), chunked overlap, dropout.
    """
    _check(model, finest)
    ops: Any = InvariantOps()
    for module in model.modules():
        if hasattr(module, "ops"):
            module.ops = ops
        if isinstance(module, Attention | LatentAttention):
            module.core = attention
        if isinstance(module, MLP) and module.gate is None:
            module.forward = partial(_ungated, module)  # type: ignore[method-assign]
        region: Any = getattr(module, "region", None)
        if isinstance(module, Linear):
            ranks = region.group.size() if isinstance(module, RowLinear) else 1
            module.products = InvariantProducts(finest // ranks)
        if region is not None:
            module.region = TreeRegion(region.group, region.sequence, region.overlap)  # type: ignore[assignment]


def _ungated(mlp: MLP, x: Tensor) -> Tensor:
    return mlp.down(activate(mlp.up(x), mlp.activation))


def _check(model: Transformer, finest: int) -> None:
    if finest < 1 or finest & (finest - 1):
        raise ConfigError(f"finest must be a power of two, so that branches can be added apart, got {finest}")
    shape = model.shape
    if shape.moe or shape.dropout:
        other = "a mixture of experts" if shape.moe else f"dropout={shape.dropout}"
        raise ConfigError(f"the model has {other}, for which there are no batch-invariant operators")
    for width in (shape.heads * shape.v_dim, shape.ffn_dim):
        if width % finest:
            raise ConfigError(
                f"finest must divide the {width} features that row-parallel layers add up, got {finest}"
            )
    for module in model.modules():
        region, ring = getattr(module, "region", None), getattr(module, "core", None)
        if region is not None and finest % region.group.size():
            raise ConfigError(f"finest must be a multiple of tp = {region.group.size()}, got {finest}")
        if region is not None and region.overlap == "chunked":
            raise ConfigError("tensor_overlap is chunked, but batch-invariant sums need none or async")
        if type(ring).__module__.endswith("parallel.context"):
            raise ConfigError("cp must be 1 for batch-invariant operators: a ring merges keys block by block")
