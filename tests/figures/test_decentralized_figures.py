"""Figures of methods that talk less: what they draw is what they were given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.decentralized.topology import topology
from playbook.figures import display
from playbook.figures.decentralized import curves, mixing, shares, speed_up
from playbook.figures.style import CYCLE


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_each_panel_has_the_values_of_its_step_and_the_messages_that_made_them():
    ring, one_peer = topology("ring", 6), topology("one-peer-exponential", 4)
    graphs = {
        "ring": (ring, [[step / 10] * 6 for step in range(4)]),
        "one-peer-exponential": (one_peer, [[-step / 10] * 4 for step in range(4)]),
    }
    figure = mixing(graphs, steps=(0, 1, 3))
    assert len(figure.axes) == 6
    values = [list(axes.collections[1].get_array()) for axes in figure.axes]
    assert values[:3] == [[0.0] * 6, [0.1] * 6, [0.3] * 6]
    assert values[3:] == [[0.0] * 4, [-0.1] * 4, [-0.3] * 4]
    lines = [len(axes.collections[0].get_segments()) for axes in figure.axes]
    assert lines[:3] == [6 + 6] * 3  # there and back
    assert lines[3:] == [4] * 3
    assert "3 steps" in display(figure, alt="x").svg


@pytest.mark.parametrize("name", ["torus", "grid", "star", "exponential"])
def test_nodes_stand_apart(name):
    made = topology(name, 9)
    figure = mixing({name: (made, [[0.0] * 9])}, steps=(0,))
    places = {tuple(place.round(6)) for place in figure.axes[0].collections[1].get_offsets().data}
    assert len(places) == 9


def test_speed_up_has_a_dot_a_run_their_mean_and_the_ideal():
    (axes,) = speed_up({1: [90.0, 110.0], 2: [40.0, 60.0], 4: [40.0, 40.0]}).axes
    ideal, *runs, mean = axes.lines
    assert list(ideal.get_ydata()) == [100, 50, 25]
    assert list(mean.get_ydata()) == [100, 50, 40]
    assert [list(run.get_ydata()) for run in runs] == [[90, 110], [40, 60], [40, 40]]


def test_curves_keep_their_hue_and_end_where_they_leave_the_picture():
    line = [(1, 1.0, 0.0), (2, 0.1, 0.05), (3, 0.0, 0.0), (4, 0.0, 0.0)]
    first, second = curves({"a": {"x": line, "y": line}, "b": {"y": line}}, "s", "e", bottom=1e-3).axes
    assert [list(one.get_ydata()) for one in first.lines] == [[1.0, 0.1, 1e-3]] * 2
    assert to_hex(first.lines[1].get_color()) == to_hex(second.lines[0].get_color()) == CYCLE[1]
    assert first.get_yscale() == "log"
    assert len(first.collections) == 2  # a band where a curve has scatter


def test_squares_have_the_area_of_their_share():
    (axes,) = shares({"one": [[0.25, 0.75], [1.0, 0.0]]}).axes
    areas = [path.get_extents().width * path.get_extents().height for path in axes.collections[0].get_paths()]
    assert areas == pytest.approx([0.25, 0.75, 1.0, 0.0])
