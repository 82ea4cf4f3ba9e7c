"""``playbook bench parallel``: data parallelism and ZeRO beside torch's own, one training step after the other.

Ours and the peer train the same model from the same weights on the same tokens, in turns inside the same ranks, each
step from a barrier on. A step takes as long as on its slowest rank; medians of all steps are compared. On a machine that
others use, too, its speed may jump by more than what is to be seen: there the ratios *within* each turn tell more, and
their quartiles are given. Losses and gradient norms of all steps are compared: a fast wrong step is worth nothing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from playbook import launch
from playbook.bench import provenance
from playbook.bench.peers import PEERS, whole
from playbook.collectives.counting import CountBytes
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.model.transformer import Transformer
from playbook.parallel.data import DATA_PARALLEL
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.shapes import ModelShape
from playbook.training.measure import synchronize
from playbook.training.optimizer import adamw

#: Steps before the clock runs: buckets settle, optimizer states appear, allocators warm up.
WARM_UP = 2
_OPTIMIZER: dict[str, Any] = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}
_CLIP = 1.0
_TIMEOUT = 1800.0


@dataclass(frozen=True)
class Ours:
    """One of ours: its name in tables, its ZeRO stage, the options of ``parallelize``."""

    name: str
    zero: int
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """Those that take turns; each of ours is compared with each of the peers."""

    ours: tuple[Ours, ...]
    peers: tuple[str, ...]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Names, ours first."""
        yield from ((ours.name, peer) for ours in self.ours for peer in self.peers)


_REPLICAS = tuple(Ours(name, 0, {"data_parallel": name}) for name in reversed(DATA_PARALLEL))
#: torch has no stage 2. What comes nearest is FSDP2 that keeps its weights from forward to backward.
ROUNDS = (
    Round(_REPLICAS, ("DDP",)),
    Round((Ours("ZeRO-1", 1),), ("ZeroRedundancyOptimizer", "the same, bucket view")),
    Round((Ours("ZeRO-2", 2), Ours("ZeRO-3, kept", 3, {"reshard": False})), ("FSDP2, kept",)),
    Round((Ours("ZeRO-3", 3),), ("FSDP2",)),
)


@dataclass(frozen=True)
class Work:
    """What is trained: ``micro_batch`` × ``grad_acc`` samples of ``seq`` tokens on each rank, in every step."""

    shape: ModelShape
    micro_batch: int = 1
    seq: int = 256
    grad_acc: int = 1

    def batch(self, step: int, device: torch.device) -> list[tuple[Tensor, Tensor]]:
        """Micro-batches (inputs, targets) of this rank, each (micro_batch, seq)."""
        seed = step * dist.get_world_size() + dist.get_rank()
        size = (self.grad_acc, self.micro_batch, self.seq + 1)
        tokens = torch.randint(self.shape.vocab, size, generator=torch.Generator().manual_seed(seed))
        return [(t[:, :-1], t[:, 1:]) for t in tokens.to(device)]

    @property
    def tokens(self) -> int:
        """Tokens of one rank in a step."""
        return self.micro_batch * self.grad_acc * self.seq


def bench_parallel(work: Work, ranks: int, steps: int, device: str) -> dict[str, Any]:
    """Median seconds of a training step, ours and the peer's, their ratio, and the bytes that both send.

    ``turn_ratio_quartiles`` are those of the ratios within each turn, ``loss_difference`` and ``norm_difference`` the
    largest relative ones of all steps. ``device`` "cpu" is gloo with one thread on each rank, "cuda" NCCL with a GPU for
    each. Raises ConfigError for what cannot be run.
    """
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if ranks < 2:
        raise ConfigError(f"ranks is {ranks}, but must be at least 2: one rank has nobody to share with")
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise ConfigError(f"ranks is {ranks} on cuda, but this machine has {torch.cuda.device_count()} GPUs")
    results = launch.run(measure, work, steps, ranks=ranks, backend=backend, timeout=_TIMEOUT).values
    return {
        "provenance": provenance(device),
        "backend": backend,
        "ranks": ranks,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "model": work.shape.name,
        "parameters": work.shape.num_parameters,
        "micro_batch": work.micro_batch,
        "seq": work.seq,
        "grad_acc": work.grad_acc,
        "steps": steps,
        "peers": {name: peer.settings for name, peer in PEERS.items()},
        "comparisons": [
            {"ours": ours, "peer": peer} | compared([r[ours] for r in results], [r[peer] for r in results])
            for turns in ROUNDS
            for ours, peer in turns.pairs()
        ],
    }


