"""Exercises of the chapter on gossip and local steps."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook.decentralized.topology import metropolis, topology, uniform
from playbook_book.exercises.exercise import NotYet, answers, exercise, number
from playbook_book.gaps import spectral_gap

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "decentralized.ring",
    "how long a ring of 100 nodes needs to agree",
    otherwise="How much of the disagreement is left after one step, at most?",
    tolerance=5e-3,
)
def ring() -> tuple[float, dict[float, str], str]:
    n = 100
    gap = spectral_gap(topology("ring", n).at(0))

    def steps(gap: float, share: float = 100.0) -> float:
        return math.log(share) / -math.log1p(-gap)

    hints: dict[float, str] = {
        1 / gap: "in so many steps disagreement falls to 1/e; how many of these make 1/100?",
        n / 2: "so long a value needs to reach the other side; it arrives very thin",
        steps(gap, 10.0): "that is for a tenth, or with a logarithm to another base",
        steps(
            1 - math.cos(2 * math.pi / n)
        ): "each of the three weights of a row is 1/3: mind the factor 2/3",
        steps(2 / 3 * (1 - math.cos(math.pi / n))): "the slowest wave goes around the ring once: 2π/n",
        100 / gap: "each step leaves the same *share*: a hundredth is a matter of logarithms",
    }
    there = steps(spectral_gap(topology("exponential", n).at(0)))
    said = f"on the exponential graph, with seven neighbours instead of two, it is {there:.0f}"
    return steps(gap), hints, said


#: Whole steps, and what the gap gives alone: log(1 − gap) is nearly −gap.
answers("decentralized.ring", right=[3499, 3 * math.log(100) / 2 / (1 - math.cos(2 * math.pi / 100))])


@exercise(
    "decentralized.partners", "function", "who talks to whom, so that log₂ n steps give the exact average"
)
def partners(write: Callable[..., Any]) -> str:
    chance = random.Random(0)
    for n in (2, 4, 8, 16, 32):
        for start in (0, 3):
            values = [chance.uniform(-1, 1) for _ in range(n)]
            mean = math.fsum(values) / n
            for step in range(start, start + n.bit_length() - 1):
                values = _exchanged(values, step, [write(i, step, n) for i in range(n)])
            far = max(abs(value - mean) for value in values)
            if far > 1e-9:
                raise NotYet(
                    f"n={n}, steps {start} to {step}: afterwards a node is {far:.2g} away from the average; "
                    "each step must bring values that were not in the mean before"
                )
    return "one message a node and step, and after log₂ n steps what an all-reduce would have given"


def _exchanged(values: list[float], step: int, told: list[Any]) -> list[float]:
    """Each node's mean of its own value and the one that it receives."""
    n = len(values)
    pairs = []
    for i, pair in enumerate(told):
        try:
            to, source = (int(node) for node in pair)
        except (TypeError, ValueError):
            raise NotYet(f"partners({i}, {step}, {n}) gives {pair!r}, expected (to, source)") from None
        for node in (to, source):
            if not 0 <= node < n:
                raise NotYet(f"partners({i}, {step}, {n}) names node {node}, but nodes are 0 to {n - 1}")
        if i in (to, source):
            raise NotYet(f"partners({i}, {step}, {n}) gives {(to, source)}: node {i} talks to itself")
        pairs.append((to, source))
    for i, (to, _) in enumerate(pairs):
        if pairs[to][1] != i:
            raise NotYet(
                f"n={n}, step {step}: node {i} sends to {to}, which waits for {pairs[to][1]}: both wait for ever"
            )
    return [(values[i] + values[source]) / 2 for i, (_, source) in enumerate(pairs)]


def _hop(step, n):
    """1, 2, 4 … and again from the beginning after log₂ n of them."""
    return 1 << step % (n.bit_length() - 1)


