"""Fitting a scaling law to measured losses: IsoFLOP profiles, and the parametric form with intervals.

The second and third approach of Hoffmann et al. 2022 (arXiv 2203.15556, sections 3.2 and 3.3). Besiroglu et al. 2024
(arXiv 2404.10102) show what can go wrong in the third: an optimizer that stops early, constants rounded before they are
used, intervals too narrow. Standard library only, and deterministic: the same points and seed give the same digits.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from playbook._checks import check_int, check_positive
from playbook.errors import ConfigError
from playbook_book.scaling_laws import Law

#: Where the Huber loss turns from quadratic to linear, in ln L: Hoffmann et al. 2022, section 3.3.
HUBER_DELTA = 1e-3
#: α and β from which the search starts.
STARTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0)
#: The search ends where points leave a constant open: α and β go to 3 at most, |ln E|, |ln A| and |ln B| to 100.
MOST_EXPONENT = 3.0
MOST_LOG = 100.0
#: Nearly always enough; the few bootstrap fits that need more are then within a tenth of a per cent of their minimum.
MOST_STEPS = 400
#: (N parameters, D tokens, loss in nats per token).
Point = tuple[float, float, float]


@dataclass(frozen=True)
class Fit:
    """A fitted ``law``, and the sum of Huber losses of ln L̂ − ln L that is left over the points."""

    law: Law
    objective: float


def fit_law(points: Sequence[Point], delta: float = HUBER_DELTA) -> Fit:
    """The law of least Σ Huber(ln L̂ − ln L) over ``points``: (N, D, loss), as Hoffmann et al. 2022 fit it (section 3.3).

    With α and β fixed, the law is linear in E, A and B. The search solves that for each pair of :data:`STARTS`, and
    refines the best five in all five constants (Levenberg–Marquardt). Raises :class:`ConfigError` for fewer than five
    points, fewer than three different N or D, and losses that do not fall with both.
    """
    points = _checked(points)
    check_positive("delta", delta, ConfigError)
    starts = [
        (_objective(points, start, delta), start)
        for alpha, beta in itertools.product(STARTS, STARTS)
        if (start := _linear(points, alpha, beta))
    ]
    if not starts:
        raise ConfigError("points must have losses that fall with more parameters and with more tokens")
    return min((_descend(points, start, delta) for _, start in sorted(starts)[:5]), key=lambda f: f.objective)


def bootstrap(
    points: Sequence[Point], samples: int = 100, seed: int = 0, level: float = 0.8, delta: float = HUBER_DELTA
) -> dict[str, tuple[float, float]]:
    """(low, high) of each constant, and of ``a_opt`` = β/(α+β), over ``samples`` fits to points drawn with replacement.

    ``level`` is the share of fits between low and high; Hoffmann et al. 2022, table 2, give 80%, the 10th and 90th
    percentile. Each fit starts from the one to all points. Raises :class:`ConfigError` as :func:`fit_law` does, for fewer
    than two samples, and unless 0 < level < 1.
    """
    if not 0 < check_positive("level", level, ConfigError) < 1:
        raise ConfigError(f"level must be between 0 and 1, got {level}")
    check_int("samples", samples, ConfigError, least=2)
    draw, whole = random.Random(seed), fit_law(points, delta).law
    laws: list[Law] = []
    while len(laws) < samples:
        drawn = draw.choices(points, k=len(points))
        if not _too_few(drawn):
            laws.append(_descend(drawn, _vector(whole), delta).law)
    columns = {
        name: sorted(getattr(law, name) for law in laws) for name in ("entropy", "a", "b", "alpha", "beta")
    }
    columns["a_opt"] = sorted(law.exponents[0] for law in laws)
    cut = (1 - level) / 2
    return {name: (_quantile(c, cut), _quantile(c, 1 - cut)) for name, c in columns.items()}


def isoflop_minimum(sizes: Sequence[float], losses: Sequence[float]) -> tuple[float, float]:
    """(N, loss) at the vertex of a parabola through losses over ln N, all runs of one compute budget.

    Hoffmann et al. 2022, section 3.2. Raises :class:`ConfigError` for fewer than three different sizes, and where the
    parabola opens downwards.
    """
    if len(sizes) != len(losses) or len(set(sizes)) < 3:
        raise ConfigError(
            f"sizes and losses must be equally many, with at least 3 different sizes, got {len(sizes)} and {len(losses)}"
        )
    logs = [math.log(check_positive("size", size, ConfigError)) for size in sizes]
    middle = fmean(logs)
    rows = [(1.0, x - middle, (x - middle) ** 2) for x in logs]
    c0, c1, c2 = _least_squares(rows, losses, [1.0] * len(rows))
    if c2 <= 0:
        raise ConfigError("losses must have a minimum over ln N, but their parabola opens downwards")
    return math.exp(middle - c1 / (2 * c2)), c0 - c1**2 / (4 * c2)


def _checked(points: Sequence[Point]) -> list[Point]:
    for point in points:
        for name, value in zip(("parameters", "tokens", "loss"), point, strict=True):
            check_positive(f"{name} of a point", value, ConfigError)
    if _too_few(points):
        raise ConfigError(
            f"points must be at least 5, with 3 different N and 3 different D, got {len(points)} with "
            f"{len({n for n, _, _ in points})} and {len({d for _, d, _ in points})}"
        )
    return list(points)


def _too_few(points: Sequence[Point]) -> bool:
    return len(points) < 5 or min(len({n for n, _, _ in points}), len({d for _, d, _ in points})) < 3


#: A law while it is being fitted: (ln E, ln A, ln B, α, β).
_Vector = tuple[float, ...]


def _vector(law: Law) -> _Vector:
    return math.log(law.entropy), math.log(law.a), math.log(law.b), law.alpha, law.beta


def _linear(points: Sequence[Point], alpha: float, beta: float) -> _Vector | None:
    """With α and β given, E, A and B by least squares of relative residuals; None where they are not all positive."""
    rows = [(1.0, n**-alpha, d**-beta) for n, d, _ in points]
    scales = [fmean(column) for column in zip(*rows, strict=True)]
    rows = [(1.0, x / scales[1], y / scales[2]) for _, x, y in rows]
    losses = [loss for _, _, loss in points]
    found = _least_squares(rows, losses, [loss**-2 for loss in losses])
    if min(found) <= 0:
        return None
    return (*(math.log(value / scale) for value, scale in zip(found, scales, strict=True)), alpha, beta)


def _residuals(points: Sequence[Point], vector: _Vector) -> Iterator[tuple[float, tuple[float, ...]]]:
    """For each point ln L̂ − ln L, and its derivatives by the vector: shares of E, A/N^α and B/D^β in L̂, times a log."""
    e, a, b, alpha, beta = vector
    for n, d, loss in points:
        x, y = math.log(n), math.log(d)
        parts = math.exp(e), math.exp(a - alpha * x), math.exp(b - beta * y)
        total = sum(parts)
        ideal, model, data = (part / total for part in parts)
        yield math.log(total / loss), (ideal, model, data, -x * model, -y * data)


def _objective(points: Sequence[Point], vector: _Vector, delta: float) -> float:
    sizes = [abs(r) for r, _ in _residuals(points, vector)]
    return sum(r * r / 2 if r <= delta else delta * (r - delta / 2) for r in sizes)


def _descend(points: Sequence[Point], vector: _Vector, delta: float) -> Fit:
    """Levenberg–Marquardt on reweighted squares: a residual beyond ``delta`` weighs delta/|r|, as Huber's loss asks."""
    best, damping = _objective(points, vector, delta), 1e-3
    for _ in range(MOST_STEPS):
        residuals, rows = zip(*_residuals(points, vector), strict=True)
        weights = [min(1.0, delta / max(abs(r), delta)) for r in residuals]
        before = best
        while damping < 1e12:
            step = _least_squares(rows, [-r for r in residuals], weights, damping)
            tried = tuple(value + change for value, change in zip(vector, step, strict=True))
            if _inside(tried) and (objective := _objective(points, tried, delta)) < best:
                vector, best, damping = tried, objective, max(damping / 10, 1e-15)
                break
            damping *= 10
        if before - best <= 1e-12 * before:
            break
    e, a, b, alpha, beta = vector
    return Fit(Law(math.exp(e), math.exp(a), math.exp(b), alpha, beta, "fitted"), best)


