"""Expert parallelism: each rank has some of the experts, and tokens travel to those that their router has chosen.

GShard's two all-to-alls (Lepikhin et al. 2020, arXiv 2006.16668, section 3.2): one *dispatches* rows to the ranks of
their experts, one brings the results back, where they are *combined*. How many rows a rank sends to another is known when
the router has chosen, and no sooner: ranks tell each other first.

Ranks of a group have other tokens, too; an expert's replicas are the ranks of *edp* (``Layout.groups``).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from playbook.model.linear import TORCH, Products, linear_layers
from playbook.model.moe import Combine, Experts, MoE, Routing, Spread, Take, here
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh, all_gather
from playbook.parallel.placement import Placement, Placements, Shard
from playbook.parallel.sequence import g, g_star
from playbook.parallel.stages import own_blocks
from playbook.parallel.turns import Turns


class Trip:
    """An all-to-all of rows: ``sent[r]`` of them go to rank r of ``group``, ``got[r]`` come from it.

    They are under way from `start` to `arrive`: whoever sends may compute in between, or hand over to another pass that
    takes ``turns`` with this one. What layers will take whose products are ``takers`` travels in the form that they take.
    """

    def __init__(self, group: Any, sent: list[int], got: list[int], turns: Turns, takers: Products = TORCH):
        self.group, self.sent, self.got, self.turns, self.takers = group, sent, got, turns, takers
        self.under_way: tuple[dist.Work, Tensor, Tensor, Tensor] | None = None

    @cached_property
    def back(self) -> Trip:
        """The same in the other direction: that of gradients, or of results."""
        return Trip(self.group, self.got, self.sent, self.turns)

    def again(self) -> Trip:
        """The same for something else."""
        return Trip(self.group, self.sent, self.got, self.turns)

    def start(self, rows: Tensor) -> None:
        """Begin to send ``rows`` (Σ sent, …), sorted by rank."""
        packed = self.takers.pack(rows.contiguous())
        landing = packed.new_empty(sum(self.got), *packed.shape[1:])
        work = dist.all_to_all_single(landing, packed, self.got, self.sent, group=self.group, async_op=True)
        self.under_way = work, packed, landing, rows.new_empty(0, *rows.shape[1:])

    def arrive(self) -> Tensor:
        """Wait for what is under way: (Σ got, …), sorted by rank."""
        assert self.under_way is not None
        self.turns.hand_over()
        work, _, landing, like = self.under_way
        work.wait()
        self.under_way = None
        return self.takers.unpack(landing, like)


class _Send(torch.autograd.Function):
    """Begin a trip; backward waits for the gradients, whose way back `_Arrive` has begun."""

    @staticmethod
    def forward(ctx, rows: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        trip.start(rows)
        return rows.view_as(rows)  # a ticket: its gradient will have this shape

    @staticmethod
    @once_differentiable
    def backward(ctx, _: Tensor):
        return ctx.trip.back.arrive(), None


class _Arrive(torch.autograd.Function):
    """The end of a trip; backward begins the way back of the gradients."""

    @staticmethod
    def forward(ctx, ticket: Tensor, trip: Trip) -> Tensor:
        ctx.trip = trip
        ctx.ticket = ticket.shape
        return trip.arrive()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        ctx.trip.back.start(gradient)
        return gradient.new_zeros(()).expand(ctx.ticket), None  # nobody reads it


class _Sort(torch.autograd.Function):
    """Rows in another order, x[order], or (``undo``) back from it."""

    @staticmethod
    def forward(ctx, x: Tensor, order: Tensor, undo: bool) -> Tensor:
        ctx.save_for_backward(order)
        ctx.undo = undo
        return _sorted(x, order, undo)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):
        (order,) = ctx.saved_tensors
        return _sorted(gradient, order, not ctx.undo), None, None


def _sorted(x: Tensor, order: Tensor, undo: bool) -> Tensor:
    return torch.empty_like(x).index_copy_(0, order, x) if undo else x.index_select(0, order)


def told(counts: Tensor, group: dist.ProcessGroup) -> Tensor:
    """What ranks send, told before they do: counts (E,) of this rank's rows -> (ranks, E/ranks), each rank's for ours."""
    coming = torch.empty_like(counts)
    dist.all_to_all_single(coming, counts, group=group)
    return coming.view(group.size(), -1)


def by_expert(coming: Tensor) -> Tensor:
    """The order by expert of rows that are sorted by sender, and by expert for each: (ranks, experts) counts -> (m,)."""
    expert = torch.arange(coming.shape[1], device=coming.device).repeat(len(coming))
    return expert.repeat_interleave(coming.flatten()).argsort(stable=True)


class AllToAll:
    """A path to experts on the ranks of ``group``: each row travels to the rank of its expert, and back."""

    def __init__(self, group: dist.ProcessGroup, turns: Turns | None = None):
        self.group, self.turns = group, turns or Turns()

    def __call__(self, experts: Experts, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
        """As ``model.moe.here``: rows are under way when this returns."""
        order, counts = routing.order(), routing.counts
        coming = told(counts, self.group)
        there = Trip(
            self.group,
            counts.view(len(coming), -1).sum(1).tolist(),
            coming.sum(1).tolist(),
            self.turns,
            experts.up.products,
        )
        ticket = _Send.apply(Take.apply(x, order, routing.chosen.shape[1]), there)

        def finish() -> Tensor:
            rows, sorting, home = _Arrive.apply(ticket, there), by_expert(coming), there.again().back
            y = _Sort.apply(experts(_Sort.apply(rows, sorting, False), coming.sum(0)), sorting, True)
            return Combine.apply(_Arrive.apply(_Send.apply(y, home), home), routing.weights, order)

        return finish


class Gathered:
    """The naive twin: every rank gets all tokens of ``group`` and adds what its own experts make of them."""

    def __init__(self, group: dist.ProcessGroup):
        self.group = group

    def __call__(self, experts: Experts, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
        ranks, each = self.group.size(), len(routing.counts) // self.group.size()
        everyone = g(x[None], self.group)[0]  # (ranks · n, h)
        weights = g(routing.weights[None], self.group)[0]  # (ranks · n, k)
        chosen = routing.chosen.new_empty(ranks * len(x), routing.chosen.shape[1])
        all_gather(chosen.view(-1), routing.chosen.contiguous().view(-1), self.group)
        own = some_experts(chosen, weights, self.group.rank() * each, each)
        finish = here(experts, everyone, own)
        return lambda: g_star(finish()[None], self.group)[0]


def some_experts(chosen: Tensor, weights: Tensor, start: int, count: int) -> Routing:
    """A routing to the experts ``start`` to ``start + count`` alone; other choices are dropped."""
    mine = (chosen >= start) & (chosen < start + count)
    chosen = torch.where(mine, chosen - start, count)
    return Routing(chosen, weights, chosen.flatten().bincount(minlength=count + 1)[:count], dropped=True)


class TwoSteps:
    """A path that sends a token once to each node in which it has experts, and inside the node to each of their ranks.

    ``across`` are the ranks at the same place of each node, its *rail*, ``inside`` those of this node. The rank that a
    token arrives at routes it on, and adds up the node's results, so that one row a node travels back (DeepSeek-V3, arXiv
    2412.19437, section 3.2.2).
    """

    def __init__(self, across: dist.ProcessGroup, inside: dist.ProcessGroup, turns: Turns | None = None):
        self.across, self.inner = across, AllToAll(inside, turns)

    def __call__(self, experts: Experts, x: Tensor, routing: Routing) -> Callable[[], Tensor]:
        nodes = self.across.size()
        each = len(routing.counts) // nodes  # experts of a node
        node_of = torch.where(routing.chosen < nodes * each, routing.chosen // each, nodes)  # (n, k)
        wanted = torch.zeros(len(x), nodes + 1, dtype=torch.bool, device=x.device)
        wanted = wanted.scatter_(1, node_of, True)[:, :nodes]
        node, token = wanted.t().nonzero(as_tuple=True)  # sorted by node
        coming = told(wanted.sum(0), self.across).flatten()
        counts = wanted.sum(0).tolist(), coming.tolist()
        there = Trip(self.across, *counts, self.inner.turns, experts.up.products)
        inside = node_of[token] == node[:, None]  # (m, k)
        chosen = torch.where(inside, routing.chosen[token] - (node * each)[:, None], each)
        ticket = _Send.apply(Take.apply(x, token, 1), there)
        with_chosen, with_weights = there.again(), there.again()
        with_chosen.start(chosen)
        weights = _Arrive.apply(_Send.apply(routing.weights[token], with_weights), with_weights)
        arrived = with_chosen.arrive()

        def finish() -> Tensor:
            rows, home = _Arrive.apply(ticket, there), there.again().back
            counts = arrived.flatten().bincount(minlength=each + 1)[:each]
            y = self.inner(experts, rows, Routing(arrived, weights, counts, dropped=True))()
            y = _Arrive.apply(_Send.apply(y, home), home)
            return y.new_zeros(len(x), y.shape[1]).index_add(0, token, y)

        return finish


class OverRanks(Spread):
    """Tokens of a sample on the ranks of ``samples`` (cp), of the global batch on those of ``batch``."""

    def __init__(self, samples: dist.ProcessGroup, batch: dist.ProcessGroup):
        self.samples, self.batch = samples, batch

    def total(self, x: Tensor) -> Tensor:
        return self._sum(x, self.samples)

    def total_of_batch(self, x: Tensor) -> Tensor:
        return self._sum(x, self.batch)

    def _sum(self, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        if group.size() > 1:
            dist.all_reduce(x, group=group)
        return x

    def everyone(self, x: Tensor) -> Tensor:
        return g(x, self.samples) if self.samples.size() > 1 else x


def shard_experts(
    model: Transformer,
    mesh: Mesh,
    placements: Placements,
    dispatch: str = "all-to-all",
    node: int | None = None,
    turns: Turns | None = None,
) -> Placements:
    """Leave this rank of the axis ep its experts of every block of ``model``, and say where parameters are now.

    ``dispatch`` is one of ``layout.fields.DISPATCH``; two steps need to know how many neighbours of an expert-parallel
    group are in a ``node``. Where rows are waited for, ``turns`` change.
    """
    layout = mesh.layout
    layers = {i: block.mlp for i, block in own_blocks(model) if isinstance(block.mlp, MoE)}
    apart = ["tp"] * layout.etp  # whose ranks route their own tokens
    spread = OverRanks(mesh.group("cp", *apart), mesh.group("dp", "cp", *apart))
    for layer in layers.values():
        layer.router.spread = spread
    if layout.ep == 1:
        return placements
    mesh.add("ep", layout.groups("ep"))
    bidirectional = next(iter(placements.values())).replicas != ("dp", "cp")
    # Also by a rank whose stages have no experts: all must make the same groups.
    replicas = mesh.add("edp", layout.mirrored("edp") if bidirectional else layout.groups("edp"))
    path = make_path(mesh, dispatch, node, turns)
    found = dict(placements)
    for i, layer in layers.items():
        layer.path = path
        for one in linear_layers(layer.experts):
            one.products.over(mesh.group("ep"), "x", "dy", "weight")
        for name, p in layer.experts.named_parameters():
            full = f"blocks.{i}.mlp.experts.{name}"
            found[full] = _cut(mesh, placements[full], p, replicas)
    return found


def make_path(mesh: Mesh, dispatch: str, node: int | None = None, turns: Turns | None = None) -> Any:
    """The path to experts that ``dispatch`` names, on the axis ep of ``mesh``. A collective."""
    group = mesh.group("ep")
    if dispatch == "gather":
        return Gathered(group)
    if dispatch == "all-to-all":
        return AllToAll(group, turns)
    size = node or group.size()
    lines, inside = mesh.layout.groups("ep"), mesh.neighbours("ep", size, "ep in a node")
    across = mesh.add("ep across nodes", [line[i::size] for line in lines for i in range(size)])
    return TwoSteps(mesh.group(across), mesh.group(inside), turns)


def _cut(mesh: Mesh, placement: Placement, whole: nn.Parameter, replicas: str) -> Placement:
    """Leave of a tensor of all experts this rank's."""
    layout = mesh.layout
    each = len(whole) // layout.ep
    start = mesh.index("ep") * each
    shard = Shard("ep", 0, start, start + each, len(whole))
    whole.data = shard.of(whole.data).clone()
    edp = layout.dp * layout.cp * layout.apart // layout.ep
    axes = ["dp", "cp", *["tp"] * layout.etp]
    first = next((axis for axis in axes if getattr(layout, axis) > 1), "cp")
    return placement.cut(shard).over(replicas, {**dict.fromkeys(axes, 1), first: edp})
