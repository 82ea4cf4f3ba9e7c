"""Figures of compressed gradients: bars, dots and lines stand where their numbers are."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook_book.figures.communication_efficient import (
    densities,
    distances,
    errors_by_bits,
    losses_by_bytes,
    rounding,
)


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_bars_stand_on_their_levels():
    (axes,) = rounding(0.6, [0, 0.25, 0.5, 0.75, 1], {0.5: 0.6, 0.75: 0.4}).axes
    assert [(pytest.approx(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in axes.patches] == [
        (0.5, 0.6),
        (0.75, 0.4),
    ]
    assert {"60.0%", "40.0%", "0.6"} == {text.get_text() for text in axes.texts}


def test_dots_have_their_bits_errors_and_names():
    figure = errors_by_bits({"unbiased": [("QSGD", 4.0, 9.0)], "biased": [("sign", 1.0, 0.4)]})
    (axes,) = figure.axes
    found = {line.get_label(): (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines[:2]}
    assert found == {"unbiased": (4.0, 9.0), "biased": (1.0, 0.4)}
    assert [text.get_text() for text in axes.texts] == ["QSGD", "sign"]


def test_distances_and_densities_are_lines_of_their_values():
    (axes,) = distances({"alone": [1, 2, 4], "with memory": [1, 0.5, 0.1]}).axes
    assert [list(line.get_ydata()) for line in axes.lines] == [[1, 2, 4], [1, 0.5, 0.1]]
    (axes,) = densities([1, 2], {"measured": [0.01, 0.02]}, worth=0.5).axes
    assert list(axes.lines[0].get_ydata()) == [0.01, 0.02]
    assert list(axes.lines[1].get_ydata()) == [0.5, 0.5]


def test_losses_stand_over_steps_and_over_bytes():
    by_steps, by_bytes = losses_by_bytes({"sign": ([3.0, 2.0], 5e6)}).axes
    assert list(by_steps.lines[0].get_xdata()) == [1, 2]
    assert list(by_bytes.lines[0].get_xdata()) == [5.0, 10.0]
    assert list(by_bytes.lines[0].get_ydata()) == [3.0, 2.0]
