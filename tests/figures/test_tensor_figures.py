"""Figures of tensor parallelism compute the products and shard the heads that they draw."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures.style import CYCLE, PALETTE
from playbook_book.figures.tensor import (
    column_then_row,
    heads,
    masks,
    memory_over_tp,
    share_of_step,
    two_cuts,
    wrong_gradients,
)


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def cells(axes) -> list[tuple[str, str]]:
    """Text and hue of every cell, in the order of drawing."""
    texts = [text.get_text() for text in axes.texts if text.get_text() not in "·=+"]
    return list(zip(texts, (to_hex(patch.get_edgecolor()) for patch in axes.patches), strict=False))


def test_both_cuts_give_the_product():
    by_columns, by_rows = two_cuts([[1, 2], [3, 4]], [[5, 6], [7, 8]]).axes
    first, second, shared = CYCLE[0], CYCLE[1], PALETTE["idle"]
    assert cells(by_columns)[-4:] == [("19", first), ("22", second), ("43", first), ("50", second)]
    assert cells(by_rows)[8:12] == [(text, first) for text in ("5", "6", "15", "18")]
    assert cells(by_rows)[12:16] == [(text, second) for text in ("14", "16", "28", "32")]
    assert cells(by_rows)[16:] == [(text, shared) for text in ("19", "22", "43", "50")]
    with pytest.raises(ValueError, match="even"):
        two_cuts([[1, 2, 3]], [[1, 1], [1, 1], [1, 1]])


def test_heads_have_the_hue_of_their_rank_and_copies_stand_side_by_side():
    dealt = [(range(2 * rank, 2 * rank + 2), range(rank // 2, rank // 2 + 1)) for rank in range(4)]
    axes = heads({"tp=4": dealt}).axes[0]
    hues = [to_hex(patch.get_edgecolor()) for patch in axes.patches]
    assert hues[:8] == [CYCLE[rank] for rank in (0, 0, 1, 1, 2, 2, 3, 3)]
    assert hues[8:] == [CYCLE[rank] for rank in range(4)]
    lefts = [round(patch.get_x()) for patch in axes.patches[8:]]
    assert lefts == [0, 2, 4, 6]


def test_an_mlp_has_a_slab_of_each_matrix_for_each_rank():
    axes = column_then_row(3).axes[0]
    hues = [
        to_hex(patch.get_edgecolor()) for patch in axes.patches if to_hex(patch.get_edgecolor()) in CYCLE[:3]
    ]
    assert sorted(hues) == sorted(3 * list(CYCLE[:3]))
    with pytest.raises(ValueError, match="2 to 6"):
        column_then_row(7)


def test_what_is_dropped_is_what_is_zero():
    panels = masks({"a": [[[1.0, 0.0], [2.0, 1.0]], [[1, 1], [1, 1]]]}).axes
    (square,) = panels[0].patches
    assert square.get_path().get_extents().bounds == (1, 0, 1, 1)  # the second column of the first row
    assert not panels[1].patches
    assert panels[1].get_title(loc="left") == "a, rank 1"


def test_gradients_that_are_off_stand_beside_the_loss_that_hides_it():
    losses = {"one process": [3.0, 2.0], "tp=2": [3.0, 2.0], "bug": [3.0, 2.5]}
    left, right = wrong_gradients(losses, {"head": [0.0], "MLP": [0.3, 0.5]}).axes
    assert [line.get_label() for line in left.lines] == list(losses)
    assert [list(line.get_xdata()) for line in right.lines[:2]] == [[1e-8], [0.3, 0.5]]


def test_two_lines_for_each_model_and_a_bar_on_the_other():
    shares = {name: [0.1, 0.2] for name in ("8B", "8B, slow", "70B", "70B, slow")}
    speed = {"8B": [0.3, 0.2], "70B": [0.2, 0.1]}
    left, right = share_of_step(shares, [2, 4], speed, [50e9, 400e9], {50e9: "network"}).axes
    assert [line.get_linestyle() for line in left.lines] == ["-", "--", "-", "--"]
    assert list(right.lines[0].get_xdata()) == [50, 400]
    axes = memory_over_tp({"8B": [(4.0, 2.0, 1.0), (2.0, 1.0, 1.0)]}, [1, 2], ("80 GB", 5.0)).axes[0]
    assert [(bar.get_y(), bar.get_height()) for bar in axes.patches] == [
        (0, 4), (0, 2), (4, 2), (2, 1), (6, 1), (3, 1),
    ]  # fmt: skip
