"""The goodput widget: its bar and its curve are the library's, and every setting is a control, a link and a key."""

from __future__ import annotations

import math

import pytest
from playbook_widgets import GoodputCurve
from playbook_widgets.compute.goodput import CURVE, DEFAULTS, LIMITS, PARTS, compute
from playbook_widgets.goodput import EXAMPLES, constants
from widget_homes import Form, showing

CONTROLS = {control["field"]: control for control in constants()["controls"]}
SEVERAL = [dict(inputs) for _, inputs, _ in EXAMPLES] + [
    {"gpus": 1, "mtbf": 10_000_000, "every": 604_800},
    {"gpus": 1_000_000, "mtbf": 100, "save": 7200, "restart": 86_400, "every": 1},
    {"restart": 0, "save": 1},
]


# --- in Python


def test_every_setting_is_a_control_whose_values_can_be():
    assert set(CONTROLS) == set(DEFAULTS)
    for field, (least, most) in LIMITS.items():
        stops = CONTROLS[field]["stops"]
        assert stops == sorted(set(stops))
        assert least <= stops[0] <= stops[-1] <= most
        assert DEFAULTS[field] in stops


def test_the_summary_says_every_part():
    widget = GoodputCurve({"gpus": 1024})
    text = widget.summary()
    for part in widget.outputs["parts"]:
        assert f"<td>{part['text']}</td><td>{part['share']:.1%}</td>" in text
    assert widget.outputs["answer"] in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "gp"

    def drawn(self) -> dict:
        return self.page.evaluate(
            """() => { const bar = document.querySelector('.pb-gp-bar'), wide = bar.getBoundingClientRect().width;
              const dot = document.querySelector('.pb-gp-chosen');
              const width = document.querySelector('.pb-chart').clientWidth;
              return { shares: [...bar.children].map((el) => el.getBoundingClientRect().width / wide), width,
                numbers: [...document.querySelectorAll('.pb-gp-parts b')].map((el) => el.textContent),
                path: document.querySelector('[data-line=useful]').getAttribute('d'),
                dot: [dot.getAttribute('cx'), dot.getAttribute('cy')].map(Number),
                marks: [...document.querySelectorAll('.pb-gp-marks line')].map((el) => +el.getAttribute('x1')) } }"""
        )


curve = showing(Page, GoodputCurve)


def places(answer: dict, width: float) -> list[tuple[float, float]]:
    """Where the curve's points must be: a logarithmic axis of intervals, a linear one of shares."""
    across, high = width - 56 - 14, 230 - 12 - 38
    ends = CURVE[0], CURVE[-1]

    def place(interval: float, useful: float) -> tuple[float, float]:
        part = math.log(interval / ends[0]) / math.log(ends[1] / ends[0])
        return 56 + min(1.0, max(0.0, part)) * across, 230 - 38 - useful * high

    points = [*answer["curve"], answer["chosen"]]
    return [place(*point) for point in points + [(m["interval"], m["useful"]) for m in answer["marks"]]]


@pytest.mark.browser
def test_bar_and_curve_are_pythons(curve):
    view = curve()
    for inputs in ({}, *SEVERAL):
        view.set({"every": DEFAULTS["every"], **inputs})
        answer, drawn = compute(inputs), view.drawn()
        assert drawn["shares"] == pytest.approx([part["share"] for part in answer["parts"]], abs=2e-3)
        assert len(drawn["numbers"]) == len(PARTS)
        wanted = places(answer, drawn["width"])
        points = [tuple(map(float, point.split(","))) for point in drawn["path"][1:].split("L")]
        for point, place in zip([*points, tuple(drawn["dot"])], wanted, strict=False):
            assert point == pytest.approx(place, abs=0.06)
        assert drawn["marks"] == pytest.approx([x for x, _ in wanted[len(points) + 1 :]], abs=0.06)
        assert view.text("answer") == answer["answer"]
        assert view.page.locator(".pb-gp-note").last.inner_text() == answer["machine"]


@pytest.mark.browser
def test_the_keyboard_alone_moves_a_slider_and_types_a_number(curve):
    view = curve()
    keys = view.page.keyboard
    view.row("every").locator("input[type=range]").focus()
    keys.press("ArrowLeft")
    view.settle()
    assert view.inputs() == {"every": 3000}
    keys.press("Tab")
    keys.press("Control+a")
    keys.type("240")
    keys.press("Enter")
    view.settle()
    assert view.inputs() == {"every": 240}
    assert view.text("answer") == compute({"every": 240})["answer"]
    view.row("gpus").locator("input[type=range]").focus()
    keys.press("ArrowRight")
    view.settle()
    assert view.inputs() == {"every": 240, "gpus": 32768}
