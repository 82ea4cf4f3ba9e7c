"""The figures of the chapter on mixed precision show the numbers that they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest

from playbook.precision.formats import FORMATS
from playbook_book.figures import mixed_precision as drawn

FORMS = [FORMATS[name] for name in ("fp32", "fp16", "bf16", "e4m3", "e5m2")]


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def test_a_box_for_each_bit():
    (axes,) = drawn.bits(FORMS).axes
    assert len(axes.patches) == sum(form.bits for form in FORMS) == 80
    assert [label.get_text() for label in axes.get_yticklabels()] == ["FP32", "FP16", "BF16", "E4M3", "E5M2"]


def test_bars_reach_from_the_smallest_number_to_the_largest():
    (axes,) = drawn.ranges(FORMS).axes
    normal, subnormal = axes.patches[2:4]  # of FP16
    assert normal.get_x() == -14
    assert normal.get_x() + normal.get_width() == pytest.approx(16, abs=1e-3)
    assert (subnormal.get_x(), subnormal.get_width()) == (-24, 10)


def test_a_panel_for_each_format():
    xs = [1 + i / 100 for i in range(101)]
    figure = drawn.resolution(xs, {form.name: [form.round(x) for x in xs] for form in FORMS[1:]})
    assert figure.axes[2].get_title(loc="left") == "e4m3: 9 numbers"


def test_gradients_are_moved_by_the_scale():
    (axes,) = drawn.gradients([-30.2, -30.2, -20.1], 16).axes
    plain, scaled = axes.containers
    found = [[bar.get_x() for bar in bars if bar.get_height()] for bars in (plain, scaled)]
    assert [x + 16 for x in found[0]] == found[1]
    assert sum(bar.get_height() for bar in plain) == 3


def test_skipped_steps_are_marked():
    (axes,) = drawn.scales([8.0, 8.0, 4.0], [False, True, False]).axes
    steps, marks = axes.lines
    assert list(steps.get_ydata()) == [3, 3, 2]
    assert list(marks.get_xdata()) == [1]
    assert axes.get_legend() is not None
    (axes,) = drawn.scales([8.0, 8.0], [False, False]).axes
    assert axes.get_legend() is None


def test_falls_are_shares_of_the_reference():
    (axes,) = drawn.falls({"all": 2.0, "none": -0.1}, 2.0).axes
    assert [bar.get_width() for bar in axes.patches] == [100, -5]
    assert [text.get_text().strip() for text in axes.texts] == ["100 %", "-5 %"]
