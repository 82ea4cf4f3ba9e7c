"""``playbook bench pipeline``: our schedules beside torch.distributed.pipelining, in turns inside the same ranks.

A step is forward and backward of all micro-batches, without an optimizer, from a barrier on; it takes as long as on its
slowest rank. Ours and the peer cut the same model, from the same weights, into the same stages, and get the same tokens;
losses and norms of the whole gradient are compared. As in ``bench parallel`` the seconds in which the busiest rank had a
core are compared, too: on a machine that others use they tell more than the clock. The ranks are started several times:
where memory comes to lie makes the same code up to 4 % faster or slower, from one start to the next.

Torch's orders of actions are ours (interleaved, zb-v and dualpipev were compared action by action), and nearly all of
a step is the same operations, so that ratios near 1 are to be expected. What can be gained: B followed by W asks less of
Python than torch, which looks for the weights' nodes in the graph of each micro-batch, and only micro-batches whose W
is an action of its own pay for it; without replicas, gradients stay where autograd makes them. What was lost again: to
send the gradient of BW's input before the weights of the stage's first block have theirs gains 0.7 % of a step of four
ranks on two cores by simulation, and costs 2 to 3 % more seconds on a core in linear layers written in Python.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from playbook import launch
from playbook._checks import unknown
from playbook.bench import provenance
from playbook.bench.parallel import TOLERANCE, verdict
from playbook.bench.turns import OPTIMIZER, Batch, Run, Track, Work, compared, take_turns
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.stages import on_ranks
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.schedules.catalogue import make
from playbook.training.optimizer import adamw

_TIMEOUT = 1800.0
#: torch's schedules by the name of ours.
SCHEDULES = {
    "afab": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


@dataclass(frozen=True)
class Pair:
    """A schedule of ours and one of torch's, by our names; ``limit`` is of the ratio, if there is one."""

    ours: str
    peer: str
    limit: float | None = None


PAIRS = (*(Pair(name, name, 1.0) for name in SCHEDULES), Pair("naive", "afab"))


class RunPipeline(Run):
    """Steps of a pipeline's engine, all of whose ranks have the same samples; norms are no part of what is timed."""

    def step(self, batch: Batch) -> None:
        self.engine.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*batch, strict=True))
        self.losses.append(self.engine.accumulate(x, y) / dist.get_world_size())

    def timed(self, batch: Batch, device: torch.device) -> None:
        super().timed(batch, device)
        self.norms.append(self.engine.norm())


