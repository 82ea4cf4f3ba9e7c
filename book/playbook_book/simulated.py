"""The network of a decentralized method in one process: the same iterates as on ranks, for as many nodes as one likes."""

from __future__ import annotations

import torch
from torch import Tensor

from playbook.decentralized.network import check_rows, ring_bytes, row_bytes
from playbook.decentralized.topology import Mixing, sends


class Simulated:
    """All ``n`` nodes in this process: a mixing step is a product of matrices."""

    def __init__(self, n: int):
        self.n, self.nodes = n, tuple(range(n))
        self.sent = [0] * n

    def mix(self, x: Tensor, mixing: Mixing) -> Tensor:
        """W·x."""
        check_rows(x, self)
        for node, messages in enumerate(sends(mixing)):
            self.sent[node] += messages * row_bytes(x)
        mixed = torch.zeros_like(x)
        places = list(zip(*mixing, strict=False))  # the first entry of each row, the second, …
        alike = all(len({weight for _, weight in place}) == 1 for place in places)
        if alike and len({len(row) for row in mixing}) == 1:  # all nodes at once: the same sums
            for place in places:
                mixed.add_(x[[j for j, _ in place]], alpha=place[0][1])
            return mixed
        for i, row in enumerate(mixing):
            for j, weight in row:  # in the order in which a rank adds up
                mixed[i].add_(x[j], alpha=weight)
        return mixed

    def mean(self, x: Tensor) -> Tensor:
        """1/n·11ᵀ·x."""
        check_rows(x, self)
        for node in self.nodes:
            self.sent[node] += ring_bytes(x, self.n)
        return x.mean(0, keepdim=True).expand_as(x).clone()

    def to_all(self, packed: Tensor) -> Tensor:
        """They are all here."""
        check_rows(packed, self)
        for node in self.nodes:
            self.sent[node] += (self.n - 1) * row_bytes(packed)
        return packed

    def to_server(self, packed: Tensor) -> Tensor | None:
        """The server is here, too."""
        check_rows(packed, self)
        for node in self.nodes[1:]:
            self.sent[node] += row_bytes(packed)
        return packed

    def from_server(self, packed: Tensor | None, size: int) -> Tensor:
        """One message to each of the others."""
        assert packed is not None
        self.sent[0] += (self.n - 1) * size
        return packed
