"""What an engine has, tensor by tensor: this rank's parts for a checkpoint, and whole tensors for those who ask.

A state dict is always that of one device, so that any layout takes up what any other has saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.parallel.placement import LocalShard, Placement, assemble
from playbook.parallel.replicas import Leaf, ReplicaSet

if TYPE_CHECKING:
    from playbook.parallel.engine import Engine


def local_shards(engine: Engine) -> Iterator[LocalShard]:
    """Parameters and optimizer states of this rank, of which no other rank gives the same elements."""
    for one in engine.sets:
        for leaf in one.leaves:
            yield from _shard(engine, one, leaf, "parameter", leaf.tensor.detach())
            for kind, value in states_of(one, leaf).items():
                yield from _shard(engine, one, leaf, kind, value)
    for name, p in engine.frozen():
        replicas = engine.placements[name].replicas
        if (engine.mesh is None or engine.mesh.index(*replicas) == 0) and _is_first(engine, name):
            yield LocalShard("parameter", engine.placements[name], tuple(p.shape), 0, p.detach())


def states_of(one: ReplicaSet, leaf: Leaf) -> dict[str, Tensor]:
    """The optimizer's states of a leaf, an element for each of its own, in fp32; the count of steps is not among them."""
    optimizer: Any = getattr(one, "optimizer", None)
    state = optimizer.state.get(leaf.tensor, {}) if optimizer else {}
    state = optimizer.wide(leaf.tensor) if hasattr(optimizer, "wide") else state
    return {kind: t for kind, t in state.items() if isinstance(t, Tensor) and t.dim() > 0}


def _shard(engine: Engine, one: ReplicaSet, leaf: Leaf, kind: str, value: Tensor) -> Iterator[LocalShard]:
    among_replicas = one.shared or one.group is None or one.group.rank() == 0
    if among_replicas and _is_first(engine, leaf.name):
        yield LocalShard(kind, engine.placements[leaf.name], tuple(leaf.parameter.shape), leaf.start, value)


def _is_first(engine: Engine, name: str) -> bool:
    """Whether this rank is the first that has a parameter, along the axes that cut models."""
    placement = engine.placements[name]
    if placement.tied and name != placement.name:  # the other end has it, too
        return False
    return engine.mesh is None or placement.first_on({"tp": engine.mesh.coordinates["tp"]})


def _everywhere(engine: Engine, shards: Iterator[LocalShard]) -> dict[tuple[str, str], Tensor]:
    """Whole tensors of the shards of all ranks, in CPU memory."""
    mine = [(s.kind, s.placement, s.shape, s.start, s.tensor.detach().cpu()) for s in shards]
    every = _from_all(engine, mine)
    return assemble(LocalShard(*part) for parts in every for part in parts)


def _from_all(engine: Engine, value: Any) -> list[Any]:
    if engine.mesh is None:
        return [value]
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, value)
    return every


def gradients_whole(engine: Engine) -> dict[str, Tensor | None]:
    """The gradient by parameter name, whole; None where there is none. A collective."""
    shards = (
        shard
        for one in engine.sets
        for leaf in one.leaves
        if leaf.tensor.grad is not None
        for shard in _shard(engine, one, leaf, "gradient", leaf.tensor.grad)
    )
    found = _everywhere(engine, shards)
    return {name: found.get(("gradient", name)) for name in engine.names.parameters}


def state_dict(engine: Engine) -> dict[str, Any]:
    """Model and optimizer as one device saves them, on every rank. A collective: all ranks must call it.

    With delayed scaling in FP8 also ``amax``, the magnitudes of the last steps.
    """
    for one in engine.sets:
        one.wait()
    found = _everywhere(engine, local_shards(engine))
    model = {key: found["parameter", name] for key, name in engine.names.state.items()}
    if engine.names.buffers:  # the same on all ranks that have them
        for own in _from_all(engine, {name: b.detach().cpu() for name, b in engine.buffers().items()}):
            model |= own
    if not all(hasattr(one, "optimizer") for one in engine.sets):
        return {"model": model}
    saved = {"model": model, "optimizer": _optimizer_state(engine, found)}
    for history in engine.histories:
        if history.steps.numel():  # a rank of a pipeline has seen its own layers
            steps = torch.stack(_from_all(engine, history.steps.cpu())).amax(0)
            saved["amax"] = {"count": history.count, "steps": steps}
    return saved