answers(
    "decentralized.partners",
    right=[
        lambda i, step, n: ((i - _hop(step, n)) % n, (i + _hop(step, n)) % n),
        lambda i, step, n: (i ^ _hop(step, n), i ^ _hop(step, n)),
    ],
    wrong={
        "both wait for ever": lambda i, step, n: ((i + _hop(step, n)) % n, (i + _hop(step, n)) % n),
        "away from the average": lambda i, step, n: ((i + 1) % n, (i - 1) % n),
        "talks to itself": lambda i, step, n: ((i - 2**step) % n, (i + 2**step) % n),
        "names node": lambda i, step, n: (i + 1, i - 1),
        "expected (to, source)": lambda i, step, n: (i + 1) % n,
    },
)


# ---- repairs


@exercise("decentralized.weights", "repair", "gossip that agrees on the wrong average")
def weights(mended: Callable[..., Any]) -> str:
    chance = random.Random(1)
    graphs = [(4, [(0, 1), (0, 2), (0, 3)]), (3, [(0, 1), (1, 2)])]
    for _ in range(20):
        n = chance.randint(2, 9)
        tree = [(chance.randrange(i), i) for i in range(1, n)]
        more = [(i, j) for i in range(n) for j in range(i) if chance.random() < 0.2 and (j, i) not in tree]
        graphs.append((n, tree + [(j, i) for i, j in more]))
    for n, edges in graphs:
        matrix = _matrix(mended(n, list(edges)), n, edges)
        said = f"{n} nodes, edges {edges}"
        for i, row in enumerate(matrix):
            if abs(math.fsum(row) - 1) > 1e-9:
                raise NotYet(
                    f"{said}: row {i} adds up to {math.fsum(row):.3g}: what a node takes is not a mean any more"
                )
        for j in range(n):
            total = math.fsum(row[j] for row in matrix)
            if abs(total - 1) > 1e-9:
                raise NotYet(
                    f"{said}: rows are means, but column {j} adds up to {total:.3g}: node {j} counts for so much in the "
                    "next average"
                )
        _check_agrees(matrix, said)
    return (
        "rows and columns add up to 1, so that all agree in the end, and on the average of where they began"
    )


def _matrix(given: Any, n: int, edges: list[tuple[int, int]]) -> list[list[float]]:
    try:
        matrix = [[float(weight) for weight in row] for row in given]
    except (TypeError, ValueError):
        raise NotYet(f"expected a list of {n} rows of {n} weights, got {given!r}") from None
    if len(matrix) != n or any(len(row) != n for row in matrix):
        raise NotYet(f"expected {n} rows of {n} weights for {n} nodes")
    near = {*edges, *((j, i) for i, j in edges), *((i, i) for i in range(n))}
    for i, row in enumerate(matrix):
        for j, weight in enumerate(row):
            if weight < -1e-12:
                raise NotYet(
                    f"{n} nodes, edges {edges}: the weight of {j} at {i} is {weight:.3g}, less than 0"
                )
            if weight > 1e-12 and (i, j) not in near:
                raise NotYet(f"{n} nodes, edges {edges}: {i} takes from {j}, which is no neighbour")
    return matrix


def _check_agrees(matrix: list[list[float]], said: str) -> None:
    values = [float(i == 0) for i in range(len(matrix))]
    for _ in range(3000):
        values = [math.fsum(w * v for w, v in zip(row, values, strict=True)) for row in matrix]
    if max(values) - min(values) > 1e-3:
        raise NotYet(f"{said}: after 3,000 steps nodes still differ by {max(values) - min(values):.2g}")


def _dense(n, edges, mixing):
    rows = [dict(row) for row in mixing(n, edges)]
    return [[row.get(j, 0.0) for j in range(n)] for row in rows]


def _by_edges(n, edges, step):
    """What ``step`` of the difference of two neighbours moves."""
    rows = [[float(i == j) for j in range(n)] for i in range(n)]
    for i, j in edges:
        for a, b in ((i, j), (j, i)):
            rows[a][b] += step(n)
            rows[a][a] -= step(n)
    return rows


answers(
    "decentralized.weights",
    right=[partial(_dense, mixing=metropolis), partial(_by_edges, step=lambda n: 1 / n)],
    wrong={
        "column 0 adds up to 1.75": partial(_dense, mixing=uniform),
        "row 0 adds up to 1.75": lambda n, edges: [*zip(*_dense(n, edges, uniform), strict=True)],
        "nodes still differ by 1": partial(_by_edges, step=lambda n: 0),
        "which is no neighbour": lambda n, edges: [[1 / n] * n for _ in range(n)],
        "less than 0": partial(_by_edges, step=lambda n: 0.5),
        "rows of": lambda n, edges: [[1.0]],
    },
)


