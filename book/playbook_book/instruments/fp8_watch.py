"""What quantizing does to a live model: of each layer's input, weight and gradient, what becomes 0 and what is cut.

    watch = FP8Watch(model)
    with watch:                # one entry of watch.steps for each time that it is entered
        trainer.step()
    watch.steps[-1]["blocks.0.mlp.down", "dy"].underflow

A run that multiplies in FP8 says nothing when its numbers leave the range of the format: they turn into 0, or into the
largest code, and the loss stalls. These are the numbers that say it.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.model.fp8 import FP8
from playbook.model.linear import linear_layers
from playbook.model.transformer import Transformer
from playbook.precision.formats import FORMATS
from playbook.precision.recipes import Groups
from playbook.precision.scaling import Quantized

if TYPE_CHECKING:
    from types import TracebackType

#: A layer, by its name in the model, and which of its tensors: "x", "dy" or "weight".
Place = tuple[str, str]


class Seen:
    """What quantizing a tensor has cost, over all the times that it was quantized in a step."""

    def __init__(self) -> None:
        self.amax = 0.0
        self.numbers = self.nonzero = self.zeroed = self.cut = 0
        self._wrong = self._whole = 0.0

    def note(self, x: Tensor, found: Quantized, largest: float) -> None:
        """x (n, m) became ``found``, in a format whose largest number is ``largest``."""
        wide, codes, scales = x.detach().float(), found.codes.float(), found.spread()
        size, nonzero = wide.abs(), int(wide.count_nonzero())
        self.amax = max(self.amax, float(size.max())) if wide.numel() else self.amax
        self.numbers += wide.numel()
        self.nonzero += nonzero
        self.zeroed += nonzero - int(codes.count_nonzero())  # a 0 stays one
        # A little more than the largest is rounded to it, not cut.
        self.cut += int((size > scales * (largest * (1 + 1e-6))).count_nonzero())
        self._wrong += _square((codes * scales).sub_(wide))
        self._whole += _square(wide)

    @property
    def underflow(self) -> float:
        """The share of nonzero numbers that became 0."""
        return self.zeroed / self.nonzero if self.nonzero else 0.0

    @property
    def saturated(self) -> float:
        """The share of numbers that were too large for their scale, and were cut to the largest code."""
        return self.cut / self.numbers if self.numbers else 0.0

    @property
    def error(self) -> float:
        """The norm of the error, relative to that of the tensor."""
        return (self._wrong / self._whole) ** 0.5 if self._whole else 0.0


def _square(x: Tensor) -> float:
    """The sum of squares; in double precision, as a fault can be large."""
    return float(torch.linalg.vector_norm(x, dtype=torch.float64)) ** 2


class FP8Watch:
    """While it is entered, watches all that the layers of ``model`` quantize, or those named in ``layers``.

    ``steps`` has an entry for each time that it was entered: what was lost by (layer, tensor). Layers that read one input
    quantize it once: it is the first one's, q's or gate's. ``gradient_norms`` are, at the end of each, those of the
    layers' weights, by name; where they were clipped, clipped.
    Raises ConfigError for a model none of whose layers multiplies in FP8.
    """

    def __init__(self, model: Transformer, layers: Collection[str] | None = None):
        known = {id(layer): layer for layer in linear_layers(model)}
        self._layers = {
            name: known[id(module)] for name, module in model.named_modules() if id(module) in known
        }
        self._watched = {
            name: products
            for name, layer in self._layers.items()
            if isinstance(products := layer.products, FP8) and (layers is None or name in layers)
        }
        if not self._watched:
            raise ConfigError("no layer of the model multiplies in FP8: call use_fp8(model, recipe) first")
        self.steps: list[dict[Place, Seen]] = []
        self.gradient_norms: list[dict[str, float]] = []

    def __enter__(self) -> FP8Watch:
        self.steps.append({})
        for name, products in self._watched.items():
            products.one_by_one = True
            vars(products)["_quantized"] = partial(self._note, name, products, products._quantized)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for products in self._watched.values():
            products.one_by_one = False
            del vars(products)["_quantized"]
        gradients = {name: layer.weight.grad for name, layer in self._layers.items()}
        self.gradient_norms.append(
            {name: float(grad.norm()) for name, grad in gradients.items() if grad is not None}
        )

    @torch.no_grad()
    def _note(
        self, name: str, products: FP8, quantized: object, what: str, x: Tensor, groups: Groups,
        scales: Tensor | None = None,
    ) -> Quantized:  # fmt: skip
        assert callable(quantized)
        found: Quantized = quantized(what, x, groups, scales)
        form = FORMATS[products.recipe.gradients if what == "dy" else products.recipe.forward]
        self.steps[-1].setdefault((name, what), Seen()).note(x, found, form.max)
        return found

    def share(self, what: str, of: str = "underflow") -> list[float]:
        """For each step, the mean over the layers of ``of``, "underflow", "saturated" or "error", of one tensor."""
        found = []
        for step in self.steps:
            here = [getattr(one, of) for (_, tensor), one in step.items() if tensor == what]
            found.append(sum(here) / len(here) if here else 0.0)
        return found
