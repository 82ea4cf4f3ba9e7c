"""Figures of the chapter on live recovery say what their data say."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook_book.figures.live_recovery import LOOKS, around_a_death, beside, lost_by_gpus
from playbook_book.instruments.replica_spans import Deed

DEEDS = [
    Deed(0, "step", 0.0, 1.0, 4), Deed(1, "step", 0.0, 1.0, 4), Deed(0, "discarded", 1.0, 2.0, 5),
    Deed(1, "dies", 1.0, 1.5, 5), Deed(0, "meets", 2.0, 2.1, 5), Deed(0, "step", 2.1, 3.0, 5),
    Deed(1, "starts", 1.6, 3.0, 0), Deed(1, "heals", 3.0, 3.5, 6), Deed(1, "step", 3.5, 4.0, 6),
]  # fmt: skip


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_bars_are_deeds_and_time_begins_at_the_death():
    figure = around_a_death(DEEDS, {0: 0, 1: 1}, before=1.0, after=0.4)
    (axes,) = figure.axes
    bars = sorted((round(bar.get_x(), 9), round(bar.get_width(), 9)) for bar in axes.patches)
    assert bars == [
        (-1.0, 0.5), (-1.0, 0.5), (-0.5, 0.5), (-0.5, 1.0), (0.1, 1.4), (0.5, 0.1), (0.6, 0.9), (1.5, 0.5), (2.0, 0.4),
    ]  # fmt: skip
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        "rank 0 (replica 0)",
        "rank 1 (replica 1)",
    ]
    assert sorted(text.get_text() for text in axes.texts) == ["4", "4", "5", "6"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        text for *_, text in LOOKS.values()
    ]


def test_losses_differ_by_what_is_drawn_and_steps_of_fewer_replicas_are_shaded():
    figure = beside([3.0, 2.0], {"other": [3.0, 2.5]}, [2, 1], most=2)
    upper, lower = figure.axes
    assert list(lower.lines[0].get_ydata()) == [1e-9, 0.5]
    assert [len(axes.patches) for axes in (upper, lower)] == [1, 1]
    assert upper.patches[0].get_x() == 0.5


def test_shares_that_are_lost():
    figure = lost_by_gpus({"a": [(1024, 0.99), (2048, 0.98)]}, {"a": [(1024, 0.98)]})
    (axes,) = figure.axes
    assert axes.lines[0].get_ydata() == pytest.approx([0.01, 0.02])
    assert axes.lines[1].get_ydata() == pytest.approx([0.02])
