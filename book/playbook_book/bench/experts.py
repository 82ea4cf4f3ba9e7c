"""``playbook bench experts``: a layer of experts beside transformers', and ways to spread experts over ranks.

Three kinds of groups. *layer*: forward and backward of one mixture on one process with one thread, beside the same
weights in transformers' `MixtralSparseMoeBlock`, as it is by default and as a loop over experts, and beside our own loop.
*dispatch*: the same of a layer with its experts on four ranks: rows sent to their experts beside all tokens sent to all.
*layout*: training steps with experts on four ranks beside tensor-parallel ones, on the same global batch.

The "loss" of a layer is the squared distance of its output from a target; the norm is that of all gradients, its input's
among them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.model.linear import GroupedLinear
from playbook.model.moe import Experts, MoE
from playbook.model.ops import activate
from playbook.parallel.expert import make_path
from playbook.parallel.mesh import Mesh
from playbook.shapes import ModelShape
from playbook.shapes import MoE as Sizes
from playbook_book.bench import chosen
from playbook_book.bench.contest import Group, Pair, Way, contest, engine_of
from playbook_book.bench.turns import Batch, Run, RunOnMesh, Work

#: Ranks that experts are spread over, and those of a node in two steps.
RANKS, NODE = 4, 2
HIDDEN = 256
#: The layers on one process: few experts, wider ones, many small ones; and the one on ranks. Its experts are narrow:
#: both ways to reach them compute the same, and the wider they are the less is seen of the way.
LAYERS = (
    Sizes(experts=8, top_k=2, ffn=344),
    Sizes(experts=8, top_k=2, ffn=688),
    Sizes(experts=64, top_k=8, ffn=88),
)
ON_RANKS = Sizes(experts=16, top_k=2, ffn=172)

# ---- a layer


@dataclass(frozen=True)
class OneLayer(Work):
    """Random inputs and targets (micro_batch, seq, hidden) of one layer; each rank has its own."""

    def batch(self, step: int, device: torch.device) -> Batch:
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        size = (2, self.micro_batch, self.seq, self.shape.hidden)
        x, target = torch.randn(size, generator=generator).to(device)
        return [(x, target)]


def looped(layer: MoE, x: Tensor) -> Tensor:
    """The naive twin: each expert in turn, on the tokens that chose it. (b, s, h) -> (b, s, h)"""
    x, (chosen, weights, counts, _) = layer.router(x)
    tokens = x.flatten(0, 1)
    y = torch.zeros_like(tokens)
    for e in range(len(counts)):
        token, choice = (chosen == e).nonzero(as_tuple=True)
        y = y.index_add(0, token, _one(layer.experts, e, tokens[token]) * weights[token, choice, None])
    y = y.view_as(x)
    return y if layer.shared is None else y + layer.shared(x)


def _one(experts: Experts, e: int, x: Tensor) -> Tensor:
    """Expert ``e`` alone: (n, h) -> (n, h)."""

    def product(layer: GroupedLinear, x: Tensor) -> Tensor:
        return F.linear(x, layer.weight[e], None if layer.bias is None else layer.bias[e])

    y = product(experts.up, x)
    if experts.gate is None:
        return product(experts.down, activate(y, experts.activation))
    return product(experts.down, activate(product(experts.gate, x), experts.activation) * y)


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


def start_layer(kind: str, work: Work, device: torch.device) -> Run:
    """Ours, our loop over experts, or transformers' block with this implementation of its experts."""
    layer = make_layer(work.shape, device)
    if kind == "ours":
        return RunLayer(layer)
    run = RunLayer(layer, partial(looped, layer)) if kind == "looped" else RunLayer(mixtral(layer, kind))
    return agreed(run, layer, work, device)


def start_path(path: str, work: Work, device: torch.device) -> Run:
    """On ranks, each with its experts of one layer: a way to those of others."""
    mesh = Mesh(Layout(dp=RANKS, ep=RANKS))
    mesh.add("ep", mesh.layout.groups("ep"))
    layer = make_layer(work.shape, device)
    for p in layer.experts.parameters():
        p.data = p.data.chunk(RANKS)[mesh.index("ep")].clone()
    layer.path = make_path(mesh, path, NODE)
    return agreed(RunLayer(layer), make_layer(work.shape, device), work, device)


@torch.no_grad()
def agreed(run: RunLayer, layer: MoE, work: Work, device: torch.device) -> Run:
    """``run``, which gives what ``layer`` does: nobody is timed who does not. Raises AssertionError."""
    ((x, _),) = work.batch(0, device)
    torch.testing.assert_close(run.forward(x), layer(x), atol=1e-4, rtol=1e-4)
    return run


# ---- a model


