"""The one place where a layout is applied to a model: cut, share and replicate it, in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook._checks import unknown
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.layout.stages import on_ranks as stage_placement
from playbook.layout.tokens import check_swap
from playbook.model.transformer import Transformer
from playbook.parallel.context import share_context
from playbook.parallel.data import BUCKET, DATA_PARALLEL, FIRST_BUCKET
from playbook.parallel.mesh import Mesh, beside
from playbook.parallel.pieces import Cut
from playbook.parallel.pipeline import Pipeline
from playbook.parallel.pipelined import Pipelined, Shared
from playbook.parallel.tensor import shard_tensors
from playbook.parallel.zero import Zero1
from playbook.parallel.zero2 import Zero2
from playbook.parallel.zero3 import Zero3
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import make as make_schedule
from playbook.schedules.validate import check_copies, validate
from playbook.training.config import check_supported
from playbook.training.engine import Engine, OneDevice
from playbook.training.optimizer import MakeOptimizer, is_matrix


def parallelize(
    model: Transformer,
    mesh: Mesh,
    make: MakeOptimizer,
    *,
    context: str = "ring",
    placement: str | None = None,
    tensor_overlap: str = "async",
    data_parallel: str = "bucketed",
    bucket: int = BUCKET,
    first_bucket: int = FIRST_BUCKET,
    gather: str = "after",
    reshard: bool = True,
    prefetch: bool = True,
    find_unused: bool = False,
    schedule: Schedule | None = None,
    stage_layers: Sequence[int] | None = None,
) -> Engine:
    """The engine that trains ``model`` as the layout of ``mesh`` says; ``make`` makes the optimizer of its weights.

    ``context`` (ring, gather, ulysses) is how attention reaches the tokens of other ranks, ``placement`` (contiguous,
    zigzag) which each has; ``tensor_overlap`` (none, async, chunked) how tensor-parallel messages hide behind products.
    ``data_parallel`` (naive, overlapped, bucketed) is how replicas without ZeRO add gradients; ``bucket`` and
    ``first_bucket`` are bytes; ``gather`` (after, lazily) says when ZeRO-1 and 2 fetch updated parameters; ``reshard``
    and ``prefetch`` are options of ZeRO-3, whose buckets are blocks. ``find_unused`` is for models in which a parameter
    gets a gradient in one step and none in another. ``schedule`` is a pipeline's, in place of the one that the layout
    names, and ``stage_layers`` are the layers of each of its stages, in place of an even split. Raises LayoutError for
    axes that are not supported, ConfigError for unknown names.
    """
    layout = mesh.layout
    check_supported(layout)
    layout.check(model.shape)
    if data_parallel not in DATA_PARALLEL:
        raise ConfigError(unknown("data_parallel", data_parallel, DATA_PARALLEL))
    group = mesh.group("dp", "cp")  # ranks that have the same weights and other tokens
    if layout.pp > 1:
        placement_of_stages = stages_on_ranks(layout, schedule)
        shared = Shared(model, mesh, placement_of_stages)
        group = shared.replicas
        pipeline = Pipeline(model, mesh, _schedules(layout, schedule), placement_of_stages, stage_layers)
    if layout.cp > 1:
        if context == "ulysses":
            check_swap(model.shape, layout)
        share_context(model, mesh.group("cp"), context, placement)
    pieces = shard_tensors(model, mesh.group("tp"), layout.sp, tensor_overlap) if layout.tp > 1 else None
    if group is mesh.group("cp") and layout.cp > 1:
        group = beside(group)  # gradients do not queue behind the keys and values of the next block
    engine: Any
    units = None
    if layout.pp > 1:
        pipeline.prepare()
        units = pipeline.units()
        if not units:
            raise ConfigError(
                f"rank {pipeline.rank} of the pipeline has no weight that learns in its stages {list(pipeline.stages)}: "
                "freeze less, or give it more layers (stage_layers)"
            )
    # Replicate, or share what replicas have in common.
    if layout.zero == 0:
        if layout.pp > 1 and group.size() == 1:
            data_parallel = "naive"  # nothing to add up: no vector to copy to, no hooks in each micro-batch
        options: dict[str, Any] = {"find_unused": find_unused}
        if data_parallel == "bucketed":
            options |= {"bucket": bucket, "first_bucket": first_bucket, "units": units}
        replicas = DATA_PARALLEL[data_parallel](model, group, **options)
        engine = Replicated(model, make([(p, is_matrix(p)) for p in model.parameters()]), replicas)
    elif layout.zero == 3:
        engine = Zero3(model, group, make, reshard=reshard, prefetch=prefetch, find_unused=find_unused)
    else:
        kind = Zero1 if layout.zero == 1 else Zero2
        engine = kind(
            model,
            group,
            make,
            bucket=bucket,
            first_bucket=first_bucket,
            gather=gather,
            find_unused=find_unused,
            units=units,
        )
    engine = engine if pieces is None else Cut(engine, pieces)
    return Pipelined(engine, pipeline, shared, mesh) if layout.pp > 1 else engine


def stages_on_ranks(layout: Layout, schedule: Schedule | None = None) -> tuple[tuple[int, ...], ...]:
    """The rank of each stage, for each way through the pipeline, as the layout's schedule or ``schedule`` has it."""
    if schedule is None:
        return stage_placement(layout.schedule, layout.pp, _chunks(layout))
    if len(schedule.ranks) != layout.pp:
        raise LayoutError(
            f"pp is {layout.pp}, but schedule {schedule.name!r} has {len(schedule.ranks)} ranks: make them equal"
        )
    validate(schedule)
    check_copies(schedule, each_pass=layout.zero == 2)
    return schedule.placement


