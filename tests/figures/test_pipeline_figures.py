"""Figures of pipeline schedules show the simulated times, what is kept, and why ranks wait."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib.pyplot as plt
import playbook_widgets
import pytest
from matplotlib.colors import to_hex, to_rgba
from matplotlib.patches import PathPatch

from playbook.figures import display
from playbook.figures.style import PALETTE
from playbook.schedules.catalogue import make
from playbook.schedules.explain import bubble_by_cause
from playbook.schedules.timeline import Times, simulate
from playbook_book.figures.pipeline import overlay, timeline, timelines
from playbook_book.figures.pipeline_rows import GAPS, kept_by, phases_of

PLAIN = simulate(make("1f1b", 4, 8))


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def wide(axes, colour, strength=1.0) -> float:
    """Widths of all boxes of this look, added up."""
    total = 0.0
    for patch in axes.patches:
        face = patch.get_facecolor()
        if isinstance(patch, PathPatch) and face == to_rgba(colour, strength):
            boxes = patch.get_path().vertices.reshape(-1, 5, 2)
            total += float((boxes[:, 1, 0] - boxes[:, 0, 0]).sum())
    return total


def test_boxes_are_as_wide_as_actions_and_gaps_as_waiting():
    axes = timeline(PLAIN).axes[0]
    assert wide(axes, PALETTE["F"]) == 4 * 8
    assert wide(axes, PALETTE["B"]) == 4 * 8 * 2 == wide(axes, PALETTE["W"])  # the foot of B with W
    causes = bubble_by_cause(PLAIN)
    assert wide(axes, *GAPS["filling"][:2]) == pytest.approx(
        causes["fill"] + causes["drain"]
    )  # alike but for a pattern
    assert wide(axes, *GAPS["waiting for a rank"][:2]) == pytest.approx(causes["dependency"])
    numbers = [text.get_text() for text in axes.texts]
    assert numbers[-4:] == ["4", "3", "2", "1"]  # micro-batches that a rank keeps
    assert {"F0", "B7"} <= set(numbers)


def test_a_part_of_a_step_has_room_for_letters():
    line = simulate(make("interleaved", 4, 12, 2), Times(0.5, 0.5, 0.5))
    whole, part = (timelines({"": line}, until=until).axes[0] for until in (None, 16))
    assert part.get_xlim()[1] < line.makespan < whole.get_xlim()[1]
    written = {text.get_text() for text in whole.texts}, {text.get_text() for text in part.texts}
    assert "F0" not in written[0]
    assert {"F0", "B0"} <= written[1]
    assert all(text.get_position()[0] < part.get_xlim()[1] for text in part.texts)  # none beside the axes


def test_phases_are_those_of_1f1b():
    assert phases_of(PLAIN, 0) == [("warm-up", 0, 3), ("steady state", 3, 24), ("cool-down", 25, 33)]
    assert [name for name, *_ in phases_of(PLAIN, 3)] == [
        "steady state"
    ]  # the last rank turns each one around
    texts = [text.get_text() for text in timeline(PLAIN, phases=True).axes[0].texts]
    assert [texts.count(name) for name in ("warm-up", "steady state", "cool-down")] == [2, 4, 2]
    assert not {"4", "activations kept; their peak"} & set(texts)


def test_the_visualizer_fades_chunks_by_as_much():
    """One code for a rank's further stages on a page that has both."""
    colours = Path(playbook_widgets.__file__).parent / "static/schedule_visualizer/colours.mjs"
    lost = float(re.search(r"FAINTEST = ([\d.]+)", colours.read_text())[1])
    axes = timeline(simulate(make("zb-v", 4, 8))).axes[0]
    assert wide(axes, PALETTE["F"], 1 - lost) == wide(axes, PALETTE["F"]) > 0


def test_chunks_of_a_rank_are_told_by_strength_and_kept_by_their_share():
    line = simulate(make("interleaved", 2, 4, 2))
    axes = timeline(line, path=True).axes[0]
    assert wide(axes, PALETTE["F"]) == wide(axes, PALETTE["F"], 0.38) == 2 * 4
    assert max(amount for _, amount in kept_by(line, 0)) == 2.5  # five of half a rank's layers
    frames = [p for p in axes.patches if not isinstance(p, PathPatch)]
    assert (
        sum(p.get_width() for p in frames) == line.makespan
    )  # messages are free: the critical path has no gap


def test_actions_side_by_side_share_a_row():
    line = simulate(make("dualpipe", 4, 12), Times(fb=2.5))
    high = {
        round(float(box[2, 1] - box[1, 1]), 3)
        for patch in timeline(line, gaps=False).axes[0].patches
        if to_hex(patch.get_facecolor()) == PALETTE["F"]
        for box in patch.get_path().vertices.reshape(-1, 5, 2)
    }
    assert high == {0.78, 0.39}


def test_one_time_axis():
    slow = simulate(make("naive", 4, 8))
    figure = timelines({"naive": slow, "1f1b": PLAIN})
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 1.02 * slow.makespan)}
    assert [axes.get_title(loc="right") for axes in figure.axes] == ["75.0% bubble", "27.3% bubble"]
    with pytest.raises(ValueError, match="at least one"):
        timelines({})


def test_prediction_over_measurement():
    late = simulate(make("1f1b", 4, 8), Times(comm=0.5))
    axes = overlay({"1f1b": (PLAIN, late)}).axes[0]
    assert [line.get_xdata()[0] for line in axes.lines] == [PLAIN.makespan, late.makespan]
    error = PLAIN.makespan / late.makespan - 1
    assert axes.get_title(loc="right") == f"prediction −{-error:.1%}"
    with pytest.raises(ValueError, match="at least one"):
        overlay({})


def test_words_that_look_alike_say_so_once():
    """A schedule has hundreds of them, and a page must stay light."""
    line = simulate(make("1f1b", 4, 8))
    svg = display(timeline(line), alt="1F1B").svg
    assert svg.count("<text") > 50
    assert svg.count("text-anchor: middle") < 12
