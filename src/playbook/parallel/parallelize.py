"""The one place where a layout is applied to a model: cut, share and replicate it, in this order."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook.parallel.data import BUCKET, DATA_PARALLEL, FIRST_BUCKET
from playbook.parallel.mesh import Mesh
from playbook.parallel.zero import Zero1
from playbook.parallel.zero2 import Zero2
from playbook.parallel.zero3 import Zero3
from playbook.training.config import check_supported
from playbook.training.engine import Engine, OneDevice
from playbook.training.optimizer import MakeOptimizer, is_matrix


def parallelize(
    model: Transformer,
    mesh: Mesh,
    make: MakeOptimizer,
    *,
    data_parallel: str = "bucketed",
    bucket: int = BUCKET,
    first_bucket: int = FIRST_BUCKET,
    gather: str = "after",
    reshard: bool = True,
    prefetch: bool = True,
    find_unused: bool = False,
) -> Engine:
    """The engine that trains ``model`` as the layout of ``mesh`` says; ``make`` makes the optimizer of its weights.

    ``data_parallel`` (naive, overlapped, bucketed) is how replicas without ZeRO add gradients; ``bucket`` and
    ``first_bucket`` are bytes; ``gather`` (after, lazily) says when ZeRO-1 and 2 fetch updated parameters; ``reshard``
    and ``prefetch`` are options of ZeRO-3, whose buckets are blocks. ``find_unused`` is for models in which a parameter
    gets a gradient in one step and none in another. Raises LayoutError for axes that are not supported, ConfigError for
    unknown names.
    """
    layout = mesh.layout
    check_supported(layout)
    if data_parallel not in DATA_PARALLEL:
        raise ConfigError(unknown("data_parallel", data_parallel, DATA_PARALLEL))
    group = mesh.group("dp", "cp")  # ranks that have the same weights and other tokens
    # Replicate, or share what replicas have in common.
    if layout.zero == 0:
        options: dict[str, Any] = {"find_unused": find_unused}
        if data_parallel == "bucketed":
            options |= {"bucket": bucket, "first_bucket": first_bucket}
        replicas = DATA_PARALLEL[data_parallel](model, group, **options)
        return Replicated(model, make([(p, is_matrix(p)) for p in model.parameters()]), replicas)
    if layout.zero == 3:
        return Zero3(model, group, make, reshard=reshard, prefetch=prefetch, find_unused=find_unused)
    kind = Zero1 if layout.zero == 1 else Zero2
    return kind(
        model,
        group,
        make,
        bucket=bucket,
        first_bucket=first_bucket,
        gather=gather,
        find_unused=find_unused,
    )


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
