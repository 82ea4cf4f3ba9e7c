"""Figures of the simulator: bars are stacked of the terms, tiles fill waves, ratios stand in their rows."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from playbook.bench import records
from playbook.figures import PALETTE
from playbook_book.figures.simulator import TERMS, growing, ratios, scaled, waves


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def test_bars_are_stacked_of_the_terms_so_far_in_their_order():
    figure = growing({"a": {"tensor parallelism": 0.2, "FLOPs at peak": 0.5}, "b": {"FLOPs at peak": 0.4}})
    axes = figure.axes[0]
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_y(), bar.get_height()) for bar in axes.patches]
    assert [place for bar in bars for place in bar] == pytest.approx(
        [0, 0, 0.5, 0, 0.5, 0.2, 1, 0, 0.4, 1, 0.4, 0]
    )
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "FLOPs at peak",
        "tensor parallelism",
    ]
    assert [line.get_ydata()[0] for line in axes.lines] == [1.0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["a", "b"]


def test_terms_are_those_of_the_chapter():
    with pytest.raises(ValueError, match="a has the term 'magic', which is none of FLOPs at peak"):
        growing({"a": {"magic": 1.0}})
    with pytest.raises(ValueError, match="at least one model"):
        growing({})
    assert all(hue in PALETTE for hue, _ in TERMS.values())


@pytest.mark.parametrize(
    ("size", "tiles", "count", "idle"),
    [((1536, 2304), 108, 1, 0), ((1536, 2560), 120, 2, 96), ((1, 1), 1, 1, 107)],
)
def test_tiles_fill_waves_and_idle_processors_stand_beside(size, tiles, count, idle):
    axes = waves({"p": size}, (128, 256), 108).axes[0]
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert sum(patch.get_fill() for patch in boxes) == tiles
    assert sum(not patch.get_fill() for patch in boxes) == idle
    last = sum(patch.get_fill() and to_hex(patch.get_facecolor()) == PALETTE["gradients"] for patch in boxes)
    assert last == (tiles - 108 * (count - 1) if idle else 0)
    words = f"{tiles} tile{'s' * (tiles > 1)}, {count} wave{'s' * (count > 1)}"
    assert axes.get_title(loc="left") == f"p\n{words}, {tiles / (108 * count):.0%} used"


def test_ratios_of_predictors_lie_in_the_row_of_their_table():
    axes = ratios({"t": {"x": [0.9, 1.1], "y": [0.5]}, "u": {"x": [1.0], "y": [2.0]}}).axes[0]
    points = [
        (round(y), x)
        for line in axes.lines
        if line.get_marker() != "None"
        for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True)
    ]
    assert sorted(points) == [(0, 0.5), (0, 0.9), (0, 1.1), (1, 1.0), (1, 2.0)]
    assert axes.get_xscale() == "log"
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["t", "u"]


def test_a_line_is_predicted_and_dots_are_measured():
    (record,) = records("published-squares")
    points = record["scaling"]
    left, right = scaled(points).axes
    assert [len(axes.lines) for axes in (left, right)] == [2, 4]
    for axes, name in ((left, "dp"), (right, "tp"), (right, "pp")):
        mine = [point for point in points if point["axis"] == name]
        lines = {line.get_label(): line for line in axes.lines}
        for kind in ("predicted", "measured"):
            line = lines[f"{name}, {kind}"]
            assert list(line.get_xdata()) == [point["degree"] for point in mine]
            assert list(line.get_ydata()) == pytest.approx([point[kind] / 1e3 for point in mine])
            assert (line.get_linestyle() == "None") == (kind == "measured")
