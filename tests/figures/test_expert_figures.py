"""Figures of experts show what was routed, counted and timed."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
import torch
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex

from playbook.figures.style import CYCLE
from playbook_book.figures.expert import LOOKS, mixture, rows_under_way, shares_over_steps, waiting
from playbook_book.instruments.expert_load import Loads
from playbook_book.instruments.interval import Interval

CHOSEN, WEIGHTS = [[0, 2], [2, 3], [1, 0], [2, 1]], [[0.9, 0.1], [0.5, 0.5], [0.7, 0.3], [0.6, 0.4]]


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def routes(figure):
    """Lines from a token to an expert, and from an expert to a sum."""
    lines = [line for line in figure.axes[0].lines if line.get_linestyle() == "-"]
    return [line for line in lines if line.get_xdata()[0] == 0], [
        line for line in lines if line.get_xdata()[0] == 1
    ]


def test_a_line_for_each_choice_as_thick_as_its_weight():
    there, back = routes(mixture("abcd", CHOSEN, WEIGHTS, experts=4))
    expected = [(i + 0.5, e + 0.5) for i, some in enumerate(CHOSEN) for e in some]
    assert [tuple(line.get_ydata()) for line in there] == expected
    assert [tuple(line.get_ydata())[::-1] for line in back] == expected
    thick = [line.get_linewidth() for line in back]
    flat = [w for some in WEIGHTS for w in some]
    assert sorted(range(8), key=thick.__getitem__) == sorted(range(8), key=flat.__getitem__)


def test_rows_that_stay_on_their_rank_are_pale():
    figure = mixture("abcd", CHOSEN, WEIGHTS, experts=4, ranks=2)
    there, _ = routes(figure)
    home = [(i // 2) == (e // 2) for i, some in enumerate(CHOSEN) for e in some]
    assert [line.get_alpha() < 0.5 for line in there] == home
    texts = {text.get_text() for text in figure.axes[0].texts}
    assert {"rank 0", "rank 1", "expert 3", "a"} <= texts


def test_bands_are_as_high_as_the_shares():
    rows = torch.tensor([[[6, 2, 0, 0]], [[2, 2, 2, 2]], [[0, 0, 4, 4]], [[0, 0, 8, 0]]])
    figure = shares_over_steps({"one": Loads(("r",), rows, torch.zeros(4, 1))}, layer=0, ranks=2, window=2)
    bands = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    ends = []
    for band in bands:
        points = band.get_paths()[0].vertices
        last = points[points[:, 0] == points[:, 0].max()]
        ends.append(float(last[:, 1].max() - last[:, 1].min()))
    assert ends == pytest.approx([0, 0, 12 / 16, 4 / 16])
    assert [to_hex(band.get_facecolor()[0]) for band in bands] == [CYCLE[0]] * 2 + [CYCLE[1]] * 2


def test_ranks_wait_for_the_busiest():
    axes = waiting({"uneven": [10, 40, 20, 10], "even": [20, 20, 20, 20]}).axes[0]
    bars = [(bar.get_x(), bar.get_width()) for bar in axes.patches]
    assert bars[:8:2] == [(0, 10), (0, 40), (0, 20), (0, 10)]
    assert bars[1:8:2] == [(10, 30), (40, 0), (20, 20), (10, 30)]
    assert {width for _, width in bars[9::2]} == {0}
    (mean,) = axes.lines
    assert mean.get_xdata()[0] == 20
    assert [label.get_text() for label in axes.get_yticklabels()] == ["uneven", "even"]


def test_rows_lie_under_what_is_computed_meanwhile():
    spans = [
        Interval("rows under way", 5.0, 7.0),
        Interval("shared expert", 5.1, 6.0),
        Interval("waiting", 6.0, 7.0),
    ]
    figure = rows_under_way({"beside": spans, "alone": spans[:1]})
    first = [
        (bar.get_y() + bar.get_height() / 2, bar.get_x(), bar.get_width()) for bar in figure.axes[0].patches
    ]
    assert first == [pytest.approx(t) for t in ((1, 0.0, 2.0), (0, 0.1, 0.9), (0, 1.0, 1.0))]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == list(LOOKS)
