"""Decentralized SGD: simulated nodes and real ranks have the same iterates, and these are the formulas'."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decentralized_problem import STEPS, D, exact, gradient, minimum, start
from torch import Tensor

from playbook import launch
from playbook.decentralized.network import Network, Ranks
from playbook.decentralized.topology import Mixing, topology
from playbook.errors import ConfigError
from playbook_book.gossip import ORDERS, Gossip, GradientTracking, QuasiGlobalMomentum, disagreement
from playbook_book.simulated import Simulated

CASES: list[tuple[type[Gossip], str, dict[str, Any]]] = [
    (Gossip, "ring", {}),
    (Gossip, "complete", {"order": "combine-then-adapt"}),
    (Gossip, "one-peer-exponential", {"momentum": 0.9}),
    (Gossip, "matching", {"momentum": 0.5, "order": "combine-then-adapt"}),
    (QuasiGlobalMomentum, "exponential", {"momentum": 0.9}),
    (GradientTracking, "star", {}),
    (GradientTracking, "hypercube", {}),
]


def trained(network: Network, case: tuple[type[Gossip], str, dict[str, Any]]) -> tuple[Tensor, list[int]]:
    kind, name, options = case
    method = kind(
        network, topology(name, network.n), start(network.n)[list(network.nodes)], lr=0.05, **options
    )
    for _ in range(STEPS):
        method.step(gradient)
    return method.x, network.sent


def on_ranks() -> list[tuple[Tensor, list[int]]]:
    with launch.process_group():
        return [trained(Ranks(), case) for case in CASES]


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ranks_have_the_iterates_and_the_messages_of_a_simulation(ranks, n):
    found = ranks(on_ranks, ranks=n)
    for i, case in enumerate(CASES):
        x, sent = trained(Simulated(n), case)
        for rank in range(n):
            own, count = found[rank].value[i]
            assert torch.allclose(own[0], x[rank], rtol=0, atol=1e-12), case
            assert count == [sent[rank]], case


def dense(mixing: Mixing) -> Tensor:
    w = torch.zeros(len(mixing), len(mixing), dtype=torch.float64)
    for i, row in enumerate(mixing):
        for j, weight in row:
            w[i, j] += weight
    return w


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].__name__}-{case[1]}")
def test_a_simulation_is_the_formula_with_matrices(case):
    kind, name, options = case
    n, lr, beta = 8, 0.05, options.get("momentum", 0.0)
    made, x, nodes = topology(name, n), start(n), range(n)
    m = torch.zeros_like(x)
    g = y = gradient(x, nodes, 0)
    for step in range(STEPS):
        w = dense(made.at(step))
        if kind is GradientTracking:
            x = w @ (x - lr * y)
            new = gradient(x, nodes, step + 1)
            y, g = w @ (y + new - g), new
        elif kind is QuasiGlobalMomentum:
            after = w @ (x - lr * (beta * m + gradient(x, nodes, step)))
            m, x = beta * m + (1 - beta) * (x - after) / lr, after
        else:
            m = beta * m + gradient(x, nodes, step)
            x = w @ (x - lr * m) if options.get("order", ORDERS[0]) == ORDERS[0] else w @ x - lr * m
    assert torch.allclose(trained(Simulated(n), case)[0], x, rtol=0, atol=1e-12)


def test_the_complete_graph_is_sgd_with_averaged_gradients():
    n = 4
    x = start(1).expand(n, D).clone()
    method = Gossip(Simulated(n), topology("complete", n), x, lr=0.1, momentum=0.9)
    alone, m = x[0], torch.zeros(D, dtype=torch.float64)
    for step in range(STEPS):
        method.step(gradient)
        m = 0.9 * m + gradient(alone.expand(n, D), range(n), step).mean(0)
        alone = alone - 0.1 * m
    assert torch.allclose(method.x, alone.expand(n, D), rtol=0, atol=1e-12)


def test_with_different_data_tracking_finds_the_minimum_and_plain_gossip_a_place_beside_it():
    n, errors = 8, {}
    best = minimum(n)
    for kind in (Gossip, GradientTracking):
        method = kind(Simulated(n), topology("ring", n), start(n), lr=0.1)
        for _ in range(400):
            method.step(exact)
        errors[kind] = (method.x - best).norm().item()
    assert errors[GradientTracking] < 1e-9
    assert errors[Gossip] > 0.1


def test_the_average_moves_by_the_average_gradient():
    n = 8
    method = GradientTracking(Simulated(n), topology("torus", n), start(n), lr=0.1)
    for _ in range(STEPS):
        method.step(gradient)
        assert torch.allclose(method.y.mean(0), method.g.mean(0), atol=1e-12)
    assert disagreement(torch.ones(3, 2)) == 0
    assert disagreement(torch.tensor([[1.0], [-1.0]])) == 1


def test_bytes_are_those_of_the_messages():
    network = Simulated(8)
    trained(network, CASES[0])
    assert network.sent == [2 * 8 * D * STEPS] * 8  # two neighbours, eight bytes a number
    network = Simulated(4)
    x = start(4)
    assert torch.allclose(network.mean(x), x.mean(0).expand(4, D))
    assert network.sent == [2 * 3 * 8 * D // 4] * 4


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="topology has 4 nodes, but the network 3"):
        Gossip(Simulated(3), topology("ring", 4), start(3), lr=0.1)
    with pytest.raises(ConfigError, match="order 'adapt'"):
        Gossip(Simulated(4), topology("ring", 4), start(4), lr=0.1, order="adapt")
    with pytest.raises(ConfigError, match=r"values are \(3, 5\), but must be \(4, d\)"):
        Simulated(4).mix(start(3), topology("ring", 4).at(0))
