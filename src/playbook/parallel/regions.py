"""The borders of a tensor-parallel region: f, g and their conjugates (Shoeybi et al. 2019; Korthikanti et al. 2022).

Between regions every rank has the whole residual stream (or, with sequence parallelism, some of its tokens); inside, each
rank has some heads, or some columns of the MLP. Whatever crosses a border forward is undone by its conjugate backward.

f and f* (the papers say f̄) enter and leave a region when the stream is whole; g and g* (``sequence.py``) when its tokens
are sharded. A `Region` uses f* and g* as they are. What enters is read by linear layers alone, so there f and g are
one function with those layers: it saves no more than came in, and sends while it multiplies.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from playbook.model.linear import Linear, cast_once
from playbook.parallel.chunked import gather_matmul, matmul_scatter
from playbook.parallel.sequence import Crossing, g_star, start_gather, start_scatter


def f(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Into a region, the stream being whole: ``x`` as it is; backward adds up what the ranks made of it."""
    return Crossing.apply(x, group, _same, _all_reduced)


def f_star(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Out of a region: the sum of the ranks' parts of ``x``; backward hands each the same gradient."""
    return Crossing.apply(x, group, _all_reduced, _same)


def _same(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    return x.view_as(x)


def _all_reduced(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total


class _ReduceOwn(torch.autograd.Function):
    """f* that adds up where ``x`` lies: for what nobody else reads, and no function has saved."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return gradient, None


def start_all_reduce(x: Tensor, group: dist.ProcessGroup) -> Callable[[], Tensor]:
    """Begin to add up ``x`` over the ranks, in place: what is returned waits, and gives it. No graph."""
    work = dist.all_reduce(x, group=group, async_op=True)

    def finish() -> Tensor:
        work.wait()
        return x

    return finish


class Region:
    """Where a rank has some of the hidden features: attention, the MLP, the embedding, the output head.

    ``sequence`` says what lies outside: the whole residual stream on every rank, or some of its tokens on each.
    ``overlap`` says how messages and products share the time: one after the other ("none"), side by side in backward
    ("async"), or both taken apart into chunks ("chunked").
    """

    def __init__(self, group: dist.ProcessGroup, sequence: bool = False, overlap: str = "async"):
        self.group, self.sequence, self.overlap = group, sequence, overlap

    def enter(self, layers: Sequence[Linear], x: Tensor) -> tuple[Tensor, ...]:
        """The outputs of column-parallel layers for the region's input, which crosses the border once for all of them.

        (b, s, h), or (b, s/t, h) with ``sequence`` -> (b, s, out/t) each.
        """
        adapters = [one.adapter for one in layers if one.adapter]
        both = [*layers, *(one.down for one in adapters)]
        parameters = [p for one in both for p in (one.weight, one.bias)]
        found = _Columns.apply(cast_once(x), self, both, *parameters)
        if not adapters:
            return found
        outputs, inside = found[: len(layers)], found[len(layers) :]
        return tuple(add(y, u) for add, y, u in zip(adapters, outputs, inside, strict=True))

    def leave(self, x: Tensor) -> Tensor:
        """The sum of the ranks' partial sums, whole or of this rank's tokens: f* or g*.

        ``x`` is overwritten: a layer has just made it for this, so that f* needs no memory of its own.
        """
        if self.sequence:
            return g_star(x, self.group)
        whole = x.is_contiguous() and not x._is_view()  # in fp16, torch's products are views of matrices
        return _ReduceOwn.apply(x, self.group) if whole else f_star(x, self.group)

    def fetch(self, own: Sequence[Tensor], b: int) -> Callable[[], list[Tensor]]:
        """Begin to bring the tensors that are the region's input back to where all its tokens are needed.

        Of ``b`` samples: (b, s/t, …) or (b·s/t, …) -> (b, s, …); scalars are the same everywhere.
        """
        if not self.sequence:
            return lambda: list(own)
        tensors = [t.view(b, -1, t.shape[-1]) for t in own if t.dim()]
        coming = [self._under_way(start_gather(t, self.group)) for t in tensors]
        return lambda: [finish() for finish in coming] + [t for t in own if not t.dim()]

    def start_sum(self, gradients: Sequence[Tensor], layers: Sequence[Linear]) -> Callable[[], Tensor]:
        """Begin to add up Σ dy·W over layers and ranks: (b, s, h) or, with ``sequence``, this rank's (b, s/t, h)."""
        if self.overlap == "chunked":
            some = partial(input_gradient, gradients, layers)
            done = matmul_scatter(some, gradients[0].shape[1], self.group)
            return lambda: done
        own = input_gradient(gradients, layers)
        start = start_scatter if self.sequence else start_all_reduce
        return self._under_way(start(own, self.group))

    def _under_way(self, finish: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if self.overlap == "none":
            done = finish()
            return lambda: done
        return finish


def input_gradient(gradients: Sequence[Tensor], layers: Sequence[Linear], some=slice(None)) -> Tensor:
    """Σ dy·W over layers that read the same x, for some of the tokens: (b, s, out/t) each -> (b, s, h)."""
    total: Tensor | None = None
    for dy, layer in zip(gradients, layers, strict=True):
        total = layer.input_gradient(dy[:, some], total)
    assert total is not None
    return total


class _Columns(torch.autograd.Function):
    """f or g, then the linear layers behind it: x -> x·Wᵀ + b for each.

    Of x the rank's own tokens are saved, and backward gathers the others again. What it sends is under way while it
    multiplies: the tokens of x while dx is computed, which does not need them; dx while the gradients of W are.
    """

    @staticmethod
    def forward(ctx, own: Tensor, region: Region, layers: Sequence[Linear], *parameters: Tensor | None):
        products = layers[0].products
        learns = any(one.weight.requires_grad for one in layers)
        taken = products.take(own)
        kept = products.keep(taken) if learns else ()
        ctx.save_for_backward(*kept, *parameters[0::2])
        ctx.region, ctx.layers, ctx.kept, ctx.samples = region, layers, len(kept), len(own)
        if region.overlap == "chunked":
            return tuple(gather_matmul(own, [one.output for one in layers], region.group)[0])
        rows = products.kept(*region.fetch(products.send(taken), len(own))())  # (b·s, h)
        return tuple(one.output(rows).unflatten(0, (len(own), -1)) for one in layers)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        region: Region = ctx.region
        layers: Sequence[Linear] = ctx.layers
        deferred, products = layers[0].deferred, layers[0].products
        # Not their graphs: gradients that wait keep what they need.
        own = [t.detach() for t in ctx.saved_tensors[: ctx.kept]]
        waits = deferred is not None and deferred.collecting
        fetch = functools.partial(region.fetch, own, ctx.samples)
        fetched = (lambda: fetch()()) if waits else fetch()
        rows = functools.cache(lambda: products.kept(*fetched()))  # (b·s, h), gathered once for all layers
        dx = region.start_sum(gradients, layers)
        found: list[Tensor | None] = []
        for layer, gradient in zip(layers, gradients, strict=True):
            dy = gradient.flatten(0, -2)  # (b·s, out/t)
            db = None if layer.bias is None else dy.sum(0).to(layer.bias.dtype)
            found += [layer.weight_gradient(dy, rows), db]
        return dx(), None, None, *found


class ChunkedRows(torch.autograd.Function):
    """x·Wᵀ of a row-parallel layer and g*, chunk by chunk; backward is g and a product, chunk by chunk."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, layer: Linear, region: Region) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.region, ctx.layer = region, layer
        return matmul_scatter(lambda some: layer.output(x[:, some]), x.shape[1], region.group)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, _ = ctx.saved_tensors
        layer: Linear = ctx.layer
        (dx,), whole = gather_matmul(gradient, [layer.input_gradient], ctx.region.group, keep=True)
        assert whole is not None
        kept = x.detach()
        return dx, layer.weight_gradient(whole.flatten(0, -2), lambda: kept.flatten(0, -2)), None, None
