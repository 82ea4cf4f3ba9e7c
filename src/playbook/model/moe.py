"""Mixtures of experts: a router sends each token to a few of many MLPs (Shazeer et al. 2017, arXiv 1701.06538).

A layer is four steps: *route* (which experts, with which weights), *dispatch* (a row for each token and each of its
experts, sorted by expert), *compute* (grouped products: each expert its rows), *combine* (a weighted sum of each token's
rows). Where experts are on other ranks, rows travel between the second step and the third, and back: `MoE.path` is what
expert parallelism changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from playbook.model.linear import GroupedLinear, cast_once
from playbook.model.mlp import MLP
from playbook.model.ops import TORCH_OPS, Ops, activate, dropout
from playbook.model.recompute import checkpoint
from playbook.shapes import ModelShape
from playbook.shapes import MoE as Sizes


class Routing(NamedTuple):
    """Where tokens go: to experts ``chosen`` (n, k), with ``weights`` (n, k) in fp32; experts get ``counts`` (E,) rows.

    ``dropped``: there are choices that nobody computes. They are E, which is no expert.
    """

    chosen: Tensor
    weights: Tensor
    counts: Tensor
    dropped: bool = False

    def order(self) -> Tensor:
        """Choices in the order of their experts, and of tokens for each: indices into n · k, (m,)."""
        order = self.chosen.flatten().argsort(stable=True)
        return order[: int(self.counts.sum())] if self.dropped else order


class Spread:
    """How the tokens of a sample lie on ranks: here, all on one. Techniques that split samples say otherwise."""

    def total(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over the ranks that have tokens of the same samples."""
        return x

    def total_of_batch(self, x: Tensor) -> Tensor:
        """The sum of ``x`` over all ranks that have tokens of the global batch."""
        return x

    def everyone(self, x: Tensor) -> Tensor:
        """``x`` (b, s, …) of all tokens of the samples, along dim 1."""
        return x


