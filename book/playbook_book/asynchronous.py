"""Asynchronous SGD: nobody waits, and gradients are of parameters that have moved on since.

A server, node 0, has the parameters x. A node takes a copy, computes a gradient at it, and hands it in; the server makes
a step at once, x ← x − γ·g, and gives the node the new x (Hogwild, Recht et al. 2011; Downpour, Dean et al. 2012). The
*staleness* τ of a gradient is the number of steps since its copy was taken: n − 1 where all are equally fast. With the
learning rate that is right for τ = 0 steps may overshoot; γ/τ repairs that (Zhang et al. 2016).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from torch import Tensor

from playbook.decentralized.gossip import Gradient
from playbook.decentralized.network import Network
from playbook.errors import ConfigError


def arrivals(seconds: Sequence[float], count: int) -> list[int]:
    """Whose gradient arrives first, second, …: ``count`` of them, of nodes that need so many ``seconds`` for each.

    Which of two comes first that arrive at once is decided by their numbers.
    """
    if not seconds or min(seconds) <= 0:
        raise ConfigError(f"seconds are {list(seconds)}, but must be positive numbers, one for each node")
    due = [(time, node) for node, time in enumerate(seconds)]
    heapq.heapify(due)
    order = []
    for _ in range(count):
        time, node = due[0]
        order.append(node)
        heapq.heapreplace(due, (time + seconds[node], node))
    return order


class Asynchronous:
    """Asynchronous SGD in which gradients arrive in this ``order`` of nodes, again and again.

    ``x`` (rows, d) has equal rows: the copies of the nodes here. With ``discount`` a gradient of staleness τ makes a step
    of γ/max(1, τ). Order and staleness are known beforehand, so that a run can be repeated.
    """

    def __init__(self, network: Network, order: Sequence[int], x: Tensor, lr: float, discount: bool = False):
        if not order or not all(0 <= node < network.n for node in order):
            raise ConfigError(f"order is {list(order)[:9]}, but must be of nodes from 0 to {network.n - 1}")
        self.network, self.order, self.lr, self.discount = network, order, lr, discount
        self.copies, self.steps = x.clone(), 0
        #: The parameters, at the server.
        self.x = x[0].clone()
        self.taken = [0] * network.n
        self.staleness: list[int] = []

    def step(self, gradient: Gradient) -> None:
        """One gradient arrives: its node computes it, the server makes a step, and the node takes a new copy."""
        node = self.order[self.steps % len(self.order)]
        here = self.network.nodes
        row = here.index(node) if node in here else None
        g = None if row is None else gradient(self.copies[row : row + 1], [node], self.steps)[0]
        stale = self.steps - self.taken[node]
        came = self.network.send(g, node, 0, self.x)
        if 0 in here:
            assert came is not None
            self.x = self.x - self.lr / (max(1, stale) if self.discount else 1) * came
        new = self.network.send(self.x if 0 in here else None, 0, node, self.x)
        if row is not None:
            assert new is not None
            self.copies[row] = new
        self.steps += 1
        self.taken[node] = self.steps
        self.staleness.append(stale)
