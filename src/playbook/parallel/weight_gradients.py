"""The gradient of a linear layer's weight, put off: what zero-bubble schedules call W (Qi et al. 2023, arXiv 2401.10241).

Backward through y = x·Wᵀ is two products that do not need each other: dx = dy·W, which the layer before waits for, and
dW = dyᵀ·x, which nobody waits for until the optimizer. Autograd does both at once. Here the second can be kept for later,
with the two tensors that it needs. Biases and norms, which are cheap, are not put off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from playbook.model.attention import cast_once


class Factors(NamedTuple):
    """What the gradient of a weight (out, in) is the product of: dy (n, out), and what gives x (n, in) then."""

    dy: Tensor
    x: Callable[[], Tensor]


class WeightGradients:
    """Gradients of weights that are put off while `collect` is on: each a weight, and the factors of its gradient.

    ``in_place``: also those that are not put off are added to ``.grad`` at once, and hooks of the weight do not hear of
    it. That saves a matrix and its addition, and is for those who know without hooks when a gradient is complete.
    ``wanted``: whether the backward of what is computed now is to be asked; if not, whole layers are torch's own, which
    ask less of Python (but not under autocast: torch would keep a 16-bit copy of each weight for each micro-batch).
    """

    def __init__(self, in_place: bool = False) -> None:
        self.in_place, self.wanted = in_place, True
        self._now: list[tuple[nn.Parameter, Factors]] | None = None

    @property
    def collecting(self) -> bool:
        """Whether gradients are put off now."""
        return self._now is not None

    @contextmanager
    def collect(self) -> Iterator[list[tuple[nn.Parameter, Factors]]]:
        """Backward passes in this block leave out weights of linear layers; what is given holds them for `compute`."""
        before, self._now = self._now, []
        try:
            yield self._now
        finally:
            self._now = before

    def put_off(self, weight: nn.Parameter, dy: Tensor, x: Callable[[], Tensor]) -> None:
        """Keep a weight's gradient for later."""
        assert self._now is not None
        if weight.requires_grad:
            self._now.append((weight, Factors(dy, x)))

    def product(self, weight: nn.Parameter, dy: Tensor, x: Tensor) -> Tensor | None:
        """The gradient dyᵀ·x (out, in) of a weight, for autograd; None where it was added in place instead."""
        if self.in_place and self._add_product(weight, dy, x):
            return None
        return (dy.t() @ x).to(weight.dtype)

    @torch.no_grad()
    def compute(self, kept: list[tuple[nn.Parameter, Factors]]) -> None:
        """Add the gradients that were put off to ``.grad``, the first one first, and forget what they needed."""
        while kept:
            weight, factors = kept.pop(0)
            gradient = self.product(weight, factors.dy, factors.x())
            if gradient is not None:
                # As a backward pass that ends here: whoever listens to the gradient hears of it.
                torch.autograd.backward([weight], [gradient])

    def _add_product(self, weight: nn.Parameter, dy: Tensor, x: Tensor) -> bool:
        """Add dyᵀ·x to the gradient that is there, without a matrix in between; False where there is none to add to."""
        if weight.grad is None or not weight.dtype == dy.dtype == x.dtype:
            return False
        weight.grad.addmm_(dy.t(), x)
        return True


class _Linear(torch.autograd.Function):
    """x·Wᵀ + b; backward gives dx and db, and dW unless that is put off."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None, later: WeightGradients) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.later, ctx.biased, ctx.parameter = later, bias is not None, weight
        if weight.dtype == x.dtype:
            return F.linear(x, weight, bias)
        return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if torch.is_grad_enabled():  # what `once_differentiable` does, at a tenth of the time
            raise RuntimeError(
                "a linear layer of a pipeline is differentiated once: leave out create_graph=True"
            )
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)  # (n, out)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = (rows @ (weight if weight.dtype == rows.dtype else weight.to(rows.dtype))).view(x.shape)
        db = rows.sum(0).to(weight.dtype) if ctx.biased else None
        if ctx.later.collecting:
            kept = x.detach()  # without its graph, which would keep the stage's input
            ctx.later.put_off(ctx.parameter, rows, lambda: kept.flatten(0, -2))
            return dx, None, db, None
        if not ctx.needs_input_grad[1]:
            return dx, None, db, None
        return dx, ctx.later.product(ctx.parameter, rows, x.flatten(0, -2)), db, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, later: WeightGradients) -> Tensor:
    """``torch.nn.functional.linear`` whose weight gradient can be put off: (…, in) -> (…, out)."""
    return _Linear.apply(cast_once(x), weight, bias, later)


def put_off_weights(model: nn.Module, later: WeightGradients) -> None:
    """Have every linear layer of ``model``, whole or cut, ask ``later`` whether its weight's gradient is to wait."""
    for module in model.modules():
        region: Any = getattr(module, "region", None)
        if isinstance(module, nn.Linear):
            module.forward = partial(_forward, module, later)  # type: ignore[method-assign]
        elif region is not None:
            region.later = later


def _forward(layer: nn.Linear, later: WeightGradients, x: Tensor) -> Tensor:
    cast = cast_once(x)
    if not later.wanted and cast.dtype == layer.weight.dtype:
        return F.linear(cast, layer.weight, layer.bias)
    return _Linear.apply(cast, layer.weight, layer.bias, later)