class OurPipeline:
    """The engine that ``parallelize`` gives, with the two methods that differ from torch's."""

    def __init__(self, model: Transformer, name: str, work: Work):
        ranks = dist.get_world_size()
        layout = Layout(
            pp=ranks,
            vpp=_chunks(name),
            schedule=name if name in SCHEDULES else "1f1b",
            grad_acc=work.grad_acc,
            own_schedule=None if name in SCHEDULES else make(name, ranks, work.grad_acc),
        )
        self.engine = parallelize(model, Mesh(layout), partial(adamw, **OPTIMIZER))
        self.model, self.micro_batch = model, work.micro_batch
        self.zero_grad = self.engine.zero_grad

    def accumulate(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.engine.accumulate(inputs, targets, self.micro_batch)

    def norm(self) -> torch.Tensor:
        return self.engine.clip(float("inf"))


def _chunks(name: str) -> int:
    """Parts of the model on each rank that a schedule is asked for: a V has two anyway."""
    return 2 if name == "interleaved" else 1


def check(work: Work, ranks: int) -> None:
    """Raises ConfigError for what the schedules or torch cannot run."""
    if ranks < 2:
        raise ConfigError(f"ranks is {ranks}, but must be at least 2: a pipeline has several")
    if work.shape.tied:
        raise ConfigError("tied is True, but torch's stages share no weights: choose another model")
    if work.shape.layers < 2 * ranks:
        raise ConfigError(
            f"layers is {work.shape.layers}, but must be at least {2 * ranks}: two stages on each rank"
        )
    if work.grad_acc < 2 * ranks or work.grad_acc % ranks:
        raise ConfigError(
            f"grad_acc is {work.grad_acc}, but must be a multiple of the {ranks} ranks, and at least {2 * ranks}"
        )


def bench_pipeline(
    work: Work, ranks: int, steps: int, device: str, only: Sequence[str] | None = None, launches: int = 1
) -> dict[str, Any]:
    """Median seconds of a step, ours and torch's, and their ratio, by schedule: ``steps`` in each of ``launches``.

    ``work.grad_acc`` are the micro-batches. ``only`` chooses among the names of ``PAIRS``. ``device`` "cpu" is gloo with
    one thread on each rank, "cuda" NCCL with a GPU for each. The rows are those of ``bench_parallel``, and the ratio in
    each launch alone. Raises ConfigError for what cannot be run.
    """
    names = [pair.ours for pair in PAIRS]
    for name in only or ():
        if name not in names:
            raise ConfigError(unknown("schedule", name, names))
    check(work, ranks)
    backend = "nccl" if torch.device(device).type == "cuda" else "gloo"
    if backend == "nccl" and torch.cuda.device_count() < ranks:
        raise ConfigError(f"ranks is {ranks} on cuda, but this machine has {torch.cuda.device_count()} GPUs")
    pairs = [pair for pair in PAIRS if not only or pair.ours in only]
    results = [
        launch.run(
            measure, pairs, work, steps, bool(i % 2), ranks=ranks, backend=backend, timeout=_TIMEOUT
        ).values
        for i in range(launches)
    ]
    rows = [_row(pair, [[rank[p] for rank in found] for found in results]) for p, pair in enumerate(pairs)]
    return {
        "provenance": provenance(device),
        "backend": backend,
        "threads_per_rank": 1 if backend == "gloo" else None,
        "steps": steps,
        "launches": launches,
        "ranks": ranks,
        "model": work.shape.name,
        "layers": work.shape.layers,
        "parameters": work.shape.num_parameters,
        "micro_batch": work.micro_batch,
        "seq": work.seq,
        "grad_acc": work.grad_acc,
        "comparisons": rows,
    }


def _row(pair: Pair, launches: Sequence[Sequence[tuple[Track, Track]]]) -> dict[str, Any]:
    """Ours and the peer's tracks of all ranks, launch by launch, as a row."""
    each = [compared(*zip(*ranks, strict=True))["ratio"] for ranks in launches]
    ours, peer = (
        [Track.joined([rank[which] for rank in one]) for one in zip(*launches, strict=True)]
        for which in (0, 1)
    )
    found = compared(ours, peer) | {"launch_ratios": each}
    alike = max(found["loss_difference"], found["norm_difference"]) < TOLERANCE
    met = None if pair.limit is None else alike and found["ratio"] <= pair.limit
    found |= {"limit": pair.limit, "alike": alike, "met": met}
    return {"ours": pair.ours, "peer": SCHEDULES[pair.peer]} | found


def measure(
    pairs: Sequence[Pair], work: Work, steps: int, ours_first: bool = False
) -> list[tuple[Track, Track]]:
    """In one rank: ours and the peer of each pair, step by step in turns. One of them is made first."""
    tracks = []
    with launch.process_group() as world:
        if world.device.type == "cpu":
            torch.set_num_threads(1)
        for pair in pairs:
            starts = (start_ours, start_peer) if ours_first else (start_peer, start_ours)
            runs: list[Run] = [start(pair, work, world.device) for start in starts]
            take_turns(runs, work, steps, world.device)
            found = [run.track() for run in runs]
            tracks.append((found[0], found[1]) if ours_first else (found[1], found[0]))
            del runs
            gc.collect()  # models and their hooks hold each other
    return tracks


def start_ours(pair: Pair, work: Work, device: torch.device) -> RunPipeline:
    return RunPipeline(OurPipeline(_model(work, device), pair.ours, work), work.tokens)


def start_peer(pair: Pair, work: Work, device: torch.device) -> RunPipeline:
    from playbook.bench.pipeline_peers import TorchPipeline  # takes seconds: in ranks alone

    (stages,) = on_ranks(pair.peer, dist.get_world_size(), _chunks(pair.peer))
    engine = TorchPipeline(
        _model(work, device), SCHEDULES[pair.peer], stages, work.grad_acc, work.seq, work.tokens
    )
    return RunPipeline(engine, work.tokens)


def _model(work: Work, device: torch.device) -> Transformer:
    return Transformer(work.shape.replace(dropout=0.0), device=device)


def report_pipeline(result: dict[str, Any]) -> str:
    """The result of ``bench_pipeline`` as a table for people."""
    tokens = f"{result['grad_acc']} micro-batches of {result['micro_batch']} × {result['seq']} tokens"
    lines = [
        f"schedules beside torch.distributed.pipelining {result['provenance']['torch']}",
        f"  {result['model'] or 'model'}, {result['layers']} layers, {result['parameters']:,} parameters; "
        f"{result['ranks']} {result['backend']} ranks, {tokens}; medians of {result['steps']} steps in each of "
        f"{result['launches']} launches",
        f"  {'ours':12} {'peer':24} {'ours ms':>9} {'peer ms':>9} {'ratio':>6} {'quartiles of turns':>18} "
        f"{'launches':>11} {'on a core':>9} {'apart':>7} {'limit':>6}",
    ]
    for c in result["comparisons"]:
        low, middle, high = c["turn_ratio_quartiles"]
        apart = max(c["loss_difference"], c["norm_difference"])
        least, most = min(c["launch_ratios"]), max(c["launch_ratios"])
        lines.append(
            f"  {c['ours']:12} {c['peer']:24} {c['ours_s'] * 1e3:9.1f} {c['peer_s'] * 1e3:9.1f} {c['ratio']:6.3f} "
            f"{low:6.2f} {middle:5.2f} {high:5.2f} {least:6.2f}{most:5.2f} "
            f"{c['cpu_ratio']:9.3f} {apart:7.0e} {verdict(c)}".rstrip()
        )
    return "\n".join(lines)