def _optimizer_state(engine: Engine, found: Mapping[tuple[str, str], Tensor]) -> dict[str, Any]:
    """The states by number, as an optimizer of the whole model numbers its parameters."""
    steps: dict[str, float] = {}
    options: dict[bool, dict[str, Any]] = {}
    for known, settings in _from_all(engine, (step_counts(engine), _options(engine))):
        steps |= known
        options = {**settings, **options}
    numbers = {name: i for i, name in enumerate(engine.names.in_optimizer_order())}
    state = {
        numbers[name]: {
            "step": torch.tensor(step),
            **{kind: t for (kind, of), t in found.items() if of == name and kind != "parameter"},
        }
        for name, step in sorted(steps.items(), key=lambda item: numbers[item[0]])
    }
    groups = []
    for decays in (True, False):
        params = [i for name, i in numbers.items() if (name in engine.names.matrices) is decays]
        settings = options.get(decays) or {**next(iter(options.values())), "weight_decay": 0.0}
        if params:
            groups.append({**settings, "params": params})
    return {"state": state, "param_groups": groups}


def step_counts(engine: Engine) -> dict[str, float]:
    """How many steps the optimizer has made of each parameter that it has states of."""
    every = ((leaf, one.optimizer.state.get(leaf.tensor, {})) for one in engine.sets for leaf in one.leaves)
    return {engine.placements[leaf.name].name: float(s["step"]) for leaf, s in every if "step" in s}


def _options(engine: Engine) -> dict[bool, dict[str, Any]]:
    """Options of an optimizer's groups, by whether weight decay pulls at them."""
    groups = [group for one in engine.sets for group in one.optimizer.param_groups]
    return {bool(g["weight_decay"]): {k: v for k, v in g.items() if k != "params"} for g in groups}


@torch.no_grad()
def load_state_dict(engine: Engine, saved: Mapping[str, Any]) -> None:
    """Take up what one device has saved, or any other engine: of it, this rank's part."""
    for one in engine.sets:
        one.wait()
    keys = {name: key for key, name in engine.names.state.items()}

    def value(name: str) -> Tensor:
        placement = engine.placements[name]
        return placement.of(saved["model"][keys[placement.name]])

    for one in engine.sets:
        one.load(value)
    for name, p in engine.frozen():
        p.copy_(value(name))
    for name, buffer in engine.buffers().items():
        buffer.copy_(saved["model"][name])
    for history in engine.histories:
        if "amax" in saved and history.steps.shape == saved["amax"]["steps"].shape:
            history.count = saved["amax"]["count"]
            history.steps.copy_(saved["amax"]["steps"])
    if "optimizer" in saved:
        numbers = {name: i for i, name in enumerate(engine.names.in_optimizer_order())}
        for one in engine.sets:
            _load_optimizer(one, engine.placements, saved["optimizer"], lambda name: numbers[name])


def _load_optimizer(
    one: ReplicaSet,
    placements: Mapping[str, Placement],
    saved: Mapping[str, Any],
    number: Callable[[str], int],
) -> None:
    """Give a set's optimizer its part of the states, as PyTorch loads them: on the device of what they belong to."""
    options = {
        bool(g["weight_decay"]): {k: v for k, v in g.items() if k != "params"} for g in saved["param_groups"]
    }

    def state(leaf: Leaf) -> dict[str, Any] | None:
        found = saved["state"].get(number(placements[leaf.name].name))
        return found and {kind: _own(value, leaf, placements[leaf.name]) for kind, value in found.items()}

    give_states(one, state, options)


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


def amax_history(engine: Engine) -> Any:
    """The magnitudes of the last steps, of delayed scaling in FP8; None without it."""
    return next(iter(engine.histories), None)


def _own(value: Any, leaf: Leaf, placement: Placement) -> Any:
    """A leaf's part of a whole state; a count of steps is one for all."""
    if not isinstance(value, Tensor) or not value.dim():
        return torch.as_tensor(value, dtype=torch.float32).clone()
    return placement.of(value).reshape(-1)[leaf.start : leaf.stop].view(leaf.tensor.shape).clone()
