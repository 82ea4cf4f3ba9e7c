"""The engine of a pipeline: what ranks with different stages have to settle with each other.

Gradients of a stage belong to one rank of the pipeline, and are added up over its replicas alone. Three things concern
all stages: the norm of the whole gradient; weights that two stages have in common (a tied embedding, which is the table
of the first stage and the head of the last; both copies of a bidirectional pipeline); and whole tensors, for checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.pieces import Around
from playbook.parallel.pipeline import Pipeline, Step
from playbook.parallel.stages import EMBEDDING, HEAD, Stage
from playbook.training.optimizer import in_optimizer_order


class Shared:
    """What stages share. It must be made before the model is cut, and in the same order on every rank.

    ``replicas`` are the ranks that have the same weights as this one: those of dp × cp and, where a pipeline runs both
    ways, those at the mirror place. ``norm`` are ranks of the pipeline that together have each weight once.
    """

    def __init__(self, model: Transformer, mesh: Mesh, placement: Sequence[Sequence[int]]):
        self.names = list(dict(model.named_parameters()))
        self.order = in_optimizer_order(model)
        lines = mesh.layout.groups("pp")
        both_ways = len(placement) > 1
        self.replicas, self.norm = mesh.group("dp", "cp"), mesh.group("pp")
        if both_ways:
            self.replicas = _some(mesh.subgroup(_mirrored(mesh)))
            half = len(lines[0]) // 2
            self.norm = _some(mesh.subgroup(part for line in lines for part in (line[:half], line[half:])))
        first, last = placement[0][0], placement[0][-1]
        self.tied = bool(model.shape.tied)
        apart = self.tied and not both_ways and first != last
        self.ends = mesh.subgroup((line[first], line[last]) for line in lines) if apart else None

    def mine(self, name: str) -> str:
        """The whole model's name of a parameter: a tied head apart from its embedding is that."""
        return EMBEDDING if self.tied and name == HEAD else name


def _mirrored(mesh: Mesh) -> list[set[int]]:
    """Ranks of dp × cp together with those at the mirror place of their pipelines."""
    every = [set(group) for group in mesh.layout.groups("dp", "cp")]
    mirror = {rank: line[-1 - i] for line in mesh.layout.groups("pp") for i, rank in enumerate(line)}
    pairs = [group | {mirror[rank] for rank in group} for group in every]
    return [pair for i, pair in enumerate(pairs) if pair not in pairs[:i]]


