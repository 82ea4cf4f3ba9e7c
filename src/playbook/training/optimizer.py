"""AdamW, its schedule, and the master weights of 16-bit training."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as adamw_

from playbook.layout.fields import MOMENTS, OPTIMIZER_CHUNK
from playbook.parallel.replicas import Weights, is_matrix
from playbook.registry import lab

#: What AdamW keeps of a parameter, beside a master; and those of its options that its function takes.
STATES = ("exp_avg", "exp_avg_sq", "step")
OPTIONS = ("lr", "weight_decay", "eps", "maximize", "foreach", "fused", "capturable", "differentiable")


def warmup_cosine(step: int, *, peak: float, minimum: float, warmup: int, steps: int) -> float:
    """Learning rate of a step (from 0): a line up to ``peak`` in ``warmup`` steps, then half a cosine to ``minimum``."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, steps - warmup)
    return minimum + 0.5 * (peak - minimum) * (1 + math.cos(math.pi * min(1.0, progress)))


class MasterAdamW(torch.optim.Optimizer):
    """AdamW (Loshchilov & Hutter 2017) that computes in fp32, with masters of 16-bit parameters and states as told.

    A bf16 weight has 8 bits of precision: an update below 1/256 of it is lost in rounding. So the optimizer updates an
    fp32 master, and the 16-bit weight is a rounded copy (Micikevicius et al. 2017, section 3.1). ``formats`` are those of
    states (exp_avg, exp_avg_sq, master), as `precision.products.narrow` makes them. The arithmetic is torch's own AdamW,
    run over chunks of parameters, so that only a chunk's gradients and narrow states are in fp32 at a time; or that of
    ``kernel`` (`model.ops.Ops.adamw`), which reads gradients of 16 bits as they are.

    With ``offload`` masters and moments live in CPU memory, and the update is made there (Ren et al. 2021, ZeRO-Offload,
    arXiv 2101.06840): a step sends the gradients there and the weights back.
    """

    def __init__(
        self, params: Iterable[Tensor] | list[dict], lr: float = 1e-3, offload: bool = False,
        formats: Mapping[str, str] | None = None, kernel: Any = None, **options,
    ):  # fmt: skip
        super().__init__(params, torch.optim.AdamW([torch.zeros(1)], lr=lr, **options).defaults)
        #: What gradients of 16 bits are divided by in fp32, where dividing loses nothing.
        self.loss_scale, self.kernel = 1.0, kernel
        self.formats = {kind: form for kind, form in (formats or {}).items() if form != "fp32"}
        self.chunks: list[tuple[dict[str, Any], list[Tensor]]] = []
        for group in self.param_groups:
            self.chunks += [(group, chunk) for chunk in _chunks(group["params"], OPTIMIZER_CHUNK)]
            for p in group["params"]:
                if offload or p.dtype != torch.float32:
                    device = "cpu" if offload else p.device
                    self._keep(p, {"master": p.detach().to(device, torch.float32, copy=True)})

    @torch.no_grad()
    def step(self, closure=None):
        """Cast gradients and states to fp32, update, round what is kept in fewer bits; chunk by chunk."""
        loss = closure() if closure is not None else None
        for group, chunk in self.chunks:
            self._update(group, [p for p in chunk if p.grad is not None])
        return loss

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        states = [self.wide(p) for p in params]
        masters = [state.get("master", p) for p, state in zip(params, states, strict=True)]
        for state, x in zip(states, masters, strict=True):
            if "step" not in state:
                steps = torch.zeros((), device=x.device if group["fused"] else "cpu")
                state.update(zip(STATES, (torch.zeros_like(x), torch.zeros_like(x), steps), strict=True))
        (self._in_a_pass if self.kernel else self._by_torch)(group, params, masters, states)
        for p, state in zip(params, states, strict=True):
            self._keep(p, state)

    def _in_a_pass(self, group: dict[str, Any], params: list[Tensor], masters: list[Tensor], states) -> None:
        options = {key: group[key] for key in ("lr", "betas", "eps", "weight_decay")}
        for p, x, state in zip(params, masters, states, strict=True):
            state["step"] += 1
            held = (state["exp_avg"], state["exp_avg_sq"], None if x is p else x)
            self.kernel(p, p.grad, *held, step=int(state["step"]), loss_scale=self.loss_scale, **options)

    def _by_torch(self, group: dict[str, Any], params: list[Tensor], masters: list[Tensor], states) -> None:
        gradients = [p.grad.to(x) for p, x in zip(params, masters, strict=True) if p.grad is not None]
        if self.loss_scale != 1:  # gradients are copies then, of 16 bits
            torch._foreach_div_(gradients, self.loss_scale)
        first, second, steps = ([state[kind] for state in states] for kind in STATES)
        beta1, beta2 = group["betas"]
        options = {key: group[key] for key in OPTIONS} | {"amsgrad": False, "beta1": beta1, "beta2": beta2}
        adamw_(masters, gradients, first, second, [], steps, **options)
        for p, x in zip(params, masters, strict=True):
            if x is not p:
                p.copy_(x)

    def wide(self, parameter: Tensor) -> dict[str, Tensor]:
        """The states of a parameter in fp32: those that are kept in it, and copies of the others."""
        return _wide(self.state.get(parameter, {}))

    def _keep(self, parameter: Tensor, states: Mapping[str, Tensor]) -> None:
        for kind, value in states.items():
            form = self.formats.get(kind)
            narrow = lab("fp8", "state") if form else None
            self.state[parameter].update(narrow(kind, value, form) if narrow else {kind: value})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, but states stay in their formats, and masters come from the checkpoint."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        for group, saved in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({key: value for key, value in saved.items() if key not in ("params", "fused")})
        for number, p in enumerate(parameters):
            self.set_state(p, state_dict["state"].get(number, {}))

    @torch.no_grad()
    def set_state(self, parameter: Tensor, state: Mapping[str, Any]) -> None:
        """Give one parameter copies of a master, moments and a step count; without a master, of its own value."""
        master = self.state[parameter].get("master")
        device = (parameter if master is None else master).device
        found = {"master": parameter.detach(), **_wide(state)}
        if master is None:
            del found["master"]
        places = {"step": device if self.defaults["fused"] else "cpu"}
        found = {k: v.to(places.get(k, device), torch.float32, copy=True) for k, v in found.items()}
        self._keep(parameter, found)


