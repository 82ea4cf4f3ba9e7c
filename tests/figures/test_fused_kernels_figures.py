"""Figures of fused kernels show what was counted."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook_book.figures.fused_kernels import READ, WRITTEN, operators, time_bounds


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def bars(figure):
    """(start, length, hue) of the bars, in order."""
    patches = [bar for group in figure.axes[0].containers for bar in group]
    return [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor())) for bar in patches]


def texts(figure):
    return [text.get_text().strip() for text in figure.axes[0].texts]


def test_operators_follow_each_other_and_end_at_their_sum():
    figure = operators([("copy", 1, 2), ("mean", 2, 0)], fused=(1, 1))
    assert bars(figure) == [
        (0, 1, READ), (1, 2, WRITTEN), (3, 2, READ), (5, 0, WRITTEN), (0, 1, READ), (1, 1, WRITTEN),
    ]  # fmt: skip
    assert texts(figure) == ["5", "2"]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["copy", "mean", "one kernel"]


def test_times_and_their_totals():
    figure = time_bounds({"products": (0.4, 0.4), "norms": (0.1, 0.01)})
    assert [bar[1] for bar in bars(figure)] == [0.4, 0.4, 0.1, 0.01]
    assert texts(figure) == ["400 ms", "400 ms", "100 ms", "10 ms"]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["operators, together 500 ms", "fused, together 410 ms"]
