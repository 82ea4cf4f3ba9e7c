"""The load of experts over a run: the rows of each, in every layer and every optimizer step.

    with ExpertLoad(model) as load:
        for _ in range(100):
            trainer.step()
    load.counted().busiest_rank(ep=4)  # (steps, layers)

And where their rows travel, in a step on many ranks: `ExpertRoutes`, which ``planning.traffic`` takes as it counts.

Routers are watched from outside, by hooks on their forward passes. One that backward runs again (activation
recomputation) routes the same tokens a second time and is left out, as are passes of a model in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from playbook._checks import check_divides, check_int
from playbook.errors import ConfigError
from playbook.model.moe import Router, Routing, routers
from playbook.planning.expert_traffic import Routed


@dataclass(frozen=True)
class Loads:
    """What was counted: ``rows`` (steps, layers, E) that experts compute, ``dropped`` (steps, layers), both int64.

    ``layers`` are the names of the routers. Ratios are float64, and 0 where a layer had no rows.
    """

    layers: tuple[str, ...]
    rows: Tensor
    dropped: Tensor

    @property
    def shares(self) -> Tensor:
        """Each expert's share of the rows of its layer: (steps, layers, E)."""
        return self.rows / self.rows.sum(-1, keepdim=True).clamp(min=1).double()

    @property
    def busiest_expert(self) -> Tensor:
        """Rows of the busiest expert over the mean: 1 where the load is even, E where one has all. (steps, layers)"""
        return self.busiest_rank(self.rows.shape[-1])

    def busiest_rank(self, ep: int) -> Tensor:
        """The same of ``ep`` ranks that have the experts in order, each as many: (steps, layers).

        Raises ConfigError for ranks that do not divide the experts.
        """
        check_divides("ep", check_int("ep", ep, ConfigError), "experts", self.rows.shape[-1], ConfigError)
        of_ranks = self.shares.view(*self.dropped.shape, ep, self.rows.shape[-1] // ep).sum(-1)
        return of_ranks.amax(-1) * ep

    @property
    def dropped_share(self) -> Tensor:
        """Of what tokens chose, the share beyond the capacity of an expert: (steps, layers)."""
        return self.dropped / (self.rows.sum(-1) + self.dropped).clamp(min=1).double()

    def together(self, start: int | None = None, stop: int | None = None) -> Loads:
        """Steps ``start`` to ``stop`` as if they were one: a step of few tokens is uneven by chance."""
        rows, dropped = self.rows[start:stop], self.dropped[start:stop]
        return Loads(self.layers, rows.sum(0, keepdim=True), dropped.sum(0, keepdim=True))


def watch(routers: Mapping[str, Router], note: Callable[[int, Routing], None]) -> list[RemovableHandle]:
    """Have ``note`` told what each router of a training model decides, once, with the router's place among them.

    Gives the hooks, to be removed.
    """

    def noting(place: int) -> Callable[..., None]:
        def hook(router: nn.Module, given: tuple[Tensor, ...], output: tuple[Tensor, Routing]) -> None:
            if router.training and torch._C._current_graph_task_id() == -1:  # not inside backward
                note(place, output[1])

        return hook

    return [router.register_forward_hook(noting(place)) for place, router in enumerate(routers.values())]


class ExpertLoad:
    """Counts while it is entered; enter it again and it counts on.

    A step is all that is routed until an optimizer steps, in however many micro-batches; what comes after the last one is
    a step, too. Nothing is copied off the device before `counted`, and no graph is kept.
    """

    def __init__(self, model: nn.Module):
        self._routers = routers(model)
        self._experts = max((router.sizes.experts for router in self._routers.values()), default=1)
        self._steps: list[Tensor] = []  # (layers, E + 1) each: in the last column is what was dropped
        self._now: Tensor | None = None

    def __enter__(self) -> ExpertLoad:
        self._handles = watch(self._routers, self._note)
        # For optimizers of any kind, of which a rank may have several.
        self._handles.append(register_optimizer_step_post_hook(lambda *_: self._end_step()))
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()
        self._end_step()

    def _note(self, layer: int, routing: Routing) -> None:
        if self._now is None:
            sizes = len(self._routers), self._experts + 1
            self._now = torch.zeros(sizes, dtype=torch.int64, device=routing.counts.device)
        self._now[layer, :-1] += routing.counts
        self._now[layer, -1] += routing.chosen.numel() - routing.counts.sum()

    def _end_step(self) -> None:
        if self._now is not None:  # the second optimizer of a rank ends nothing
            self._steps.append(self._now)
            self._now = None

    def counted(self, group: dist.ProcessGroup | None = None) -> Loads:
        """What this rank's tokens chose or, of a ``group`` with the same layers, those of all its ranks: a collective."""
        layers = tuple(self._routers)
        steps = [*self._steps, *([] if self._now is None else [self._now])]
        found = torch.stack(steps) if steps else torch.zeros(0, len(layers), self._experts + 1)
        if group is not None and group.size() > 1:
            dist.all_reduce(found, group=group)
        found = found.long().cpu()
        return Loads(layers, found[..., :-1], found[..., -1])


class ExpertRoutes:
    """Counts, while it is entered, where the rows of each micro-batch travel: what `Routed` says of each layer.

    ``ep`` is the expert-parallel group of this rank; for dispatch in two steps, ``node`` neighbours of it are in a node.
    """

    def __init__(self, model: nn.Module, ep: dist.ProcessGroup, node: int | None = None):
        self._routers, self._ep = routers(model), ep
        self._nodes = ep.size() // (node or ep.size())
        self._noted: list[list[Tensor]] = [[] for _ in self._routers]  # (ranks + nodes,) for each micro-batch

    def __enter__(self) -> ExpertRoutes:
        self._handles = watch(self._routers, self._note)
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _note(self, layer: int, routing: Routing) -> None:
        experts, nodes = len(routing.counts), self._nodes
        node = (routing.chosen // (experts // nodes)).clamp(max=nodes)  # the last: dropped
        met = torch.zeros(len(node), nodes + 1, dtype=torch.int64, device=node.device).scatter_(1, node, 1)
        rows = routing.counts.view(self._ep.size(), -1).sum(1)
        self._noted[layer].append(torch.cat([rows, met.sum(0)[:nodes]]))

    def counted(self) -> dict[int, list[Routed]]:
        """By block, micro-batch by micro-batch. A collective of the expert-parallel group."""
        ranks, found = self._ep.size(), {}
        for name, noted in zip(self._routers, self._noted, strict=True):
            if not noted:
                continue
            own = torch.stack(noted)  # (micro-batches, ranks + nodes)
            parts = [torch.empty_like(own) for _ in range(ranks)]
            dist.all_gather(parts, own, group=self._ep)
            every = torch.stack(parts, 1).tolist()  # by micro-batch and rank
            found[int(name.split(".")[1])] = [
                Routed(tuple(tuple(r[:ranks]) for r in one), tuple(tuple(r[ranks:]) for r in one))
                for one in every
            ]
        return found
