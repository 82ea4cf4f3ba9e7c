"""More ways to send compressed gradients: error feedback on both ways, by differences, and in several messages."""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.decentralized.compressors import Compressor
from playbook.decentralized.feedback import CompressedSGD
from playbook.decentralized.network import Gradient, Network
from playbook_book.compressors import MultiStep


class DoubleSqueeze(CompressedSGD):
    """Memory on both ways (Tang et al. 2019): nodes compress to a server, the server compresses what it sends back.

    Up: v_i = g_i + e_i, e_i ← v_i − C(v_i). At the server: v = mean C(v_i) + e, e ← v − C(v). Down: x ← x − γ·C(v).
    """

    def update(self, g: Tensor) -> Tensor:
        """What is taken away from the parameters."""
        wanted = g + getattr(self, "left", torch.zeros_like(g))
        packed = self._encoded(wanted)
        self.left = wanted - self._decoded(packed)
        came = self.network.to_server(packed)
        answer = None
        if came is not None:
            mean = self._decoded(came).mean(0) + getattr(self, "left_at_server", 0.0)
            answer = self.compressor.encode(mean, self.server)
            self.left_at_server = mean - self.compressor.decode(answer, len(mean))
        answer = self.network.from_server(answer, self.compressor.size(self.x.shape[1]))
        return self.lr * self.compressor.decode(answer, self.x.shape[1])


class EF21(CompressedSGD):
    """Nodes send by what their gradient differs from what they have told so far, h_i (Richtárik et al. 2021).

    h_i ← h_i + C(g_i − h_i), x ← x − γ·mean h_i. Where gradients change little, little is lost. Only the way up is
    compressed; everybody keeps the mean of all h_i, to which the messages are added.
    """

    def update(self, g: Tensor) -> Tensor:
        """What is taken away from the parameters."""
        known = getattr(self, "known", torch.zeros_like(g))
        packed = self._encoded(g - known)
        self.known = known + self._decoded(packed)
        self.mean = getattr(self, "mean", 0.0) + self._mean(packed)
        return self.lr * self.mean


class Neolithic(CompressedSGD):
    """``rounds`` = R messages each way, and no memory: what is left shrinks by (1 − δ)^R (NEOLITHIC, Huang et al. 2022).

    A step takes the mean of R gradients, so that it costs as many bytes a gradient as others do. Both, accumulation and
    multi-step compression, are what descriptions of the method name; that of its journal version (He et al. 2023) adds
    Nesterov's acceleration, which is not here. The paper's listing was not at hand: whether it keeps a memory as well,
    and how it scales messages, could not be checked.
    """

    def __init__(
        self, network: Network, compressor: Compressor, x: Tensor, lr: float, seed: int = 0, rounds: int = 2
    ):
        super().__init__(network, MultiStep(compressor, rounds), x, lr, seed)
        self.rounds = rounds

    def step(self, gradient: Gradient) -> None:
        """One step of all nodes here."""
        first, nodes = self.rounds * self.steps, self.network.nodes
        g = torch.stack([gradient(self.x, nodes, first + r) for r in range(self.rounds)]).mean(0)
        self.x = self.x - self.update(g)
        self.steps += 1

    def update(self, g: Tensor) -> Tensor:
        """What is taken away from the parameters."""
        came = self.network.to_server(self._encoded(g))
        answer = None if came is None else self.compressor.encode(self._decoded(came).mean(0), self.server)
        answer = self.network.from_server(answer, self.compressor.size(self.x.shape[1]))
        return self.lr * self.compressor.decode(answer, self.x.shape[1])
