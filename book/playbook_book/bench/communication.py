"""``playbook bench communication``: replicas that say less, beside torch's own ways to do so.

*powersgd*: AdamW on gradients of rank r, ours beside DDP with `powerSGD_hook`, from the same first factors. *local*:
AdamW, and weights that are averaged after each H steps, beside `PostLocalSGDOptimizer` and its averager; a turn is a
round of H steps. Ours is what ``--data-parallel powersgd:r=…`` and ``local:H=…`` train with.

Bytes are those that a rank sends around rings, of what both ask their collectives for. Few tokens a step, so that most of
a step is what is compared: the products of a rank grow with tokens, messages do not.
"""
# Annotations are evaluated here: DDP looks at those of a hook.

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook.planning.communication import ring_bytes_sent
from playbook_book.bench import chosen
from playbook_book.bench.contest import Group, Pair, Way, contest, model_of, ours, report_groups, start_ours
from playbook_book.bench.peers import DDP
from playbook_book.bench.turns import OPTIMIZER, Batch, Run, Work

#: What is compared, by name.
GROUPS = {
    "powersgd": "PowerSGD of rank {rank} beside torch's hook of DDP",
    "local": "local steps beside torch's post-local SGD: rounds of {period} steps",
}
#: What the ratios of all pairs are held to, that of seconds and that of bytes.
LIMIT = 1.05
#: Two layers as wide as GPT-2's, and a vocabulary of a sixth.
MODEL: dict[str, Any] = {
    "name": "two layers as wide as GPT-2's", "layers": 2, "hidden": 768, "heads": 12, "ffn": 3072, "vocab": 8192,
    "max_seq": 1024,
}  # fmt: skip


def pairs(rank: int, period: int) -> dict[str, Pair]:
    """Ours and the peer by group, for this rank of PowerSGD's factors and these steps of a round."""
    powersgd, local = f"powersgd:r={rank}", f"local:H={period}"
    hooked = Way(
        "DDP, powerSGD_hook",
        partial(start_hooked, powersgd, rank),
        "gradient_as_bucket_view=True, broadcast_buffers=False, one bucket; powerSGD_hook, min_compression_rate=1, whole "
        "gradients in two steps before the first",
    )
    post_local = Way(
        "post-local SGD",
        start_post_local,
        "DDP likewise, post_localSGD_hook without all-reduce of gradients; PostLocalSGDOptimizer(AdamW, "
        "PeriodicModelAverager), averages after each round",
    )
    return {
        "powersgd": Pair(ours("PowerSGD", "dp=N", data_parallel=powersgd), hooked, LIMIT),
        "local": Pair(Way("local steps", partial(start_local, local)), post_local, LIMIT),
    }


def bench_communication(
    work: Work,
    ranks: Sequence[int],
    rank: int,
    period: int,
    steps: int,
    device: str,
    only: Sequence[str] | None,
    launches: int,
) -> dict[str, Any]:
    """Median seconds of both of each pair, their ratio, and bytes sent, as `contest` gives them, by group.

    A group for each number of ``ranks`` and each name of ``only``; ``rank`` is that of PowerSGD's factors, ``period`` the
    steps of a round. ``steps`` turns are timed in each of ``launches``. Raises ConfigError for what cannot be run.
    """
    names, competing = chosen("group", only, GROUPS), pairs(rank, period)
    if min(ranks) < 2:
        raise ConfigError(f"ranks is {min(ranks)}, but must be at least 2: one rank has nobody to tell")
    tasks = {"powersgd": work, "local": replace(work, grad_acc=period)}
    groups = [
        Group(name, GROUPS[name].format(rank=rank, period=period), n, tasks[name], ((competing[name],),))
        for n in ranks
        for name in names
    ]
    result = contest(groups, steps, device, launches, rank=rank, period=period)
    for row in (row for group in result["groups"] for row in group["comparisons"]):
        row["sent_ratio"] = row["ours_sent"] / row["peer_sent"]
        row["met"] = row["met"] and row["sent_ratio"] <= row["limit"]
    return result


def report_communication(result: dict[str, Any]) -> str:
    """The result of ``bench_communication`` as tables for people."""
    most = max(row["sent_ratio"] for group in result["groups"] for row in group["comparisons"])
    return f"{report_groups(result)}\nours sends at most {most:.3f} times the peer's bytes"


# ---- PowerSGD

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


def start_hooked(method: str, rank: int, work: Work, device: torch.device) -> Run:
    """The peer of ours by ``method``, with the same factors to begin with."""
    (replicas,) = start_ours("dp=N", {"data_parallel": method}, work, device).engine.sets
    model = model_of(work, device)
    places: dict[str, Tensor] = dict(model.named_parameters())
    factors = zip(replicas.parameters, replicas.method.q, strict=True)
    q = {places[name]: q.clone() for (name, _), q in factors if q is not None}
    return RunHooked(HookedDDP(model, q, rank, **OPTIMIZER), work.tokens)


# ---- local steps


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


class RunRounds(Run):
    """A turn is a round: of each micro-batch a whole step, and after the last one nodes meet."""

    def step(self, batch: Batch) -> None:
        for micro in batch:
            super().step([micro])


def start_post_local(work: Work, device: torch.device) -> Run:
    theirs = PostLocalDDP(model_of(work, device), work.grad_acc, **OPTIMIZER)
    return RunRounds(theirs, work.tokens // work.grad_acc)


def start_local(method: str, work: Work, device: torch.device) -> Run:
    run = start_ours("dp=N", {"data_parallel": method}, work, device)
    return RunRounds(run.engine, run.tokens // work.grad_acc)
