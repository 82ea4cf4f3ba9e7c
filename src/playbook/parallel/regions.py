"""The borders of a tensor-parallel region: f, g and their conjugates (Shoeybi et al. 2019; Korthikanti et al. 2022).

Between regions every rank has the whole residual stream (or, with sequence parallelism, some of its tokens); inside, each
rank has some heads, or some columns of the MLP. Whatever crosses a border forward is undone by its conjugate backward:

===========  ======================  ======================
at a border  forward                 backward
===========  ======================  ======================
f            nothing                 all-reduce
f*           all-reduce              nothing
g            all-gather of tokens    reduce-scatter
g*           reduce-scatter          all-gather of tokens
===========  ======================  ======================

f and f* (the papers say f̄) enter and leave a region when the stream is whole; g and g* (``sequence.py``) when its tokens
are shared out. A `Region` uses f* and g* as they are. What enters is read by linear layers alone, so there f and g are
one function with those layers: it saves no more than came in, and sends while it multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.model.attention import cast_once
from playbook.parallel.chunked import add_products, gather_matmul, matmul_scatter
from playbook.parallel.sequence import g_star, gather_tokens, start_gather, start_scatter
from playbook.parallel.weight_gradients import WeightGradients, linear

if TYPE_CHECKING:
    from playbook.parallel.tensor import ColumnLinear

#: How a region's messages and products share the time: one after the other, side by side in backward, or in chunks.
OVERLAP = ("none", "async", "chunked")


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.group)
        return total, None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        return gradient, None


class _ReduceOwn(_Reduce):
    """f* that adds up where ``x`` lies: for what nobody else reads, and no function has saved."""

    @staticmethod
    def forward(ctx, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(x)
        dist.all_reduce(x, group=group)
        return x


def f(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Into a region, the stream being whole: ``x`` as it is; backward adds up what the ranks made of it."""
    return _Copy.apply(x, group)


