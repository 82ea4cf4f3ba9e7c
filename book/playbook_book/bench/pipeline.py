"""``playbook bench pipeline``: our schedules beside torch.distributed.pipelining, in turns inside the same ranks.

A step is forward and backward of all micro-batches, without an optimizer, from a barrier on; it takes as long as on its
slowest rank. Ours and the peer cut the same model, from the same weights, into the same stages, and get the same tokens;
losses and norms of the whole gradient are compared.

Torch's orders of actions are ours (interleaved, zb-v and dualpipev were compared action by action), and nearly all of
a step is the same operations, so that ratios near 1 are to be expected. What can be gained: B followed by W asks less of
Python than torch, which looks for the weights' nodes in the graph of each micro-batch, and only micro-batches whose W
is an action of its own pay for it; without replicas, gradients stay where autograd makes them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.stages import on_ranks
from playbook.model.transformer import Transformer
from playbook.parallel.stages import Stage, keep_stages
from playbook.schedules.catalogue import make
from playbook_book.bench import chosen
from playbook_book.bench.contest import Group, Pair, Way, contest, engine_of, model_of, table
from playbook_book.bench.turns import Batch, Run, Work

#: torch's schedules by the name of ours.
SCHEDULES = {
    "afab": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb-v": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}


class RunPipeline(Run):
    """Steps of a pipeline's engine, all of whose ranks have the same samples; norms are no part of what is timed."""

    def step(self, batch: Batch) -> None:
        self.engine.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*batch, strict=True))
        self.losses.append(self.engine.accumulate(x, y) / dist.get_world_size())

    def timed(self, batch: Batch, device: torch.device) -> None:
        super().timed(batch, device)
        self.norms.append(self.engine.norm())


# ---- ours


class OurPipeline:
    """The engine that ``parallelize`` gives, with the two methods that differ from torch's."""

    def __init__(self, name: str, work: Work, device: torch.device):
        ranks = dist.get_world_size()
        layout = Layout(
            pp=ranks,
            vpp=_chunks(name),
            schedule=name if name in SCHEDULES else "1f1b",
            grad_acc=work.grad_acc,
            own_schedule=None if name in SCHEDULES else make(name, ranks, work.grad_acc),
        )
        self.engine, _ = engine_of(layout, work, device)
        self.micro_batch, self.zero_grad = work.micro_batch, self.engine.zero_grad

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.engine.accumulate(inputs, targets, self.micro_batch)

    def norm(self) -> Tensor:
        return self.engine.clip(float("inf"))


def _chunks(name: str) -> int:
    """Parts of the model on each rank that a schedule is asked for: a V has two anyway."""
    return 2 if name == "interleaved" else 1


def start_ours(name: str, work: Work, device: torch.device) -> Run:
    return RunPipeline(OurPipeline(name, work, device), work.tokens)


# ---- torch's


class StageModule(nn.Module):
    """A stage as a module whose parameters are the stage's own: tokens or activations -> activations or logits."""

    def __init__(self, stage: Stage, seq: int):
        super().__init__()
        model = stage.model
        self.parts = nn.ModuleList(model.blocks[i] for i in stage.blocks)
        if stage.first:
            self.parts.extend(m for m in (model.embedding, model.position_embedding) if m is not None)
        if stage.last:
            self.parts.extend([model.final_norm, model.head])
        self.run: Callable[..., Tensor] = stage.forward
        if stage.last:
            norm, head = model.final_norm, model.head
            self.logits: Any = lambda x: head(norm(x))
        self.last, self.rotary = stage.last, model.angles(seq)

    def forward(self, x: Tensor) -> Tensor:
        y = self.run(x, self.rotary)
        return self.logits(y) if self.last else y


