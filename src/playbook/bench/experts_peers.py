"""Who takes turns in ``playbook bench experts``: transformers' block, paths to experts on other ranks, two layouts."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.bench.turns import OPTIMIZER, Batch, Run, RunOnMesh, Work
from playbook.layout import Layout
from playbook.model.moe import MoE, looped
from playbook.model.transformer import Transformer
from playbook.parallel.expert import make_path
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.shapes import ModelShape
from playbook.training.optimizer import adamw

#: Ranks that experts are spread over, and those of a node in two steps.
RANKS, NODE = 4, 2
#: Layouts that train the same.
LAYOUTS = (f"dp={RANKS},ep={RANKS}", f"tp={RANKS}")


@dataclass(frozen=True)
class OneLayer(Work):
    """Random inputs and targets (micro_batch, seq, hidden) of one layer; each rank has its own."""

    def batch(self, step: int, device: torch.device) -> Batch:
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        size = (2, self.micro_batch, self.seq, self.shape.hidden)
        x, target = torch.randn(size, generator=generator).to(device)
        return [(x, target)]


class RunLayer(Run):
    """Forward and backward of a layer; its loss and norm are no part of what is timed."""

    def __init__(self, layer: nn.Module, forward: Callable[[Tensor], Tensor] | None = None):
        super().__init__(layer, tokens=1)
        self.layer, self.forward = layer, forward or layer

    def step(self, batch: Batch) -> None:
        ((x, target),) = batch
        self.layer.zero_grad()
        self.x = x.detach().requires_grad_()
        self.y = self.forward(self.x)
        self.y.backward(target)

    def timed(self, batch: Batch, device: torch.device) -> None:
        super().timed(batch, device)
        gradients = [p.grad.double() for p in (self.x, *self.layer.parameters()) if p.grad is not None]
        self.norms.append(nn.utils.get_total_norm(gradients))
        self.losses.append((self.y.detach() - batch[0][1]).square().sum())


class RunShare(RunOnMesh):
    """Training on a global batch that all ranks are given: each replica takes its samples of it."""

    def __init__(self, engine: Any, work: Work, mesh: Mesh):
        share = dataclasses.replace(work, micro_batch=work.micro_batch // mesh.layout.dp)
        super().__init__(engine, share, mesh, "contiguous")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        dp, index = self.mesh.layout.dp, self.mesh.index("dp")
        return super().loss(x.chunk(dp)[index], y.chunk(dp)[index])


def make_layer(shape: ModelShape, device: torch.device) -> MoE:
    """A layer of random weights, whose products are about as large as what they are of."""
    assert shape.moe is not None
    layer, generator = MoE(shape, shape.moe), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in layer.parameters():
            p.normal_(0, p.shape[-1] ** -0.5, generator=generator)
        for b in layer.buffers():
            b.zero_()
    return layer.to(device)


def mixtral(layer: MoE, experts: str) -> nn.Module:
    """transformers' block with the weights of ``layer``; ``experts`` is what it calls their implementation."""
    from transformers import MixtralConfig  # takes seconds: in ranks alone
    from transformers.models.mixtral.modeling_mixtral import MixtralSparseMoeBlock

    sizes, ours = layer.router.sizes, layer.experts
    assert ours.gate is not None
    config = MixtralConfig(
        hidden_size=ours.up.weight.shape[2], intermediate_size=sizes.ffn, num_local_experts=sizes.experts,
        num_experts_per_tok=sizes.top_k, experts_implementation=experts,
    )  # fmt: skip
    block: nn.Module = MixtralSparseMoeBlock(config)
    gate_up = torch.cat([ours.gate.weight, ours.up.weight], 1)
    weights = {"experts.gate_up_proj": gate_up, "experts.down_proj": ours.down.weight}
    block.load_state_dict(weights | {"gate.weight": layer.router.weight})
    return block.to(gate_up.device)


def start_layers(work: Work, device: torch.device) -> dict[str, Run]:
    """On one process: ours, the loop over experts, and transformers' where that is installed."""
    layer = make_layer(work.shape, device)
    twin = copy.deepcopy(layer)
    runs = {"ours": RunLayer(layer), "looped": RunLayer(twin, partial(looped, twin))}
    if find_spec("transformers"):
        runs["transformers, eager"] = RunLayer(mixtral(layer, "eager"))
        if device.type == "cpu":  # a GPU's kernel for groups takes bfloat16 alone
            runs["transformers"] = RunLayer(mixtral(layer, "grouped_mm"))
    return agreed(runs, layer, work, device)


def start_paths(work: Work, device: torch.device) -> dict[str, Run]:
    """On ranks, each with its experts of one layer: the three ways to those of others."""
    mesh = Mesh(Layout(dp=RANKS, ep=RANKS))
    mesh.add("ep", mesh.layout.groups("ep"))
    whole, runs = make_layer(work.shape, device), {}
    for name in ("all-to-all", "gather", "two-step"):
        layer = copy.deepcopy(whole)
        for p in layer.experts.parameters():
            p.data = p.data.chunk(RANKS)[mesh.index("ep")].clone()
        layer.path = make_path(mesh, name, NODE)
        runs[name] = RunLayer(layer)
    return agreed(runs, whole, work, device)


def start_layouts(work: Work, device: torch.device) -> dict[str, Run]:
    """On ranks: the same model as two layouts train it."""
    runs: dict[str, Run] = {}
    for text in LAYOUTS:
        mesh = Mesh(Layout.parse(text))
        engine = parallelize(Transformer(work.shape, device=device), mesh, partial(adamw, **OPTIMIZER))
        runs[text] = RunShare(engine, work, mesh)
    return runs


@torch.no_grad()
def agreed(runs: dict[str, RunLayer], layer: MoE, work: Work, device: torch.device) -> dict[str, Run]:
    """``runs``, all of which give what ``layer`` does: nobody is timed who does not. Raises AssertionError."""
    ((x, _),) = work.batch(0, device)
    for run in runs.values():
        torch.testing.assert_close(run.forward(x), layer(x), atol=1e-4, rtol=1e-4)
    return {**runs}


#: What starts those of each group.
START: dict[str, Callable[[Work, torch.device], dict[str, Run]]] = {
    "layer": start_layers,
    "dispatch": start_paths,
    "layout": start_layouts,
}