def _chunks(layout: Layout) -> int:
    """What the schedule is told: a V always has two chunks, said or not."""
    return 1 if layout.schedule in ("zb-v", "dualpipev") and layout.vpp == 2 else layout.vpp


def _schedules(layout: Layout, schedule: Schedule | None) -> Callable[[int], Schedule]:
    """The schedule of so many micro-batches."""
    if schedule is not None:
        return lambda _: schedule
    return lambda microbatches: make_schedule(layout.schedule, layout.pp, microbatches, _chunks(layout))


def axis_groups(engine: Engine, mesh: Mesh) -> dict[str, list[dist.ProcessGroup]]:
    """The groups in which ``engine`` talks, by axis of the mesh: what an instrument labels bytes with.

    Gradients and parameters of ranks with other tokens count for dp, whether these are other samples or other parts (cp);
    keys and values that travel count for cp.
    """
    found = {"dp": engine.groups()}
    if isinstance(engine, Pipelined):
        found["pp"] = [mesh.group("pp"), *([engine.shared.ends] if engine.shared.ends else [])]
        engine = engine.inner
    if isinstance(engine, Cut):
        found["tp"] = engine.pieces.groups()
    if mesh.layout.cp > 1:
        found["cp"] = [mesh.group("cp")]
    return found


class Replicated(OneDevice):
    """Whole models on all ranks, the sum of their gradients, and the same update everywhere."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, replicas: Any):
        super().__init__(model, optimizer)
        self.replicas = replicas

    def zero_grad(self) -> None:
        self.replicas.zero_grad()

    def no_sync(self) -> AbstractContextManager[None]:
        return self.replicas.no_sync()

    def finish(self) -> None:
        self.replicas.finish()

    def sum(self, value: Tensor) -> Tensor:
        dist.all_reduce(value, group=self.replicas.group)
        return value

    def groups(self) -> list[dist.ProcessGroup]:
        return [self.replicas.group]

    #: Whether whole gradients stay on this rank until the last micro-batch.
    keeps_gradients = True

    def hold(self) -> None:
        self.replicas.hold()

    def deliver(self, parameters: Iterable[nn.Parameter]) -> None:
        self.replicas.deliver(parameters)
