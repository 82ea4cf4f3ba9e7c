"""Methods that send less as strategies of replicas: what `playbook train --data-parallel` calls by name.

The methods are those of this folder, on the network of a group of ranks; here is what joins them to a trainer that has
AdamW, clipping, a learning rate that changes, weight decay and gradient accumulation. There are two kinds.

All add up whole gradients in the first ``start`` steps, if told to: what is far from good changes too fast for messages
that leave things out or come late (post-local SGD, Lin et al. 2020; 1,000 steps in PyTorch's hook of PowerSGD).

*Compressed gradients* (powersgd, topk) take the place of the all-reduce: every rank gets the same sum, of what arrived,
and goes on as ever: that sum is clipped, its norm is logged, AdamW takes it. Replicas stay equal. So it is in PyTorch's
communication hooks. What was not sent is kept, on each rank, in units of a gradient, not of a step, for a step of AdamW
is not a multiple of its gradient.

*Replicas apart* (local, slowmo, diloco, gossip) take steps by themselves: each rank clips its own gradient by its own
norm, and its own AdamW, whose states never leave it, makes the step. Then it is parameters that are sent. A rank's
gradient is that of n times its part of the global mean loss: the mean over its own tokens where all ranks have as many,
and in general such that the mean over ranks is the gradient of the global mean loss. The loss that is logged is the mean
over all tokens, each rank's at its own parameters, before the step; the norm is the first rank's own. With ``H=1`` this
is *not* all-reduce: AdamW of the mean gradient is not the mean of each one's AdamW.

All in fp32, on a group of replicas with nothing cut. ``wait``, and so a state dict and the end of a run, makes one
model of replicas that are apart: their average, with the first rank's moments. ``network.sent`` counts what a method
sends; that ranks add up tokens and loss in every step, 12 bytes, and agree on the first weights, is not its own.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.decentralized.compressors import TopK
from playbook.decentralized.feedback import CompressedSGD, MemSGD
from playbook.decentralized.local import Average, Nesterov, Outer, Rounds, SlowMo
from playbook.decentralized.network import Ranks
from playbook.decentralized.powersgd import PowerSGD
from playbook.decentralized.topology import Topology, topology
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.parallel.flat import Named, UsedParameters
from playbook.parallel.replicas import MakeOptimizer, ReplicaSet, broadcast


def replicas(layout: Layout, parameters: Named, group: dist.ProcessGroup) -> ReplicasOnNetwork:
    """The replica set that trains ``parameters`` by the method of the layout."""
    assert layout.method is not None
    name, o = layout.method.name, layout.method.options
    more = {"start": o["start"], "find_unused": layout.find_unused}
    if name == "powersgd":
        return LowRankGradients(parameters, group, o["r"], **more)
    if name == "topk":
        return SparseGradients(parameters, group, o["share"], **more)
    if name == "gossip":
        return GossipReplicas(parameters, group, topology(o["topology"], group.size()), **more)
    outer: Outer = Average()
    if name == "slowmo":
        outer = SlowMo(1.0, o["momentum"], o["lr"])
    elif name == "diloco":
        outer = Nesterov(o["lr"], o["momentum"])
    return LocalReplicas(parameters, group, o["H"], outer, **more)


class ReplicasOnNetwork(ReplicaSet):
    """Replicas that talk over a network of this folder: ``network.sent`` are the bytes that this rank has sent.

    Until ``start`` steps are done they add up whole gradients, when backward is over.
    """

    def __init__(
        self,
        parameters: nn.Module | Named,
        group: dist.ProcessGroup,
        *,
        start: int = 0,
        find_unused: bool = False,
    ):
        super().__init__(parameters, group)
        self.network, self.start, self.steps = Ranks(group), start, 0
        self.used = UsedParameters([name for name, _ in self.parameters], group, find_unused)
        broadcast([p for _, p in self.parameters], group)

    @torch.no_grad()
    def finish(self) -> None:
        """After the last backward pass of a step: every ``.grad`` is the sum over the ranks, or what arrives of it."""
        gradients = [p.grad for _, p in self.parameters]
        anywhere = self.used.agree([g is not None for g in gradients], self.parameters[0][1].device)
        total = self.network.n * self._mean(self._row(gradients))
        for (_, p), part, used in zip(self.parameters, self._parts(total), anywhere, strict=True):
            p.grad = part if used else None

    def step(self) -> None:
        """Update this rank's parameters."""
        super().step()
        self.steps += 1

    def _mean(self, row: Tensor) -> Tensor:
        """The mean over all ranks of their gradients, (1, d) each."""
        return self.network.mean(row)

    def _row(self, tensors: list[Tensor | None]) -> Tensor:
        """Tensors of all parameters end to end, (1, d): a node's row. None is zeros."""
        pairs = zip(tensors, self.parameters, strict=True)
        return torch.cat([(torch.zeros_like(p) if t is None else t).flatten() for t, (_, p) in pairs])[None]

    def _parts(self, row: Tensor) -> list[Tensor]:
        """Of a row, (1, d) or (d,), what belongs to each parameter."""
        parts = row.flatten().split([p.numel() for _, p in self.parameters])
        return [part.view_as(p) for part, (_, p) in zip(parts, self.parameters, strict=True)]