def _inside(vector: _Vector) -> bool:
    return all(0 < value <= MOST_EXPONENT for value in vector[3:]) and all(
        abs(v) <= MOST_LOG for v in vector[:3]
    )


def _least_squares(
    rows: Sequence[Sequence[float]],
    targets: Sequence[float],
    weights: Sequence[float],
    damping: float = 0.0,
) -> list[float]:
    """x of least Σ w·(row·x − target)², by normal equations whose diagonal ``damping`` raises in proportion."""
    size = len(rows[0])
    table = [
        [math.fsum(w * row[i] * row[j] for w, row in zip(weights, rows, strict=True)) for j in range(size)]
        + [math.fsum(w * row[i] * t for w, row, t in zip(weights, rows, targets, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        table[i][i] *= 1 + damping
    for i in range(size):  # Gauss–Jordan elimination with pivoting
        pivot = max(range(i, size), key=lambda k: abs(table[k][i]))
        table[i], table[pivot] = table[pivot], table[i]
        if table[i][i] == 0:
            return [0.0] * size
        table[i] = [value / table[i][i] for value in table[i]]
        for k in range(size):
            if k != i:
                table[k] = [value - table[k][i] * own for value, own in zip(table[k], table[i], strict=True)]
    return [row[-1] for row in table]


def _quantile(values: Sequence[float], share: float) -> float:
    """Linear between neighbours of sorted ``values``."""
    place = share * (len(values) - 1)
    below = min(int(place), len(values) - 2)
    return values[below] + (place - below) * (values[below + 1] - values[below])
