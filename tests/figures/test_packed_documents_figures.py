"""Figures of packed documents: bars are shares, boxes have a document's tokens, and areas of a mask are a rank's work."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Polygon

from playbook.figures.style import CYCLE
from playbook_book.figures.packed_documents import (
    busiest_ranks,
    by_length,
    masks_and_positions,
    masks_by_rank,
    rows_of,
)
from playbook_book.packed_rows import placed

ROW = (24, 100, 4, 64)


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def area(corners) -> float:
    """Of a polygon, by Gauss's shoelace formula."""
    x, y = corners[:, 0], corners[:, 1]
    return abs(float((x[:-1] * y[1:] - x[1:] * y[:-1]).sum())) / 2


def polygons(axes) -> list[Polygon]:
    return [patch for patch in axes.patches if isinstance(patch, Polygon)]


def test_bars_are_shares_of_documents_and_of_tokens():
    figure = by_length([3, 4, 7, 8, 100])
    (axes,) = figure.axes
    documents, tokens = (
        [bar.get_height() for bar in container] for container in axes.containers
    )  # 2 to 4, 4 to 8, …, 64 to 128
    assert documents == pytest.approx([20, 40, 20, 0, 0, 20])
    assert tokens == pytest.approx([100 * n / 122 for n in (3, 11, 8, 0, 0, 100)])
    assert [line.get_label() for line in axes.lines] == [
        "mean over documents: 24",
        f"mean over tokens: {(9 + 16 + 49 + 64 + 10_000) / 122:.0f}",
    ]


def test_boxes_have_the_tokens_of_documents():
    figure = rows_of({"a": [[(0, 60), (1, 40)], [(1, 90), (None, 10)]], "b": [[(7, 100)]]}, 100)
    first, second = figure.axes
    boxes = [(box.get_x(), box.get_width(), box.get_facecolor()[3] > 0) for box in first.patches]
    assert boxes == [(0, 60, True), (60, 40, True), (0, 90, True), (90, 10, False)]
    assert to_hex(first.patches[1].get_facecolor()) == to_hex(first.patches[2].get_facecolor()) == CYCLE[1]
    assert [text.get_text() for text in second.texts] == ["H"]


def test_positions_restart_and_the_mask_is_triangles():
    figure = masks_and_positions({"one": ((9,), (9,)), "two": ((4, 5), (4, 5))})
    one, two, below, restarted = figure.axes
    assert [area(p.get_xy()) for p in polygons(one)] == [81 / 2]
    assert [area(p.get_xy()) for p in polygons(two)] == [16 / 2, 25 / 2]
    assert [list(line.get_ydata()) for line in below.lines] == [[0, 9]]
    assert [list(line.get_xdata()) for line in restarted.lines] == [[0, 4], [4, 9]]
    assert [list(line.get_ydata()) for line in restarted.lines] == [[0, 4], [0, 5]]


def test_a_rank_has_the_area_of_its_work():
    panels = placed(ROW, 4)
    figure = masks_by_rank(panels)
    masks, bars = figure.axes[0:2] + figure.axes[4:6], figure.axes[2:4] + figure.axes[6:8]
    for mask, bar, documents in zip(masks, bars, panels.values(), strict=True):
        work = [documents.work(rank) for rank in range(4)]
        for rank in range(4):
            own = [area(p.get_xy()) for p in polygons(mask) if to_hex(p.get_facecolor()) == CYCLE[rank]]
            # The mask's diagonal is half of a pair too little for each query.
            assert sum(own) + sum(ROW) / 4 / 2 == pytest.approx(work[rank])
        assert [p.get_height() for p in bar.patches] == pytest.approx([n * 4 / sum(work) for n in work])
    with pytest.raises(ValueError, match="ranks must be 2 to 6"):
        masks_by_rank(placed(ROW, 8))


def test_every_row_is_a_dot_and_a_line_their_mean():
    left, right = busiest_ranks({"a": {"x": [2.0, 1.0], "y": [1.0]}, "b": {"x": [4.0], "y": [1.5]}}).axes
    dots, line, *_ = left.lines
    assert list(dots.get_ydata()) == [1.0, 2.0]
    assert list(line.get_ydata()) == [1.5, 1.5]
    assert left.get_ylim() == right.get_ylim() == pytest.approx((0.9, 4.2))
