"""Figures of FP8 show what they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook_book.figures.fp8 import runs, shared_scales


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_each_group_is_a_box_and_together_they_are_the_matrix():
    groups = {"tensor": (8, 16), "row": (1, 16), "tile": (1, 4), "block": (4, 4)}
    figure = shared_scales(groups, 8, 16)
    assert [axes.get_title() or axes.get_title(loc="left") for axes in figure.axes] == list(groups)
    for axes, (rows, columns) in zip(figure.axes, groups.values(), strict=True):
        assert len(axes.patches) == (8 // rows) * (16 // columns)
        assert sum(box.get_width() * box.get_height() for box in axes.patches) == 8 * 16


def test_groups_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="tile: groups of 1 × 5 do not divide 8 × 16 cells"):
        shared_scales({"tile": (1, 5)}, 8, 16)


def test_a_run_has_one_look_in_both_panels_and_the_fault_is_marked():
    above, below = runs(
        {"fp32": [3.0, 2.0, 1.0], "fp8": [3.0, 3.0, 3.0]}, {"fp8": [0.0, 1.0, 1.0]}, fault=1, window=1
    ).axes
    lines = {line.get_label(): line for line in above.lines}
    assert list(lines["fp32"].get_ydata()) == [3, 2, 1]
    (lost,) = (line for line in below.lines if line.get_label() == "fp8")
    assert list(lost.get_ydata()) == [0, 1, 1]
    assert lost.get_color() == lines["fp8"].get_color()
    assert lost.get_linestyle() == lines["fp8"].get_linestyle()
    for axes in (above, below):
        assert [1, 1] in [list(line.get_xdata()) for line in axes.lines]
