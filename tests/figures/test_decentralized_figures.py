"""Figures of methods that talk less: what they draw is what they were given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.decentralized.topology import topology
from playbook.figures import display
from playbook.figures.style import BLUE, CYCLE, ORANGE
from playbook_book.figures.decentralized import curves, mixing, shares, speed_up


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def places(line) -> list[tuple[float, float]]:
    """Where the strokes of a path begin."""
    return [
        (round(float(x), 6), round(float(y), 6)) for x, y in list(zip(*line.get_data(), strict=True))[::3]
    ]


def test_each_panel_has_the_values_of_its_step_and_the_messages_that_made_them():
    ring, one_peer = topology("ring", 6), topology("one-peer-exponential", 4)
    graphs = {
        "ring": (ring, [[1.0] * 3 + [-1.0] * 3, [1.0] * 2 + [-1.0] * 4, [0.0] * 6, [0.5] * 6]),
        "one-peer-exponential": (one_peer, [[-1.0] * 4] * 4),
    }
    figure = mixing(graphs, steps=(0, 1, 3))
    assert len(figure.axes) == 6
    first, second, third, *others = figure.axes
    assert [len(places(line)) for line in first.lines] == [6, 6, 3, 3]  # messages, outlines, low, high
    assert [to_hex(line.get_color()) for line in first.lines[2:]] == [BLUE, ORANGE]
    assert [len(places(line)) for line in second.lines] == [6, 6, 4, 2]
    assert places(second.lines[1])[:2] == places(second.lines[3])  # the nodes whose values are high
    assert [len(places(line)) for line in third.lines] == [6, 6, 6]
    assert [len(places(axes.lines[0])) for axes in others] == [4, 4, 4]
    assert "3 steps" in display(figure, alt="x").svg


@pytest.mark.parametrize("name", ["torus", "grid", "star", "exponential"])
def test_nodes_stand_apart(name):
    figure = mixing({name: (topology(name, 9), [[0.0] * 9])}, steps=(0,))
    assert len(set(places(figure.axes[0].lines[1]))) == 9


def test_speed_up_has_a_dot_a_run_their_mean_and_the_ideal():
    (axes,) = speed_up({1: [90.0, 110.0], 2: [40.0, 60.0], 4: [40.0, 40.0]}).axes
    ideal, *runs, mean = axes.lines
    assert list(ideal.get_ydata()) == [100, 50, 25]
    assert list(mean.get_ydata()) == [100, 50, 40]
    assert [list(run.get_ydata()) for run in runs] == [[90, 110], [40, 60], [40, 40]]


def test_curves_keep_their_hue():
    line = [(1, 1.0, 0.0), (2, 0.1, 0.05)]
    first, second = curves({"a": {"x": line, "y": line}, "b": {"y": line}}, "s", "e").axes
    assert [list(one.get_ydata()) for one in first.lines] == [[1.0, 0.1]] * 2
    assert to_hex(first.lines[1].get_color()) == to_hex(second.lines[0].get_color()) == CYCLE[1]
    assert first.get_yscale() == "log"
    assert len(first.collections) == 2  # a band where a curve has scatter


def test_squares_have_the_area_of_their_share():
    (axes,) = shares({"one": [[0.25, 0.75], [1.0, 0.0]]}).axes
    (patch,) = axes.patches
    boxes = [square.max(0) - square.min(0) for square in patch.get_path().to_polygons()]
    assert [float(wide * high) for wide, high in boxes] == pytest.approx([0.25, 0.75, 1.0])
