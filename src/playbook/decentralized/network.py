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

from playbook.decentralized.topology import Mixing, columns
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


class Ranks:
    """This rank is one node, by its place in the ``group`` (None: all ranks). Messages are real, point to point."""

    def __init__(self, group: dist.ProcessGroup | None = None):
        self.group = group
        self.n = dist.get_world_size(group)
        self.nodes: tuple[int, ...] = (dist.get_rank(group),)
        self.sent = [0]

    def mix(self, x: Tensor, mixing: Mixing) -> Tensor:
        """Send to all that take this node's value, receive from all whose value it takes, and add up."""
        check_rows(x, self)
        (me,) = self.nodes
        takers = [i for i, _ in columns(mixing)[me] if i != me]
        came = {j: torch.empty_like(x[0]) for j, _ in mixing[me] if j != me}
        own = x[0].contiguous()
        pending = [self._op(dist.isend, own, i) for i in takers] + [
            self._op(dist.irecv, into, j) for j, into in came.items()
        ]
        for work in dist.batch_isend_irecv(pending) if pending else ():
            work.wait()
        self.sent[0] += len(takers) * row_bytes(x)
        mixed = torch.zeros_like(own)
        for j, weight in mixing[me]:
            mixed.add_(came.get(j, own), alpha=weight)
        return mixed[None]

    def mean(self, x: Tensor) -> Tensor:
        """An all-reduce, divided by n, in place."""
        check_rows(x, self)
        total = x.contiguous()
        dist.all_reduce(total, group=self.group)
        self.sent[0] += ring_bytes(x, self.n)
        return total.div_(self.n)

    def to_all(self, packed: Tensor) -> Tensor:
        """An all-gather."""
        check_rows(packed, self)
        whole = packed.new_empty(self.n * packed.shape[1])
        all_gather(whole, packed[0].contiguous(), self.group)
        self.sent[0] += (self.n - 1) * row_bytes(packed)
        return whole.view(self.n, -1)

    def to_server(self, packed: Tensor) -> Tensor | None:
        """A gather."""
        check_rows(packed, self)
        serves = self.nodes == (0,)
        into = [torch.empty_like(packed[0]) for _ in range(self.n)] if serves else None
        dist.gather(packed[0].contiguous(), into, dst=self._rank(0), group=self.group)
        self.sent[0] += 0 if serves else row_bytes(packed)
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


def check_rows(x: Tensor, network: Network) -> None:
    """Raise ConfigError unless values have a row for each node here."""
    if x.dim() != 2 or len(x) != len(network.nodes):
        raise ConfigError(
            f"values are {tuple(x.shape)}, but must be ({len(network.nodes)}, d): a row for each node here"
        )


def row_bytes(x: Tensor) -> int:
    """Of one node's values."""
    return x[0].numel() * x.element_size()


def ring_bytes(x: Tensor, n: int) -> int:
    """That one node sends in a ring all-reduce of them."""
    return round(2 * (n - 1) / n * row_bytes(x))
