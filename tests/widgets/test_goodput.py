"""The goodput widget: its bar and its curve are the library's, and every setting is a control, a link and a key."""

from __future__ import annotations

import json
import math
import random

import pytest
from playbook_widgets import GoodputCurve
from playbook_widgets.compute.goodput import CURVE, DEFAULTS, LIMITS, PARTS, compute
from playbook_widgets.goodput import EXAMPLES, constants
from widget_homes import Form, bridged_page, draw_over_kernel, in_module, kernel, static_page

from playbook.errors import PlaybookError

SCRIPT = GoodputCurve.script
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


def test_settings_that_cannot_be_are_refused_where_the_cell_is():
    with pytest.raises(PlaybookError, match="gpus must be at least 1"):
        GoodputCurve({"gpus": 0})


def test_the_summary_says_every_part():
    widget = GoodputCurve({"gpus": 1024})
    text = widget.summary()
    for part in widget.outputs["parts"]:
        assert f"<td>{part['text']}</td><td>{part['share']:.1%}</td>" in text
    assert widget.outputs["answer"] in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    def text(self, name: str) -> str:
        return self.page.locator(f".pb-gp-{name}").first.inner_text()

    def set(self, inputs: dict) -> None:
        self.page.evaluate("(x) => { window.model.set('inputs', x); window.model.save_changes() }", inputs)
        self.settle()

    def drawn(self) -> dict:
        return self.page.evaluate(
            """() => { const bar = document.querySelector('.pb-gp-bar'), wide = bar.getBoundingClientRect().width;
              const dot = document.querySelector('.pb-gp-chosen');
              const width = document.querySelector('.pb-gp-curve').clientWidth;
              return { shares: [...bar.children].map((el) => el.getBoundingClientRect().width / wide), width,
                numbers: [...document.querySelectorAll('.pb-gp-parts b')].map((el) => el.textContent),
                path: document.querySelector('.pb-gp-line').getAttribute('d'),
                dot: [dot.getAttribute('cx'), dot.getAttribute('cy')].map(Number),
                marks: [...document.querySelectorAll('.pb-gp-marks line')].map((el) => +el.getAttribute('x1')) } }"""
        )


@pytest.fixture
def curve(open_page):
    def show(inputs: dict | None = None, **options) -> Page:
        return Page(bridged_page(open_page, GoodputCurve(inputs), **options))

    return show


def places(answer: dict, width: float) -> list[tuple[float, float]]:
    """Where the curve's points must be: a logarithmic axis of intervals, a linear one of shares."""
    across, high = width - 42 - 14, 230 - 12 - 40
    ends = CURVE[0], CURVE[-1]

    def place(interval: float, useful: float) -> tuple[float, float]:
        part = math.log(interval / ends[0]) / math.log(ends[1] / ends[0])
        return 42 + min(1.0, max(0.0, part)) * across, 230 - 40 - useful * high

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


@pytest.mark.browser
def test_an_example_stands_in_the_controls(curve):
    view = curve()
    for name, inputs, note in EXAMPLES:
        view.button(name).click()
        view.settle()
        assert view.inputs() == {"every": DEFAULTS["every"], **inputs}
        assert view.button(name).get_attribute("aria-pressed") == "true"
        assert view.page.locator(".pb-gp-note").first.inner_text() == note
    view.type("gpus", "3")
    assert view.page.locator(".pb-gp-examples [aria-pressed=true]").count() == 0


@pytest.mark.browser
def test_a_refused_value_shows_its_sentence_beside_its_control_and_keeps_the_picture(curve):
    view = curve()
    before = view.drawn()
    for field, text in (("gpus", "many"), ("save", "0"), ("every", "1.5"), ("restart", "-1")):
        valid = view.row(field).locator("input[type=text]").input_value()
        view.type(field, text)
        refusal = compute(view.inputs())["error"]
        assert refusal["field"] == field
        assert view.row(field).get_by_role("alert").inner_text() == refusal["message"]
        assert view.text("stale") == "last valid"
        assert view.drawn() == before
        view.type(field, valid)
        assert view.page.get_by_role("alert").count() == 0


@pytest.mark.browser
def test_links_hold_the_state_and_ignore_what_they_do_not_know(open_page):
    page = open_page("")
    assert in_module(page, SCRIPT, "m.encode(x)", {"every": 240, "gpus": 8}) == "every=240&gpus=8"
    rng, values = random.Random(0), [0, 1, 8.5, 4096, "64 M", "a&b=c %", "", "é", True, False]
    for _ in range(50):
        keys = rng.sample(sorted(set(DEFAULTS) - {"every"}), rng.randrange(1, 5))
        inputs = {"every": rng.choice(values), **{key: rng.choice(values) for key in keys}}
        assert in_module(page, SCRIPT, "m.decode(m.encode(x))", inputs) == inputs
    said = in_module(page, SCRIPT, "m.decode(x)", "gpus=2&nonsense=1&__proto__=2&save")
    assert said == {"every": DEFAULTS["every"], "gpus": 2}


@pytest.mark.browser
def test_an_answer_is_drawn_once_and_a_closed_widget_hears_nothing(curve):
    view = curve()
    before = view.drawn()
    view.page.evaluate("window.close()")
    view.page.evaluate("(r) => window.model.set('outputs', r)", compute({"gpus": 8}))
    view.page.wait_for_timeout(100)
    assert view.drawn() == before


@pytest.mark.browser
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_fits_every_width_and_passes_axe(curve, width, theme):
    view = curve(width=width, theme=theme)
    for inputs in ({}, *SEVERAL):
        view.set({"every": DEFAULTS["every"], **inputs})
        assert view.problems() == [], inputs
    view.type("gpus", "a long word that is no number of GPUs whatsoever")
    assert view.problems() == []


@pytest.mark.browser
def test_prints_the_picture_and_the_words(curve):
    view = curve()
    view.page.emulate_media(media="print")
    assert view.page.locator(".pb-gp-curve").is_visible()
    assert view.page.locator(".pb-gp-answer").is_visible()
    assert view.page.locator(".pb-gp-controls").is_hidden()


@pytest.mark.browser
def test_over_a_real_kernel(open_page):
    code = "from playbook_widgets import GoodputCurve\nGoodputCurve({'gpus': 8192})"
    with kernel(code) as running:
        page = draw_over_kernel(open_page, running)
        assert page.locator(".pb-gp-answer").inner_text() == compute({"gpus": 8192})["answer"]
        page.locator("[data-field=gpus] input[type=range]").press("ArrowRight")
        page.wait_for_function(
            "(text) => document.querySelector('.pb-gp-answer').innerText === text",
            arg=compute({})["answer"],
        )
        assert running.state["inputs"] == {"every": DEFAULTS["every"]}  # 16,384 is the default
        assert running.state["outputs"] == json.loads(json.dumps(compute({})))


@pytest.mark.browser
def test_in_the_static_page_python_answers_and_the_address_keeps_the_state(open_page):
    page = static_page(open_page, GoodputCurve(), hash="#goodput-curve?every=600&gpus=1024")

    def wait(inputs: dict) -> None:
        page.wait_for_function(
            "(text) => document.querySelector('.pb-gp-answer')?.innerText === text",
            arg=compute(inputs)["answer"],
        )

    wait({"every": 600, "gpus": 1024})
    page.locator("[data-field=save] input[type=range]").press("ArrowRight")
    wait({"every": 600, "gpus": 1024, "save": 70})
    page.wait_for_function("location.hash.includes('save=70')")
