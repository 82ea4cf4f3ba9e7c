"""Figures of ZeRO draw the ranks, the shares and the bytes they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex, to_rgba

from playbook.figures import PALETTE, display
from playbook.figures.style import CYCLE
from playbook_book.figures.sharding import ownership, rank_memory, weights_over_step

MIB = 2**20
RANK = {"optimizer": 1 * MIB, "parameters": 4 * MIB, "gradients": 2 * MIB, "activations": 0}


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_every_rank_has_a_stack_and_the_prediction_a_pale_one():
    figure = rank_memory({"stage 1": [RANK, RANK, {**RANK, "optimizer": 2 * MIB}]}, {"stage 1": RANK})
    bars = [(b.get_x() + b.get_width() / 2, b.get_y(), b.get_height()) for b in figure.axes[0].patches]
    # By category: three ranks, then the prediction; from the floor up.
    assert bars[:3] == [(0, 0, 4 * MIB), (1, 0, 4 * MIB), (2, 0, 4 * MIB)]
    assert bars[3] == (pytest.approx(3.35), 0, 4 * MIB)
    assert bars[8:11] == [(0, 6 * MIB, MIB), (1, 6 * MIB, MIB), (2, 6 * MIB, 2 * MIB)]
    assert len(bars) == 12  # nothing is drawn of what nobody has
    measured, pale = figure.axes[0].patches[0], figure.axes[0].patches[3]
    assert to_hex(measured.get_facecolor()) == PALETTE["parameters"]
    assert pale.get_facecolor() == to_rgba(PALETTE["parameters"], 0.3)


def test_the_title_says_the_total_of_the_fullest_rank_and_the_legend_what_is_there():
    svg = display(rank_memory({"stage 1": [RANK, {**RANK, "optimizer": 3 * MIB}]}), alt="x").svg
    for words in ("stage 1", "9 MiB", "parameters", "gradients", "optimizer", "memory of each rank"):
        assert words in svg
    assert "activations" not in svg
    assert "predicted" not in svg
    assert "predicted" in display(rank_memory({"a": [RANK]}, {"a": RANK}), alt="x").svg


def test_panels_share_their_scale():
    figure = rank_memory({"all": [RANK], "less": [{"parameters": MIB}]})
    assert figure.axes[0].get_ylim() == figure.axes[1].get_ylim()


def test_a_prediction_without_a_measurement_is_refused():
    with pytest.raises(ValueError, match="'stage 3' has no measurement: there are stage 1"):
        rank_memory({"stage 1": [RANK]}, {"stage 3": RANK})


def test_a_parameter_is_cut_where_a_share_ends():
    spans, shares = [("w", 0, 5), ("b", 5, 7)], [(0, 0, 4), (1, 4, 8)]
    figure = ownership({"one vector": (spans, shares, 8)}, ranks=2)
    axes = figure.axes[0]
    bars = [(b.get_x(), b.get_width(), to_hex(b.get_facecolor())) for b in axes.patches]
    assert bars == [(0, 4, CYCLE[0]), (4, 1, CYCLE[1]), (5, 2, CYCLE[1])]
    assert [t.get_text() for t in axes.get_yticklabels()] == ["w", "b"]
    assert axes.get_xlim() == (0, 8)  # the last element is padding
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first stair on top


def test_more_ranks_than_hues_are_refused():
    with pytest.raises(ValueError, match="ranks must be 2 to 6, a hue each, got 8"):
        ownership({"x": ([("w", 0, 8)], [(r, r, r + 1) for r in range(8)], 8)}, ranks=8)


def test_weights_come_and_go_on_one_scale():
    runs = {
        "forgotten": [MIB, 3 * MIB, 3 * MIB, MIB, 3 * MIB],
        "kept": [MIB, 3 * MIB, 5 * MIB, 5 * MIB, 5 * MIB],
    }
    phases = {title: [("forward", 0, 3), ("backward", 3, 4)] for title in runs}
    figure = weights_over_step(runs, phases, {"all of them": 4 * MIB})
    upper, lower = figure.axes
    assert upper.get_ylim() == lower.get_ylim()
    forgotten, kept = (axes.patches[0].get_data().values.tolist() for axes in figure.axes)
    assert forgotten == [MIB, 3 * MIB, MIB, 3 * MIB]  # what does not change takes no room
    assert kept == [MIB, 3 * MIB, 5 * MIB]
    brackets = [line.get_xdata() for line in upper.lines if len(set(line.get_ydata())) == 1]
    assert [0.0, 2.0] in [list(x) for x in brackets]  # forward: the first two changes
    svg = display(figure, alt="x").svg
    for words in ("forgotten: up to 3 MiB", "kept: up to 5 MiB", "forward", "backward", "all of them"):
        assert words in svg


def test_a_phase_without_a_change_has_no_bracket():
    figure = weights_over_step(
        {"w": [MIB, 2 * MIB, 2 * MIB]}, {"w": [("forward", 0, 2), ("optimizer", 2, 2)]}
    )
    svg = display(figure, alt="x").svg
    assert "forward" in svg
    assert "optimizer" not in svg
