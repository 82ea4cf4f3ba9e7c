"""Sequence parallelism: between tensor-parallel regions each rank has some of the tokens (Korthikanti et al. 2022).

Norms, dropout and residual additions look at one token at a time, so they need not have all of them. On the way into a
region the tokens come together, on the way out the sum is handed out by tokens (arXiv 2205.05198, section 4.2.2): a
gather and a scatter in place of an all-reduce, which is just these two one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.model.attention import Positions, dropout, places
from playbook.parallel.mesh import all_gather, reduce_scatter

if TYPE_CHECKING:
    from playbook.model.transformer import Transformer


#: What happens to a tensor at a border of a region.
Way = Callable[[Tensor, dist.ProcessGroup], Tensor]


class Crossing(torch.autograd.Function):
    """A border between ranks: ``there`` happens to what crosses it forward, ``back`` to its gradient.

    Two borders are conjugate when what one does forward the other does backward.
    """

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup, there: Way, back: Way) -> Tensor:
        ctx.group, ctx.back = group, back
        return there(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return ctx.back(gradient, ctx.group), None, None, None


def g(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Into a region, each rank having some tokens: all of them, (b, s/t, h) -> (b, s, h)."""
    return Crossing.apply(x, group, gather_tokens, scatter_tokens)


def g_star(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Out of a region: the sum of the ranks' parts, each rank getting its tokens, (b, s, h) -> (b, s/t, h)."""
    return Crossing.apply(x, group, scatter_tokens, gather_tokens)


def start_gather(x: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Begin to gather the tokens of all ranks: what is returned waits, and gives (b, s, …). No graph."""
    n, (b, s, *rest) = group.size(), x.shape
    own, whole = x.contiguous(), x.new_empty(n * b, s, *rest)
    work = all_gather(whole.view(-1), own.view(-1), group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        if b == 1:  # the ranks' tokens already follow one another
            return whole.view(1, n * s, *rest)
        return whole.view(n, b, s, *rest).transpose(0, 1).reshape(b, n * s, *rest)

    return finish


def start_scatter(x: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Begin to add up (b, s, …) over the ranks: what is returned waits, and gives this rank's tokens. No graph."""
    n, (b, s, *rest) = group.size(), x.shape
    parts = x.reshape(b, n, s // n, *rest).transpose(0, 1).contiguous()  # a rank's tokens side by side
    own = x.new_empty(b, s // n, *rest)
    work = reduce_scatter(own.view(-1), parts.view(-1), group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return own

    return finish


def gather_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(b, s/t, …) of each rank -> (b, s, …) on all of them; no graph."""
    return start_gather(x, group)()


def scatter_tokens(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(b, s, …) of each rank -> (b, s/t, …), the sum over ranks of this one's tokens; no graph."""
    return start_scatter(x, group)()


def embed_own_tokens(
    model: Transformer, group: dist.ProcessGroup, tokens: Tensor, positions: Positions = None
) -> Tensor:
    """``Transformer.embed`` for the tokens that this rank has between regions: (b, s) -> (b, s/t, h)."""
    x = model.embedding(tokens)
    if model.position_embedding is not None:
        where = places(tokens.shape[1], positions)
        x = x + model.position_embedding.weight[where].chunk(group.size())[group.rank()]
    return dropout(x, model.p, model.training)