class TorchPipeline:
    """An engine for ``microbatches`` of samples of ``seq`` tokens on all ranks, with torch's schedule ``name``.

    ``placement`` has the rank of each stage; losses are divided by ``tokens``. There is no optimizer. What torch's
    documentation leaves to the user is chosen as fast as it can be: a stage is plain modules, angles are computed once,
    outputs of the last stage are not collected (``return_outputs=False``), and nothing is scaled afterwards: a loss is
    divided by the tokens of the whole step at once (``scale_grads=False``), as ours is.
    """

    def __init__(
        self,
        model: Transformer,
        name: str,
        placement: Sequence[int],
        microbatches: int,
        seq: int,
        tokens: int,
    ):
        from torch.distributed.pipelining import PipelineStage, schedules  # takes seconds: in ranks alone

        device, depth = model.embedding.weight.device, len(placement)
        held = [stage for stage, rank in enumerate(placement) if rank == dist.get_rank()]
        self.first, self.last = 0 in held, depth - 1 in held
        self.model, self.tokens, self.device = model, tokens, device
        cut = keep_stages(model, held, depth)
        stages = [
            PipelineStage(StageModule(cut[i], seq), i, depth, device, group=dist.group.WORLD) for i in held
        ]
        kind = getattr(schedules, name)
        options = {"n_microbatches": microbatches, "loss_fn": self._loss, "scale_grads": False}
        self.schedule = kind(
            stages if issubclass(kind, schedules.PipelineScheduleMulti) else stages[0], **options
        )
        knows = "return_outputs" in inspect.signature(self.schedule.step).parameters
        self.more: dict[str, Any] = {"return_outputs": False} if knows else {}

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss / self.tokens

    def zero_grad(self) -> None:
        for p in self.model.parameters():
            p.grad = None

    def accumulate(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One step's forward and backward passes of (B, s) tokens; gives the mean loss, on every rank."""
        losses: list[Tensor] = []
        arguments: dict[str, Any] = {**self.more}
        if self.last:
            arguments |= {"target": targets, "losses": losses}
        self.schedule.step(*([inputs] if self.first else []), **arguments)
        loss = torch.stack(losses).detach().sum() if losses else torch.zeros((), device=self.device)
        dist.all_reduce(loss)
        return loss

    def norm(self) -> Tensor:
        """The norm of the whole gradient, of which each rank has a part."""
        squares = nn.utils.get_total_norm(
            [p.grad for p in self.model.parameters() if p.grad is not None]
        ).square()
        dist.all_reduce(squares)
        return squares.sqrt()


def start_peer(name: str, work: Work, device: torch.device) -> Run:
    (stages,) = on_ranks(name, dist.get_world_size(), _chunks(name))
    engine = TorchPipeline(
        model_of(work, device), SCHEDULES[name], stages, work.grad_acc, work.seq, work.tokens
    )
    return RunPipeline(engine, work.tokens)


# ---- both


def _pair(ours: str, peer: str, limit: float | None = None) -> Pair:
    """A schedule of ours and one of torch's, by our names."""
    return Pair(Way(ours, partial(start_ours, ours)), Way(SCHEDULES[peer], partial(start_peer, peer)), limit)


PAIRS = (*(_pair(name, name, 1.0) for name in SCHEDULES), _pair("naive", "afab"))


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
    work: Work, ranks: int, steps: int, device: str, only: Sequence[str] | None, launches: int
) -> dict[str, Any]:
    """Median seconds of a step, ours and torch's, and their ratio, by schedule: ``steps`` in each of ``launches``.

    ``work.grad_acc`` are the micro-batches. ``only`` chooses among the names of ``PAIRS``. See `contest`. Raises
    ConfigError for what cannot be run.
    """
    names = chosen("schedule", only, [pair.ours.name for pair in PAIRS])
    check(work, ranks)
    rounds = tuple((pair,) for pair in PAIRS if pair.ours.name in names)
    found = contest([Group("", "", ranks, work, rounds)], steps, device, launches, layers=work.shape.layers)
    (only_one,), _ = found.pop("groups"), found.pop("peers")
    keys = ("ranks", "model", "parameters", "micro_batch", "seq", "grad_acc", "comparisons")
    return found | {key: only_one[key] for key in keys}


def report_pipeline(result: dict[str, Any]) -> str:
    """The result of ``bench_pipeline`` as a table for people."""
    tokens = f"{result['grad_acc']} micro-batches of {result['micro_batch']} × {result['seq']} tokens"
    columns = ("ours ms", "peer ms", "ratio", "quartiles of turns", "launches", "on a core", "apart")
    lines = [
        f"schedules beside torch.distributed.pipelining {result['provenance']['torch']}",
        f"  {result['model'] or 'model'}, {result['layers']} layers, {result['parameters']:,} parameters; "
        f"{result['ranks']} {result['backend']} ranks, {tokens}; medians of {result['steps']} steps in each of "
        f"{result['launches']} launches",
        *table(result["comparisons"], columns, (12, 24)),
    ]
    return "\n".join(lines)
