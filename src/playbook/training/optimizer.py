"""AdamW, its schedule, and the master weights of 16-bit training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from playbook.layout.options import OPTIMIZER_CHUNK
from playbook.parallel.replicas import Weights, is_matrix


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

    With ``offload`` masters and moments live in CPU memory, and the update is made there (Ren et al. 2021, ZeRO-Offload,
    arXiv 2101.06840): a step sends the gradients there and the weights back.
    """

    def __init__(
        self, params: Iterable[Tensor] | list[dict], lr: float = 1e-3, offload: bool = False, **options
    ):
        super().__init__(params, {"lr": lr, **options})
        self.chunks: list[tuple[dict, list[Tensor], torch.optim.AdamW]] = []
        for group in self.param_groups:
            settings = {key: value for key, value in group.items() if key != "params"}
            for params in _chunks(group["params"], OPTIMIZER_CHUNK):
                masters = [_master(p, "cpu" if offload else p.device) for p in params]
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
                master = self.state[p]["master"]
                master.grad = None if p.grad is None else p.grad.to(master)
            inner.step()
            for p in params:
                master = self.state[p]["master"]
                p.copy_(master)
                master.grad = None
                self.state[p].update(inner.state.get(master, {}))
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but states stay in fp32, and masters come from the checkpoint."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key != "params"})
        for number, p in enumerate(parameters):
            self.set_state(p, state_dict["state"].get(number, {}))

    @torch.no_grad()
    def set_state(self, parameter: Tensor, state: Mapping[str, Any]) -> None:
        """Give one parameter copies of a master, moments and a step count; without a master, of its own value."""
        master = self.state[parameter]["master"]
        master.copy_(state.get("master", parameter))
        inner = next(opt for _, params, opt in self.chunks if any(p is parameter for p in params))
        moments = {
            key: torch.as_tensor(value, dtype=torch.float32).clone()
            if key == "step"
            else value.to(master, copy=True)
            for key, value in state.items()
            if key != "master"
        }
        if moments:
            inner.state[master] = moments
            self.state[parameter].update(moments)


def _master(parameter: Tensor, device: torch.device | str) -> Tensor:
    """A copy in fp32 of its own."""
    return parameter.detach().to(device, torch.float32, copy=True).requires_grad_()


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
    model: nn.Module, *, lr: float, betas: tuple[float, float], weight_decay: float, offload: bool = False
) -> torch.optim.Optimizer:
    """``adamw`` for all parameters of a model."""
    weights = [(p, is_matrix(p)) for p in model.parameters()]
    return adamw(weights, lr=lr, betas=betas, weight_decay=weight_decay, offload=offload)


def adamw(
    weights: Weights, *, lr: float, betas: tuple[float, float], weight_decay: float, offload: bool = False
) -> torch.optim.Optimizer:
    """torch's AdamW; with master weights when the weights are in 16 bits, or their states in CPU memory.

    On a GPU it is the fused one: a single kernel, which needs no temporary copy of the states.
    """
    decayed = [w for w, decays in weights if decays]
    others = [w for w, decays in weights if not decays]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    fused = True if weights[0][0].is_cuda and not offload else None
    if offload or any(w.dtype in (torch.float16, torch.bfloat16) for w, _ in weights):
        return MasterAdamW(groups, lr=lr, betas=betas, fused=fused, offload=offload)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=fused)
