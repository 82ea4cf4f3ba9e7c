"""The one place where a layout is applied to a model: cut it into stages and slices, then replicate what is left."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Any

import torch.distributed as dist

from playbook.errors import ConfigError
from playbook.layout.stages import placement as stages_on_ranks
from playbook.model.transformer import Transformer
from playbook.parallel.context import share_context
from playbook.parallel.data import STRATEGIES, BucketedDataParallel, NaiveDataParallel
from playbook.parallel.engine import Engine
from playbook.parallel.expert import shard_experts
from playbook.parallel.flat import Named
from playbook.parallel.mesh import Mesh, clone_group
from playbook.parallel.pipeline import Pipeline
from playbook.parallel.placement import Placements, WholeNames, whole
from playbook.parallel.replicas import MakeOptimizer, ReplicaSet, broadcast
from playbook.parallel.stages import EMBEDDING, Stage, cut_stages
from playbook.parallel.tensor import shard_tensors
from playbook.parallel.turns import Turns
from playbook.parallel.zero import Zero1, Zero2
from playbook.parallel.zero3 import Zero3, units_of
from playbook.registry import lab
from playbook.schedules.catalogue import of_layout


def parallelize(model: Transformer, mesh: Mesh, make: MakeOptimizer) -> Engine:
    """The engine that trains ``model`` as the layout of ``mesh`` says; ``make`` makes the optimizer of its weights.

    Raises LayoutError for a layout that the model does not fit, ConfigError where a rank has nothing to learn.
    """
    mesh.layout.check(model.shape)
    return apply_layout(model, mesh, make)


def apply_layout(model: Transformer, mesh: Mesh, make: MakeOptimizer) -> Engine:
    """`parallelize` with a layout that has been checked."""
    layout = mesh.layout
    names = WholeNames(model)
    placements: Placements = whole(model)
    stages: dict[int, Stage] = {}
    pipeline = None
    # Weights that are gathered for a pass (ZeRO-3) are there for one pass at a time.
    turns = Turns(mesh.device) if layout.pp > 1 and layout.ep > 1 and layout.zero < 3 else None
    # Each rank some of the layers,
    if layout.pp > 1:
        ranks = stages_on_ranks(layout)
        stages, placements = cut_stages(model, mesh, placements, ranks, layout.stage_layers)
    # of its blocks some experts,
    if model.shape.moe and layout.world_size > 1:
        placements = shard_experts(model, mesh, placements, layout.dispatch, layout.node, turns)
    # of each matrix some rows or columns,
    if layout.tp > 1:
        placements = shard_tensors(model, mesh, placements, layout.tensor_overlap)
    # of each sample some tokens;
    if layout.cp > 1:
        share_context(model, mesh.group("cp"), layout.context, layout.placement)
    # micro-batches pass through the stages,
    if layout.pp > 1:
        schedule = partial(of_layout, layout)
        pipeline = Pipeline(model, mesh, stages, ranks, schedule, turns)
    # and what ranks still have in common is replicated, or sharded.
    sets = replicate(model, mesh, placements, list(stages.values()))
    for one in sets:
        one.optimize(make)
    return Engine(model, sets, placements, names, mesh, pipeline)


def replicate(
    model: Transformer, mesh: Mesh, placements: Placements, stages: Collection[Stage] = ()
) -> list[ReplicaSet]:
    """The parameters of ``model`` in sets, one for each group of ranks that have the same elements and other tokens.

    Buffers are in none, nor are frozen parameters, unless ZeRO-3 shards them: all replicas get those of the first.
    """
    by_axes: dict[tuple[str, ...], Named] = {}
    frozen: dict[tuple[str, ...], Named] = {}
    for name, p in model.named_parameters():
        of = by_axes if p.requires_grad else frozen
        of.setdefault(placements[name].replicas, []).append((name, p))
    if not by_axes:
        raise ConfigError(f"rank {mesh.rank} has no weight that learns: freeze less, or give it more layers")
    sets: list[ReplicaSet] = []
    for axes, parameters in by_axes.items():
        group = _replica_group(mesh, axes)
        broadcast([*(p for p in model.parameters() if not p.requires_grad), *model.buffers()], group)
        sets.append(_replica_set(model, mesh, group, parameters, placements, list(stages)))
    for axes, parameters in frozen.items() if mesh.layout.zero == 3 else ():
        group = _replica_group(mesh, axes)
        how = {"reshard": mesh.layout.reshard, "prefetch": mesh.layout.prefetch, "stages": list(stages)}
        sets.append(lab("train", "frozen")(model, group, parameters, hybrid=mesh.hybrid(group), **how))
    return sets


def _replica_group(mesh: Mesh, axes: tuple[str, ...]) -> dist.ProcessGroup:
    group = mesh.group(*axes)
    if mesh.layout.cp > 1 and group is mesh.group("cp"):
        return clone_group(group)  # gradients do not queue behind the keys and values of the next block
    return group


def _replica_set(
    model: Transformer,
    mesh: Mesh,
    group: dist.ProcessGroup,
    parameters: Named,
    placements: Placements,
    stages: list[Stage],
) -> ReplicaSet:
    """One set, with the strategy that the layout names."""
    layout, hybrid = mesh.layout, mesh.hybrid(group)
    unused: dict[str, Any] = {"find_unused": layout.find_unused}
    buckets: dict[str, Any] = {"bucket": layout.bucket, "first_bucket": layout.first_bucket, **unused}
    units = stage_units(model, stages, parameters, placements) if stages else None
    if layout.zero == 3:
        weights = {"reshard": layout.reshard, "prefetch": layout.prefetch}
        return Zero3(model, group, parameters, stages=stages, hybrid=hybrid, **weights, **unused)
    if layout.zero:
        kind = Zero1 if layout.zero == 1 else Zero2
        found = kind(parameters, group, gather=layout.gather, units=units, hybrid=hybrid, **buckets)
        if layout.gather == "lazily":
            for unit in units_of(model, stages, parameters):
                found.weights.wait_before_use(unit.modules, unit.parameters)
        return found
    if stages and group.size() == 1:  # no vector to copy to, no hooks in each micro-batch
        return NaiveDataParallel(parameters, group, **unused)
    if layout.method:
        return lab("data parallel", "replicas")(layout, parameters, group)
    if layout.data_parallel == "bucketed":
        return BucketedDataParallel(parameters, group, units=units, **buckets)
    return STRATEGIES[layout.data_parallel](parameters, group, **unused)


def stage_units(
    model: Transformer, stages: list[Stage], parameters: Named, placements: Placements
) -> list[Named]:
    """Parameters that are complete at one time: stage by stage in the order of backward, a tied table last."""
    tied = {p for name, p in parameters if model.shape.tied and placements[name].name == EMBEDDING}
    units = []
    for stage in reversed(stages):
        own = set(stage.parameters().values()) - tied
        units.append([(name, p) for name, p in reversed(parameters) if p in own])
    units.append([(name, p) for name, p in parameters if p in tied])
    return [unit for unit in units if unit]
