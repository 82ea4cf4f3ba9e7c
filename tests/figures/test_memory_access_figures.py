"""Figures of the chapter on memory access: sectors and banks as they are counted, points under roofs."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import display
from playbook.figures.style import PALETTE
from playbook.hardware import load
from playbook_book.figures.memory_access import bank_map, product_rooflines, warp_over_matrix


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_sectors_that_move_are_drawn_once_and_each_thread_has_its_number():
    patterns = {"a row": lambda i: i, "a column": lambda i: 32 * i, "the same": lambda i: 7}
    figure = warp_over_matrix(patterns)
    moved = [sum(box.get_width() == 8 for box in axes.patches) for axes in figure.axes]
    assert moved == [4, 32, 1]
    assert [axes.get_title(loc="right") for axes in figure.axes] == ["4 sectors", "32 sectors", "1 sector"]
    assert [len(axes.patches) - n for axes, n in zip(figure.axes, moved, strict=True)] == [32] * 3
    assert display(figure, alt="Sectors.")


def test_words_of_a_bank():
    layouts = {
        "plain": lambda row, column: 32 * row + column,
        "padded": lambda row, column: 33 * row + column,
        "swizzled": lambda row, column: 32 * row + (column ^ row),
    }
    figure = bank_map(layouts)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["plain\n32 wavefronts", "padded\n1 wavefront", "swizzled\n1 wavefront"]
    for axes, hits in zip(figure.axes, (32, 1, 1), strict=True):
        words = [box for box in axes.patches if box.get_width() < 1]
        assert len(words) == 32  # a bank has one word of each row
        assert sum(to_hex(box.get_facecolor()) == PALETTE["gradients"] for box in words) == hits


def test_steps_are_on_both_roofs():
    gpu = load("h100-8").accelerator
    figure = product_rooflines(
        {"one": (0.5, 2.0, "fp32"), "two": (1e3, 1e3, "fp16")}, gpu, 10 * gpu.memory_bandwidth
    )
    points = [
        line.get_xydata()[0].tolist() for line in figure.axes[0].lines if line.get_linestyle() == "None"
    ]
    low = gpu.memory_bandwidth / 1e12
    assert points[:2] == [[2.0, pytest.approx(2 * low)], [0.5, pytest.approx(5 * low)]]
    assert [y for _, y in points[2:]] == [989.0, 989.0]  # not above the cores
