"""Rates: n nodes need 1/n of the steps, and what nodes disagree by grows as the gap shrinks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from playbook.decentralized.gossip import Gossip, disagreement
from playbook.decentralized.local import LocalSteps
from playbook.decentralized.network import Simulated
from playbook.decentralized.topology import spectral_gap, topology


def noisy(d: int, seed: int = 0) -> Callable[[Tensor, Sequence[int], int], Tensor]:
    """Gradients of ½‖x‖² with noise of variance 1 in each of d coordinates: so many that their mean hardly varies."""

    def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
        chance = torch.Generator().manual_seed(step * 1009 + seed)
        return x + torch.randn(len(nodes), d, generator=chance)

    return gradient


def steps_to(error: float, n: int, d: int = 4000) -> int:
    """Of synchronous SGD with the learning rate at which noise leaves half of the error: nε of variance 1."""
    method = LocalSteps(Simulated(n), torch.ones(n, d), 1, partial(torch.optim.SGD, lr=n * error))
    gradient = noisy(d)
    while method.x[0].square().mean() > error:
        method.step(gradient)
    return method.steps


def test_n_nodes_need_one_nth_of_the_steps():
    error = 2e-3
    counts = {n: steps_to(error, n) for n in (1, 2, 4, 8, 16)}
    theory = math.log(2 / error) / (2 * error)  # (1 − γ)^2T + γ/2n = ε for γ = nε
    for n, count in counts.items():
        assert count * n == pytest.approx(theory, rel=0.15), counts
        assert count * n == pytest.approx(counts[1], rel=0.15), counts


@pytest.mark.parametrize("n", [8, 16, 32, 64])
def test_what_nodes_of_a_ring_disagree_by_is_that_of_theory(n):
    """Node i pulls towards cos(2πi/n), the slowest of a ring's modes: of it γ/(gap + γ·(1 − gap)) stays."""
    there = torch.cos(2 * math.pi * torch.arange(n, dtype=torch.float64) / n)[:, None]
    made, lr = topology("ring", n), 1e-2
    method = Gossip(Simulated(n), made, there, lr)
    for _ in range(1200):
        method.step(lambda x, nodes, step: x - there)
    gap = spectral_gap(made.at(0))
    expected = (1 - gap) * lr / (1 - (1 - gap) * (1 - lr)) / math.sqrt(2)
    assert disagreement(method.x) == pytest.approx(expected, rel=1e-3)


def test_it_grows_as_one_over_the_gap():
    """Fitted over rings and tori of different sizes, with a learning rate well below all gaps."""
    gaps, left = [], []
    for name, n in (("ring", 8), ("ring", 16), ("ring", 24), ("torus", 16), ("torus", 36), ("torus", 64)):
        side = n if name == "ring" else math.isqrt(n)
        where = torch.arange(n, dtype=torch.float64) % side
        there = torch.cos(2 * math.pi * where / side)[:, None]
        made = topology(name, n)
        method = Gossip(Simulated(n), made, torch.zeros(n, 1, dtype=torch.float64), 1e-4)
        for _ in range(1500):
            method.step(lambda x, nodes, step, there=there: x - there)
        gaps.append(math.log(spectral_gap(made.at(0))))
        left.append(math.log(disagreement(method.x)))
    x, y = torch.tensor(gaps), torch.tensor(left)
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope.item() == pytest.approx(-1, abs=0.25)  # (1 − gap)/gap: a little steeper where gaps are wide
