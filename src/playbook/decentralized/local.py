"""Many local steps, then one average: talk every H-th step.

Nodes train by themselves for ``period`` = H steps of an inner optimizer, and then combine where they are (local SGD,
Stich 2019; FedAvg, McMahan et al. 2017). What is combined is taken as *one step* of an outer optimizer from where all
have started, with the difference as its gradient: plain averaging is a step of length 1; SlowMo (Wang et al. 2020) and
DiLoCo (Douillard et al. 2023) give it momentum. H = 1 with plain SGD and averaging is synchronous SGD.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from playbook.decentralized.network import Gradient, Network
from playbook.errors import ConfigError

#: Makes the optimizer of the rows of nodes; it must treat each element by itself, as SGD and AdamW do.
MakeInner = Callable[[list[Tensor]], torch.optim.Optimizer]


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


class LocalSteps:
    """``period`` steps of an inner optimizer, then one of the outer; ``x`` (rows, d) are parameters of the nodes here.

    FedAvg: nodes count by their ``samples`` (None: all the same), and each round has ``take_part`` of them, drawn from
    ``seed`` (None: all); the others stand still, and go on from the common place, too.
    """

    def __init__(
        self,
        network: Network,
        x: Tensor,
        period: int,
        inner: MakeInner,
        outer: Outer | None = None,
        samples: Sequence[float] | None = None,
        take_part: int | None = None,
        seed: int = 0,
    ):
        if samples is not None and (len(samples) != network.n or min(samples) <= 0):
            raise ConfigError(
                f"samples are {list(samples)}, but must be {network.n} positive numbers, one for each node"
            )
        if take_part is not None and not 1 <= take_part <= network.n:
            raise ConfigError(f"take_part is {take_part}, but must be from 1 to the {network.n} nodes")
        self.network, self.rounds = network, Rounds(network, x, period, outer)
        self.samples, self.take_part, self.seed = samples or [1.0] * network.n, take_part or network.n, seed
        self.x = x.clone()
        self.optimizer = inner([self.x])

    @property
    def steps(self) -> int:
        """Steps that were made."""
        return self.rounds.steps

    def active(self, step: int) -> list[bool]:
        """Which nodes take part in the round of a step."""
        drawn = random.Random(f"{self.seed} {step // self.rounds.period}").sample(
            range(self.network.n), self.take_part
        )
        return [node in drawn for node in range(self.network.n)]

    def step(self, gradient: Gradient) -> None:
        """One local step of the nodes here that take part; after each ``period``-th they meet."""
        active = self.active(self.steps)
        rest = [row for row, node in enumerate(self.network.nodes) if not active[node]]
        self.x.grad = gradient(self.x, self.network.nodes, self.steps)
        before = self.x[rest]
        self.optimizer.step()
        if rest:
            self.x[rest] = before
        if self.rounds.due():
            self.x.copy_(self.rounds.meet(self.x * self._shares(active)[:, None]))

    def _shares(self, active: list[bool]) -> Tensor:
        """By how much the nodes here count in the average: 1, where all count the same."""
        counts = [samples * takes for samples, takes in zip(self.samples, active, strict=True)]
        return self.x.new_tensor([counts[node] * self.network.n / sum(counts) for node in self.network.nodes])
