"""Decentralized SGD: every node trains on its own data, and averages with its neighbours alone.

With a topology's matrices W, learning rate γ and gradients g_i(x_i) on node i's own samples:

- combine then adapt (D-PSGD, Lian et al. 2017):   x_i ← Σ_j w_ij·x_j − γ·g_i(x_i)
- adapt then combine (Chen and Sayed 2012):        x_i ← Σ_j w_ij·(x_j − γ·g_j(x_j))

Both converge like SGD with n times the batch, at O(1/√(nT)), after a *transient* that is longer the smaller the spectral
gap is: of order n³/gap⁴ steps where nodes have different data, n³/gap² where they have the same (Ying et al. 2021).
Momentum, and gradient tracking for data that differ, in the classes below. Each class is one formula; on ``Simulated``
and ``Ranks`` it gives the same iterates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook._checks import unknown
from playbook.decentralized.network import Gradient, Network
from playbook.decentralized.topology import Topology
from playbook.errors import ConfigError

ORDERS = ("adapt-then-combine", "combine-then-adapt")


class Gossip:
    """Decentralized SGD; ``x`` (rows, d) are the parameters of the nodes here, ``lr`` is γ.

    With ``momentum`` β each node keeps its own: m_i ← β·m_i + g_i takes the place of g_i (DmSGD, Yu et al. 2019).
    """

    def __init__(
        self,
        network: Network,
        topology: Topology,
        x: Tensor,
        lr: float,
        momentum: float = 0.0,
        order: str = "adapt-then-combine",
    ):
        if order not in ORDERS:
            raise ConfigError(unknown("order", order, ORDERS))
        if topology.n != network.n:
            raise ConfigError(
                f"topology has {topology.n} nodes, but the network {network.n}: give both the same"
            )
        self.network, self.topology, self.order = network, topology, order
        self.lr, self.momentum = lr, momentum
        self.x, self.steps = x.clone(), 0
        self.m = torch.zeros_like(x)

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here."""
        self.m = self.momentum * self.m + gradient(self.x, self.network.nodes, self.steps)
        if self.order == "adapt-then-combine":
            self.x = self._mix(self.x - self.lr * self.m)
        else:
            self.x = self._mix(self.x) - self.lr * self.m
        self.steps += 1

    def _mix(self, x: Tensor) -> Tensor:
        return self.network.mix(x, self.topology.at(self.steps))


class QuasiGlobalMomentum(Gossip):
    """Momentum of where the *average* goes (QG-DSGDm, Lin et al. 2021, algorithm 1): better where data differ.

    x_i⁺ ← Σ_j w_ij·(x_j − γ·(β·m_j + g_j)), then m_i ← β·m_i + (1 − β)·(x_i − x_i⁺)/γ: what mixing did is part of it.
    """

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here."""
        g = gradient(self.x, self.network.nodes, self.steps)
        after = self._mix(self.x - self.lr * (self.momentum * self.m + g))
        self.m = self.momentum * self.m + (1 - self.momentum) * (self.x - after) / self.lr
        self.x = after
        self.steps += 1


class GradientTracking(Gossip):
    """Each node tracks the *average* gradient beside its parameters (Di Lorenzo and Scutari 2016, Nedić et al. 2017).

    x_i ← Σ_j w_ij·(x_j − γ·y_j), y_i ← Σ_j w_ij·(y_j + g_j(new x_j) − g_j(old x_j)), y_i = g_i in the beginning. The
    average of all y is the average of all gradients at all times, so that nodes with different data agree on a minimum
    of the sum. Twice the bytes of ``Gossip``.
    """

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here; ``gradient`` is asked once, at the new parameters."""
        if not self.steps:
            self.g = gradient(self.x, self.network.nodes, 0)
            self.y = self.g
        self.x = self._mix(self.x - self.lr * self.y)
        g = gradient(self.x, self.network.nodes, self.steps + 1)
        self.y = self._mix(self.y + g - self.g)
        self.g = g
        self.steps += 1


def disagreement(x: Tensor) -> float:
    """Root mean square distance of nodes (n, d) from their average."""
    return (x - x.mean(0)).square().sum(1).mean().sqrt().item()
