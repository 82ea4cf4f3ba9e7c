"""torch's own data parallelism, behind the methods of an engine, so that one step function drives ours and theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from playbook.model.transformer import Transformer
from playbook.parallel.replicas import is_matrix

_DDP = "DistributedDataParallel(gradient_as_bucket_view=True, broadcast_buffers=False)"


class Peer:
    """A model that torch has wrapped, and its optimizer. Gradients are *means* over the ranks, as torch has it.

    ``options`` are those of AdamW; as in ``training.optimizer``, weight decay is for matrices alone, and a GPU has the
    fused kernel.
    """

    #: What is asked of torch, for the record.
    settings: str

    def __init__(self, model: Transformer, *, weight_decay: float, **options: Any):
        self.model = self.wrap(model)
        decayed = [p for p in model.parameters() if is_matrix(p)]
        others = [p for p in model.parameters() if not is_matrix(p)]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        if model.embedding.weight.is_cuda:
            options["fused"] = True
        self.optimizer = self.make([group for group in groups if group["params"]], options)

    def wrap(self, model: Transformer) -> nn.Module:
        raise NotImplementedError

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, **options)

    def zero_grad(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)

    def no_sync(self) -> AbstractContextManager[None]:
        """A backward pass after which there will be another."""
        raise NotImplementedError

    def finish(self) -> None:
        """Nothing to do: torch's hooks have waited for everything when backward returns."""

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient, clipped as torch does it; under FSDP2 a DTensor."""
        return nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def step(self) -> None:
        self.optimizer.step()


class DDP(Peer):
    """Replicas. The reducer is C++; its buckets are the gradients' memory, as ours are."""

    settings = f"{_DDP}, AdamW"

    def wrap(self, model: Transformer) -> nn.Module:
        return DistributedDataParallel(model, gradient_as_bucket_view=True, broadcast_buffers=False)

    def no_sync(self) -> AbstractContextManager[None]:
        assert isinstance(self.model, DistributedDataParallel)
        return self.model.no_sync()


class ZeroRedundancy(DDP):
    """Stage 1 as torch's documentation has it: DDP, and an optimizer of which each rank runs a part."""

    settings = f"{_DDP}, ZeroRedundancyOptimizer(AdamW)"
    #: Whether updated parameters are sent in one message for each rank, and not each on its own.
    bucket_view = False

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        view = self.bucket_view
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, parameters_as_bucket_view=view, **options)


class ZeroRedundancyView(ZeroRedundancy):
    """The same, with an option that makes it faster."""

    settings = f"{_DDP}, ZeroRedundancyOptimizer(AdamW, parameters_as_bucket_view=True)"
    bucket_view = True


class FSDP2(Peer):
    """Parameters sharded. Each block, and what is outside of them, is gathered as one."""

    settings = "fully_shard(block, reshard_after_forward=True), fully_shard(model), AdamW"
    reshard = True

    def wrap(self, model: Transformer) -> nn.Module:
        mesh = init_device_mesh(model.embedding.weight.device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard)
        fully_shard(model, mesh=mesh)  # stays whole from forward to backward, as by default
        return model

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """As in ours, the gradients of every micro-batch are reduced."""
        yield


class FSDP2Kept(FSDP2):
    """Weights stay from forward to backward."""

    settings = "fully_shard(block, reshard_after_forward=False), fully_shard(model), AdamW"
    reshard = False


#: By the name that tables show.
PEERS: dict[str, type[Peer]] = {
    "DDP": DDP,
    "ZeroRedundancyOptimizer": ZeroRedundancy,
    "the same, bucket view": ZeroRedundancyView,
    "FSDP2": FSDP2,
    "FSDP2, kept": FSDP2Kept,
}
