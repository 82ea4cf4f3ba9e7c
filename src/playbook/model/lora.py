"""Parts of a model that do not learn, and LoRA: beside each frozen linear layer of the blocks a product of two small
matrices does, y = W·x + b + 2·B·A·x.

Hu et al. 2021 (arXiv 2106.09685), section 4.1: A of (r, in) is drawn at random and B of (out, r) is zero, so that a run
begins at the loss of the model that it adapts. Names, numbers and scale are those of PEFT's ``LoraConfig(r=r,
lora_alpha=2 * r, target_modules="all-linear")``: A is Kaiming uniform with a = √5, and what is added is scaled by
alpha / r = 2. Norms, embedding and output head are frozen as well. Merged into W the adapters cost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.model.linear import Linear, linear_layers
from playbook.model.transformer import Transformer
from playbook.parallel.flat import Named
from playbook.parallel.placement import Shard
from playbook.parallel.zero import shard_of
from playbook.parallel.zero3 import Gathered, gathered
from playbook.seeding import derive_seed

#: alpha / r.
SCALE = 2.0


def part_of(name: str) -> str:
    """The part of a model, of `block.PARTS`, that a parameter belongs to by its name: norms in attention are norms."""
    if "norm" in name:
        return "norms"
    return next((part for part in ("embedding", "attention", "mlp", "head") if part in name), "")


class Adapter(NamedTuple):
    """A, ``down`` to r features, and B, ``up`` again."""

    down: Linear
    up: Linear

    def __call__(self, y: Tensor, inside: Tensor) -> Tensor:
        """The layer's output and A·x: (…, out), (…, r) -> (…, out). Scaled where it is small, B sees the layer's dy."""
        return y + self.up(inside * SCALE)

    def cut(self, shard: Shard) -> Adapter:
        """A rank's: of a layer cut by rows B is cut with it and A whole, of one cut by columns the other way round."""
        first, second = (_linear(one.weight.detach()) for one in self)
        layer = second if shard.dim == 0 else first
        layer.weight = nn.Parameter(shard.of(layer.weight.detach()).clone())
        layer.out_features, layer.in_features = layer.weight.shape
        return Adapter(first, second)

    def onto(self, layer: Linear) -> None:
        """Have ``layer`` add it to its output."""
        layer.lora_A, layer.lora_B = self
        layer.adapter = self


def _linear(weight: Tensor) -> Linear:
    layer = Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight)
    return layer


@torch.no_grad()
def freeze(model: Transformer, seed: int = 0) -> None:
    """Freeze all but the parts of ``model`` that its shape trains; or all, and give linear layers of its blocks adapters.

    Before the model is cut over ranks. Each A is drawn in fp32 on the CPU from ``seed`` and its name, as all weights are.
    """
    model.requires_grad_(False)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(part_of(name) in model.shape.trained)
    if not model.shape.lora:
        return
    rank, named = model.shape.lora, {module: name for name, module in model.named_modules()}
    for layer in list(linear_layers(model.blocks)):
        assert isinstance(layer, Linear)
        w, (outputs, inputs) = layer.weight, layer.weight.shape
        down, up = w.new_empty(rank, inputs), w.new_zeros(outputs, rank)
        if not w.is_meta:
            generator = torch.Generator().manual_seed(derive_seed(seed, f"{named[layer]}.lora_A.weight"))
            bound = 1 / math.sqrt(inputs)  # Kaiming uniform with a = √5
            down.copy_(torch.empty(rank, inputs).uniform_(-bound, bound, generator=generator))
        Adapter(_linear(down), _linear(up)).onto(layer)


class FrozenShards(Gathered):
    """What does not learn, sharded and gathered as `Zero3` does it; no gradient is sent, and nothing updated."""

    def __init__(self, model: Transformer, group: dist.ProcessGroup, parameters: Named, **how: Any):
        order, buckets, self.weights = gathered(model, group, parameters, **how)
        self.parameters, self.group = [(slot.name, slot.parameter) for slot in order.slots], group
        self.across, rank = self.weights.across, self.weights.group.rank()
        parts = [part for bucket in buckets for part in bucket.segments(rank)]
        self.leaves = [shard_of(self.weights, part) for part in parts]

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        yield
        self.weights.release()

    def finish(self) -> None:
        """Backward is over: of the unit that came last nobody else says so."""
        self.weights.release()

    def groups(self) -> list[dist.ProcessGroup]:
        return [self.weights.gathering]

    def tensors(self) -> dict[str, list[Tensor]]:
        return {"parameters": [self.weights.vector]}
