"""Rates: n nodes need 1/n of the steps, what nodes disagree by grows as the gap shrinks, and so do transients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from playbook.decentralized.topology import Mixing, Topology, topology
from playbook_book.gaps import spectral_gap
from playbook_book.gossip import Gossip, disagreement
from playbook_book.local_steps import LocalSteps
from playbook_book.simulated import Simulated


def noisy(d: int, seed: int = 0) -> Callable[[Tensor, Sequence[int], int], Tensor]:
    """Gradients of ½‖x‖² with noise of variance 1 in each of d coordinates: so many that their mean hardly varies."""

    def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
        chance = torch.Generator().manual_seed(step * 1009 + seed)
        return x + torch.randn(len(nodes), d, generator=chance)

    return gradient


def steps_to(error: float, n: int, d: int = 1000) -> int:
    """Of synchronous SGD with the learning rate at which noise leaves half of the error: nε of variance 1."""
    method = LocalSteps(Simulated(n), torch.ones(n, d), 1, partial(torch.optim.SGD, lr=n * error))
    gradient = noisy(d)
    while method.x[0].square().mean() > error:
        method.step(gradient)
    return method.steps


def test_n_nodes_need_one_nth_of_the_steps():
    error = 4e-3
    counts = {n: steps_to(error, n) for n in (1, 4, 16)}
    theory = math.log(2 / error) / (2 * error)  # (1 − γ)^2T + γ/2n = ε for γ = nε
    for n, count in counts.items():
        assert count * n == pytest.approx(theory, rel=0.15), counts
        assert count * n == pytest.approx(counts[1], rel=0.15), counts


@pytest.mark.parametrize("n", [8, 32])
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
    for name, n in (("ring", 8), ("ring", 16), ("torus", 36)):
        side = n if name == "ring" else math.isqrt(n)
        where = torch.arange(n, dtype=torch.float64) % side
        there = torch.cos(2 * math.pi * where / side)[:, None]
        made = topology(name, n)
        method = Gossip(Simulated(n), made, torch.zeros(n, 1, dtype=torch.float64), 1e-4)
        for _ in range(600):
            method.step(lambda x, nodes, step, there=there: x - there)
        gaps.append(math.log(spectral_gap(made.at(0))))
        left.append(math.log(disagreement(method.x)))
    # (1 − gap)/gap: a little steeper where gaps are wide
    assert slope(gaps, left) == pytest.approx(-1, abs=0.25)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Of the straight line through the points, by least squares."""
    a, b = torch.tensor(x), torch.tensor(y)
    return (((a - a.mean()) * (b - b.mean())).sum() / (a - a.mean()).square().sum()).item()


def lazy(name: str, n: int, gap: float) -> Topology:
    """(1 − a)·I + a·W of a topology, with a such that its gap is this one."""
    mixing = topology(name, n).at(0)
    a = gap / spectral_gap(mixing)
    rows = [tuple((j, a * w + (1 - a) * (i == j)) for j, w in row) for i, row in enumerate(mixing)]
    return Topology(name, (tuple(rows),))


def slowest(mixing: Mixing) -> Tensor:
    """The vector (n, 1) of mean square 1 that mixing shortens least, but for the average."""
    w = torch.zeros(len(mixing), len(mixing))
    for i, row in enumerate(mixing):
        for j, weight in row:
            w[i, j] += weight
    return torch.linalg.eigh((w + w.T) / 2).eigenvectors[:, -2:-1] * math.sqrt(len(mixing))


def transient(made: Topology, apart: float, c: float, steps: int, seed: int = 0) -> int:
    """Of so many ``steps``, those in which nodes' mean square error is more than twice that of all-reduce SGD.

    Node i pulls towards b_i, of mean square ``apart``² and 0 on average, with noise of variance 1 in each of many
    coordinates; the learning rate of step t is c·√(n/t), as for convex losses. All begin at the optimum.
    """
    n, d = made.n, 300
    there = apart * slowest(made.at(0))
    chance = torch.Generator()

    def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
        pull = x - there + torch.randn(n, d, generator=chance)
        return pull if len(nodes) == n else pull.mean(0, keepdim=True)

    found = []
    for method in (
        Gossip(Simulated(n), made, torch.zeros(n, d), c, order="combine-then-adapt"),
        Gossip(Simulated(1), topology("complete", 1), torch.zeros(1, d), c),
    ):
        chance.manual_seed(seed)
        errors = []
        for step in range(steps):
            method.lr = c * math.sqrt(n / (step + 1))
            method.step(gradient)
            errors.append(method.x.square().mean())
        found.append(torch.stack(errors))
    worse = found[0] > 2 * found[1]  # where both are close, chance makes as many too early as too late
    assert not worse[-steps // 10 :].any(), "it has not ended"
    return int(worse.sum())


@pytest.mark.parametrize(
    ("name", "n", "apart", "c", "gaps", "power"),
    [
        ("exponential", 8, 0.0, 0.1, (0.1, 0.05), 2),
        ("grid", 9, 0.0, 0.1, (0.1, 0.05), 2),
        ("ring", 8, 0.5, 0.05, (0.2, 0.14, 0.1), 4),
    ],
    ids=["alike, exponential", "alike, grid", "apart, ring"],
)
def test_transients_grow_as_one_over_the_gap_to_the_second_or_the_fourth(name, n, apart, c, gaps, power):
    """Disagreement is γ²/gap of noise or (γ·apart/gap)² of data, what averaging leaves of noise γ/n, up to constants.

    With γ of order √(n/t) the last is the larger one after n³/gap² steps, n³/gap⁴ with unequal data (Ying et al. 2021).
    """
    enough = 10 * c**2 * n**3 * apart**4 if apart else 0.35 * n
    times = [transient(lazy(name, n, gap), apart, c, round(enough / gap**power)) for gap in gaps]
    found = slope([math.log(gap) for gap in gaps], [math.log(time) for time in times])
    assert found == pytest.approx(-power, rel=0.15), times
