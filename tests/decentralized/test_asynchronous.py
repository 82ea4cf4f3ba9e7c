"""Asynchronous SGD: orders of arrival, staleness, and the same iterates on real ranks."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from decentralized_problem import D, gradient, start
from torch import Tensor

from playbook import launch
from playbook.decentralized.network import Network, Ranks, Simulated
from playbook.errors import ConfigError
from playbook_book.asynchronous import Asynchronous, arrivals

EVENTS = 20


def trained(network: Network, discount: bool) -> Asynchronous:
    order = arrivals([1.0 + 0.7 * node for node in range(network.n)], EVENTS)
    copies = start(1).expand(len(network.nodes), D).clone()
    method = Asynchronous(network, order, copies, lr=0.05, discount=discount)
    for _ in range(EVENTS):
        method.step(gradient)
    return method


def on_ranks() -> list[tuple[Tensor, Tensor, list[int], list[int]]]:
    with launch.process_group():
        found = [trained(Ranks(), discount) for discount in (False, True)]
        return [(one.x, one.copies, one.staleness, one.network.sent) for one in found]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ranks_have_the_iterates_and_the_bytes_of_a_simulation(ranks, n):
    found = ranks(on_ranks, ranks=n)
    for i, discount in enumerate((False, True)):
        one = trained(Simulated(n), discount)
        assert torch.allclose(found[0].value[i][0], one.x, rtol=0, atol=1e-12)
        for rank in range(n):
            _, copies, staleness, sent = found[rank].value[i]
            assert torch.allclose(copies[0], one.copies[rank], rtol=0, atol=1e-12)
            assert staleness == one.staleness
            assert sent == [one.network.sent[rank]]


def test_who_is_twice_as_fast_arrives_twice_as_often():
    order = arrivals([2.0, 1.0, 4.0], 14)
    assert [order.count(node) for node in range(3)] == [4, 8, 2]
    assert order[:7] == [1, 0, 1, 1, 0, 1, 2]


def test_of_equally_fast_nodes_each_gradient_is_as_stale_as_there_are_others():
    n = 5
    method = Asynchronous(Simulated(n), arrivals([1.0] * n, n), torch.zeros(n, D), lr=0.1)
    for _ in range(4 * n):
        method.step(lambda x, nodes, step: x)
    assert method.staleness == [*range(n), *[n - 1] * (3 * n)]


def test_alone_it_is_sgd():
    method = Asynchronous(Simulated(1), [0], start(1), lr=0.1, discount=True)
    alone = start(1)
    for step in range(EVENTS):
        method.step(gradient)
        alone = alone - 0.1 * gradient(alone, [0], step)
    assert torch.allclose(method.x, alone[0], rtol=0, atol=1e-12)


def slope(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
    """Of ‖x‖²/2."""
    return x


def test_a_learning_rate_that_is_right_for_fresh_gradients_diverges_with_stale_ones():
    """x ← x − γ·x with x of τ steps ago is stable for γ < 2·sin(π/(4τ + 2)): 0.098 for τ = 15."""
    n = 16
    for lr, discount, converges in ((0.05, False, True), (0.3, False, False), (0.3, True, True)):
        method = Asynchronous(Simulated(n), arrivals([1.0] * n, n), torch.ones(n, D), lr, discount)
        for _ in range(3000):
            method.step(slope)
        assert (method.x.norm().item() < 1e-3) is converges, (lr, discount)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="must be of nodes from 0 to 1"):
        Asynchronous(Simulated(2), [0, 2], torch.zeros(2, D), lr=0.1)
    with pytest.raises(ConfigError, match="must be positive numbers"):
        arrivals([1.0, 0.0], 3)
