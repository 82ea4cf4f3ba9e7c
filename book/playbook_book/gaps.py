"""Spectral gaps of mixing matrices: how fast averages spread, found by iteration and, where it is known, in closed form.
Standard library only: pages compute with it."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

from playbook.decentralized.topology import Mixing, columns


def spectral_gap(mixing: Mixing, precision: float = 1e-9) -> float:
    """1 − ρ, where ρ = ‖W − 11ᵀ/n‖₂ bounds what is left, after a step, of the distance from the average.

    By power iteration on (W − 11ᵀ/n)ᵀ(W − 11ᵀ/n), whose largest eigenvalue is ρ², in O(n · degree) a round.
    """
    n = len(mixing)
    if n == 1:
        return 1.0
    backward = columns(mixing)
    chance = random.Random(0)
    vector = _unit(_centred([chance.gauss(0, 1) for _ in range(n)]))
    last = -1.0
    for _ in range(200_000):
        there = [math.fsum(weight * vector[j] for j, weight in row) for row in mixing]
        square = math.fsum(x * x for x in _centred(there))  # of a unit vector: the Rayleigh quotient
        if square < 1e-24:
            return 1.0
        if abs(square - last) <= precision * square * (1 - min(square, 1 - 1e-6)):
            break
        last = square
        vector = _unit(
            _centred([math.fsum(weight * there[i] for i, weight in takers) for takers in backward])
        )
    return 1 - math.sqrt(square)


def gap_in_theory(name: str, n: int) -> float | None:
    """The spectral gap in closed form, where there is one; None elsewhere.

    A ring: 2/3·(1 − cos 2π/n) (n ≥ 3); a square torus of side s: 2/5·(1 − cos 2π/s) (s ≥ 3); a star: 1/n; a hypercube:
    2/(1 + log₂ n); the exponential graph: 2/(1 + ⌈log₂ n⌉) for even n (Ying et al. 2021, proposition 1).
    """
    side = math.isqrt(n)
    if name == "complete" or n == 1:
        return 1.0
    if name == "ring" and n >= 3:
        return 2 / 3 * (1 - math.cos(2 * math.pi / n))
    if name == "torus" and side >= 3 and side * side == n:
        return 2 / 5 * (1 - math.cos(2 * math.pi / side))
    if name == "star" and n >= 3:
        return 1 / n
    if name == "hypercube":
        return 2 / (1 + math.log2(n))
    if name == "exponential" and n % 2 == 0:
        return 2 / (1 + math.ceil(math.log2(n)))
    return None


def _centred(vector: Sequence[float]) -> list[float]:
    mean = math.fsum(vector) / len(vector)
    return [x - mean for x in vector]


def _unit(vector: Sequence[float]) -> list[float]:
    length = math.sqrt(math.fsum(x * x for x in vector)) or 1.0
    return [x / length for x in vector]
