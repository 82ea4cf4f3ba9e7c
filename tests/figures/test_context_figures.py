"""Figures of context parallelism show what the placements and the formulas say."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Polygon

from playbook.figures.style import CYCLE
from playbook.layout import Layout
from playbook.layout.tokens import TokenRanges
from playbook.shapes import load
from playbook_book.context_cost import context_traffic
from playbook_book.figures.context import (
    backward_journey,
    lockstep,
    mask_by_rank,
    traffic_over_ranks,
)

PLACED = {kind: TokenRanges(kind, 1024, 4) for kind in ("contiguous", "zigzag")}


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def area(corners) -> float:
    """Of a polygon, by Gauss's shoelace formula."""
    x, y = corners[:, 0], corners[:, 1]
    return abs(float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())) / 2


def test_each_rank_has_the_area_of_its_work():
    figure = mask_by_rank(PLACED)
    for axes, ranges in zip(figure.axes, PLACED.values(), strict=True):
        shapes = [patch for patch in axes.patches if isinstance(patch, Polygon)]
        for rank in range(4):
            own = [area(p.get_xy()) for p in shapes if to_hex(p.get_facecolor()) == CYCLE[rank]]
            # The mask's diagonal is half of a pair too little for each query.
            assert sum(own) + 256 / 2 == ranges.work(rank)


def test_steps_in_time():
    figure = lockstep(PLACED)
    assert [axes.get_title(loc="right")[:4] for axes in figure.axes] == ["1.75", "1.00"]
    with pytest.raises(ValueError, match="2 to 6"):
        mask_by_rank({"one": TokenRanges("contiguous", 8, 1)})


def test_the_gradient_comes_home():
    lines = {line.get_label(): line for line in backward_journey(4).axes[0].lines}
    keys, sums = lines["K, V of rank 0 are used"], lines["a part of their gradient is added"]
    assert list(keys.get_ydata()) == [0, 1, 2, 3]
    assert list(sums.get_ydata()) == [1, 2, 3, 0]
    assert all(late > early for early, late in zip(keys.get_xdata()[1:], sums.get_xdata(), strict=False))


def test_bytes_are_those_of_the_formula_and_end_with_the_heads():
    shape = load("llama3-8b")
    ring, ulysses, replicated = traffic_over_ranks(shape, 8192, [8]).axes[0].lines
    assert list(ulysses.get_xdata()) == [2, 4, 8]
    assert list(replicated.get_xdata()) == [8, 16, 32]
    assert replicated.get_ydata()[0] == ulysses.get_ydata()[-1]
    assert len(traffic_over_ranks(shape, 8192, [32]).axes[0].lines) == 2  # as many key heads as query heads
    for line, context in ((ring, "ring"), (ulysses, "ulysses")):
        told = [context_traffic(shape, Layout(cp=int(c)), 8192, context).total for c in line.get_xdata()]
        assert list(line.get_ydata()) == told