class RunShare(RunOnMesh):
    """Training on a global batch that all ranks are given: each replica takes its samples of it."""

    def __init__(self, engine: Any, work: Work, mesh: Mesh):
        share = dataclasses.replace(work, micro_batch=work.micro_batch // mesh.layout.dp)
        super().__init__(engine, share, mesh, "contiguous")

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        dp, index = self.mesh.layout.dp, self.mesh.index("dp")
        return super().loss(x.chunk(dp)[index], y.chunk(dp)[index])


def start_layout(layout: str, work: Work, device: torch.device) -> Run:
    engine, mesh = engine_of(Layout.parse(layout), work, device)
    return RunShare(engine, work, mesh)


# ---- who is compared

_OURS, _LOOPED = (
    Way("ours", partial(start_layer, "ours")),
    Way("looped", partial(start_layer, "looped"), "bench.experts.looped"),
)
_THEIRS = Way(
    "transformers",
    partial(start_layer, "grouped_mm"),
    "experts_implementation='grouped_mm', its default: F.grouped_mm, gate and up in one matrix",
)
_EAGER = Way(
    "transformers, eager",
    partial(start_layer, "eager"),
    "experts_implementation='eager': a loop over the experts that tokens chose",
)
_ALL_TO_ALL, _GATHER, _TWO_STEP = (
    Way(name, partial(start_path, name), text)
    for name, text in (
        ("all-to-all", "parallel.expert.AllToAll; for two steps, two ranks are a node"),
        ("gather", "all-gather of tokens, weights and choices, reduce-scatter of results"),
        ("two-step", ""),
    )
)
#: Layouts that train the same.
LAYOUTS = (f"dp={RANKS},ep={RANKS}", f"tp={RANKS}")
_EXPERTS, _TENSOR = (
    Way(layout, partial(start_layout, layout), text)
    for layout, text in zip(
        LAYOUTS, ("", "each rank has a quarter of the columns or rows of every matrix"), strict=True
    )
)
#: What is compared, by name.
GROUPS = {
    "layer": "a layer on one process beside transformers' MixtralSparseMoeBlock, and a loop over experts",
    "dispatch": "a layer on ranks: rows sent to their experts beside all tokens sent to all ranks",
    "layout": "training steps on the same global batch: experts on ranks beside slices of every expert",
}
PAIRS: dict[str, tuple[Pair, ...]] = {
    "layer": (Pair(_OURS, _THEIRS, 1.0), Pair(_OURS, _EAGER, 1.0), Pair(_OURS, _LOOPED)),
    "dispatch": (Pair(_ALL_TO_ALL, _GATHER, 0.7), Pair(_TWO_STEP, _ALL_TO_ALL)),
    "layout": (Pair(_EXPERTS, _TENSOR),),
}


def bench_experts(
    shape: ModelShape,
    tokens: Sequence[int],
    seq: int,
    steps: int,
    device: str,
    only: Sequence[str] | None,
    launches: int,
) -> dict[str, Any]:
    """Median seconds of both of each pair, their ratio, and bytes sent, as `contest` gives them, by group.

    ``steps`` are timed in each of ``launches``. ``tokens`` are those of a layer on one process, a group for each number
    and each of ``LAYERS``; ``seq`` those of each rank elsewhere. ``shape`` is what whole steps train, without its
    load-balancing loss, for that of a micro-batch depends on the layout. ``only`` chooses among ``GROUPS``. Raises
    ConfigError and LayoutError for what cannot be run.
    """
    names = chosen("group", only, GROUPS)
    if shape.moe is None:
        raise ConfigError("this model has no experts: choose one that has, such as tiny-moe")
    shape = shape.replace(moe=dataclasses.replace(shape.moe, balance_loss=0.0))
    for text in LAYOUTS if "layout" in names else ():
        Layout.parse(text).check(shape, seq=seq)
    work: dict[str, list[Work]] = {
        "layer": [_layer(sizes, n) for sizes in LAYERS for n in tokens],
        "dispatch": [_layer(ON_RANKS, seq)],
        "layout": [Work(shape, RANKS, seq, alike=True)],
    }
    groups = [_group(name, one, device) for name in names for one in work[name]]
    return contest(groups, steps, device, launches)


def _layer(sizes: Sizes, tokens: int) -> Work:
    shape = ModelShape(
        layers=1, hidden=HIDDEN, heads=1, vocab=1, max_seq=tokens, gated=True, activation="silu", bias=False, moe=sizes,
        name=f"top-{sizes.top_k} of {sizes.experts} experts of {HIDDEN} × {sizes.ffn}",
    )  # fmt: skip
    return OneLayer(shape, seq=tokens)


def _group(name: str, work: Work, device: str) -> Group:
    pairs, parameters = PAIRS[name], None
    if name == "layer":  # transformers need not be installed; a GPU's kernel for groups takes bfloat16 alone
        missing = [] if find_spec("transformers") else [_THEIRS, _EAGER]
        missing += [_THEIRS] if torch.device(device).type == "cuda" else []
        pairs = tuple(pair for pair in pairs if pair.peer not in missing)
    if isinstance(work, OneLayer):
        assert work.shape.moe is not None
        with torch.device("meta"):
            parameters = sum(p.numel() for p in MoE(work.shape, work.shape.moe).parameters())
    return Group(name, GROUPS[name], 1 if name == "layer" else RANKS, work, (pairs,), parameters)
