"""Linear layers, and the three matrix products that they are made of: y = x·Wᵀ, dx = dy·W, dW = dyᵀ·x.

All that a model multiplies goes through here, whole layers and those cut over ranks. Two things can be changed without
touching a layer: what multiplies, and in which precision (`Products`), and *when* dW is computed. Backward needs dx at
once, for the layer before waits for it; dW nobody waits for until the optimizer, so that it can be deferred
(`DeferredGradients`): what zero-bubble schedules call W (Qi et al. 2023, arXiv 2401.10241). Biases and norms, which are
cheap, are not deferred.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from playbook.precision.scaling import Quantized

    #: An input as products take it.
    Taken: TypeAlias = Tensor | Quantized


def cast_once(x: Tensor) -> Tensor:
    """``x`` in autocast's dtype, for layers that share it: each would otherwise make, and keep, a copy of its own."""
    device = x.device.type
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


class Products:
    """The three products of a linear layer, as PyTorch computes them. Weights are cast to what they meet.

    Others may take an input in another form (`take`), in which it is kept for backward (`keep`) and comes back (`kept`).
    What they learn of tensors from step to step is their ``history``, which those of a model share.
    """

    history: Any = None
    #: Whether a weight that is sent in the form in which it is multiplied is multiplied as if it had been sent whole.
    sends_weights = False

    def take(self, x: Tensor) -> Taken:
        """An input (…, in) as `output` takes it; for layers that read the same tensor it is made once."""
        return x

    def keep(self, x: Taken) -> tuple[Tensor, ...]:
        """The tensors that backward needs of what was taken, a row (…, ·) for each token, or scalars."""
        assert isinstance(x, Tensor)
        return (x,)

    def send(self, x: Taken) -> tuple[Tensor, ...]:
        """The tensors that other ranks need of what was taken for `output`, as `keep` gives them."""
        return self.keep(x)

    def kept(self, *saved: Tensor) -> Taken:
        """The input again, from the tensors of `keep` or `send`: the rows (n, in)."""
        return saved[0].flatten(0, -2)

    def over(self, group: dist.ProcessGroup, *tensors: str) -> None:
        """Of these, "x", "dy" or "weight", the ranks of ``group`` each have a part."""

    def pack(self, rows: Tensor) -> Tensor:
        """Rows (n, in) as they travel to a rank that will take them, (n, ·): nothing of what is taken is lost."""
        return rows

    def unpack(self, packed: Tensor, like: Tensor) -> Tensor:
        """What `pack` made of rows, as rows again; ``like`` others of theirs."""
        return packed

    def remember_no_weight(self) -> None:
        """Keep no copy of the weight in another form, which would stay when the weight itself has gone."""

    def output(self, x: Taken, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b: (…, in), (out, in), (out,) -> (…, out); of a form that has rows alone, (n, out)."""
        assert isinstance(x, Tensor)
        if weight.dtype == x.dtype:
            return F.linear(x, weight, bias)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    def input_gradient(self, dy: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
        """dy·W: (n, out), (out, in) -> (n, in); added to ``onto`` if that is given."""
        weight = weight if weight.dtype == dy.dtype else weight.to(dy.dtype)
        return dy @ weight if onto is None else onto.addmm_(dy, weight)

    def weight_gradient(self, dy: Tensor, x: Taken, onto: Tensor | None = None) -> Tensor:
        """dyᵀ·x: (n, out), (n, in) -> (out, in); added to ``onto``, of the same dtype, if that is given."""
        assert isinstance(x, Tensor)
        return dy.t() @ x if onto is None else onto.addmm_(dy.t(), x)

    def grouped_output(self, x: Taken, weight: Tensor, ends: Tensor) -> Tensor:
        """x·W[e]ᵀ for the rows of each group e: (n, in), (E, out, in), (E,) int32 -> (n, out)."""
        assert isinstance(x, Tensor)
        return self.grouped(x, weight.to(x.dtype).transpose(1, 2), ends)

    def grouped_input_gradient(self, dy: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """dy·W[e] for the rows of each group e: (n, out), (E, out, in), (E,) int32 -> (n, in)."""
        return self.grouped(dy, weight.to(dy.dtype), ends)

    def grouped(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        """Rows up to ends[0] of x times weight[0], the next up to ends[1] times weight[1], and so on.

        (n, in), (E, in, out), (E,) int32 -> (n, out).
        """
        if _takes_groups(x, weight):
            return torch._grouped_mm(x, weight, offs=ends)
        parts = x.split(counts_of(ends))
        return torch.cat([part @ one for part, one in zip(parts, weight.unbind(), strict=True)])

    def grouped_weight_gradient(self, dy: Tensor, x: Taken, ends: Tensor) -> Tensor:
        """dyᵀ·x of each group of rows: (n, out), (n, in), (E,) int32 -> (E, out, in)."""
        assert isinstance(x, Tensor)
        if _takes_groups(x, dy):
            return torch._grouped_mm(dy.t(), x, offs=ends)
        counts = counts_of(ends)
        return torch.stack([d.t() @ p for d, p in zip(dy.split(counts), x.split(counts), strict=True)])


def _takes_groups(x: Tensor, y: Tensor) -> bool:
    """Whether torch has one kernel for all groups: on a GPU for bfloat16 alone, and for rows of whole 16 bytes."""
    aligned = all(t.shape[-1] * t.element_size() % 16 == 0 for t in (x, y))
    return aligned and (x.dtype == torch.bfloat16 or not x.is_cuda)


def counts_of(ends: Tensor) -> list[int]:
    """How many rows each group has."""
    return ends.diff(prepend=ends.new_zeros(1)).tolist()


#: PyTorch's own products, through which autograd sees as well.
TORCH = Products()


class Linear(nn.Linear):
    """torch's linear layer, whose products and whose deferral can be set; it is torch's own as long as neither is."""

    products: Products = TORCH
    deferred: DeferredGradients | None = None
    #: What adds to the output y what it makes of x: ``adapter(y, adapter.down(x))`` (``model/lora.py``).
    adapter: Any = None

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:  # numbers of a model without memory are thrown away
            super().reset_parameters()

    def forward(self, x: Tensor) -> Tensor:  # (…, in) -> (…, out)
        if self.adapter is None:
            return self._multiplied(x)
        x = cast_once(x)
        return self.adapter(self._multiplied(x), self.adapter.down(x))

    def _multiplied(self, x: Tensor) -> Tensor:
        if self.deferred is None and self.products is TORCH and self.weight.requires_grad:
            return F.linear(x, self.weight, self.bias)
        x = cast_once(x)
        never_asked = self.deferred is None or not self.deferred.wanted
        # Under autocast torch's own would keep a 16-bit copy of each weight for each micro-batch.
        if never_asked and self.products is TORCH and x.dtype == self.weight.dtype:
            return F.linear(x, self.weight, self.bias)
        return LinearFunction.apply(x, self.weight, self.bias, self)

    def forward_all(self, layers: Sequence[Linear], x: Tensor) -> Iterator[Tensor]:
        """The outputs of ``layers``, of which this is the first, for the same x. Layers cut over ranks share more."""
        return (layer(x) for layer in layers)

    # Without a graph, for those who write the backward pass themselves.

    def output(self, x: Taken) -> Tensor:
        """x·Wᵀ + b: (…, in) -> (…, out)."""
        return self.products.output(x, self.weight, self.bias)

    def input_gradient(self, dy: Tensor, onto: Tensor | None = None) -> Tensor:
        """dy·W: (…, out) -> (…, in); added to ``onto`` if that is given."""
        flat = None if onto is None else onto.flatten(0, -2)
        dx = self.products.input_gradient(dy.flatten(0, -2), self.weight, flat)
        return dx.view(*dy.shape[:-1], -1) if onto is None else onto

    def weight_gradient(self, dy: Tensor, x: Callable[[], Taken]) -> Tensor | None:
        """dW for autograd, of dy (n, out) and what gives x (n, in); None if not wanted, deferred, or added already."""
        if not self.weight.requires_grad:
            return None
        if self.deferred is None:
            return self.weight_product(dy, x()).to(self.weight.dtype)
        return self.deferred.take(self, dy, x)

    def weight_product(self, dy: Tensor, x: Taken, onto: Tensor | None = None) -> Tensor:
        """dyᵀ·x of dy (n, out) and x (n, in), in the dtype of both; added to ``onto`` if that is given."""
        return self.products.weight_gradient(dy, x, onto)


class GroupedLinear(nn.Module):
    """As many linear layers as ``groups``, each for rows of its own; ``deferred`` is as `Linear`'s."""

    products: Products = TORCH
    deferred: DeferredGradients | None = None

    def __init__(self, groups: int, inputs: int, outputs: int, bias: bool = True):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(groups, outputs, inputs))
        self.bias = nn.Parameter(torch.empty(groups, outputs)) if bias else None
        self.share_of_bias = 1.0  # where outputs are partial sums, one of the ranks adds the bias

    def forward(self, x: Tensor, ends: Tensor) -> Tensor:
        """x (n, in), of which rows up to ends[0] are the first group's, and so on -> (n, out)."""
        bias = self.bias if self.bias is None or self.share_of_bias == 1 else self.bias * self.share_of_bias
        return GroupedFunction.apply(cast_once(x), self.weight, bias, self, ends)