@exercise("decentralized.local", "repair", "local SGD that averages its momenta twice")
def local(mended: Callable[..., Any]) -> str:
    import torch

    n, d, lr, beta = 4, 3, 0.1, 0.8
    made = torch.Generator().manual_seed(0)
    there = torch.randn(n, d, generator=made, dtype=torch.float64)
    curved = 0.2 + torch.rand(n, d, generator=made, dtype=torch.float64)

    def gradient(x: Tensor) -> Tensor:
        return curved * (x - there)

    def mean(values: Tensor) -> Tensor:
        return values.mean(0, keepdim=True).expand_as(values).clone()

    for period in (3, 1, 8):
        asked: list[int] = []

        def counted(values: Tensor, asked: list[int] = asked) -> Tensor:
            asked.append(values.numel())
            return mean(values)

        x, rounds = torch.zeros(n, d, dtype=torch.float64), 5
        job = (rounds, period, lr, beta)
        found = mended(x.clone(), gradient, counted, *job)
        if not isinstance(found, torch.Tensor) or found.shape != x.shape:
            raise NotYet(f"train returns the x of all nodes, ({n}, {d}), in the end")
        known = {why: _train(x, gradient, mean, *job, meet=meet) for why, meet in _MISTAKES.items()}
        said = f"{n} nodes, period {period}, {rounds} rounds"
        _check_local(found, _train(x, gradient, mean, *job), known, said, rounds, len(asked))
    return "two averages a round, of x and of momenta: with a period of H, 1/H of the messages"


def _check_local(
    found: Tensor, right: Tensor, known: dict[str, Tensor], said: str, rounds: int, asked: int
) -> None:
    import torch

    if asked > 2 * rounds:
        raise NotYet(
            f"{said}: {asked} averages over the network; two a round would be {2 * rounds}: what is averaged in each "
            "step is not local"
        )
    if torch.allclose(found, right, rtol=0, atol=1e-9):
        if asked < 2 * rounds:
            raise NotYet(f"{said}: the right x, but only {asked} averages went over the network: use `mean`")
        return
    for why, wrong in known.items():
        if not torch.allclose(wrong, right, rtol=0, atol=1e-6) and torch.allclose(
            found, wrong, rtol=0, atol=1e-9
        ):
            raise NotYet(f"{said}: {why} when nodes meet")
    far = (found - right).abs().max().item()
    raise NotYet(
        f"{said}: x is off by up to {far:.2g} from local SGD that averages x and momenta once a round"
    )


def _meet(x, m, mean):
    return mean(x), mean(m)


def _train(x, gradient, mean, rounds, period, lr, beta, *, meet=_meet, always=False):
    """Local SGD; nodes ``meet`` once a round, or their momenta ``always``."""
    m = 0 * x
    for step in range(rounds * period):
        m = beta * m + gradient(x)
        m = mean(m) if always else m
        x = x - lr * m
        if (step + 1) % period == 0:
            x, m = meet(x, m, mean)
    return x


def _by_rounds(x, gradient, mean, rounds, period, lr, beta):
    m = 0 * x
    for _ in range(rounds):
        for _ in range(period):
            m = beta * m + gradient(x)
            x = x - lr * m
        x, m = mean(x), mean(m)
    return x


#: What happens when nodes meet, in place of two means.
_MISTAKES = {
    "momenta are not averaged": lambda x, m, mean: (mean(x), m),
    "momenta begin anew": lambda x, m, mean: (mean(x), 0 * mean(m)),
    "x is not averaged": lambda x, m, mean: (x, mean(m)),
}
answers(
    "decentralized.local",
    right=[_by_rounds],
    wrong={
        **{why: partial(_train, meet=meet) for why, meet in _MISTAKES.items()},
        "is not local": partial(_train, always=True),
        "x is off by up to": partial(_train, meet=lambda x, m, mean: (mean(x), mean(m) / len(m))),
        "returns the x of all nodes": lambda *_: None,
    },
)
