"""Figures of scaling laws draw the runs, the laws and the limits that they are given."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest

from playbook.figures import display
from playbook_book.figures.scaling_laws import (
    frontier,
    isoflop_profiles,
    overtraining_curve,
)
from playbook_book.published_runs import RUNS
from playbook_book.scaling_fits import isoflop_minimum
from playbook_book.scaling_laws import BESIROGLU, HOFFMANN


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def profiles_of(budgets, exponent=0.5):
    """Losses on parabolas over ln N, whose minima are at 10·C^exponent."""
    sizes = [1e4, 2e4, 4e4, 8e4]
    return {
        c: [(n, 2 + 0.1 * (math.log(n) - math.log(10 * c**exponent)) ** 2) for n in sizes] for c in budgets
    }


def test_profiles_have_a_dot_for_each_run_a_ring_for_each_minimum_and_the_exponent():
    profiles = profiles_of([1e6, 4e6, 1.6e7])
    minima = {c: isoflop_minimum(*zip(*runs, strict=True)) for c, runs in profiles.items()}
    figure = isoflop_profiles(profiles, minima)
    left, right = figure.axes
    dots, curves, rings = left.lines[::3], left.lines[1::3], left.lines[2::3]
    for line, curve, ring, (budget, runs) in zip(dots, curves, rings, profiles.items(), strict=True):
        assert [tuple(pair) for pair in zip(*line.get_data(), strict=True)] == runs
        assert min(curve.get_ydata()) == pytest.approx(2, abs=1e-2)
        assert (ring.get_xdata()[0], ring.get_ydata()[0]) == minima[budget]
        assert line.get_color() == curve.get_color() == ring.get_color()
    assert [line.get_ydata()[0] for line in right.lines[:3]] == [minima[c][0] for c in profiles]
    assert right.get_title(loc="left") == "Exponent 0.50"
    svg = display(figure, alt="x").svg
    for words in ("10⁶ FLOPs", "4·10⁶ FLOPs", "1.6·10⁷ FLOPs", "20k"):
        assert words in svg


def test_profiles_of_more_budgets_than_hues_are_refused():
    with pytest.raises(ValueError, match="profiles must be at most 6, a hue each, got 7"):
        isoflop_profiles(profiles_of([2.0**i for i in range(20, 27)]), {})


def test_a_frontier_has_a_line_for_each_law_and_a_dot_for_each_run():
    laws = {law.source: law for law in (BESIROGLU, HOFFMANN)}
    lines = {name: lambda c, law=law: law.optimum(c).parameters for name, law in laws.items()}
    names = {"gopher-280b": ("Gopher", 5, 0), "chinchilla-70b": ("Chinchilla", -5, 0)}
    figure = frontier(lines, RUNS, names)
    *drawn, dots = figure.axes[0].lines
    for line, law in zip(drawn, laws.values(), strict=True):
        for budget, best in zip(*line.get_data(), strict=True):
            assert best == pytest.approx(law.optimum(budget).parameters)
    assert sorted(dots.get_xdata()) == sorted(run.compute for run in RUNS.values())
    assert {text.get_text(): text.get_ha() for text in figure.axes[0].texts} == {
        "Gopher": "left",
        "Chinchilla": "right",
    }


def test_an_overtraining_curve_ends_at_the_wall_and_says_what_its_marks_cost():
    axes = overtraining_curve(BESIROGLU, (0.5, 0.25)).axes[0]
    compute, tokens, size = axes.lines[:3]
    for share, cost, more in zip(compute.get_xdata(), compute.get_ydata(), tokens.get_ydata(), strict=True):
        assert (more, cost) == pytest.approx(BESIROGLU.overtraining(share))
    assert list(size.get_ydata()) == list(size.get_xdata())
    wall = axes.lines[3].get_xdata()[0]
    assert BESIROGLU.exponents[0] * wall**-BESIROGLU.alpha == pytest.approx(1)
    assert [text.get_text() for text in axes.texts] == ["wall at 0.146", "1.26×", "4.47×"]