class GroupedFunction(torch.autograd.Function):
    """x·W[e]ᵀ + b[e] for the rows of each group e; backward gives dx and db, and dW unless that is deferred."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, layer: GroupedLinear, ends: Tensor):
        products = layer.products
        taken = products.take(x)
        ctx.save_for_backward(weight, ends, *products.keep(taken))
        ctx.layer, ctx.biased = layer, bias is not None
        y = products.grouped_output(taken, weight, ends)
        return y if bias is None else y + bias.to(y.dtype)[_groups(ends, len(y))]

    @staticmethod
    def backward(ctx, dy: Tensor):
        weight, ends, *kept = (t.detach() for t in ctx.saved_tensors)
        group, dy = Group(ctx.layer, ends), dy.contiguous()
        dx = group.products.grouped_input_gradient(dy, weight, ends) if ctx.needs_input_grad[0] else None
        db = None
        if ctx.biased:
            db = weight.new_zeros(weight.shape[:2]).index_add_(0, _groups(ends, len(dy)), dy.to(weight.dtype))
        return dx, group.weight_gradient(dy, lambda: group.products.kept(*kept)), db, None, None


def _groups(ends: Tensor, rows: int) -> Tensor:
    """The group of each row, (n,)."""
    return torch.searchsorted(ends, torch.arange(rows, device=ends.device, dtype=ends.dtype), right=True)


class Group(NamedTuple):
    """A grouped layer and the ends of the rows that it met: what a deferred gradient needs to know of it."""

    layer: GroupedLinear
    ends: Tensor

    @property
    def weight(self) -> nn.Parameter:
        return self.layer.weight

    @property
    def products(self) -> Products:
        return self.layer.products

    def weight_gradient(self, dy: Tensor, x: Callable[[], Taken]) -> Tensor | None:
        """dW for autograd, as `Linear.weight_gradient`."""
        if not self.weight.requires_grad:
            return None
        if self.layer.deferred is None:
            return self.weight_product(dy, x()).to(self.weight.dtype)
        return self.layer.deferred.take(self, dy, x)

    def weight_product(self, dy: Tensor, x: Taken, onto: Tensor | None = None) -> Tensor:
        """dyᵀ·x of each group, (E, out, in); added to ``onto`` if that is given."""
        found = self.products.grouped_weight_gradient(dy, x, self.ends)
        return found if onto is None else onto.add_(found)


def linears(x: Tensor, layers: Sequence[Linear]) -> Iterator[Tensor]:
    """Outputs of layers that read the same input (…, in), one after the other, each computed when it is asked for."""
    return layers[0].forward_all(layers, cast_once(x))


class LinearFunction(torch.autograd.Function):
    """x·Wᵀ + b; backward gives dx and db, and dW unless that is deferred."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, layer: Linear) -> Tensor:
        products = layer.products
        taken = products.take(x)
        ctx.save_for_backward(weight, *(products.keep(taken) if weight.requires_grad else ()))
        ctx.layer, ctx.biased = layer, bias is not None
        return products.output(taken, weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    def backward(ctx, dy: Tensor):
        if torch.is_grad_enabled():  # what `once_differentiable` does, at a tenth of the time
            raise RuntimeError("a layer with deferral is differentiated once: leave out create_graph=True")
        # Without their graphs, which would keep the stage's input for as long as a gradient waits.
        weight, *kept = (t.detach() for t in ctx.saved_tensors)
        layer: Linear = ctx.layer
        rows = dy.flatten(0, -2)  # (n, out)
        dx = layer.input_gradient(dy) if ctx.needs_input_grad[0] else None
        db = rows.sum(0).to(weight.dtype) if ctx.biased else None
        return dx, layer.weight_gradient(rows, lambda: layer.products.kept(*kept)), db, None


class Factors(NamedTuple):
    """What the gradient of a layer's weight (out, in) is the product of: dy (n, out), and what gives x (n, in) then."""

    layer: Linear | Group
    dy: Tensor
    x: Callable[[], Taken]


class DeferredGradients:
    """Gradients of weights that are deferred while `collect` is on.

    ``in_place``: also those that are not deferred are added to ``.grad`` at once, and hooks of the weight do not hear of
    it. That saves a matrix and its addition, and is for those who know without hooks when a gradient is complete.
    ``wanted``: whether the backward of what is computed now is to ask; if not, layers are torch's own, which ask less
    of Python.
    """

    def __init__(self, in_place: bool = False) -> None:
        self.in_place, self.wanted = in_place, True
        self._now: list[Factors] | None = None

    @property
    def collecting(self) -> bool:
        """Whether gradients are deferred now."""
        return self._now is not None

    @contextmanager
    def collect(self) -> Iterator[list[Factors]]:
        """Backward passes in this block leave out weights of linear layers; what is given holds them for `compute`."""
        before, self._now = self._now, []
        try:
            yield self._now
        finally:
            self._now = before

    def take(self, layer: Linear | Group, dy: Tensor, x: Callable[[], Taken]) -> Tensor | None:
        """The gradient of a layer's weight, for autograd; None where it waits, or was added in place instead."""
        if self._now is not None:
            self._now.append(Factors(layer, dy, x))
            return None
        return self._product(layer, dy, x())

    @torch.no_grad()
    def compute(self, kept: list[Factors]) -> None:
        """Add the gradients that were deferred to ``.grad``, the first one first, and forget what they needed."""
        while kept:
            layer, dy, x = kept.pop(0)
            gradient = self._product(layer, dy, x())
            if gradient is not None:
                # As a backward pass that ends here: whoever listens to the gradient hears of it.
                torch.autograd.backward([layer.weight], [gradient])

    def _product(self, layer: Linear | Group, dy: Tensor, x: Taken) -> Tensor | None:
        weight = layer.weight
        if self.in_place and weight.grad is not None and weight.dtype == dy.dtype == x.dtype:
            layer.weight_product(dy, x, onto=weight.grad)
            return None
        return layer.weight_product(dy, x).to(weight.dtype)


def linear_layers(model: nn.Module) -> Iterator[Linear | GroupedLinear]:
    """All linear layers of ``model``, whole or cut, and grouped ones."""
    return (module for module in model.modules() if isinstance(module, Linear | GroupedLinear))


def defer_weights(model: nn.Module, deferred: DeferredGradients) -> None:
    """Have every linear layer of ``model``, whole or cut, ask ``deferred`` whether its weight's gradient is to wait."""
    for layer in linear_layers(model):
        layer.deferred = deferred
