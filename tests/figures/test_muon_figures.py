"""Figures of Muon: curves stand at their numbers, and a part is filled where a rank has it."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures.style import CYCLE, INK
from playbook_book.figures.muon import singular_values, who_has


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_iterations_and_spectra_stand_at_their_numbers():
    starts, after = [0.01, 0.1, 1.0], [[0.03, 0.3, 0.6], [0.1, 0.8, 0.9]]
    left, right = singular_values(starts, after, {"before": [0.9, 0.1], "after": [1.1, 0.8]}).axes
    assert [list(line.get_ydata()) for line in left.lines] == after
    assert left.lines[1].get_linewidth() > left.lines[0].get_linewidth()
    assert [text.get_text() for text in left.texts] == ["1", "2"]
    assert {line.get_label(): list(line.get_ydata()) for line in right.lines} == {
        "before": [0.9, 0.1],
        "after": [1.1, 0.8],
    }
    assert left.get_xscale() == right.get_yscale() == "log"


def test_parts_are_filled_where_they_are_and_whole_matrices_framed():
    held = [[[0, None], [0, 1]], [[None, 1], [None, None]]]
    (axes,) = who_has({"now": (held, "words below")}, "AB").axes
    filled = [p for p in axes.patches if p.get_facecolor()[3] > 0]
    frames = [p for p in axes.patches if p.get_facecolor()[3] == 0]
    assert [to_hex(p.get_facecolor()) for p in filled] == [CYCLE[0], CYCLE[0], CYCLE[1], CYCLE[1]]
    assert [(p.get_x(), p.get_y()) for p in filled] == [(0, 0), (1, 0), (1, 0.4), (0, 1.4)]
    thick = [(p.get_x(), p.get_y()) for p in frames if to_hex(p.get_edgecolor()) == INK]
    assert len(frames) == 4
    assert thick == [(1, 0)]
    assert axes.get_xlabel() == "words below"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["rank 0", "rank 1"]
