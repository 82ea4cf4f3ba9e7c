"""Figures of the best configuration: squares stand where their layouts are, curves are medians."""

from __future__ import annotations

import math
from itertools import product

import matplotlib.pyplot as plt
import pytest

from playbook.bench import records
from playbook_book.figures.best_configuration import LIMITS, Cell, beside, heat_map, regrets
from playbook_book.searching.compare import Trial


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_a_heat_map_has_a_square_for_each_cluster_and_says_what_does_not_fit():
    cells = {
        (model, nodes): None
        if (model, nodes) == ("large", 1)
        else Cell(0.1 * nodes, (f"{model} {nodes}",), limit)
        for (model, nodes), limit in zip(product(("small", "large"), (1, 2)), LIMITS, strict=False)
    }
    figure = heat_map(cells)
    (axes,) = figure.axes
    assert len(axes.patches) == 4
    texts = {text.get_text(): text.get_position() for text in axes.texts}
    assert texts["does\nnot fit"] == (0, 1)
    assert texts["small 2"][0] == 1
    assert [label.get_text() for label in axes.get_yticklabels()] == ["small", "large"]
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        cell.limit for cell in cells.values() if cell
    }


def test_the_higher_the_mfu_the_deeper_the_colour():
    (axes,) = heat_map({("a", n): Cell(mfu, ("",), "memory") for n, mfu in ((1, 0.2), (2, 0.5))}).axes
    low, high = (patch.get_alpha() for patch in axes.patches)
    assert low < high


def test_the_measured_and_the_predicted_best_stand_below_each_other():
    (record,) = records("published-squares")
    squares = [square for square in record["squares"] if square["nodes"] in (4, 8)]
    figure = beside(squares)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "1B\nmeasured", "1B\npredicted", "8B\nmeasured", "8B\npredicted",
    ]  # fmt: skip
    at = {text.get_position(): text.get_text() for text in axes.texts}
    assert at[0, 0.12] == at[0, 1.12] == "dp 32 z1\ntp 1 pp 1\nmb 2"  # 1B on four nodes: the same
    assert at[1, 0.12] != at[1, 1.12]  # on eight: another
    assert float(at[1, 0 - 0.34]) > float(at[1, 1 - 0.34])
    hues = {patch.get_xy(): patch.get_facecolor()[:3] for patch in axes.patches}
    assert len(hues) == 8
    assert len({hues[x - 0.48, 1 - 0.48] for x in (0, 1)}) == 2


def test_curves_are_medians_and_what_does_not_fit_is_at_the_top():
    trials = [Trial("random", "", seed, (math.inf, seed / 10, 0.0), 3) for seed in range(5)]
    (axes,) = regrets(trials, ["random"], most=3).axes
    (line,) = [line for line in axes.lines if line.get_label() == "random"]
    assert list(line.get_xdata()) == [1, 2, 3]
    assert list(line.get_ydata()) == pytest.approx([2.0, 0.2, 0.0])