def compared(ours: Sequence[Track], peer: Sequence[Track]) -> dict[str, Any]:
    """Two tracks, each as all ranks have it, as a row: a step is as slow as its slowest rank, bytes are rank 0's."""
    times = [
        [max(step) for step in zip(*(t.seconds for t in tracks), strict=True)] for tracks in (ours, peer)
    ]
    seconds = [statistics.median(steps) for steps in times]
    return {
        "ours_s": seconds[0],
        "peer_s": seconds[1],
        "ratio": seconds[0] / seconds[1],
        "turn_ratio_quartiles": _quartiles([a / b for a, b in zip(*times, strict=True)]),
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


def report_parallel(result: dict[str, Any]) -> str:
    """The result of ``bench_parallel`` as a table for people."""
    tokens = f"{result['grad_acc']} × {result['micro_batch']} × {result['seq']} tokens"
    model, ranks = f"{result['model'] or 'model'}, {result['parameters']:,} parameters", result["ranks"]
    lines = [
        f"{model}, {ranks} {result['backend']} ranks, {tokens} on each; medians of {result['steps']} steps",
        f"  {'ours':14} {'peer':24} {'ours ms':>9} {'peer ms':>9} {'ratio':>6} {'quartiles of turns':>18} "
        f"{'MB sent':>8} {'peer':>7} {'loss off':>9} {'norm off':>9}",
    ]
    for c in result["comparisons"]:
        low, middle, high = c["turn_ratio_quartiles"]
        lines.append(
            f"  {c['ours']:14} {c['peer']:24} {c['ours_s'] * 1e3:9.1f} {c['peer_s'] * 1e3:9.1f} {c['ratio']:6.3f} "
            f"{low:6.2f} {middle:5.2f} {high:5.2f} {c['ours_sent'] / 1e6:8.2f} {c['peer_sent'] / 1e6:7.2f} "
            f"{c['loss_difference']:9.0e} {c['norm_difference']:9.0e}"
        )
    return "\n".join([*lines, *(f"  {name}: {text}" for name, text in result["peers"].items())])


# ---- in the ranks


@dataclass(frozen=True)
class Track:
    """What one rank noted of one way to train: seconds of each timed step, the loss (a sum over all tokens of all ranks)
    and gradient norm of each step, bytes sent in one."""

    seconds: list[float]
    losses: list[float]
    norms: list[float]
    sent: int


def measure(work: Work, steps: int) -> dict[str, Track]:
    """In one rank: every way to train, by name; those of one round step by step in turns."""
    tracks: dict[str, Track] = {}
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        for turns in ROUNDS:
            runs = dict(make_runs(turns, work, world))
            take_turns(list(runs.values()), work, steps, world.device)
            tracks |= {name: run.track() for name, run in runs.items()}
            del runs
            gc.collect()  # models and their hooks hold each other
    return tracks


def make_runs(turns: Round, work: Work, world: launch.World) -> Iterator[tuple[str, Run]]:
    """Those of one round by name, each with a model of its own, all from the same weights. Without dropout: what is
    dropped would differ."""
    model = partial(Transformer, work.shape.replace(dropout=0.0), device=world.device)
    for peer in turns.peers:
        yield peer, Run(PEERS[peer](model(), **_OPTIMIZER), work.tokens)
    for ours in turns.ours:
        mesh = Mesh(Layout(dp=world.size, zero=ours.zero))
        engine = parallelize(model(), mesh, partial(adamw, **_OPTIMIZER), **ours.options)
        yield ours.name, Run(engine, work.tokens * world.size)


class Run:
    """One way to train, in one rank. Losses are divided by ``tokens``: of all ranks where gradients are summed, of this
    rank where torch takes their mean."""

    def __init__(self, engine: Any, tokens: int):
        self.engine, self.tokens = engine, tokens
        self.seconds: list[float] = []
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.sent = 0

    def step(self, batch: list[tuple[Tensor, Tensor]]) -> None:
        """Forget gradients, forward and backward of each micro-batch, reduce, clip, update."""
        engine, total = self.engine, torch.zeros((), device=batch[0][0].device)
        engine.zero_grad()
        for i, (x, y) in enumerate(batch):
            with nullcontext() if i == len(batch) - 1 else engine.no_sync():
                logits = engine.model(x).flatten(0, 1)
                loss = F.cross_entropy(logits, y.flatten(), reduction="sum") / self.tokens
                loss.backward()
            total += loss.detach()
        engine.finish()
        norm = engine.clip(_CLIP)
        engine.step()
        self.losses.append(total * self.tokens)
        self.norms.append(norm)

    def timed(self, batch: list[tuple[Tensor, Tensor]], device: torch.device) -> None:
        dist.barrier()
        synchronize(device)
        start = time.perf_counter()
        self.step(batch)
        synchronize(device)
        self.seconds.append(time.perf_counter() - start)

    def count(self, batch: list[tuple[Tensor, Tensor]]) -> None:
        with CountBytes() as counter:
            self.step(batch)
        self.sent = sum(counter.sent.values())

    def track(self) -> Track:
        """What was noted. A collective: losses and norms become those of all ranks."""
        losses = torch.stack(self.losses)
        dist.all_reduce(losses)
        return Track(self.seconds, losses.tolist(), [whole(norm) for norm in self.norms], self.sent)


def take_turns(runs: list[Run], work: Work, steps: int, device: torch.device) -> None:
    """Each run's step on each batch, timed after ``WARM_UP`` of them, in an order that every step reverses; then one
    more, of which the bytes are counted."""
    for i in range(WARM_UP + steps):
        batch = work.batch(i, device)
        for run in runs if i % 2 else reversed(runs):
            run.timed(batch, device)
    for run in runs:
        del run.seconds[:WARM_UP]
        run.count(work.batch(WARM_UP + steps, device))
