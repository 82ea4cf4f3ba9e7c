"""The drawing of a network says what the model of it has."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook.hardware import load
from playbook.planning.links import Network
from playbook_book.figures.network import BETWEEN, two_levels


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
    assert {"switch: 405 GB/s, 3.4 µs", "NIC: 50 GB/s, 14 µs", "8 rails: 400 GB/s"} <= {*said}