class CompressedGradients(ReplicasOnNetwork):
    """Gradients that are sent in few bits, when backward is over.

    ``update`` of a method takes this rank's gradients, (1, d), and gives the mean over all ranks of what arrives, (d,).
    """

    method: PowerSGD | CompressedSGD

    def _mean(self, row: Tensor) -> Tensor:
        return super()._mean(row) if self.steps < self.start else self.method.update(row)

    def _place(self) -> Tensor:
        """In the place of parameters, which methods keep beside what they know of gradients: (1, d), of no memory."""
        p = self.parameters[0][1]
        return p.new_zeros(1, 1).expand(1, sum(p.numel() for _, p in self.parameters))

    def states(self) -> list[Tensor]:
        """Those of the optimizer, and what was not sent."""
        left = getattr(self.method, "left", None)
        return super().states() + ([left] if isinstance(left, Tensor) else [])


class LowRankGradients(CompressedGradients):
    """PowerSGD: of each matrix two factors of ``rank`` columns, by two all-reduces; vectors whole."""

    def __init__(self, parameters: Any, group: Any, rank: int = 4, **options: Any):
        super().__init__(parameters, group, **options)
        shapes = [p.shape for _, p in self.parameters]
        self.method = PowerSGD(self.network, shapes, self._place(), lr=1.0, rank=rank)


class SparseGradients(CompressedGradients):
    """The ``share`` of values that are largest, of all parameters together; from each rank to all others."""

    def __init__(self, parameters: Any, group: Any, share: float = 0.01, **options: Any):
        super().__init__(parameters, group, **options)
        self.method = MemSGD(self.network, TopK(share), self._place(), lr=1.0)


class ReplicasApart(ReplicasOnNetwork):
    """Replicas that take steps by themselves, and tell each other parameters after some: see ``_meet``."""

    #: Whether they may differ.
    apart = False

    def optimize(self, make: MakeOptimizer) -> None:
        """Make this rank's optimizer. Raises ConfigError for one with masters, which would undo every average."""
        super().optimize(make)
        if any("master" in state for state in self.optimizer.state.values()):
            raise ConfigError(
                "optimizer keeps masters, which averages of weights do not reach: take weights of float32, and no offload"
            )

    def finish(self) -> None:
        """After the last backward pass of a step: gradients of n times this rank's part of the loss."""
        if self.steps < self.start:
            super().finish()
        else:
            torch._foreach_mul_([p.grad for _, p in self.parameters if p.grad is not None], self.network.n)

    @torch.no_grad()
    def step(self) -> None:
        """This rank's own step, and what it hears of others."""
        super().step()
        if self.steps <= self.start:
            self._begin()
        else:
            self.apart = True
            self._meet()

    def _begin(self) -> None:
        """All have the same weights, from which they are going to part."""

    def _meet(self) -> None:
        """After a step: talk, if it is time."""
        raise NotImplementedError

    @torch.no_grad()
    def wait(self) -> None:
        """Make one model of all replicas, their average. Collective, and so is what asks for it, as a state dict."""
        if self.apart:
            self._go_on_from(self.network.mean(self._weights()))
            self.apart = False

    def load(self, value: Any) -> None:
        """Take up new weights, the same on all ranks: from these they begin."""
        super().load(value)
        self.apart = False
        self._begin()

    def _weights(self) -> Tensor:
        return self._row([p.detach() for _, p in self.parameters])

    def _go_on_from(self, row: Tensor) -> None:
        torch._foreach_copy_([p.detach() for _, p in self.parameters], self._parts(row))


class LocalReplicas(ReplicasApart):
    """``period`` = H steps alone, then one step of an ``outer`` optimizer, on parameters: local SGD, SlowMo, DiLoCo.

    SlowMo divides by the learning rate γ of the round's last step.
    """

    def __init__(self, parameters: Any, group: Any, period: int, outer: Outer | None = None, **options: Any):
        super().__init__(parameters, group, **options)
        self.rounds = Rounds(self.network, self._weights(), period, outer)

    def _begin(self) -> None:
        self.rounds.start = self._weights()

    def _meet(self) -> None:
        if self.rounds.due():
            if isinstance(self.rounds.outer, SlowMo):
                self.rounds.outer.lr = self.optimizer.param_groups[0]["lr"]
            self._go_on_from(self.rounds.meet(self._weights()))
            self.apart = False

    def states(self) -> list[Tensor]:
        """Those of the optimizer, where the round began, and the outer momentum."""
        momentum = [t for t in vars(self.rounds.outer).values() if isinstance(t, Tensor)]
        return [*super().states(), self.rounds.start, *momentum]


class GossipReplicas(ReplicasApart):
    """After each step a weighted mean of parameters with neighbours: adapt then combine, with AdamW as what adapts."""

    def __init__(self, parameters: Any, group: Any, graph: Topology, **options: Any):
        super().__init__(parameters, group, **options)
        self.topology = graph

    def _meet(self) -> None:
        self._go_on_from(self.network.mix(self._weights(), self.topology.at(self.steps - 1)))
