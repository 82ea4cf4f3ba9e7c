"""torch's own ways to say less, behind the methods of an engine: DDP with PowerSGD's hook, and post-local SGD.

Annotations are evaluated here: DDP looks at those of a hook.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import (
    PostLocalSGDState,
    post_localSGD_hook,
)
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel

from playbook.bench.peers import DDP
from playbook.bench.rounds import Ours
from playbook.bench.turns import OPTIMIZER, Batch, Run, Work
from playbook.model.transformer import Transformer
from playbook.planning.communication import ring_bytes_sent

#: Steps in which torch's hook sends whole gradients, at least: buckets settle.
_WHOLE = 2
#: Megabytes in which all gradients fit.
_ONE_BUCKET = 2**15


class HookedDDP(DDP):
    """DDP whose gradients `powerSGD_hook` compresses: warm start, error feedback, and matrices of which factors are
    smaller, as ours. ``q`` are the factors (r, b) to begin with, by parameter.

    All gradients are one bucket: of several, later messages come in another order on each rank, and gloo aborts.
    """

    def __init__(self, model: Transformer, q: dict[Tensor, Tensor], rank: int, **options: Any):
        self.q = q
        self.state = PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=_WHOLE, min_compression_rate=1
        )
        super().__init__(model, **options)
        tokens = torch.zeros(1, 1, dtype=torch.int64, device=model.embedding.weight.device)
        for _ in range(_WHOLE):
            self.model(tokens).sum().backward()
        self.zero_grad()

    def wrap(self, model: Transformer) -> nn.Module:
        wrapped = DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False, bucket_cap_mb=_ONE_BUCKET
        )
        wrapped.register_comm_hook(self.state, self._hook)
        return wrapped

    def _hook(self, state: PowerSGDState, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        if state.iter >= _WHOLE and bucket.index() not in state.q_memory_dict:
            self._begin(bucket)
        return powerSGD_hook(state, bucket)

    def _begin(self, bucket: dist.GradBucket) -> None:
        """Give the hook the factors to begin with, where it will look for them: those of equal matrices together."""
        by_shape: dict[tuple[int, ...], list[Tensor]] = {}
        for p in bucket.parameters():
            if p in self.q:
                by_shape.setdefault((len(p), p[0].numel()), []).append(self.q[p])
        factors = [q.mT for found in by_shape.values() for q in found]
        left = sum(a * q.shape[0] for (a, _), found in by_shape.items() for q in found)
        buffer = bucket.buffer()
        self.state.p_memory_dict[bucket.index()] = buffer.new_empty(left)
        self.state.q_memory_dict[bucket.index()] = torch.cat(
            [buffer.new_empty(0), *(q.reshape(-1) for q in factors)]
        )


class PostLocalDDP(DDP):
    """DDP that reduces no gradients, and averages parameters after each ``period`` of steps."""

    def __init__(self, model: Transformer, period: int, **options: Any):
        self.period = period
        super().__init__(model, **options)

    def wrap(self, model: Transformer) -> nn.Module:
        wrapped = super().wrap(model)
        assert isinstance(wrapped, DistributedDataParallel)
        state = PostLocalSGDState(None, None, start_localSGD_iter=0, post_local_gradient_allreduce=False)
        wrapped.register_comm_hook(state, post_localSGD_hook)
        return wrapped

    def make(self, groups: list[dict[str, Any]], options: dict[str, Any]) -> torch.optim.Optimizer:
        averager = PeriodicModelAverager(self.period, warmup_steps=self.period - 1)
        return PostLocalSGDOptimizer(super().make(groups, options), averager)


class RunHooked(Run):
    """Training with a hook, whose later messages come from threads of their own, where `CountBytes` does not look."""

    def count(self, batch: Batch) -> None:
        """Add up what all calls of ``all_reduce`` send around a ring: a hook has no other messages."""
        original, sent = dist.all_reduce, []

        def counted(tensor: Tensor, *arguments: Any, **more: Any) -> Any:
            size = tensor.numel(), tensor.element_size()
            sent.append(ring_bytes_sent("all_reduce", *size, dist.get_world_size(), dist.get_rank(), 0))
            return original(tensor, *arguments, **more)

        with mock.patch.object(dist, "all_reduce", counted):
            self.step(batch)
        self.sent = sum(sent)


class RunRounds(Run):
    """A turn is a round: of each micro-batch a whole step, and after the last one nodes meet."""

    def step(self, batch: Batch) -> None:
        for micro in batch:
            super().step([micro])


def start_powersgd(work: Work, rank: int, device: torch.device) -> dict[str, Run]:
    """Two models with the same weights, and the same factors to begin with."""
    ours = Ours("PowerSGD", "dp=N", {"data_parallel": f"powersgd:r={rank}"}).start(_model(work, device), work)
    (replicas,) = ours.engine.sets
    model = _model(work, device)
    places: dict[str, Tensor] = dict(model.named_parameters())
    factors = zip(replicas.parameters, replicas.method.q, strict=True)
    q = {places[name]: q.clone() for (name, _), q in factors if q is not None}
    return {
        "DDP, powerSGD_hook": RunHooked(HookedDDP(model, q, rank, **OPTIMIZER), work.tokens),
        "PowerSGD": ours,
    }


def start_local(work: Work, rank: int, device: torch.device) -> dict[str, Run]:
    """Two models with the same weights."""
    period, tokens = work.grad_acc, work.tokens // work.grad_acc
    ours = Ours("local steps", "dp=N", {"data_parallel": f"local:H={period}"}).start(
        _model(work, device), work
    )
    theirs = PostLocalDDP(_model(work, device), period, **OPTIMIZER)
    return {
        "post-local SGD": RunRounds(theirs, tokens),
        "local steps": RunRounds(ours.engine, tokens * dist.get_world_size()),
    }


def _model(work: Work, device: torch.device) -> Transformer:
    return Transformer(work.shape.replace(dropout=0.0), device=device)


#: What starts those of each group.
START: dict[str, Callable[[Work, int, torch.device], dict[str, Run]]] = {
    "powersgd": start_powersgd,
    "local": start_local,
}
