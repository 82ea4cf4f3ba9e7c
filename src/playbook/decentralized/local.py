"""Many local steps, then one average: talk every H-th step.

Nodes train by themselves for ``period`` = H steps of an inner optimizer, and then combine where they are (local SGD,
Stich 2019; FedAvg, McMahan et al. 2017). What is combined is taken as *one step* of an outer optimizer from where all
have started, with the difference as its gradient: plain averaging is a step of length 1; SlowMo (Wang et al. 2020) and
DiLoCo (Douillard et al. 2023) give it momentum. H = 1 with plain SGD and averaging is synchronous SGD.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from playbook.decentralized.network import Network
from playbook.errors import ConfigError


class Outer(Protocol):
    """Where all nodes go on: from where they ``start``ed, and the ``average`` of where they are; (rows, d) each."""

    def step(self, start: Tensor, average: Tensor) -> Tensor: ...


class Average:
    """The average itself."""

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """x ← average."""
        return average


class SlowMo:
    """Slow momentum (Wang et al. 2020, algorithm 1): u ← β·u + (start − average)/γ, x ← start − α·γ·u.

    ``lr`` is γ of the inner steps, ``momentum`` β, ``slow_lr`` α.
    """

    def __init__(self, lr: float, momentum: float = 0.7, slow_lr: float = 1.0):
        self.lr, self.momentum, self.slow_lr = lr, momentum, slow_lr
        self.u: Tensor | float = 0.0

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """One outer step."""
        self.u = self.momentum * self.u + (start - average) / self.lr
        return start - self.slow_lr * self.lr * self.u


class Nesterov:
    """DiLoCo's outer optimizer: SGD with Nesterov momentum, as PyTorch has it, and start − average as the gradient.

    m ← μ·m + Δ, x ← start − η·(Δ + μ·m). The paper's best: η = 0.7, μ = 0.9, with AdamW inside and H = 500.
    """

    def __init__(self, lr: float = 0.7, momentum: float = 0.9):
        self.lr, self.momentum = lr, momentum
        self.m: Tensor | float = 0.0

    def step(self, start: Tensor, average: Tensor) -> Tensor:
        """One outer step."""
        delta = start - average
        self.m = self.momentum * self.m + delta
        return start - self.lr * (delta + self.momentum * self.m)


class Rounds:
    """Nodes that began at one place, ``start`` (rows, d), meet after each ``period`` of steps, by an ``outer`` step."""

    def __init__(self, network: Network, start: Tensor, period: int, outer: Outer | None = None):
        if period < 1:
            raise ConfigError(f"period is {period}, but must be at least 1")
        self.network, self.period, self.outer = network, period, outer or Average()
        self.start, self.steps = start.clone(), 0

    def due(self) -> bool:
        """One more step was made: whether nodes meet after it."""
        self.steps += 1
        return self.steps % self.period == 0

    def meet(self, x: Tensor) -> Tensor:
        """Where all nodes go on, (rows, d), from where they are; not to be changed in place."""
        self.start = self.outer.step(self.start, self.network.mean(x))
        return self.start
