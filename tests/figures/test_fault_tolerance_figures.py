"""Figures of fault tolerance: what they draw is what they were given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import PALETTE
from playbook.figures.style import CYCLE
from playbook_book.figures.fault_tolerance import Span, goodput_by_interval, saves, went_on


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_a_resumed_run_begins_where_it_was_saved():
    figure = went_on(
        [3, 2, 1, 0.5], {"all": [1, 0.5], "some": [2, 1], "none": [3, 3], "more": [1, 1]}, saved=2
    )
    shown = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title(loc="left") for axes in shown] == ["all", "some", "none", "more"]
    for axes, losses in zip(shown, ([1, 0.5], [2, 1], [3, 3], [1, 1]), strict=True):
        whole, resumed, _ = axes.lines
        assert list(whole.get_ydata()) == [3, 2, 1, 0.5]
        assert list(resumed.get_xdata()) == [2, 3]
        assert list(resumed.get_ydata()) == losses


def test_curves_dots_and_marks_share_a_hue():
    curves = {"a": [(10, 0.5), (100, 0.9)], "b": [(10, 0.2), (100, 0.4)]}
    (axes,) = goodput_by_interval(curves, {"a": [(50, 0.7)]}, {"a": 60.0, "b": 70.0}).axes
    line, dots, mark, other, last = axes.lines
    assert list(line.get_ydata()) == [0.5, 0.9]
    assert list(dots.get_xdata()) == [50]
    assert list(mark.get_xdata()) == [60, 60]
    assert {to_hex(each.get_color()) for each in (line, dots, mark)} == {CYCLE[0]}
    assert {to_hex(each.get_color()) for each in (other, last)} == {CYCLE[1]}


def test_what_waits_is_drawn_with_training_and_what_is_written_below():
    runs = {
        "none": [Span("step", 0, 1)],
        "one": [Span("step", 0, 1), Span("save", 1, 1.5), Span("write", 1.2, 3)],
    }
    first, second = saves(runs).axes
    assert len(first.patches) == 1
    found = [(bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in second.patches]
    assert found == [(1, 0, 1), (1, 1, 0.5), pytest.approx((0, 1.2, 1.8))]
    hues = [to_hex(bar.get_edgecolor()) for bar in second.patches]
    assert hues == [PALETTE[kind] for kind in ("compute", "memory", "communication")]