def _wide(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """States in fp32, multiplied by the scales of those that have one. What is in fp32 is not copied."""
    found = {kind: value.float() for kind, value in state.items() if not kind.endswith("_scale")}
    return found | {k: found[k] * state[f"{k}_scale"] for k in found if f"{k}_scale" in state}


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


def state_formats(moments: str, masters: str = "fp32") -> dict[str, str]:
    """``formats`` of ``adamw`` for TrainConfig's ``moments`` and ``masters``."""
    kept = zip(("exp_avg", "exp_avg_sq", "master"), (*MOMENTS[moments], masters), strict=True)
    return {kind: form for kind, form in kept if form != "fp32"}


def make_optimizer(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    """``adamw`` for all parameters of a model that learn."""
    return adamw([(p, is_matrix(p)) for p in model.parameters() if p.requires_grad], **options)


def adamw(
    weights: Weights, *, lr: float, betas: tuple[float, float], weight_decay: float, offload: bool = False,
    formats: Mapping[str, str] | None = None, kernel: Any = None,
) -> torch.optim.Optimizer:  # fmt: skip
    """torch's AdamW; with master weights when the weights are in 16 bits, and where states are in CPU memory or
    in other ``formats`` than fp32.

    On a GPU it is the fused one, a single kernel which needs no temporary copy of the states, or ``kernel`` where there
    are masters; in CPU memory it is fused, too.
    """
    decayed = [w for w, decays in weights if decays]
    others = [w for w, decays in weights if not decays]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    groups = [group for group in groups if group["params"]]
    cuda = weights[0][0].is_cuda
    kernel = None if offload or not cuda else kernel
    fused = bool((cuda or offload) and not kernel) or None
    if offload or formats or any(w.dtype in (torch.float16, torch.bfloat16) for w, _ in weights):
        return MasterAdamW(groups, lr, offload, formats, kernel, betas=betas, fused=fused)
    return torch.optim.AdamW(groups, lr=lr, betas=betas, fused=cuda or None)
