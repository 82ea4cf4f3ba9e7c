"""What a trainer asks for between forward passes: gradients that are complete, their norm, an update."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup


class Engine(Protocol):
    """One step is: ``zero_grad``; for each micro-batch a forward and a backward pass, all but the last of them inside
    ``no_sync()``; ``finish``; ``clip``; ``step``. On many ranks the engine is where they talk. After ``finish`` gradients
    are sums over the ranks: a backward pass without ``zero_grad`` before it would have them summed again."""

    model: nn.Module

    @property
    def optimizer(self) -> torch.optim.Optimizer: ...

    def zero_grad(self) -> None: ...

    def no_sync(self) -> AbstractContextManager[None]: ...

    def finish(self) -> None: ...

    def clip(self, limit: float) -> Tensor:
        """The norm of the whole gradient; where it is above ``limit``, gradients are scaled down to it."""
        ...

    def step(self) -> None: ...

    def sum(self, value: Tensor) -> Tensor:
        """The sum over all ranks that have other samples."""
        ...

    def groups(self) -> list[ProcessGroup]:
        """Process groups in which gradients and parameters travel; none on one device."""
        ...

    def tensors(self) -> dict[str, list[Tensor]]:
        """What this rank keeps: parameters, gradients, optimizer."""
        ...

    def gradients_whole(self) -> dict[str, Tensor | None]:
        """The gradient by parameter name, whole. A collective."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Model and optimizer as one device saves them. A collective."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what one device has saved, or any other engine."""
        ...


class OneDevice:
    """The engine of a single device: PyTorch as everyone knows it."""

    optimizer: torch.optim.Optimizer

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None):
        self.model = model
        if optimizer is not None:
            self.optimizer = optimizer

    def zero_grad(self) -> None:
        self.model.zero_grad(set_to_none=True)

    def no_sync(self) -> AbstractContextManager[None]:
        return nullcontext()

    def finish(self) -> None:
        pass

    def clip(self, limit: float) -> Tensor:
        """The norm of the gradient; where it is above ``limit``, gradients are scaled down to it."""
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit)

    def step(self) -> None:
        self.optimizer.step()

    def sum(self, value: Tensor) -> Tensor:
        return value

    def groups(self) -> list[ProcessGroup]:
        return []

    def owned(self) -> list[tuple[str, Tensor]]:
        return [(name, p.grad) for name, p in self.model.named_parameters() if p.grad is not None]

    def norm_groups(self) -> list[ProcessGroup]:
        return []

    def copies(self, name: str) -> int:
        return 1

    def gradients_whole(self) -> dict[str, Tensor | None]:
        return {name: p.grad for name, p in self.model.named_parameters()}

    def tensors(self) -> dict[str, list[Tensor]]:
        states = [
            t
            for s in self.optimizer.state.values()
            for t in s.values()
            if isinstance(t, Tensor) and t.dim() > 0
        ]
        parameters = list(self.model.parameters())
        return {
            "parameters": [p.detach() for p in parameters],
            "gradients": [p.grad for p in parameters if p.grad is not None],
            "optimizer": states,
        }

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