def _some(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    assert group is not None  # every rank is in one of them
    return group


class Pipelined(Around):
    """The engine ``inner`` of this rank's stages, and what it takes for it to be one of a pipeline."""

    def __init__(self, inner: Any, pipeline: Pipeline, shared: Shared, mesh: Mesh):
        super().__init__(inner)
        self.pipeline, self.shared, self.mesh = pipeline, shared, mesh
        self.samples = mesh.group("dp", "cp")  # ranks that have other tokens
        self.tied = self._tied()
        inner.hold()
        pipeline.done = self._done

    def _tied(self) -> list[nn.Parameter]:
        """The tied weight, if this rank has it and it learns: two stages write to its gradient."""
        named = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        return [named[n] for n in (EMBEDDING, HEAD) if n in named and self.shared.tied]

    def _done(self, stage: Stage, last: bool) -> None:
        """Hand over the gradients of a stage, when they are complete or where they cannot stay."""
        if last or not self.keeps_gradients:
            tied = set(self.tied)
            self.inner.deliver([p for p in stage.parameters().values() if p not in tied])

    def accumulate(
        self,
        inputs: Tensor,
        targets: Tensor,
        micro_batch: int,
        tokens: Tensor,
        positions: Tensor | None = None,
        autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> Tensor:
        """One pass of this rank's samples (B, s) through the pipeline; gives the mean loss, on every rank.

        Gradients of the mean loss over ``tokens``, those of the global batch, add up in ``.grad``.
        """
        step = Step(
            inputs.split(micro_batch),
            targets.split(micro_batch),
            positions,
            self.model.angles(inputs.shape[1], positions),
            1.0 / tokens,
            autocast,
            torch.zeros((), device=inputs.device),
        )
        self.pipeline.run(step)
        self.finish()
        dist.all_reduce(step.loss, group=self.mesh.group("dp", "cp", "pp"))
        return step.loss

    def no_sync(self) -> AbstractContextManager[None]:
        raise ConfigError("a pipeline takes all micro-batches of a step at once: call accumulate")

    def finish(self) -> None:
        """Gradients are complete: those of a weight that is on two stages are added up, before replicas are."""
        for p in self.tied:
            if self.shared.ends is not None:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad, group=self.shared.ends)
        self.inner.deliver(self.tied)
        self.inner.finish()

    def norm_groups(self) -> list[dist.ProcessGroup]:
        return [*self.inner.norm_groups(), self.shared.norm]

    def copies(self, name: str) -> int:
        """On how many ranks of the norm's groups each element of a parameter is."""
        twice = self.shared.ends is not None and name in (EMBEDDING, HEAD)
        return self.inner.copies(name) * (2 if twice else 1)

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks that have other samples."""
        dist.all_reduce(value, group=self.samples)
        return value

    # ---- whole tensors: collectives, which every rank of the pipeline must call

    def gradients_whole(self) -> dict[str, Tensor | None]:
        found = self._gather(
            {self.shared.mine(n): _on_cpu(g) for n, g in self.inner.gradients_whole().items()}
        )
        return {name: found.get(name) for name in self.shared.names}

    def _gather(self, mine: dict[Any, Any]) -> dict[Any, Any]:
        every: list[Any] = [None] * self.mesh.size("pp")
        dist.all_gather_object(every, mine, group=self.mesh.group("pp"))
        return {key: value for found in every for key, value in found.items()}

    def state_dict(self) -> dict[str, Any]:
        state = self.inner.state_dict()
        model = self._gather({name: _on_cpu(t) for name, t in state["model"].items()})
        names = [self.shared.mine(n) for n in in_optimizer_order(self.model)]
        kept = state["optimizer"]["state"].items()
        found = self._gather({names[i]: {k: _on_cpu(v) for k, v in states.items()} for i, states in kept})
        numbers = {name: i for i, name in enumerate(self.shared.order)}
        states = {numbers[name]: found[name] for name in self.shared.order if name in found}
        return {
            "model": model,
            "optimizer": {"state": states, "param_groups": self._param_groups(state, numbers, names)},
        }

    def _param_groups(
        self, state: Mapping[str, Any], numbers: dict[str, int], names: list[str]
    ) -> list[dict[str, Any]]:
        """Options of matrices and of vectors, with the numbers that their parameters have in the whole model."""
        here = {
            bool(g["weight_decay"]): {**g, "params": [names[i] for i in g["params"]]}
            for g in state["optimizer"]["param_groups"]
        }
        every: list[Any] = [None] * self.mesh.size("pp")
        dist.all_gather_object(every, here, group=self.mesh.group("pp"))
        groups = []
        for decays in (True, False):
            found = [one[decays] for one in every if decays in one]
            if found:
                params = sorted({numbers[name] for group in found for name in group["params"]})
                groups.append({**found[0], "params": params})
        return groups

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what one device has saved, or any other engine: of it, this rank's stages."""
        own = self.model.state_dict()
        model = {name: state["model"][name] for name in own}
        numbers = {name: i for i, name in enumerate(self.shared.order)}
        names = [self.shared.mine(n) for n in in_optimizer_order(self.model)]
        whole = state["optimizer"]["state"]
        states = {i: whole[numbers[name]] for i, name in enumerate(names) if numbers[name] in whole}
        groups = list(self._own_groups(state["optimizer"]["param_groups"], numbers, names))
        self.inner.load_state_dict({"model": model, "optimizer": {"state": states, "param_groups": groups}})

    def _own_groups(
        self, groups: Sequence[Mapping[str, Any]], numbers: dict[str, int], names: list[str]
    ) -> Iterator[dict[str, Any]]:
        for group in groups:
            params = [i for i, name in enumerate(names) if numbers[name] in group["params"]]
            if params:
                yield {**group, "params": params}


def _on_cpu(value: Any) -> Any:
    return value.detach().cpu() if isinstance(value, Tensor) else value