class Router(nn.Module):
    """Scores experts for each token, in fp32 whatever the model computes in (Fedus et al. 2021, arXiv 2101.03961, 2.4).

    ``bias`` is added to scores for the choice alone, never to the weights, and no gradient trains it: `update_bias` moves
    it after each step. ``load`` counts the rows of each expert since then.
    """

    bias: Tensor
    load: Tensor

    def __init__(self, hidden: int, sizes: Sizes):
        super().__init__()
        self.sizes, self.spread = sizes, Spread()
        self.weight = nn.Parameter(torch.empty(sizes.experts, hidden))
        #: What the model's loss is multiplied by before backward: the router's own losses are, too.
        self.loss_scale: Tensor | float = 1.0
        self.register_buffer("bias", torch.empty(sizes.experts))
        self.register_buffer("load", torch.empty(sizes.experts), persistent=False)

    def begin(self) -> None:
        """Biases and counts of a new model, in fp32 whatever its weights are: what is added to them is small."""
        self.bias, self.load = (torch.zeros_like(t, dtype=torch.float32) for t in (self.bias, self.load))

    def forward(self, x: Tensor) -> tuple[Tensor, Routing]:
        """x (b, s, h) -> x, to which the losses of this router are tied, and where its tokens go."""
        sizes = self.sizes
        logits = _Logits.apply(x, self.weight)  # (b, s, E)
        scores = logits.softmax(-1) if sizes.scores == "softmax" else logits.sigmoid()
        chosen = self._choose(scores.detach())  # (b, s, k)
        weights = scores.gather(-1, chosen)
        if sizes.normalized:
            weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        if sizes.scale != 1:
            weights = weights * sizes.scale
        kept = chosen if sizes.capacity is None else self._drop(chosen, scores.detach(), sizes.capacity)
        counts = kept.flatten().bincount(minlength=sizes.experts + 1)[: sizes.experts]
        if self.training and torch.is_grad_enabled():  # once, also where a forward pass is computed again
            self.load += chosen.flatten().bincount(minlength=sizes.experts)
            if sizes.balance_loss or sizes.z_loss:
                x = _TieLoss.apply(x, self.losses(logits, scores, chosen), self.loss_scale)
        return x, Routing(kept.flatten(0, 1), weights.flatten(0, 1), counts, kept is not chosen)

    def _choose(self, scores: Tensor) -> Tensor:
        """The k experts with the highest scores, biased, in the groups that may be chosen: (b, s, E) -> (b, s, k)."""
        sizes = self.sizes
        scores = scores + self.bias
        if sizes.top_groups < sizes.groups:
            groups = scores.unflatten(-1, (sizes.groups, -1))  # (b, s, groups, E/groups)
            best = groups.topk(max(1, sizes.top_k // sizes.top_groups), -1).values.sum(-1)
            outside = torch.ones_like(best, dtype=torch.bool)
            outside.scatter_(-1, best.topk(sizes.top_groups, -1).indices, False)
            scores = groups.masked_fill(outside[..., None], float("-inf")).flatten(-2)
        return scores.topk(sizes.top_k, -1).indices

    def _drop(self, chosen: Tensor, scores: Tensor, capacity: float) -> Tensor:
        """``chosen`` with E in the place of those beyond an expert's capacity: of a sample, it keeps the best scores.

        Counting per sample, and not per rank, makes what is dropped the same however samples are spread.
        """
        sizes = self.sizes
        mine = torch.zeros_like(scores).scatter_(-1, chosen, scores.gather(-1, chosen))  # 0 where not chosen
        of_all = self.spread.everyone(mine)
        room = math.ceil(capacity * of_all.shape[1] * sizes.top_k / sizes.experts)
        if room >= of_all.shape[1]:
            return chosen
        least = of_all.topk(room, dim=1).values[:, -1:]  # (b, 1, E)
        above = mine.gather(-1, chosen) >= least.expand_as(mine).gather(-1, chosen)
        return torch.where(above, chosen, sizes.experts)

    def losses(self, logits: Tensor, scores: Tensor, chosen: Tensor) -> Tensor:
        """Load-balancing and z-loss of these tokens, as sums over tokens, as the model's loss is.

        The first is α · Σ_i f_i · P_i for each token, with f_i = E times the fraction of choices that fell on expert i
        (E/k times that of tokens), and P_i its mean probability (Fedus et al. 2021, section 2.2): α where the load is
        even. The second is β · logsumexp(logits)² (Zoph et al. 2022, arXiv 2202.08906, section 3.2).
        """
        sizes, total = self.sizes, logits.new_zeros(())
        if sizes.balance_loss:
            shares = scores if sizes.scores == "softmax" else scores / scores.sum(-1, keepdim=True)
            total = total + sizes.balance_loss * (self._frequencies(chosen) * shares.sum(1)).sum()
        if sizes.z_loss:
            total = total + sizes.z_loss * logits.logsumexp(-1).square().sum()
        return total

    def _frequencies(self, chosen: Tensor) -> Tensor:
        """f_i of each sample (b, E), or of all of them together (1, E): ones where the load is even."""
        sizes = self.sizes
        counts = torch.zeros(len(chosen), sizes.experts, device=chosen.device)
        counts.scatter_add_(1, chosen.flatten(1), torch.ones_like(chosen.flatten(1), dtype=counts.dtype))
        if sizes.balance_over == "sample":
            counts = self.spread.total(counts)
        elif sizes.balance_over == "micro_batch":
            counts = self.spread.total(counts.sum(0, keepdim=True))
        else:  # all that this step has seen so far (Qiu et al. 2025, arXiv 2501.11873)
            counts = self.spread.total_of_batch(self.load.clone())[None]
        return counts * (sizes.experts / counts.sum(-1, keepdim=True))

    @torch.no_grad()
    def update_bias(self, load: Tensor) -> None:
        """After a step whose ``load`` (E,) is that of all ranks: up for experts with fewer rows than the mean.

        For those with more it goes down by the same ``bias_rate``: load balancing without a loss (Wang et al. 2024, arXiv
        2408.15664), as DeepSeek-V3 does it. The load begins anew.
        """
        if self.sizes.bias_rate:
            self.bias += self.sizes.bias_rate * (load.mean() - load).sign()
        self.load.zero_()


class _Logits(torch.autograd.Function):
    """x·Wᵀ in fp32, of which x is kept as it came, and not in fp32."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:  # (b, s, h), (E, h) -> (b, s, E)
        ctx.save_for_backward(x, weight)
        with torch.autocast(x.device.type, enabled=False):
            return F.linear(x.float(), weight.float())

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        dweight = gradient.flatten(0, -2).t() @ x.flatten(0, -2).float()
        return (gradient @ weight.float()).to(x.dtype), dweight.to(weight.dtype)


class _TieLoss(torch.autograd.Function):
    """x as it is; backward also sends the gradient ``scale`` into ``loss``, as if that had been added to the model's."""

    @staticmethod
    def forward(ctx, x: Tensor, loss: Tensor, scale: Tensor | float) -> Tensor:
        ctx.scale = torch.as_tensor(scale, dtype=loss.dtype, device=loss.device)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        return gradient, ctx.scale, None


class Take(torch.autograd.Function):
    """Rows of x (n, h) for the choices ``order`` (m,) of n · k: (m, h). Saves nothing but the order."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, k: int) -> Tensor:
        ctx.save_for_backward(order)
        ctx.n, ctx.k = len(x), k
        return x.index_select(0, order // k)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        (order,) = ctx.saved_tensors
        dx = gradient.new_zeros(ctx.n, gradient.shape[1])
        return dx.index_add_(0, order // ctx.k, gradient), None, None


class Combine(torch.autograd.Function):
    """Each token's sum of its rows (m, h), weighted: ``order`` (m,) says which of the n · k choices a row is."""

    @staticmethod
    def forward(ctx, rows: Tensor, weights: Tensor, order: Tensor) -> Tensor:  # -> (n, h)
        ctx.save_for_backward(rows, weights, order)
        scale = weights.flatten()[order].to(rows.dtype)
        out = rows.new_zeros(len(weights), rows.shape[1])
        return out.index_add_(0, order // weights.shape[1], rows * scale[:, None])

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        rows, weights, order = ctx.saved_tensors
        each = gradient.index_select(0, order // weights.shape[1])  # (m, h)
        dweights = torch.zeros_like(weights).view(-1)
        dweights[order] = (each * rows).sum(-1, dtype=weights.dtype)
        return each.mul_(weights.flatten()[order].to(each.dtype)[:, None]), dweights.view_as(weights), None


class Experts(nn.Module):
    """All experts of a layer: MLPs of one width, their matrices one above the other in one tensor (E, …)."""

    def __init__(self, shape: ModelShape, sizes: Sizes, ops: Ops = TORCH_OPS):
        super().__init__()
        self.activation, self.ops = shape.activation, ops
        self.up = GroupedLinear(sizes.experts, shape.hidden, sizes.ffn, shape.bias)
        self.gate = GroupedLinear(sizes.experts, shape.hidden, sizes.ffn, shape.bias) if shape.gated else None
        self.down = GroupedLinear(sizes.experts, sizes.ffn, shape.hidden, shape.bias)

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """The first counts[0] of the rows through expert 0, and so on: (m, h), (E,) -> (m, h)."""
        ends = counts.cumsum(0).int()
        if self.gate is None:
            return self.down(activate(self.up(rows, ends), self.activation), ends)
        pair = (layer(rows, ends) for layer in (self.gate, self.up))
        return self.down(self.ops.gated(pair, self.activation), ends)


def here(experts: Experts, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
    """The sums over each token's experts, all of which are here: x (n, h) -> what gives (n, h) when it is called.

    Where they are not, the call of this function begins to send rows, and that of its result waits for them.
    """
    order, k = routing.order(), routing.chosen.shape[1]
    rows = Take.apply(x, order, k)  # (m, h)
    return lambda: Combine.apply(experts(rows, routing.counts), routing.weights, order)


class MoE(nn.Module):
    """A mixture of experts: what its router chooses, weighted, and shared experts, which see every token.

    Expert parallelism changes the ``path`` of tokens to their experts; tensor parallelism has them ``enter`` and
    ``leave`` a region.
    """

    recompute_shared = False

    def __init__(self, shape: ModelShape, sizes: Sizes, ops: Ops = TORCH_OPS):
        super().__init__()
        self.p = shape.dropout
        self.router = Router(shape.hidden, sizes)
        self.experts = Experts(shape, sizes, ops)
        width = sizes.shared_experts * sizes.ffn
        self.shared = MLP(shape, width, p=0.0, ops=ops) if width else None
        self.path: Callable[[Experts, Tensor, Routing], Callable[[], Tensor]] = here
        self.enter: Callable[[Tensor], Tensor] = _as_it_is
        self.leave: Callable[[Tensor], Tensor] = _as_it_is

    def forward(self, x: Tensor) -> Tensor:  # (b, s, h) -> (b, s, h)
        tokens, routing = self.router(self.enter(x))
        finish = self.path(self.experts, cast_once(tokens).flatten(0, 1), routing)
        shared = None if self.shared is None else self._shared(x)  # while rows travel
        y = self.leave(finish().view(*tokens.shape))
        return dropout(y if shared is None else y + shared, self.p, self.training)

    def _shared(self, x: Tensor) -> Tensor:
        assert self.shared is not None
        return checkpoint(self.shared, x, preserve_rng=False) if self.recompute_shared else self.shared(x)


def _as_it_is(x: Tensor) -> Tensor:
    return x


def routers(model: nn.Module) -> dict[str, Router]:
    """The routers of a model by name, block by block."""
    return {name: module for name, module in model.named_modules() if isinstance(module, Router)}
