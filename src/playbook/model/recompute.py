"""Activation recomputation: keep the inputs of a function, throw its insides away, run it again in backward.

Chen et al. 2016 (arXiv 1604.06174) for whole layers; Korthikanti et al. 2022 (arXiv 2205.05198) for the *selective*
form that recomputes only the attention core, where much memory buys little arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

#: What a model can recompute (`Layout.again`).
RUN = frozenset({"full", "core_attn", "mlp", "moe", "shared_experts", "offload"})


def checkpoint(function: Callable[..., Tensor], *args: Any, preserve_rng: bool = True) -> Tensor:
    """``function(*args)``, saving for backward only the tensors among ``args``.

    ``function`` must return one tensor and take a tensor that requires grad, and all its tensors as direct
    arguments. ``preserve_rng`` replays the same dropout masks; turn it off when there is nothing random inside.
    Gradients of parameters used inside are accumulated into their ``.grad`` during backward, so ``loss.backward()``
    works and ``torch.autograd.grad`` on those parameters does not.
    """
    if not torch.is_grad_enabled():
        return function(*args)
    return _Checkpoint.apply(function, preserve_rng, *args)


class _Checkpoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function: Callable[..., Tensor], preserve_rng: bool, *args: Any) -> Tensor:
        tensors = [a for a in args if isinstance(a, Tensor)]
        ctx.function, ctx.device = function, tensors[0].device.type
        ctx.others = [None if isinstance(a, Tensor) else (a,) for a in args]  # None marks a tensor's place
        ctx.rng = rng_state(ctx.device) if preserve_rng else None
        ctx.autocast = torch.is_autocast_enabled(ctx.device), torch.get_autocast_dtype(ctx.device)
        ctx.save_for_backward(*tensors)
        with torch.no_grad():
            return function(*args)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        # Fresh leaves: the second forward builds a graph of its own, from the saved inputs to the output.
        tensors = iter([t.detach().requires_grad_(t.requires_grad) for t in ctx.saved_tensors])
        args = [next(tensors) if other is None else other[0] for other in ctx.others]
        enabled, dtype = ctx.autocast
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(torch.autocast(ctx.device, dtype=dtype, enabled=enabled))
            if ctx.rng is not None:
                stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(ctx.device)))
                set_rng_state(ctx.rng)
            output = ctx.function(*args)
        torch.autograd.backward(output, gradient)
        return (None, None, *(a.grad if isinstance(a, Tensor) else None for a in args))


def _cuda_devices(device: str) -> list[int]:
    return [torch.cuda.current_device()] if device == "cuda" else []


def rng_state(device: str) -> tuple[Tensor, Tensor | None]:
    """Where the generators of the CPU and of ``device`` are; `set_rng_state` puts them there again."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if device == "cuda" else None


def set_rng_state(state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
