"""Exercises of the chapter on compressed gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "communication-efficient.nodes",
    "nodes at which the largest one per cent are too many",
    praise="from there on a dense all-reduce sends less, and loses nothing",
    otherwise="A rank sends (n − 1)·m bytes by all-gather and 2·(n − 1)/n·4d by a ring: when are they equal?",
    tolerance=0.006,
)
def nodes() -> tuple[float, dict[float, str]]:
    d, share = 10**8, 0.01
    each = share * (4 + math.ceil(math.log2(d)) / 8)  # bytes of a message for each value of the gradient
    crossing = 2 * 4 / each
    return math.ceil(crossing), {
        crossing / 2: "a ring all-reduce sends each value nearly twice: 2·(n − 1)/n",
        2 / share: "that is with values alone: the receiver needs their places, too",
        8 / (8 * share): "an index has 27 bits here, not 32",
        crossing - 1: "n − 1 messages against 2·(n − 1)/n of the whole: n − 1 cancels",
    }


answers("communication-efficient.nodes", right=[108.47])


Sparse = tuple[list[int], list[float]]


@exercise("communication-efficient.merge", "function", "the sum of two sparse vectors")
def merge(write: Callable[[Sparse, Sparse], Sparse]) -> str:
    for a, b in _pairs():
        wanted: dict[int, float] = dict(zip(*a, strict=True))
        for at, value in zip(*b, strict=True):
            wanted[at] = wanted.get(at, 0.0) + value
        given = write((list(a[0]), list(a[1])), (list(b[0]), list(b[1])))
        said = f"a={a}, b={b}: got {given!r}"
        try:
            places, values = [int(at) for at in given[0]], [float(value) for value in given[1]]
        except (TypeError, ValueError, IndexError):
            raise NotYet(f"{said}, expected two lists, places and values") from None
        if len(places) != len(values):
            raise NotYet(f"{said}: {len(places)} places, and {len(values)} values")
        if len(set(places)) < len(places):
            raise NotYet(f"{said}; a place stands there twice: where both have a value, add them up")
        if places != sorted(places):
            raise NotYet(f"{said}; places in ascending order, please: the next merge counts on it")
        if set(places) != set(wanted):
            raise NotYet(f"{said}; the sum has values at {sorted(wanted)}")
        if any(not math.isclose(v, wanted[at], abs_tol=1e-9) for at, v in zip(places, values, strict=True)):
            raise NotYet(f"{said}; the places are right, the values should be {[wanted[p] for p in places]}")
    return "as long as both together, less the places that they share: that is how sums fill up"


def _pairs() -> Iterator[tuple[Sparse, Sparse]]:
    yield ([1, 4], [2.0, -1.0]), ([4, 6], [3.0, 5.0])
    yield ([], []), ([0], [1.0])
    yield ([7], [1.0]), ([2, 3], [1.0, 1.0])
    yield ([0, 1, 2], [1.0, 2.0, 3.0]), ([0, 1, 2], [1.0, 1.0, 1.0])
    chance = Random(0)
    for _ in range(40):
        few, many = (sorted(chance.sample(range(12), chance.randint(0, 6))) for _ in range(2))
        yield (
            (few, [float(chance.randint(1, 9)) for _ in few]),
            (many, [float(chance.randint(1, 9)) for _ in many]),
        )


def _all(a: Sparse, b: Sparse) -> list[tuple[int, float]]:
    return [*zip(*a, strict=True), *zip(*b, strict=True)]


def _lists(total: dict[int, float]) -> Sparse:
    return list(total), list(total.values())


def _merged(a, b, *, ordered=sorted):
    total: dict[int, float] = {}
    for at, value in _all(a, b):
        total[at] = total.get(at, 0.0) + value
    return _lists({at: total[at] for at in ordered(total)})


answers(
    "communication-efficient.merge",
    right=[_merged],
    wrong={
        "stands there twice": lambda a, b: [*zip(*sorted(_all(a, b)), strict=True)],
        "ascending order": lambda a, b: _merged(b, a, ordered=list),
        "the places are right": lambda a, b: _lists(dict(sorted(dict(_all(a, b)).items()))),
        "the sum has values at": lambda a, b: _lists(dict.fromkeys(sorted({*a[0]} & {*b[0]}), 1.0)),
        "3 places, and 2 values": lambda a, b: (_merged(a, b)[0], _merged(a, b)[1][:-1]),
    },
)


# ---- repairs


def _largest(x: Tensor) -> Tensor:
    """Top-1: the largest value by magnitude, zeros elsewhere."""
    import torch

    kept = torch.zeros_like(x)
    at = int(x.abs().argmax())
    kept[at] = x[at]
    return kept


@exercise("communication-efficient.epochs", "repair", "error feedback that forgets at the end of each epoch")
def epochs(mended: Callable[..., Any]) -> str:
    import torch

    slopes = torch.tensor([5.0, -3.0, 2.0, 1.0, -0.5, 0.25], dtype=torch.float64)

    def constant(x: Tensor) -> Tensor:
        return slopes.clone()

    for rounds, steps in ((1, 40), (20, 4), (12, 1), (3, 7)):
        asked = 0

        def gradient(x: Tensor) -> Tensor:
            nonlocal asked
            asked += 1
            return constant(x)

        end = mended(torch.zeros(6, dtype=torch.float64), gradient, _largest, 0.1, rounds, steps)
        case = f"{rounds} epochs of {steps} steps, always the gradient {slopes.tolist()}"
        if not isinstance(end, torch.Tensor) or end.shape != slopes.shape:
            raise NotYet(f"{case}: expected the parameters at the end, got {end!r}")
        if asked != rounds * steps:
            raise NotYet(f"{case}: {asked} gradients were asked for, not {rounds * steps}")
        _compare_end(end, rounds * steps, case, slopes)
    return "in sum every coordinate moves as far as without compression, but for what is still kept"


def _compare_end(end: Tensor, steps: int, case: str, slopes: Tensor) -> None:
    import torch

    x, left = torch.zeros_like(slopes), torch.zeros_like(slopes)
    for _ in range(steps):
        wanted = 0.1 * slopes + left
        sent = _largest(wanted)
        left, x = wanted - sent, x - sent
    if torch.allclose(end, x, rtol=0, atol=1e-9):
        return
    whole = -0.1 * steps * slopes
    if torch.allclose(end, whole, rtol=0, atol=1e-9):
        raise NotYet(f"{case}: every coordinate has moved by its whole gradient: nothing is compressed")
    if bool((end.abs() > whole.abs() + 1e-9).any()):
        raise NotYet(f"{case}: a coordinate has moved further than its gradients: something is kept twice")
    still = [i for i in range(len(x)) if not end[i] and x[i]]
    if still:
        raise NotYet(
            f"{case}: coordinate {still[0]} has never moved: it is never the largest of a single epoch, and what was "
            "kept of it is gone"
        )
    raise NotYet(
        f"{case}: got {[round(float(v), 3) for v in end]}, expected {[round(float(v), 3) for v in x]}"
    )


def _fed_back(x, gradient, compress, lr, epochs, steps, *, forgets=False, twice=False):
    """What was not sent is kept for the next step; ``twice``: what was sent, too."""
    left = 0 * x
    for step in range(epochs * steps):
        if forgets and step % steps == 0:
            left = 0 * x
        wanted = lr * gradient(x) + left
        sent = compress(wanted)
        left, x = wanted if twice else wanted - sent, x - sent
    return x


answers(
    "communication-efficient.epochs",
    right=[_fed_back],
    wrong={
        "has never moved": partial(_fed_back, forgets=True),
        "nothing is compressed": lambda x, gradient, compress, *job: _fed_back(
            x, gradient, lambda t: t, *job
        ),
        "kept twice": partial(_fed_back, twice=True),
        "4 gradients were asked for, not 80": lambda x, gradient, compress, lr, epochs, steps: _fed_back(
            x, gradient, compress, lr, 1, steps
        ),
        "expected the parameters at the end, got None": lambda *job: None,
    },
)
