"""Figures of sequence parallelism: who has what, what is saved, what is dropped, messages beneath products."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import display
from playbook.figures.style import CYCLE
from playbook_book.figures.sequence import ALONG, chunks, held, kept, masks, over_sequence
from playbook_book.instruments.interval import Interval
from playbook_book.instruments.shape_table import Row, ShapeTable, Side


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def shown(tokens: int) -> ShapeTable:
    """A table of two ranks that have a ``tokens``-th of the stream and half of the queries."""
    stream = Side((1, 8 // tokens, 4), (1, 8, 4), ("b", "s", "h"))
    cut = Side((1, 8, 2), (1, 8, 4), ("b", "s", "a·d"))
    inside = ("q", "attention core", "up")
    regions = ["embedding", *ALONG]
    return ShapeTable("", tuple(Row(r, stream, cut if r in inside else stream, None) for r in regions))


def boxes(table: ShapeTable, place: int) -> list[tuple]:
    """Left, top, width, height and hue of what is drawn at a place along the block."""
    patches = held({"x": table}).axes[0].patches
    mine = [p for p in patches if hasattr(p, "get_x") and place <= p.get_x() < place + 0.9]
    return [
        (
            round(p.get_x() - place, 2),
            round(p.get_y(), 2),
            p.get_width(),
            p.get_height(),
            to_hex(p.get_facecolor()),
        )
        for p in mine
    ]


def test_a_copy_for_each_rank_or_a_part_of_one():
    behind, front = boxes(shown(tokens=1), 1)
    assert (behind[2:], front) == ((0.62, 0.62, CYCLE[1]), (0, 0, 0.62, 0.62, CYCLE[0]))
    assert behind[0] > 0 > behind[1]
    assert boxes(shown(tokens=2), 1) == [(0, 0, 0.62, 0.31, CYCLE[0]), (0, 0.31, 0.62, 0.31, CYCLE[1])]
    assert boxes(shown(tokens=2), 2) == [(0, 0, 0.31, 0.62, CYCLE[0]), (0.31, 0, 0.31, 0.62, CYCLE[1])]


def test_bars_stand_on_each_other():
    axes = kept([1, 2], {"tp": {"inside": [4, 2], "outside": [3, 3]}}).axes[0]
    assert [(b.get_y(), b.get_height()) for b in axes.patches] == [(0, 4), (0, 2), (4, 3), (2, 3)]


def test_lines_masks_and_messages_are_drawn():
    lines = over_sequence([1024, 2048, 4096], {"a": {"tp=2": [2e9, 4e9, 8e9]}}, ("80 GB", 80e9))
    assert [line.get_label() for line in lines.axes[0].lines] == ["tp=2", "80 GB"]
    picture = masks({"x": [[True, False], [True, True]]}, 2).axes[0].images[0]
    assert picture.get_array().tolist() == [[0, 1], [0, 0]]
    spans = [Interval("compute", 0.0, 2.0), Interval("message", 0.5, 1.5)]
    bars = chunks({"x": spans}).axes[0].patches
    assert [(b.get_x(), b.get_width()) for b in bars] == [(0, 2), (0.5, 1)]
    assert "multiplying" in display(chunks({"x": spans}), alt="x").svg
