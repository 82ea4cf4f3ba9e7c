"""Many local steps, then one average, with gradients that a function gives: nodes of a simulation, or ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from playbook.decentralized.local import Outer, Rounds
from playbook.decentralized.network import Gradient, Network
from playbook.errors import ConfigError

#: Makes the optimizer of the rows of nodes; it must treat each element by itself, as SGD and AdamW do.
MakeInner = Callable[[list[Tensor]], torch.optim.Optimizer]


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
