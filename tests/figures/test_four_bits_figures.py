"""Figures of four bits: strokes, lines, bars and intervals stand at their numbers."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from scipy import stats

from playbook_book.figures.four_bits import T, blocks, interval, left_out, lines, number_lines


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_strokes_stand_at_the_numbers_of_each_format():
    (axes,) = number_lines({"few": [-7.0, -1.0, 2.0], "one": [0.5]}, -2, 3).axes
    at = [sorted({float(segment[0][0]) for segment in one.get_segments()}) for one in axes.collections]
    assert at == [[-1.0, 2.0], [0.5]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["few", "one"]


def test_lines_and_bars():
    (axes,) = lines([1, 10], {"a": [0.1, 0.2], "b": [0.3, 0.4]}, "x", "y").axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[0.1, 0.2], [0.3, 0.4]]
    assert axes.get_xscale() == "log"
    left, right = blocks({"before": ([1.0, 9.0], [0.0, 9.0]), "after": ([4.0, 5.0], [4.0, 6.0])}).axes
    assert [bar.get_height() for bar in right.patches] == [4.0, 5.0]
    assert list(left.lines[0].get_ydata()) == [0.0, 9.0]


def test_intervals_are_students():
    values = [0.1, 0.3, 0.2, 0.5]
    low, high = stats.t.interval(0.95, 3, loc=0.275, scale=stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-3)
    for n, t in T.items():
        assert t == pytest.approx(stats.t.ppf(0.975, n - 1), rel=2e-3)
    (axes,) = left_out({"one": values, "two": [0.0, 0.1]}).axes
    assert list(axes.lines[0].get_xdata()) == values
