"""The drawing of a network says what the model of it has."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook.bench import records
from playbook.hardware import load
from playbook_book.collectives.network import Network
from playbook_book.figures.network import BETWEEN, DRAWN, choices, published, two_levels


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


@pytest.mark.parametrize("per_node", [8, 4])
def test_every_gpu_has_a_number_and_every_rail_a_line(per_node):
    axes = two_levels(Network.of(load("h100-8"), per_node)).axes[0]
    numbers = [text.get_text() for text in axes.texts if text.get_text().isdigit()]
    assert numbers == [str(rank) for rank in range(2 * per_node)]
    assert sum(line.get_color() == BETWEEN for line in axes.lines) == per_node


def test_bandwidths_and_latencies_are_those_of_the_network():
    said = [text.get_text() for text in two_levels(Network.of(load("h100-8"))).axes[0].texts]
    assert {"switch: 360 GB/s, 3.4 µs", "NIC: 50 GB/s, 14 µs", "8 rails: 400 GB/s"} <= {*said}


def test_a_map_names_what_is_taken_where():
    figure = choices(load("h100-8"))
    names = [{text.get_text().replace("\n", " ") for text in axes.texts} for axes in figure.axes]
    assert {"tree LL", "tree LL128", "NVLS", "ring Simple"} <= names[0]
    assert names[1] == {"ring LL", "ring LL128", "ring Simple"}


def test_published_runs_are_drawn_as_dots_beside_their_predictions():
    (record,) = records("published-collectives")
    axes = published(record["tables"]).axes[0]
    assert [line.get_label() for line in axes.lines[::2]] == list(DRAWN.values())
    for dots, line in zip(axes.lines[::2], axes.lines[1::2], strict=True):
        assert len(dots.get_xdata()) == len(line.get_xdata()) >= 5
