"""torch.distributed.pipelining, behind the methods of an engine: the same stages of the same model, torch's schedules.

What its documentation leaves to the user is chosen as fast as it can be: a stage is plain modules, angles are computed
once, outputs of the last stage are not collected (``return_outputs=False``), and nothing is scaled afterwards: a loss is
divided by the tokens of the whole step at once (``scale_grads=False``), as ours is. Importing this takes seconds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from playbook.model.transformer import Transformer
from playbook.parallel.stages import Stage, keep_stages


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

    ``placement`` has the rank of each stage; losses are divided by ``tokens``. There is no optimizer.
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
