"""SGD with compressed gradients, and error feedback: what was not sent is not lost, it is sent later.

A biased compressor C alone may never converge: nodes can send the same few coordinates for ever, or coordinates that
point uphill. Each class is one way, on the communication pattern of its paper, of n nodes with gradients g_i and learning
rate γ; parameters are the same everywhere. A node draws from its own generator, so that simulated nodes and ranks have
the same iterates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.decentralized.compressors import Compressor
from playbook.decentralized.network import Gradient, Network
from playbook.seeding import derive_seed


class CompressedSGD:
    """x ← x − γ·mean C(g_i): every node sends to all others (QSGD, Alistarh et al. 2017). For unbiased compressors.

    ``x`` (rows, d) in fp32 has equal rows.
    """

    def __init__(self, network: Network, compressor: Compressor, x: Tensor, lr: float, seed: int = 0):
        self.network, self.compressor, self.lr = network, compressor, lr
        self.x, self.steps = x.float(), 0
        self.chances = [_chance(seed, f"node {node}") for node in network.nodes]
        self.server = _chance(seed, "server")

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here."""
        g = gradient(self.x, self.network.nodes, self.steps)
        self.x = self.x - self.update(g)
        self.steps += 1

    def update(self, g: Tensor) -> Tensor:
        """What is taken away from the parameters, (d,); ``g`` (rows, d) are the gradients of the nodes here."""
        return self.lr * self._mean(self._encoded(g))

    def _encoded(self, x: Tensor) -> Tensor:
        """The messages of the nodes here, (rows, b)."""
        rows = zip(x, self.chances, strict=True)
        return torch.stack([self.compressor.encode(row, chance) for row, chance in rows])

    def _decoded(self, packed: Tensor) -> Tensor:
        return torch.stack([self.compressor.decode(message, self.x.shape[1]) for message in packed])

    def _mean(self, packed: Tensor) -> Tensor:
        """The mean of what all nodes have sent, (d,)."""
        return self._decoded(self.network.to_all(packed)).mean(0)


class MemSGD(CompressedSGD):
    """Memory (Stich et al. 2018; 1-bit SGD, Seide et al. 2014): p_i = γ·g_i + e_i is sent, and what is left stays in e_i.

    x ← x − mean C(p_i), e_i ← p_i − C(p_i). Each node to all others.
    """

    def update(self, g: Tensor) -> Tensor:
        """What is taken away from the parameters."""
        left = getattr(self, "left", torch.zeros_like(g))
        wanted = self.lr * g + left
        packed = self._encoded(wanted)
        self.left = wanted - self._decoded(packed)
        return self._mean(packed)


def _chance(seed: int, whose: str) -> torch.Generator:
    return torch.Generator().manual_seed(derive_seed(seed, f"compressor of {whose}"))