def f_star(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Out of a region: the sum of the ranks' parts of ``x``; backward hands each the same gradient."""
    return _Reduce.apply(x, group)


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
    ``overlap`` is one of `OVERLAP`. The column-parallel layers that read the region's input are its ``columns``.
    """

    def __init__(self, group: dist.ProcessGroup, sequence: bool = False, overlap: str = "async"):
        if overlap not in OVERLAP:
            raise ConfigError(unknown("tensor_overlap", overlap, OVERLAP))
        if overlap == "chunked" and not sequence:
            raise ConfigError("tensor_overlap is 'chunked', which takes gathers of tokens apart: it needs sp")
        self.group, self.sequence, self.overlap = group, sequence, overlap
        self.columns: list[ColumnLinear] = []
        self.later = WeightGradients()  # collects none, until a pipeline gives its own
        self._input: tuple[Tensor, int, bool] | None = None
        self._outputs: dict[ColumnLinear, Tensor] = {}

    def column(self, layer: ColumnLinear, x: Tensor) -> Tensor:
        """The output of one of ``columns``: (b, s, h), or (b, s/t, h) with ``sequence`` -> (b, s, out/t).

        The first layer to be asked for an input has the others work on it, too: it crosses the border once.
        """
        asked = (x, 0 if x.is_inference() else x._version, torch.is_grad_enabled())
        same = self._input is not None and self._input[0] is x and self._input[1:] == asked[1:]
        if not same or layer not in self._outputs:
            parameters = [p for one in self.columns for p in (one.weight, one.bias)]
            outputs = _Columns.apply(cast_once(x), self, *parameters)
            self._input, self._outputs = asked, dict(zip(self.columns, outputs, strict=True))
        output = self._outputs.pop(layer)
        if not self._outputs:
            self._input = None
        return output

    def row(self, x: Tensor, weight: Tensor) -> Tensor:
        """What a row-parallel layer makes of x (b, s, in/t), summed over ranks: (b, s, out), or (b, s/t, out)."""
        if self.overlap == "chunked":
            return _ChunkedRows.apply(cast_once(x), weight, self)
        return self.leave(linear(x, weight, None, self.later))

    def leave(self, x: Tensor) -> Tensor:
        """The sum of the ranks' addends, whole or of this rank's tokens: f* or g*.

        ``x`` is overwritten: a layer has just made it for this, so that f* needs no memory of its own.
        """
        if self.sequence:
            return g_star(x, self.group)
        return _ReduceOwn.apply(x, self.group) if x.is_contiguous() else f_star(x, self.group)

    def fetch(self, own: Tensor) -> Callable[[], Tensor]:
        """Begin to bring the region's input back to where all of it is needed."""
        return self._under_way(start_gather(own, self.group)) if self.sequence else lambda: own

    def start_sum(self, gradients: Sequence[Tensor], factors: Sequence[Tensor]) -> Callable[[], Tensor]:
        """Begin to add up Σ gradient·W over ranks: (b, s, h) or, with ``sequence``, this rank's (b, s/t, h)."""
        if self.overlap == "chunked":
            done = matmul_scatter(gradients, factors, self.group)
            return lambda: done
        addend = add_products(gradients, factors)
        start = start_scatter if self.sequence else start_all_reduce
        return self._under_way(start(addend, self.group))

    def put_off(self, weights: Sequence[Tensor], columns: Sequence[Tensor], own: Tensor) -> None:
        """Keep the gradients of column-parallel weights for later: then the tokens of ``own`` are gathered, once."""
        gathered: list[Tensor] = []
        kept = own.detach()  # without its graph, which would keep the stage's input

        def rows() -> Tensor:
            if not gathered:
                gathered.append(self.fetch(kept)().flatten(0, -2))
            return gathered[0]

        for weight, gradient in zip(weights, columns, strict=True):
            self.later.put_off(cast(nn.Parameter, weight), gradient, rows)

    def _under_way(self, finish: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if self.overlap == "none":
            done = finish()
            return lambda: done
        return finish


class _Columns(torch.autograd.Function):
    """f or g, then the linear layers behind it: x -> x·Wᵀ + b for each.

    Of x the rank's own tokens are saved, and backward gathers the others again. What it sends is under way while it
    multiplies: the tokens of x while dx is computed, which does not need them; dx while the gradients of W are.
    """

    @staticmethod
    def forward(ctx, own: Tensor, region: Region, *parameters: Tensor | None):
        weights, biases = cast(Sequence[Tensor], parameters[0::2]), parameters[1::2]
        ctx.save_for_backward(own, *weights)
        ctx.region, ctx.biased = region, [bias is not None for bias in biases]
        ctx.parameters = weights
        pairs = list(zip(weights, biases, strict=True))
        if region.overlap == "chunked":
            return tuple(gather_matmul(own, [_cast(own, *pair) for pair in pairs], region.group)[0])
        x = gather_tokens(own, region.group) if region.sequence else own
        return tuple(F.linear(x, *_cast(x, *pair)) for pair in pairs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *gradients: Tensor):
        own, *weights = ctx.saved_tensors
        region: Region = ctx.region
        put_off = region.later.collecting
        x = None if put_off else region.fetch(own)
        dx = region.start_sum(gradients, [w.to(own.dtype).t() for w in weights])
        columns = [gradient.flatten(0, -2) for gradient in gradients]  # (b·s, out/t) each
        found: list[Tensor | None] = []
        if x is None:
            region.put_off(ctx.parameters, columns, own)
            found = [None] * len(weights)
        else:
            rows = x().flatten(0, -2)
            found = [
                region.later.product(w, c, rows) if w.requires_grad else None
                for c, w in zip(columns, ctx.parameters, strict=True)
            ]
        each = zip(found, columns, weights, ctx.biased, strict=True)
        pairs = [(dw, c.sum(0).to(w.dtype) if biased else None) for dw, c, w, biased in each]
        return dx(), None, *(gradient for pair in pairs for gradient in pair)


def _cast(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return weight.to(x.dtype), None if bias is None else bias.to(x.dtype)


class _ChunkedRows(torch.autograd.Function):
    """x·Wᵀ and g*, chunk by chunk; backward is g and a product, chunk by chunk."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, region: Region) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.region, ctx.parameter = region, weight
        return matmul_scatter([x], [weight.to(x.dtype)], region.group)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        x, weight = ctx.saved_tensors
        region: Region = ctx.region
        (dx,), whole = gather_matmul(
            gradient, [(weight.to(gradient.dtype).t(), None)], region.group, keep=True
        )
        assert whole is not None
        rows, columns = whole.flatten(0, -2), x.detach().flatten(0, -2)
        if region.later.collecting:
            region.later.put_off(ctx.parameter, rows, lambda: columns)
            return dx, None, None
        return dx, region.later.product(ctx.parameter, rows, columns) if weight.requires_grad else None, None
