"""Figures of the mesh and of strategies draw the groups, the bytes and the times that they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import PALETTE, display
from playbook.layout import Layout
from playbook_book.figures.five_dimensions import (
    ALONG,
    AXES,
    along_a_block,
    groups_of_ranks,
    memory_of_strategies,
    times_over_batch,
)

GIB = 2**30


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def drawn_groups(rank: int) -> dict[str, list[tuple[int, ...]]]:
    """The groups of a mesh of sixteen by the hue of their dots; those of ``rank`` under "own"."""
    layout = Layout.parse("tp=2,cp=2,dp=2,pp=2,ep=4")
    rows = {axis: layout.groups(axis) for axis in ("tp", "cp", "dp", "pp", "ep")}
    found: dict[str, list[tuple[int, ...]]] = {"own": []}
    for line in groups_of_ranks(rows, 8, rank).axes[0].lines:
        if line.get_marker() == "o":
            group = tuple(int(x) for x in line.get_xdata())
            found.setdefault(str(to_hex(line.get_color())), []).append(group)
            if line.get_alpha() == 1.0:
                found["own"].append(group)
    return found


@pytest.mark.parametrize("rank", [0, 13])
def test_every_group_has_its_dots_and_that_of_the_rank_is_drawn_in_full(rank):
    layout, found = Layout.parse("tp=2,cp=2,dp=2,pp=2,ep=4"), drawn_groups(rank)
    for axis in ("tp", "cp", "dp", "pp", "ep"):
        assert sorted(found[PALETTE[axis]]) == sorted(layout.groups(axis))
    assert len(found["own"]) == 5
    assert all(rank in group for group in found["own"])


def test_groups_in_one_lane_do_not_overlap_and_nodes_are_told_apart():
    layout = Layout.parse("tp=2,cp=2,dp=2,pp=2")
    axes = groups_of_ranks({axis: layout.groups(axis) for axis in ("tp", "pp")}, 4).axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    for line in dots:
        same = [o for o in dots if o is not line and o.get_ydata()[0] == line.get_ydata()[0]]
        low, high = min(line.get_xdata()), max(line.get_xdata())
        assert all(max(o.get_xdata()) < low or min(o.get_xdata()) > high for o in same)
    borders = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]
    assert borders == [3.5, 7.5, 11.5]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["tp", "pp"]


def test_a_rank_outside_a_row_is_refused():
    with pytest.raises(ValueError, match="rank 4 is in no group of tp"):
        groups_of_ranks({"tp": [(0, 1), (2, 3)]}, 2, rank=4)


BARS = {
    "4k tokens": {"DP": {"parameters": 60 * GIB, "activations": 20 * GIB}, "TP": {"parameters": 10 * GIB}},
    "64k tokens": {"DP": {"parameters": 60 * GIB, "activations": 320 * GIB}, "TP": {"parameters": 10 * GIB}},
}
MARKS = {title: {"DP": 65 * GIB, "TP": 12 * GIB} for title in BARS}


def test_a_panel_for_each_length_and_a_bar_for_each_strategy():
    figure = memory_of_strategies(BARS, MARKS, 80 * GIB, "recomputed", top=100 * GIB)
    for axes, bars in zip(figure.axes, BARS.values(), strict=True):
        assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["DP", "TP"]
        widths = [b.get_width() for b in axes.patches]
        assert widths == [60 * GIB, 10 * GIB, bars["DP"]["activations"], 0]
        assert axes.get_xlim() == (0, 100 * GIB)
        assert [line.get_xdata()[0] for line in axes.lines] == [65 * GIB, 12 * GIB, 80 * GIB]
    svg = display(figure, alt="x").svg
    assert "380 →" in svg  # what goes beyond the panel is written
    assert "80 →" not in svg.replace("380 →", "")
    for words in ("4k tokens", "64k tokens", "recomputed", "a GPU, 80 GiB", "activations"):
        assert words in svg


def test_a_block_has_a_box_for_each_part_and_full_ones_where_an_axis_divides():
    cuts = {"": (), **dict.fromkeys(filter(None, ALONG.values()), ())}
    bare = along_a_block(cuts)
    cut = along_a_block({**cuts, "attention.q": ["tp"], "mlp.experts.up": ["ep", "tp"]})
    for figure, weights in ((bare, 0), (cut, 3)):
        boxes = figure.axes[0].patches
        assert len(boxes) == len(AXES) * (2 * len(ALONG) - 1)  # no weights in attention's core
        strengths = [box.get_facecolor()[3] for box in boxes]
        assert strengths.count(1.0) == weights
        assert strengths.count(0.4) == sum(len(divided) for divided, _ in AXES.values())
    words = [text.get_text() for text in cut.axes[0].texts]
    assert [text[2:] for text in words[-2:]] == ["dispatch", "combine"]


def test_times_keep_the_hue_of_their_technique_and_the_dash_of_their_name():
    tokens = [2**15, 2**16, 2**17]
    pipeline = {"2k": (tokens, [2.0, 1.5, 1.2]), "8k": (tokens, [4.0, 2.0, 1.5])}
    zero = {"2k": (tokens, [3.0] * 3), "8k": (tokens, [1.0] * 3)}
    figure = times_over_batch(pipeline, zero, [(2**16, 1.5)])
    lines = figure.axes[0].lines
    assert [to_hex(line.get_color()) for line in lines[:4]] == [PALETTE["pp"]] * 2 + [PALETTE["dp"]] * 2
    assert lines[0].get_linestyle() == lines[2].get_linestyle() != lines[1].get_linestyle()
    assert [list(line.get_ydata()) for line in lines[:2]] == [[2.0, 1.5, 1.2], [4.0, 2.0, 1.5]]
    assert (lines[4].get_xdata()[0], lines[4].get_ydata()[0]) == (2**16, 1.5)
    svg = display(figure, alt="x").svg
    for words in ("pipeline, 2k", "ZeRO-3, 8k", "tokens of a step"):
        assert words in svg
