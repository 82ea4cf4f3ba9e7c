"""Figures of the primer on GPUs: as many boxes as there are parts, points on the roof, lines that bend at a bound."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.figures import display
from playbook.figures.style import PALETTE
from playbook_book.chips import CHIPS
from playbook_book.figures.gpu_primer import bandwidth_reached, chip, grid, rooflines, tail

ON_CHIP = {"registers": 2**18, "L1 and shared memory": 2**18, "L2": 50 * 2**20}


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


@pytest.mark.parametrize("name", ["h100", "a100-80"])
def test_a_chip_has_all_its_multiprocessors_and_one_of_them_from_inside(name):
    gpu = CHIPS[name]
    figure = chip(gpu, ON_CHIP, 80 * 2**30)
    (axes,) = figure.axes
    small = [box for box in axes.patches if box.get_width() < 0.5]
    assert len(small) == gpu.multiprocessors
    texts = [text.get_text() for text in axes.texts]
    assert texts.count(f"{gpu.cores_each // 4} cores") == texts.count("1 tensor core") == 4
    assert {"L2 cache, 50 MiB", f"{gpu.multiprocessors} multiprocessors"} <= set(texts)
    assert display(figure, alt="A chip.")


@pytest.mark.parametrize(("n", "empty"), [(1000, 24), (1024, 0), (769, 255)])
def test_threads_beyond_the_vector_are_empty(n, empty):
    above, below = grid(n, 256).axes
    assert len(below.patches) == 256
    assert sum(box.get_facecolor()[3] == 0 for box in below.patches) == empty
    assert sum(text.get_text().startswith("block") for text in above.texts) == 4
    assert "4 blocks" in above.get_title(loc="left")


def test_a_block_is_whole_warps():
    with pytest.raises(ValueError, match="multiple of 32, got 100"):
        grid(1000, 100)


def test_kernels_are_on_the_first_roof():
    roofs = {"one": (1000.0, 10.0), "two": (4000.0, 20.0)}
    axes = rooflines(roofs, {"low": 1.0, "near": 1.1, "high": 500.0}).axes[0]
    points = [line.get_xydata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert [tuple(point) for point in points] == [(1.0, 10.0), (1.1, 11.0), (500.0, 1000.0)]
    ridges = [tuple(line.get_xydata()[1]) for line in axes.lines if line.get_marker() != "o"]
    assert ridges == [(100.0, 1000.0), (200.0, 4000.0)]
    names = [text.get_position()[0] for text in axes.texts]
    assert names[1] / names[0] > 1.4  # names of neighbours do not touch


def test_bandwidth_is_reached_once_enough_is_in_flight():
    axes = bandwidth_reached({"4 bytes": 4, "16 bytes": 16, "1 byte": 1}, 4096, 2048, (0, 1)).axes[0]
    bends = [tuple(line.get_xydata()[1]) for line in axes.lines]
    assert bends == [(0.5, 1.0), (0.125, 1.0), (1.0, 0.5)]


def test_a_curve_for_each_grid():
    figure = tail([128, 256], {"a": [0.5, 1.0], "b": [1.0, 1.0]}, xlabel="tokens")
    assert [list(line.get_ydata()) for line in figure.axes[0].lines] == [[0.5, 1.0], [1.0, 1.0]]
    hues = [to_hex(line.get_color()) for line in figure.axes[0].lines]
    assert hues[0] == PALETTE["compute"]
    assert len(set(hues)) == 2
