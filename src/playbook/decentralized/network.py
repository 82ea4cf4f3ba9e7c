"""The network of a decentralized method: all nodes in one process, or one node a rank. Same method, same iterates.

A method keeps a row for each node that is *here*: all ``n`` in a simulation, (n, d), one under ``Ranks``, (1, d). What
nodes tell each other goes through ``mix`` (neighbours) and ``mean`` (everybody), and is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.decentralized.topology import Mixing, columns, sends
from playbook.errors import ConfigError
from playbook.parallel.mesh import all_gather

#: Gradients (rows, d) at ``x`` (rows, d), a row for each of the nodes, in a step.
Gradient = Callable[[Tensor, Sequence[int], int], Tensor]


class Network(Protocol):
    """``n`` nodes, of which ``nodes`` are here; these have ``sent`` so many bytes, each its own count."""

    n: int
    nodes: tuple[int, ...]
    sent: list[int]

    def mix(self, x: Tensor, mixing: Mixing) -> Tensor:
        """Of each node here Σ_j w_ij·x_j. ``x`` and the result are (rows, d)."""

    def mean(self, x: Tensor) -> Tensor:
        """The average over all nodes, in each row: (rows, d), perhaps in the memory of ``x``.

        Counted as a ring all-reduce: 2(n − 1)/n values each.
        """

    def to_all(self, packed: Tensor) -> Tensor:
        """The messages of all nodes, (n, b) bytes, from those of the nodes here, (rows, b): an all-gather."""

    def to_server(self, packed: Tensor) -> Tensor | None:
        """The messages of all nodes, (n, b), at the server, which is node 0; None elsewhere."""

    def from_server(self, packed: Tensor | None, size: int) -> Tensor:
        """The server's message of ``size`` bytes, (b,), at every node."""


class Simulated:
    """All ``n`` nodes in this process: a mixing step is a product of matrices."""

    def __init__(self, n: int):
        self.n, self.nodes = n, tuple(range(n))
        self.sent = [0] * n

    def mix(self, x: Tensor, mixing: Mixing) -> Tensor:
        """W·x."""
        _check(x, self)
        for node, messages in enumerate(sends(mixing)):
            self.sent[node] += messages * _bytes(x)
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
        _check(x, self)
        for node in self.nodes:
            self.sent[node] += _of_ring(x, self.n)
        return x.mean(0, keepdim=True).expand_as(x).clone()

    def to_all(self, packed: Tensor) -> Tensor:
        """They are all here."""
        _check(packed, self)
        for node in self.nodes:
            self.sent[node] += (self.n - 1) * _bytes(packed)
        return packed

    def to_server(self, packed: Tensor) -> Tensor | None:
        """The server is here, too."""
        _check(packed, self)
        for node in self.nodes[1:]:
            self.sent[node] += _bytes(packed)
        return packed

    def from_server(self, packed: Tensor | None, size: int) -> Tensor:
        """One message to each of the others."""
        assert packed is not None
        self.sent[0] += (self.n - 1) * size
        return packed


class Ranks:
    """This rank is one node, by its place in the ``group`` (None: all ranks). Messages are real, point to point."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = group
        self.n = dist.get_world_size(group)
        self.nodes: tuple[int, ...] = (dist.get_rank(group),)
        self.sent = [0]

    def mix(self, x: Tensor, mixing: Mixing) -> Tensor:
        """Send to all that take this node's value, receive from all whose value it takes, and add up."""
        _check(x, self)
        (me,) = self.nodes
        takers = [i for i, _ in columns(mixing)[me] if i != me]
        came = {j: torch.empty_like(x[0]) for j, _ in mixing[me] if j != me}
        own = x[0].contiguous()
        pending = [self._op(dist.isend, own, i) for i in takers] + [
            self._op(dist.irecv, into, j) for j, into in came.items()
        ]
        for work in dist.batch_isend_irecv(pending) if pending else ():
            work.wait()
        self.sent[0] += len(takers) * _bytes(x)
        mixed = torch.zeros_like(own)
        for j, weight in mixing[me]:
            mixed.add_(came.get(j, own), alpha=weight)
        return mixed[None]

    def mean(self, x: Tensor) -> Tensor:
        """An all-reduce, divided by n, in place."""
        _check(x, self)
        total = x.contiguous()
        dist.all_reduce(total, group=self.group)
        self.sent[0] += _of_ring(x, self.n)
        return total.div_(self.n)

    def to_all(self, packed: Tensor) -> Tensor:
        """An all-gather."""
        _check(packed, self)
        whole = packed.new_empty(self.n * packed.shape[1])
        all_gather(whole, packed[0].contiguous(), self.group)
        self.sent[0] += (self.n - 1) * _bytes(packed)
        return whole.view(self.n, -1)

    def to_server(self, packed: Tensor) -> Tensor | None:
        """A gather."""
        _check(packed, self)
        serves = self.nodes == (0,)
        into = [torch.empty_like(packed[0]) for _ in range(self.n)] if serves else None
        dist.gather(packed[0].contiguous(), into, dst=self._rank(0), group=self.group)
        self.sent[0] += 0 if serves else _bytes(packed)
        return torch.stack(into) if into else None

    def from_server(self, packed: Tensor | None, size: int) -> Tensor:
        """A broadcast, counted as messages from the server to each of the others."""
        packed = torch.empty(size, dtype=torch.uint8) if packed is None else packed.contiguous()
        dist.broadcast(packed, src=self._rank(0), group=self.group)
        self.sent[0] += (self.n - 1) * size if self.nodes == (0,) else 0
        return packed

    def _rank(self, node: int) -> int:
        return node if self.group is None else dist.get_global_rank(self.group, node)

    def _op(self, act: Any, tensor: Tensor, node: int) -> dist.P2POp:
        return dist.P2POp(act, tensor, self._rank(node), self.group)


def _check(x: Tensor, network: Network) -> None:
    if x.dim() != 2 or len(x) != len(network.nodes):
        raise ConfigError(
            f"values are {tuple(x.shape)}, but must be ({len(network.nodes)}, d): a row for each node here"
        )


def _bytes(x: Tensor) -> int:
    """Of one node's values."""
    return x[0].numel() * x.element_size()


def _of_ring(x: Tensor, n: int) -> int:
    return round(2 * (n - 1) / n * _bytes(x))
