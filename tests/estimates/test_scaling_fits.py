"""Fits: constants come back from points made with them, exactly without noise and within intervals with it."""

import math
import random
from statistics import linear_regression

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook_book.scaling_fits import bootstrap, fit_law, isoflop_minimum
from playbook_book.scaling_laws import BESIROGLU, HOFFMANN, HOFFMANN_UNROUNDED, Allocation, Law

SIZES = (5e7, 2e8, 1e9, 4e9, 1.6e10)
TOKENS = (2e9, 1e10, 5e10, 2e11, 5e11)
CONSTANTS = ("entropy", "a", "b", "alpha", "beta")


def measured(law, noise=0.0, seed=1):
    """Losses of a grid of runs, multiplied by exp of Gaussian noise."""
    rng = random.Random(seed)
    return [(n, d, law.loss(n, d) * math.exp(rng.gauss(0, noise))) for n in SIZES for d in TOKENS]


@pytest.mark.parametrize("law", [HOFFMANN, HOFFMANN_UNROUNDED, BESIROGLU], ids=lambda law: law.source)
def test_published_constants_come_back_from_points_without_noise(law):
    fit = fit_law(measured(law))
    for name in CONSTANTS:
        assert getattr(fit.law, name) == pytest.approx(getattr(law, name), rel=1e-6), name
    assert fit.objective < 1e-20


@settings(max_examples=15, deadline=None)
@given(
    st.builds(
        Law,
        entropy=st.floats(1, 2.5),
        a=st.floats(100, 1000),
        b=st.floats(200, 3000),
        alpha=st.floats(0.25, 0.45),
        beta=st.floats(0.25, 0.45),
    )
)
def test_any_law_comes_back(law):
    found = fit_law(measured(law)).law
    for name in CONSTANTS:
        assert getattr(found, name) == pytest.approx(getattr(law, name), rel=1e-6), name


def test_noisy_points_give_intervals_that_hold_the_truth():
    points = measured(BESIROGLU, noise=0.005)
    intervals = bootstrap(points, samples=40, level=0.95)
    found = fit_law(points).law
    for name in CONSTANTS:
        low, high = intervals[name]
        assert low < getattr(BESIROGLU, name) < high, name
        assert low < getattr(found, name) < high, name
    low, high = intervals["a_opt"]
    assert low < BESIROGLU.exponents[0] < high
    assert high - low < 0.15


def test_intervals_widen_with_noise_and_with_their_level():
    def width(noise, level):
        low, high = bootstrap(measured(BESIROGLU, noise), samples=16, level=level)["alpha"]
        return high - low

    assert width(0.001, 0.8) < width(0.01, 0.8) < width(0.01, 0.95)


def test_an_interval_is_between_two_quantiles_of_the_fits():
    points = measured(BESIROGLU, noise=0.005)
    wide, half = (bootstrap(points, samples=5, level=level, delta=1e3)["beta"] for level in (0.999999, 0.5))
    draw, found = random.Random(0), []
    for _ in range(5):
        found.append(fit_law(draw.choices(points, k=len(points)), delta=1e3).law.beta)
    found.sort()
    assert wide == pytest.approx((found[0], found[4]), rel=1e-4)
    assert half == pytest.approx((found[1], found[3]), rel=1e-4)


def test_the_same_seed_gives_the_same_digits():
    points = measured(BESIROGLU, noise=0.005)
    assert bootstrap(points, samples=5, seed=3) == bootstrap(points, samples=5, seed=3)
    assert bootstrap(points, samples=5, seed=3) != bootstrap(points, samples=5, seed=4)


def test_no_neighbour_fits_better():
    points = measured(BESIROGLU, noise=0.005)
    fit = fit_law(points)

    def objective(law):
        sizes = [abs(math.log(law.loss(n, d) / loss)) for n, d, loss in points]
        return sum(r * r / 2 if r <= 1e-3 else 1e-3 * (r - 5e-4) for r in sizes)

    assert fit.objective == pytest.approx(objective(fit.law), rel=1e-9)
    values = {name: getattr(fit.law, name) for name in CONSTANTS}
    for name in CONSTANTS:
        for factor in (0.999, 1.001):
            assert objective(Law(**{**values, name: values[name] * factor})) > fit.objective, (name, factor)


