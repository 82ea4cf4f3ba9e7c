"""What an engine has, tensor by tensor: this rank's parts for a checkpoint, and whole tensors for those who ask.

A state dict is always that of one device, so that any layout takes up what any other has saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.placement import LocalShard, Placement, WholeNames, assemble
from playbook.parallel.replicas import Leaf, ReplicaSet


class RankState:
    """What this rank has of a model and its optimizer, and the whole of both for those who ask."""

    model: Transformer
    sets: list[ReplicaSet]
    mesh: Mesh | None
    placements: dict[str, Placement]
    names: WholeNames
    histories: set[Any]

    def buffers(self) -> dict[str, Tensor]:
        """What this rank has of the model's state beside parameters, by name: biases of routers."""
        return {name: b for name, b in self.model.named_buffers() if name in self.names.buffers}

    def tensors(self) -> dict[str, list[Tensor]]:
        """What this rank keeps: parameters, gradients, optimizer."""
        found: dict[str, list[Tensor]] = {"parameters": [p.detach() for _, p in self.frozen()]}
        for one in self.sets:
            for kind, tensors in one.tensors().items():
                found.setdefault(kind, []).extend(tensors)
        return found

    def frozen(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that are in no set."""
        learning = {p for one in self.sets for _, p in one.parameters}
        return [(name, p) for name, p in self.model.named_parameters() if p not in learning]

    def local_shards(self) -> Iterator[LocalShard]:
        """The parameters and optimizer states of this rank, each element on one rank alone: what a checkpoint writes."""
        for one in self.sets:
            for leaf in one.leaves:
                yield from self._shard(one, leaf, "parameter", leaf.tensor.detach())
                for kind, value in states_of(one, leaf).items():
                    yield from self._shard(one, leaf, kind, value)
        for name, p in self.frozen():
            of = self.placements[name]
            if (self.mesh is None or self.mesh.index(*of.replicas) == 0) and self._is_first(name):
                yield LocalShard("parameter", of, tuple(p.shape), 0, p.detach())

    def _shard(self, one: ReplicaSet, leaf: Leaf, kind: str, value: Tensor) -> Iterator[LocalShard]:
        same = one.across if one.shared else one.group
        if (same is None or same.rank() == 0) and self._is_first(leaf.name):
            yield LocalShard(kind, self.placements[leaf.name], tuple(leaf.parameter.shape), leaf.start, value)

    def _is_first(self, name: str) -> bool:
        """Whether this rank is the first that has a parameter, along the axes that cut models."""
        placement = self.placements[name]
        if placement.tied and name != placement.name:  # the other end has it, too
            return False
        if self.mesh is None or (self.mesh.layout.etp and placement.replicas == ("edp",)):
            return True
        return placement.first_on({"tp": self.mesh.coordinates["tp"]})

    def _everywhere(self, shards: Iterator[LocalShard]) -> dict[tuple[str, str], Tensor]:
        """Whole tensors of the shards of all ranks, in CPU memory."""
        # As bytes: pickle writes an archive for every tensor, which takes forty times as long.
        own = ((s, s.tensor.detach().cpu().reshape(-1).view(torch.uint8)) for s in shards)
        made = [(partial(LocalShard, s.kind, s.placement, s.shape, s.start), s.tensor, b) for s, b in own]
        mine = [(make, tensor.dtype, b.numpy()) for make, tensor, b in made]
        parts = (part for parts in self._from_all(mine) for part in parts)
        return assemble(shard(torch.from_numpy(b).view(dtype)) for shard, dtype, b in parts)

    def _from_all(self, value: Any) -> list[Any]:
        if self.mesh is None:
            return [value]
        every: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(every, value)
        return every

    def gradients_whole(self) -> dict[str, Tensor | None]:
        """The gradient by parameter name, whole, as ``clip`` left it; None where there is none. A collective."""
        learnt = ((s, leaf, g) for s in self.sets for leaf in s.leaves if (g := leaf.tensor.grad) is not None)
        found = self._everywhere(part for one in learnt for part in self._shard(*one[:2], "gradient", one[2]))
        return {name: found.get(("gradient", name)) for name in self.names.parameters}

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one device saves them, in CPU memory, on every rank. A collective.

        With delayed scaling in FP8 also ``amax``, the magnitudes of the last steps.
        """
        for one in self.sets:
            one.wait()
        found = self._everywhere(self.local_shards())
        model = {key: found["parameter", name] for key, name in self.names.state.items()}
        if self.names.buffers:  # the same on all ranks that have them
            for own in self._from_all({name: b.detach().cpu() for name, b in self.buffers().items()}):
                model |= own
        if not all(hasattr(one, "optimizer") for one in self.sets):
            return {"model": model}
        saved = {"model": model, "optimizer": self._optimizer_state(found)}
        for history in self.histories:
            if history.steps.numel():  # a rank of a pipeline has seen its own layers
                steps = torch.stack(self._from_all(history.steps.cpu())).amax(0)
                saved["amax"] = {"count": history.count, "steps": steps}
        return saved

    def _optimizer_state(self, found: Mapping[tuple[str, str], Tensor]) -> dict[str, Any]:
        """The states by number, as an optimizer of the whole model numbers its parameters."""
        steps: dict[str, float] = {}
        options: dict[bool, dict[str, Any]] = {}
        own = _by_decay(group for one in self.sets for group in one.optimizer.param_groups)
        for known, settings in self._from_all((self.step_counts(), own)):
            steps |= known
            options = {**settings, **options}
        numbers = {name: i for i, name in enumerate(self.names.in_optimizer_order())}
        state = {
            numbers[name]: {
                "step": torch.tensor(step),
                **{kind: t for (kind, of), t in found.items() if of == name and kind != "parameter"},
            }
            for name, step in sorted(steps.items(), key=lambda item: numbers[item[0]])
        }
        groups = []
        for decays in (True, False):
            params = [i for name, i in numbers.items() if (name in self.names.matrices) is decays]
            settings = options.get(decays) or {**next(iter(options.values())), "weight_decay": 0.0}
            if params:
                groups.append({**settings, "params": params})
        return {"state": state, "param_groups": groups}

    def step_counts(self) -> dict[str, float]:
        """How many steps the optimizer has made of each parameter that it has states of."""
        every = ((leaf, one.optimizer.state.get(leaf.tensor, {})) for one in self.sets for leaf in one.leaves)
        return {self.placements[leaf.name].name: float(s["step"]) for leaf, s in every if "step" in s}

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take up what ``state_dict`` gave, of any layout, or one device saved."""
        for one in self.sets:
            one.wait()
        keys = {name: key for key, name in self.names.state.items()}

        def value(name: str) -> Tensor:
            placement = self.placements[name]
            return placement.of(saved["model"][keys[placement.name]])

        for one in self.sets:
            one.load(value)
        for name, p in self.frozen():
            p.copy_(value(name))
        for name, buffer in self.buffers().items():
            buffer.copy_(saved["model"][name])
        for history in self.histories:
            if "amax" in saved and history.steps.shape == saved["amax"]["steps"].shape:
                history.count = saved["amax"]["count"]
                history.steps.copy_(saved["amax"]["steps"])
        if "optimizer" in saved:
            for one in self.sets:
                self._load_optimizer(one, saved["optimizer"])

    def _load_optimizer(self, one: ReplicaSet, saved: Mapping[str, Any]) -> None:
        """Give a set's optimizer its part of the states, as PyTorch loads them: on the device of what they belong to."""
        numbers = {name: i for i, name in enumerate(self.names.in_optimizer_order())}

        def state(leaf: Leaf) -> dict[str, Any] | None:
            placement = self.placements[leaf.name]
            found = saved["state"].get(numbers[placement.name])
            return found and {kind: _own(value, leaf, placement) for kind, value in found.items()}

        give_states(one, state, _by_decay(saved["param_groups"]))

    def amax_history(self) -> Any:
        """The magnitudes of the last steps, of delayed scaling in FP8; None without it."""
        return next(iter(self.histories), None)


def states_of(one: ReplicaSet, leaf: Leaf) -> dict[str, Tensor]:
    """The optimizer's states of a leaf, an element for each of its own, in fp32; the count of steps is not among them."""
    optimizer: Any = getattr(one, "optimizer", None)
    state = optimizer.state.get(leaf.tensor, {}) if optimizer else {}
    state = optimizer.wide(leaf.tensor) if hasattr(optimizer, "wide") else state
    return {kind: t for kind, t in state.items() if isinstance(t, Tensor) and t.dim() > 0}


def _by_decay(groups: Iterable[dict[str, Any]]) -> dict[bool, dict[str, Any]]:
    """Options of an optimizer's groups, by whether weight decay pulls at them."""
    return {bool(g["weight_decay"]): {k: v for k, v in g.items() if k != "params"} for g in groups}


def give_states(
    one: ReplicaSet,
    state: Callable[[Leaf], Mapping[str, Any] | None],
    options: Mapping[bool, Mapping[str, Any]] | None = None,
) -> None:
    """Give a set's optimizer the states of each leaf, and ``options`` to groups by whether weight decay applies."""
    leaves, options = {leaf.tensor: leaf for leaf in one.leaves}, options or {}
    now = one.optimizer.state_dict()
    groups = [{**group, **options.get(bool(group["weight_decay"]), {})} for group in now["param_groups"]]
    tensors = (t for group in one.optimizer.param_groups for t in group["params"])
    found = {i: state(leaves[t]) for i, t in enumerate(tensors) if t in leaves}
    kept = {i: dict(own) for i, own in found.items() if own is not None}
    one.optimizer.load_state_dict({"state": kept, "param_groups": groups})


def _own(value: Any, leaf: Leaf, placement: Placement) -> Any:
    """A leaf's part of a whole state; a count of steps is one for all."""
    if not isinstance(value, Tensor) or not value.dim():
        return torch.as_tensor(value, dtype=torch.float32).clone()
    return placement.of(value).reshape(-1)[leaf.start : leaf.stop].view(leaf.tensor.shape).clone()
