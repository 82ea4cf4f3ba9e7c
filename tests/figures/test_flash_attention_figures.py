"""Figures of FlashAttention show what the formulas say."""

from __future__ import annotations

import math

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Polygon

from playbook.figures.style import PALETTE
from playbook_book.figures.flash_attention import block_costs, bytes_over_length, online_softmax, tiles


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_bars_of_a_panel_sum_to_its_denominator():
    scores = [0.5, 1.0, -3.0, 2.0, 1.5, 0.0]
    panels = online_softmax(scores, 2).axes
    for step, axes in enumerate(panels[:3], 1):
        seen = scores[: 2 * step]
        heights = [bar.get_height() for bar in axes.patches]
        assert heights == pytest.approx([math.exp(x - max(seen)) for x in seen])
        assert f"ℓ = {sum(heights):.2f}" in axes.get_title(loc="left")
    said = [axes.get_title(loc="left") for axes in panels[:3]]
    assert ["earlier" in text for text in said] == [False, True, False]  # where the maximum has grown
    assert "earlier × 0.37" in said[1]  # e^(1 − 2)


def test_a_row_is_whole_blocks():
    with pytest.raises(ValueError, match="a row of 3 scores is no whole number of blocks of 2"):
        online_softmax([1.0, 2.0, 3.0], 2)


def areas(axes, name) -> float:
    """Of the tiles in a hue; triangles are half of one."""
    found = [patch for patch in axes.patches if isinstance(patch, Polygon) and len(patch.get_xy()) in (4, 5)]
    return sum(
        1.0 if len(patch.get_xy()) == 5 else 0.5
        for patch in found
        if to_hex(patch.get_facecolor()) == PALETTE[name]
    )


@pytest.mark.parametrize(("blocks", "program"), [(4, 0), (4, 2), (5, 4)])
def test_a_program_has_one_tile_at_a_time_and_keeps_none(blocks, program):
    panels = [axes for axes in tiles(blocks, program).axes if axes.patches]
    assert len(panels) == program + 2
    for step, axes in enumerate(panels):
        current = 0.0 if step > program else 0.5 if step == program else 1.0
        assert areas(axes, "compute") == current
        assert areas(axes, "idle") == min(step, program) + (0.5 if step > program else 0.0)
    assert "written" in panels[-1].get_title(loc="left")


def test_a_program_is_one_of_the_blocks():
    with pytest.raises(ValueError, match="program is 4, but must be one of the 4 blocks"):
        tiles(4, 4)


def test_costs_of_blocks_are_what_was_given():
    left, right = block_costs({64: (1.0, 189, 0), 128: (0.5, 255, 0), 256: (0.25, 255, 1904)}).axes
    assert [bar.get_height() for bar in left.patches] == [1.0, 0.5, 0.25]
    assert [bar.get_height() for bar in right.patches] == [189, 255, 255]
    assert [text.get_text() for text in right.texts if "spilled" in text.get_text()] == ["1,904 B\nspilled"]


def test_lines_are_what_was_given():
    lengths = [1024, 2048, 4096]
    given = {"standard": [1e6, 4e6, 16e6], "flash": [1e5, 2e5, 4e5]}
    (axes,) = bytes_over_length(lengths, given).axes
    assert {line.get_label(): list(line.get_ydata()) for line in axes.lines} == given
