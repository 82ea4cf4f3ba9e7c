"""Figures of the chapter from trainer to sampler: rows in the hue of their rank, curves at their numbers."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures.style import CYCLE, INK
from playbook_book.figures.sampler import learning, rows_of_ranks


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_rows_are_filled_by_their_rank_and_framed_where_kept():
    (axes,) = rows_of_ranks({"now": ([[(0.0, 0.5, 0)], [(0.0, 0.5, 0), (0.5, 1.0, 1)]], "words below")}).axes
    filled = [p for p in axes.patches if p.get_facecolor()[3] > 0]
    assert [(to_hex(p.get_facecolor()), p.get_x(), p.get_width()) for p in filled] == [
        (CYCLE[0], 0.0, 0.5), (CYCLE[0], 0.0, 0.5), (CYCLE[1], 0.5, 0.5)
    ]  # fmt: skip
    assert [p.get_linewidth() > 0 and to_hex(p.get_edgecolor()) == INK for p in filled] == [True, False, True]
    assert axes.get_xlabel() == "words below"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 1"]


def test_rewards_and_ratios_stand_at_their_numbers():
    runs = {"exact": ([0.2, 0.5], [0.0, 0.0]), "stale": ([0.2, 0.3], [1e-6, 0.5])}
    left, right = learning(runs).axes
    assert {line.get_label(): list(line.get_ydata()) for line in left.lines} == {
        "exact": [0.2, 0.5],
        "stale": [0.2, 0.3],
    }
    assert [list(line.get_ydata()) for line in right.lines] == [[0.0, 0.0], [1e-6, 0.5]]
    assert right.get_yscale() == "symlog"
    assert right.get_ylim()[0] < 0
