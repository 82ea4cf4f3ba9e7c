"""AdamW, its schedule, and the master weights of 16-bit training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from playbook.planning.moments import CHUNK


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Decay matrices only: norms and biases are vectors, and pulling them to zero regularises nothing."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def warmup_cosine(step: int, *, peak: float, minimum: float, warmup: int, steps: int) -> float:
    """Learning rate of a step (from 0): a line up to ``peak`` in ``warmup`` steps, then half a cosine to ``minimum``."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return minimum + 0.5 * (peak - minimum) * (1 + math.cos(math.pi * min(1.0, progress)))


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter 2017) for 16-bit parameters, with an fp32 master copy of each.

    A bf16 weight has 8 bits of precision: an update below 1/256 of it is lost in rounding. So the optimizer updates the
    fp32 master, and the 16-bit weight is a rounded copy (Micikevicius et al. 2017, section 3.1). Per parameter it holds
    4 bytes of master and 4 + 4 of moments: the 12 of "16 bytes per parameter". The arithmetic is torch's own AdamW, run
    over chunks of parameters, so that only a chunk's gradients are in fp32 at a time.
    """

    def __init__(self, params: Iterable[Tensor] | list[dict], lr: float = 1e-3, **options):
        super().__init__(params, {"lr": lr, **options})
        self.chunks: list[tuple[dict, list[Tensor], torch.optim.AdamW]] = []
        for group in self.param_groups:
            settings = {key: value for key, value in group.items() if key != "params"}
            for params in _chunks(group["params"], CHUNK):
                masters = [p.detach().float().requires_grad_() for p in params]
                for p, master in zip(params, masters, strict=True):
                    self.state[p]["master"] = master
                self.chunks.append((group, params, torch.optim.AdamW(masters, **settings)))
            group.update({k: v for k, v in self.chunks[-1][2].param_groups[0].items() if k != "params"})

    @torch.no_grad()
    def step(self, closure=None):
        """Cast the gradients to fp32, update the masters, round them back into the parameters; chunk by chunk."""
        loss = closure() if closure is not None else None
        for group, params, inner in self.chunks:
            settings = {key: value for key, value in group.items() if key != "params"}
            inner.param_groups[0].update(settings)
            for p in params:
                self.state[p]["master"].grad = None if p.grad is None else p.grad.float()
            inner.step()
            for p in params:
                master = self.state[p]["master"]
                p.copy_(master)
                master.grad = None
                self.state[p].update(inner.state.get(master, {}))
        return loss


def _chunks(params: list[Tensor], elements: int) -> Iterator[list[Tensor]]:
    """Neighbours in groups of at most ``elements`` elements, or of one tensor that is larger."""
    chunk: list[Tensor] = []
    for p in params:
        if chunk and sum(q.numel() for q in chunk) + p.numel() > elements:
            yield chunk
            chunk = []
        chunk.append(p)
    if chunk:
        yield chunk


def make_optimizer(
    model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float
) -> torch.optim.Optimizer:
    """torch's AdamW; with master weights when the model's own are in 16 bits.

    On a GPU it is the fused one: a single kernel, which needs no temporary copy of the states.
    """
    groups = parameter_groups(model, weight_decay)
    sixteen = any(p.dtype in (torch.float16, torch.bfloat16) for p in model.parameters())
    fused = True if next(model.parameters()).is_cuda else None
    kind = MasterAdamW if sixteen else torch.optim.AdamW
    return kind(groups, lr=lr, betas=betas, fused=fused)
