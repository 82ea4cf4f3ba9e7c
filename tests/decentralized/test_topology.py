"""Topologies: doubly stochastic, as connected as theory says, and averages that spread as fast."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.decentralized.topology import (
    NAMES,
    Mixing,
    metropolis,
    mix,
    sends,
    topology,
    uniform,
)
from playbook.errors import ConfigError
from playbook_book.gaps import gap_in_theory, spectral_gap

SIZES = (1, 2, 3, 4, 6, 7, 8, 9, 12, 16, 25, 31, 64)


def dense(mixing: Mixing) -> np.ndarray:
    found = np.zeros((len(mixing), len(mixing)))
    for i, row in enumerate(mixing):
        for j, weight in row:
            found[i, j] += weight
    return found


def is_doubly_stochastic(mixing: Mixing) -> bool:
    """Whether no weight is negative, and all rows and columns add up to 1."""
    matrix = dense(mixing)
    sums = np.concatenate([matrix.sum(axis=0), matrix.sum(axis=1)])
    return bool((matrix >= 0).all() and np.allclose(sums, 1, rtol=0, atol=1e-12))


def sizes(name: str) -> list[int]:
    return [n for n in SIZES if name != "hypercube" or n & (n - 1) == 0]


@pytest.mark.parametrize("name", NAMES)
def test_matrices_are_doubly_stochastic_and_gaps_are_numpys(name):
    for n in sizes(name):
        made = topology(name, n)
        assert made.n == n
        for mixing in made.matrices[:40]:
            assert is_doubly_stochastic(mixing)
            rho = np.linalg.norm(dense(mixing) - 1 / n, 2)
            assert spectral_gap(mixing) == pytest.approx(1 - rho, abs=1e-6), (name, n)


@pytest.mark.parametrize("name", ["ring", "torus", "star", "complete", "hypercube", "exponential"])
def test_gaps_are_those_of_the_closed_forms(name):
    known = [(n, gap) for n in sizes(name) if (gap := gap_in_theory(name, n)) is not None]
    assert len(known) >= 4
    for n, gap in known:
        assert spectral_gap(topology(name, n).at(0)) == pytest.approx(gap, rel=1e-3), n
    assert gap_in_theory("matching", 8) is None


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_one_peer_in_turn_averages_exactly_after_log2_n_steps(n):
    made = topology("one-peer-exponential", n)
    assert made.period == math.log2(n)
    values = [float(i * i % 7) for i in range(n)]
    mean = sum(values) / n
    for step in range(made.period):
        assert max(sends(made.at(step))) == 1
        assert max(abs(x - mean) for x in values) > 1e-12 or n == 2
        values = mix(made.at(step), values)
    assert values == pytest.approx([mean] * n, abs=1e-14)


def test_with_another_number_of_nodes_one_peer_does_not():
    made = topology("one-peer-exponential", 6)
    values = [1.0, 0, 0, 0, 0, 0]
    for step in range(made.period):
        values = mix(made.at(step), values)
    assert max(values) - min(values) > 0.01


@given(st.integers(2, 12), st.data())
def test_metropolis_weights_suit_any_graph(n, data):
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))
    edges = data.draw(st.lists(pairs, max_size=30))
    mixing = metropolis(n, edges)
    assert is_doubly_stochastic(mixing)
    values = data.draw(st.lists(st.floats(-10, 10), min_size=n, max_size=n))
    after = mix(mixing, values)
    assert sum(after) == pytest.approx(sum(values), abs=1e-9)

    def spread(some: list[float]) -> float:
        mean = sum(some) / n
        return math.sqrt(sum((x - mean) ** 2 for x in some))

    assert spread(after) <= spread(values) * (1 - spectral_gap(mixing)) + 1e-6


def test_uniform_weights_drift_where_degrees_differ():
    star = [(0, i) for i in range(1, 5)]
    mixing = uniform(5, star)
    assert not is_doubly_stochastic(mixing)
    assert is_doubly_stochastic(uniform(5, [(i, (i + 1) % 5) for i in range(5)]))
    values = [10.0, 0.0, 0.0, 0.0, 0.0]
    for _ in range(200):
        values = mix(mixing, values)
    degrees = [5, 2, 2, 2, 2]  # the limit weighs a node by its degree, itself counted
    assert values == pytest.approx([10 * degrees[0] / sum(degrees)] * 5)


def test_how_many_messages():
    assert sends(topology("ring", 8).at(0)) == [2] * 8
    assert sends(topology("torus", 16).at(0)) == [4] * 16
    assert sorted(sends(topology("grid", 9).at(0))) == [2, 2, 2, 2, 3, 3, 3, 3, 4]
    assert sends(topology("star", 5).at(0)) == [4, 1, 1, 1, 1]
    assert sends(topology("exponential", 16).at(0)) == [4] * 16
    assert sends(topology("hypercube", 16).at(0)) == [4] * 16
    assert all(sum(sends(topology("matching", 7).at(t))) == 6 for t in range(20))


def test_matchings_are_drawn_from_the_seed():
    assert topology("matching", 8, seed=1) == topology("matching", 8, seed=1)
    assert topology("matching", 8, seed=1) != topology("matching", 8, seed=2)


@pytest.mark.parametrize(
    ("name", "n", "sentence"),
    [
        ("rings", 4, "topology 'rings'"),
        ("ring", 0, "nodes is 0, but must be at least 1"),
        ("hypercube", 6, "nodes is 6, but must be a power of two for the topology hypercube"),
    ],
)
def test_what_is_none(name, n, sentence):
    with pytest.raises(ConfigError, match=sentence):
        topology(name, n)
