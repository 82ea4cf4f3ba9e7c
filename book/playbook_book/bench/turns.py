"""Ways to train that take turns in the same ranks: what a step is, how it is timed, and how two of them compare."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.tensor import DTensor

from playbook.bench.calls import slowest
from playbook.instruments.counting import CountBytes
from playbook.instruments.measure import synchronize
from playbook.parallel.mesh import Mesh
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens

#: Steps before the clock runs: buckets settle, optimizer states appear, allocators warm up.
WARM_UP = 2
#: What every optimizer is made with.
OPTIMIZER: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
_CLIP = 1.0
Batch = list[tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Work:
    """What is trained: in every step ``micro_batch`` × ``grad_acc`` samples of ``seq`` tokens, on each rank its own ones
    or, ``alike``, the same ones on all."""

    shape: ModelShape
    micro_batch: int = 1
    seq: int = 256
    grad_acc: int = 1
    alike: bool = False

    def batch(self, step: int, device: torch.device) -> Batch:
        """Micro-batches (inputs, targets) of this rank, each (micro_batch, seq)."""
        seed = step * dist.get_world_size() + (0 if self.alike else dist.get_rank())
        size = (self.grad_acc, self.micro_batch, self.seq + 1)
        tokens = torch.randint(self.shape.vocab, size, generator=torch.Generator().manual_seed(seed))
        return [(t[:, :-1], t[:, 1:]) for t in tokens.to(device)]

    @property
    def tokens(self) -> int:
        """Tokens of one rank's samples in a step."""
        return self.micro_batch * self.grad_acc * self.seq


@dataclass(frozen=True)
class Track:
    """What one rank noted of one way to train: seconds of each timed step, and those in which its process had a core; the
    loss (a sum over all tokens) and gradient norm of each step, bytes sent in one."""

    seconds: list[float]
    cpu: list[float]
    losses: list[float]
    norms: list[float]
    sent: int

    @classmethod
    def joined(cls, tracks: Sequence[Track]) -> Track:
        """One rank's tracks of the same thing, one after another, as one."""
        seconds, cpu, losses, norms = (
            [x for track in tracks for x in getattr(track, name)]
            for name in ("seconds", "cpu", "losses", "norms")
        )
        return cls(seconds, cpu, losses, norms, tracks[0].sent)


class Run:
    """One way to train, in one rank. Losses are divided by ``tokens``: of all ranks where gradients are summed, of this
    rank where torch takes their mean. ``copies`` ranks have the same loss."""

    def __init__(self, engine: Any, tokens: int, copies: int = 1):
        self.engine, self.tokens, self.copies = engine, tokens, copies
        self.seconds: list[float] = []
        self.cpu: list[float] = []
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.sent = 0

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The sum of the losses of this rank's tokens; x and y are (micro_batch, seq)."""
        return F.cross_entropy(self.engine.model(x).flatten(0, 1), y.flatten(), reduction="sum")

    def step(self, batch: Batch) -> None:
        """Forget gradients, forward and backward of each micro-batch, reduce, clip, update."""
        engine, total = self.engine, torch.zeros((), device=batch[0][0].device)
        engine.zero_grad()
        for i, (x, y) in enumerate(batch):
            with nullcontext() if i == len(batch) - 1 else engine.no_sync():
                loss = self.loss(x, y) / self.tokens
                loss.backward()
            total += loss.detach()
        engine.finish()
        norm = engine.clip(_CLIP)
        engine.step()
        self.losses.append(total * self.tokens / self.copies)
        self.norms.append(norm)

    def timed(self, batch: Batch, device: torch.device) -> None:
        dist.barrier()
        synchronize(device)
        start, cpu = time.perf_counter(), time.process_time()
        self.step(batch)
        synchronize(device)
        self.seconds.append(time.perf_counter() - start)
        self.cpu.append(time.process_time() - cpu)

    def count(self, batch: Batch) -> None:
        with CountBytes() as counter:
            self.step(batch)
        self.sent = sum(counter.sent.values())

    def track(self) -> Track:
        """What was noted. A collective: losses and norms become those of all ranks."""
        losses = torch.stack(self.losses)
        dist.all_reduce(losses)
        return Track(
            self.seconds, self.cpu, losses.tolist(), [_whole(norm) for norm in self.norms], self.sent
        )


class RunOnMesh(Run):
    """Training of a model that was cut as the layout of ``mesh`` says: it gets its part of each sample."""

    def __init__(self, engine: Any, work: Work, mesh: Mesh, placement: str):
        tp = mesh.layout.tp
        super().__init__(engine, work.tokens * mesh.layout.dp, copies=tp)
        self.mesh, self.placement = mesh, placement

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return self.engine.model.loss(*own_tokens(x, y, self.mesh, self.placement))[0]


def _whole(norm: Tensor) -> float:
    """The number that a norm is. A collective where it is a DTensor."""
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    return norm.item()


def take_turns(runs: list[Run], work: Work, steps: int, device: torch.device) -> None:
    """Each run's step on each batch, timed after ``WARM_UP`` of them, in an order that every step reverses; then one
    more, of which the bytes are counted."""
    for i in range(WARM_UP + steps):
        batch = work.batch(i, device)
        for run in runs if i % 2 else reversed(runs):
            run.timed(batch, device)
    for run in runs:
        del run.seconds[:WARM_UP], run.cpu[:WARM_UP]
        run.count(work.batch(WARM_UP + steps, device))


def compared(ours: Sequence[Track], peer: Sequence[Track]) -> dict[str, Any]:
    """Two tracks, each as all ranks have it, as a row: a step is as slow as its slowest rank, bytes are rank 0's.

    ``cpu_ratio`` compares the seconds on a core of the busiest rank: what others do on the machine matters less there.
    """
    times = [slowest([t.seconds for t in tracks]) for tracks in (ours, peer)]
    seconds = [statistics.median(steps) for steps in times]
    cpu = [statistics.median(slowest([t.cpu for t in tracks])) for tracks in (ours, peer)]
    return {
        "ours_s": seconds[0],
        "peer_s": seconds[1],
        "ratio": seconds[0] / seconds[1],
        "turn_ratio_quartiles": _quartiles([a / b for a, b in zip(*times, strict=True)]),
        "ours_cpu_s": cpu[0],
        "peer_cpu_s": cpu[1],
        "cpu_ratio": cpu[0] / cpu[1],
        "ours_sent": ours[0].sent,
        "peer_sent": peer[0].sent,
        "loss_difference": _difference(ours[0].losses, peer[0].losses),
        "norm_difference": _difference(ours[0].norms, peer[0].norms),
    }


def _quartiles(ratios: list[float]) -> list[float]:
    """First quartile, median, third quartile."""
    return statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3


def _difference(ours: list[float], peer: list[float]) -> float:
    return max(abs(a / b - 1) for a, b in zip(ours, peer, strict=True))
