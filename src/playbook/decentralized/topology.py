"""Who talks to whom, and with which weights: graphs, mixing matrices, and how fast averages spread over them.

Node ``i`` of ``n`` replaces its value by a weighted mean of its own and its neighbours', x_i ← Σ_j w_ij·x_j. The matrix W
is *doubly stochastic*: rows add up to 1 (a mean), and columns, too (the average over all nodes stays what it is). How far
nodes are from their average shrinks in each such step at least by the factor ρ = ‖W − 11ᵀ/n‖₂; 1 − ρ is the *spectral
gap*. Weights after Metropolis et al. as in Xiao and Boyd 2004; exponential graphs after Ying et al. 2021. Standard
library only: pages compute with it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from playbook._checks import unknown
from playbook.errors import ConfigError

#: Of each node, whose values it takes with which weights: pairs (node, weight), its own among them, in order of nodes.
Mixing = tuple[tuple[tuple[int, float], ...], ...]
NAMES = (
    "ring", "grid", "torus", "star", "complete", "hypercube", "exponential", "one-peer-exponential", "matching",
)  # fmt: skip
#: Steps after which random matchings begin again: enough that nobody sees the period.
_MATCHINGS = 1024


@dataclass(frozen=True)
class Topology:
    """A graph of ``n`` nodes, or several in turn: step ``t`` has the mixing matrix ``matrices[t % period]``."""

    name: str
    matrices: tuple[Mixing, ...]

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.matrices[0])

    @property
    def period(self) -> int:
        """Number of steps after which matrices repeat."""
        return len(self.matrices)

    def at(self, step: int) -> Mixing:
        """The mixing matrix of a step."""
        return self.matrices[step % self.period]


def topology(name: str, n: int, seed: int = 0) -> Topology:
    """The topology of this name over ``n`` nodes.

    ``ring``: two neighbours. ``grid``, ``torus``: four (at the border of a grid fewer); as square as ``n`` allows.
    ``star``: all talk to node 0. ``complete``: all to all. ``hypercube``: nodes whose numbers differ in one bit.
    ``exponential``: node i takes from i + 1, i + 2, i + 4, …; ``one-peer-exponential`` from these in turn, one in each
    step. ``matching``: random pairs, other ones in each step. Raises ConfigError for an unknown name, and for an ``n``
    that the graph cannot have.
    """
    if name not in NAMES:
        raise ConfigError(unknown("topology", name, NAMES))
    if n < 1 or (name == "hypercube" and n & (n - 1)):
        valid = "a power of two" if name == "hypercube" else "at least 1"
        raise ConfigError(f"nodes is {n}, but must be {valid} for the topology {name}")
    if name == "exponential":
        return Topology(name, (_means(n, [0, *_powers(n)]),))
    if name == "one-peer-exponential":
        return Topology(name, tuple(_means(n, [0, hop]) for hop in _powers(n)) or (_means(n, [0]),))
    if name == "matching":
        chance = random.Random(f"matching {n} {seed}")
        return Topology(name, tuple(metropolis(n, _pairs(n, chance)) for _ in range(_MATCHINGS)))
    return Topology(name, (metropolis(n, _edges(name, n)),))


def metropolis(n: int, edges: Iterable[tuple[int, int]]) -> Mixing:
    """Metropolis–Hastings weights: w_ij = 1/(1 + max(degree of i, degree of j)), and the rest for oneself.

    Symmetric, so doubly stochastic, on any graph; with equal degrees all weights are equal.
    """
    neighbours: list[set[int]] = [set() for _ in range(n)]
    for i, j in edges:
        if i != j:
            neighbours[i].add(j)
            neighbours[j].add(i)
    rows = []
    for i, own in enumerate(neighbours):
        row = {j: 1 / (1 + max(len(own), len(neighbours[j]))) for j in own}
        row[i] = 1 - math.fsum(row.values())
        rows.append(tuple(sorted(row.items())))
    return tuple(rows)


def uniform(n: int, edges: Iterable[tuple[int, int]]) -> Mixing:
    """Equal weights in each row. Columns add up to 1 only where all degrees are equal: elsewhere the average drifts."""
    neighbours: list[set[int]] = [{i} for i in range(n)]
    for i, j in edges:
        neighbours[i].add(j)
        neighbours[j].add(i)
    return tuple(tuple((j, 1 / len(own)) for j in sorted(own)) for own in neighbours)


def mix(mixing: Mixing, values: Sequence[float]) -> list[float]:
    """One step: of each node the weighted mean of its own value and its neighbours'."""
    return [math.fsum(weight * values[j] for j, weight in row) for row in mixing]


def columns(mixing: Mixing) -> list[list[tuple[int, float]]]:
    """Of each node, who takes its value, with which weight."""
    found: list[list[tuple[int, float]]] = [[] for _ in mixing]
    for i, row in enumerate(mixing):
        for j, weight in row:
            found[j].append((i, weight))
    return found


def sends(mixing: Mixing) -> list[int]:
    """How many messages each node sends in a step: to all that take its value, but itself."""
    return [sum(i != j for i, _ in takers) for j, takers in enumerate(columns(mixing))]


def _edges(name: str, n: int) -> list[tuple[int, int]]:
    if name == "ring":
        return [(i, (i + 1) % n) for i in range(n)]
    if name == "star":
        return [(0, i) for i in range(1, n)]
    if name == "complete":
        return [(i, j) for i in range(n) for j in range(i)]
    if name == "hypercube":
        return [(i, i ^ bit) for i in range(n) for bit in _powers(n)]
    rows = max(r for r in range(1, math.isqrt(n) + 1) if n % r == 0)
    width, closed = n // rows, name == "torus"
    right = [
        (r * width + c, r * width + (c + 1) % width) for r in range(rows) for c in range(width - (not closed))
    ]
    down = [
        (r * width + c, (r + 1) % rows * width + c) for r in range(rows - (not closed)) for c in range(width)
    ]
    return right + down


def _powers(n: int) -> list[int]:
    """1, 2, 4, … below n."""
    return [1 << k for k in range((n - 1).bit_length())]


def _means(n: int, hops: Sequence[int]) -> Mixing:
    """Each node takes the plain mean of the nodes so many places further, around the circle."""
    return tuple(tuple(sorted(((i + hop) % n, 1 / len(hops)) for hop in hops)) for i in range(n))


def _pairs(n: int, chance: random.Random) -> list[tuple[int, int]]:
    """Everybody with one partner; of an odd number one stays alone."""
    order = chance.sample(range(n), n)
    return list(zip(order[::2], order[1::2], strict=False))