def test_an_outlier_moves_hubers_fit_less_than_least_squares():
    points = measured(BESIROGLU, noise=0.001)
    n, d, loss = points[7]
    points[7] = (n, d, 1.3 * loss)
    robust, squares = fit_law(points).law, fit_law(points, delta=1e3).law
    truth = BESIROGLU.loss(1e11, 2e12)
    assert abs(robust.loss(1e11, 2e12) - truth) < 0.01 < abs(squares.loss(1e11, 2e12) - truth)


def test_points_that_leave_constants_open_give_wide_intervals_and_no_failure():
    wide = 0
    for seed in range(4):
        rng = random.Random(seed)
        runs = [(10 ** rng.uniform(6, 10), 10 ** rng.uniform(8, 12)) for _ in range(6)]
        points = [(n, d, BESIROGLU.loss(n, d) * math.exp(rng.gauss(0, 0.1))) for n, d in runs]
        found = bootstrap(points, samples=3, seed=seed)
        assert all(low <= high < math.inf for low, high in found.values())
        wide += any(high > 1.5 * low for low, high in found.values())
    assert wide >= 3


def test_a_parabola_gives_its_vertex():
    sizes = [1e8, 3e8, 1e9, 2e9]
    losses = [2.5 + 0.05 * (math.log(size) - math.log(7e8)) ** 2 for size in sizes]
    assert isoflop_minimum(sizes, losses) == pytest.approx((7e8, 2.5), rel=1e-9)


def test_isoflop_profiles_give_the_exponent_of_the_law():
    budgets = [10**power for power in (18.5, 19.0, 19.5, 20.0, 20.5, 21.0)]
    found = []
    for budget in budgets:
        best = BESIROGLU.optimum(budget).parameters
        sizes = [best * 2 ** (step / 2) for step in range(-3, 4)]
        runs = [Allocation(size, budget / 6 / size) for size in sizes]
        found.append(isoflop_minimum(sizes, [BESIROGLU.loss(run.parameters, run.tokens) for run in runs])[0])
        assert found[-1] == pytest.approx(best, rel=0.03)
    slope = linear_regression([math.log(c) for c in budgets], [math.log(n) for n in found]).slope
    assert slope == pytest.approx(BESIROGLU.exponents[0], abs=1e-3)


GOOD = measured(BESIROGLU)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (lambda: fit_law([]), "points must be at least 5, with 3 different N and 3 different D, got 0"),
        (lambda: fit_law(GOOD[:4]), "points must be at least 5"),
        (lambda: fit_law(GOOD[:5]), "points must be at least 5, .* got 5 with 1 and 5"),
        (lambda: fit_law([*GOOD, (0, 1e9, 3.0)]), "parameters of a point must be a number above 0, got 0"),
        (lambda: fit_law([*GOOD, (1e9, 1e9, math.nan)]), "loss of a point must be a number above 0, got nan"),
        (lambda: fit_law(GOOD, delta=0), "delta must be a number above 0, got 0"),
        (
            lambda: fit_law([(n, d, 10 - x) for n, d, x in GOOD]),
            "points must have losses that fall with more",
        ),
        (lambda: bootstrap(GOOD, samples=1), "samples must be at least 2, got 1"),
        (lambda: bootstrap(GOOD, level=1.0), r"level must be between 0 and 1, got 1\.0"),
        (
            lambda: isoflop_minimum([1e8, 1e9], [3, 2]),
            "sizes and losses must be equally many, with at least 3",
        ),
        (lambda: isoflop_minimum([1e8, 1e9, 1e10], [3, 2]), "sizes and losses must .* got 3 and 2"),
        (lambda: isoflop_minimum([1e8, 0, 1e10], [3, 2, 3]), "size must be a number above 0, got 0"),
        (lambda: isoflop_minimum([1e8, 1e9, 1e10], [2, 3, 2]), "losses must have a minimum over ln N"),
    ],
)
def test_bad_input_is_one_sentence(wrong, sentence):
    with pytest.raises(ConfigError, match=f"^{sentence}"):
        wrong()
