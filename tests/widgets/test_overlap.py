"""The overlap widget: its bars are the library's ratios, and every setting is a control, a link and a key."""

from __future__ import annotations

import json
import math
import random

import pytest
from playbook_widgets import OverlapRatios
from playbook_widgets.compute.overlap import DEFAULTS, LIMITS, TECHNIQUES, compute
from playbook_widgets.overlap import EXAMPLES, constants
from widget_homes import Form, bridged_page, draw_over_kernel, in_module, kernel, static_page

from playbook.errors import PlaybookError
from playbook.hardware import CLUSTERS
from playbook.shapes import PRESETS

SCRIPT = OverlapRatios.script
CONTROLS = {control["field"]: control for control in constants()["controls"]}
SEVERAL = [dict(inputs) for _, inputs, _ in EXAMPLES] + [
    {"tokens": 64, "cluster": "b200-8"},
    {"model": "deepseek-v3", "tp": 1, "dp": 256, "ep": 256, "two_step": True, "tokens": 1048576},
    {"tp": 1, "dp": 1, "pp": 1},
]


# --- in Python


def test_every_setting_is_a_control_whose_values_can_be():
    assert set(CONTROLS) == set(DEFAULTS)
    assert [value for value, _ in CONTROLS["model"]["choices"]] == list(PRESETS)
    assert [value for value, _ in CONTROLS["cluster"]["choices"]] == list(CLUSTERS)
    for field, (least, most) in LIMITS.items():
        stops = CONTROLS[field]["stops"]
        assert stops == sorted(set(stops))
        assert least <= stops[0] <= stops[-1] <= most
        assert DEFAULTS[field] in stops


def test_settings_that_cannot_be_are_refused_where_the_cell_is():
    with pytest.raises(PlaybookError, match="tp must divide heads"):
        OverlapRatios({"tp": 7})


def test_the_summary_says_every_row():
    widget = OverlapRatios({"model": "deepseek-v3", "tp": 1})
    text, rows = widget.summary(), widget.outputs["rows"]
    assert text.count("<tr>") == 1 + len(TECHNIQUES)
    for row in rows:
        assert f"<td>{row['name']}</td>" in text
        if row["ratio"] is not None:
            assert f"<td>{row['ratio']:.3g} ({row['phase']})</td><td>{row['link']}</td>" in text
    assert widget.outputs["answer"] in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    def text(self, name: str) -> str:
        return self.page.locator(f".pb-ov-{name}").first.inner_text()

    def set(self, inputs: dict) -> None:
        self.page.evaluate("(x) => { window.model.set('inputs', x); window.model.save_changes() }", inputs)
        self.settle()

    def bars(self) -> list[dict]:
        return self.page.locator(".pb-ov-bar").evaluate_all(
            """(all) => all.map((el) => {
              const [name, track, number, words] = el.children, width = track.getBoundingClientRect().width;
              const ends = [...track.children].map((part) => part.getBoundingClientRect().width / width);
              return { name: name.children[0].textContent, link: name.children[1].textContent, ends,
                label: track.ariaLabel, number: number.textContent, words: words.textContent,
                over: el.hasAttribute("data-over") };
            })"""
        )


@pytest.fixture
def overlap(open_page):
    def show(inputs: dict | None = None, **options) -> Page:
        return Page(bridged_page(open_page, OverlapRatios(inputs), **options))

    return show


@pytest.mark.browser
def test_bars_are_pythons_ratios_with_the_line_at_one(overlap):
    view = overlap()
    for inputs in ({}, *SEVERAL):
        view.set({"tokens": DEFAULTS["tokens"], **inputs})
        answer = compute(inputs)
        for bar, row in zip(view.bars(), answer["rows"], strict=True):
            assert (bar["name"], bar["link"]) == (row["name"], row["link"])
            assert bar["words"].startswith(row["text"])
            if row["ratio"] is None:
                assert bar["ends"] == [0, 0]
                assert bar["number"] == "–"
                continue
            place = min(1.0, max(0.0, (math.log10(row["ratio"]) + 3) / 4))
            assert bar["ends"] == pytest.approx([min(place, 0.75), max(0.0, place - 0.75)], abs=2e-3)
            assert bar["over"] == (row["ratio"] > 1)
            assert bar["number"].endswith("exposed" if row["ratio"] > 1 else "hidden")
            assert row["phase"] in bar["label"]
        assert view.text("answer") == answer["answer"]
        assert view.page.locator(".pb-ov-note").last.inner_text() == answer["machine"]


@pytest.mark.browser
def test_the_keyboard_alone_moves_a_slider_and_types_a_number(overlap):
    view = overlap()
    keys = view.page.keyboard
    slider = view.row("tokens").locator("input[type=range]")
    slider.focus()
    keys.press("ArrowRight")
    view.settle()
    assert view.inputs() == {"tokens": 12288}
    keys.press("Tab")
    keys.press("Control+a")
    keys.type("10000")
    keys.press("Enter")
    view.settle()
    assert view.inputs() == {"tokens": 10000}
    assert view.text("answer") == compute({"tokens": 10000})["answer"]
    view.row("tp").locator("input[type=range]").focus()
    keys.press("ArrowLeft")
    view.settle()
    assert view.inputs() == {"tokens": 10000, "tp": 4}


@pytest.mark.browser
def test_an_example_stands_in_the_controls(overlap):
    view = overlap()
    for name, inputs, note in EXAMPLES:
        view.button(name).click()
        view.settle()
        assert view.inputs() == {"tokens": DEFAULTS["tokens"], **inputs}
        assert view.button(name).get_attribute("aria-pressed") == "true"
        assert view.page.locator(".pb-ov-note").first.inner_text() == note
    view.row("model").locator("select").select_option("llama3-70b")
    view.settle()
    assert view.page.locator(".pb-ov-examples [aria-pressed=true]").count() == 0


@pytest.mark.browser
def test_a_refused_value_shows_its_sentence_beside_its_control_and_keeps_the_bars(overlap):
    view = overlap()
    before = view.bars()
    for field, text in (("tokens", "many"), ("tp", "7"), ("reached", "0"), ("ep", "8")):
        valid = view.row(field).locator("input[type=text]").input_value()
        view.type(field, text)
        refusal = compute(view.inputs())["error"]
        assert refusal["field"] == field
        assert view.row(field).get_by_role("alert").inner_text() == refusal["message"]
        assert view.row(field).locator("input[type=text]").get_attribute("aria-invalid") == "true"
        assert view.text("stale") == "last valid"
        assert view.bars() == before
        view.type(field, valid)
        assert view.page.get_by_role("alert").count() == 0
        assert view.page.locator(".pb-ov-stale").is_hidden()


@pytest.mark.browser
def test_links_hold_the_state_and_ignore_what_they_do_not_know(open_page):
    page = open_page("")
    assert in_module(page, SCRIPT, "m.encode(x)", {"tokens": 4096, "tp": 4}) == "tokens=4096&tp=4"
    rng, values = random.Random(0), [0, 1, 8.5, 4096, "64 M", "a&b=c %", "", "é", True, False]
    for _ in range(50):
        keys = rng.sample(sorted(set(DEFAULTS) - {"tokens"}), rng.randrange(1, 8))
        inputs = {"tokens": rng.choice(values), **{key: rng.choice(values) for key in keys}}
        assert in_module(page, SCRIPT, "m.decode(m.encode(x))", inputs) == inputs
    said = in_module(page, SCRIPT, "m.decode(x)", "tp=2&nonsense=1&__proto__=2&model=llama3-8b&reached")
    assert said == {"tokens": DEFAULTS["tokens"], "tp": 2, "model": "llama3-8b"}


@pytest.mark.browser
def test_an_answer_is_drawn_once_and_a_closed_widget_hears_nothing(overlap):
    view = overlap()
    answers = [compute({"tokens": tokens, "dp": dp}) for tokens in (1024, 8192) for dp in (1, 8)]
    assert view.made("(answer) => window.model.set('outputs', answer)", answers) == 0
    before = view.bars()
    view.page.evaluate("window.close()")
    view.page.evaluate("(r) => window.model.set('outputs', r)", compute({"tokens": 64}))
    view.page.wait_for_timeout(100)
    assert view.bars() == before


@pytest.mark.browser
@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")])
def test_fits_every_width_and_passes_axe(overlap, width, theme):
    view = overlap(width=width, theme=theme)
    for inputs in ({}, *SEVERAL):
        view.set({"tokens": DEFAULTS["tokens"], **inputs})
        assert view.problems() == [], inputs
    view.type("tp", "a long word that is no number of ranks whatsoever")
    assert view.problems() == []


@pytest.mark.browser
def test_prints_the_bars_and_the_words(overlap):
    view = overlap()
    view.page.emulate_media(media="print")
    assert view.page.locator(".pb-ov-bars").is_visible()
    assert view.page.locator(".pb-ov-answer").is_visible()
    assert view.page.locator(".pb-ov-controls").is_hidden()


@pytest.mark.browser
def test_over_a_real_kernel(open_page):
    code = "from playbook_widgets import OverlapRatios\nOverlapRatios({'tokens': 4096, 'tp': 4})"
    with kernel(code) as running:
        page = draw_over_kernel(open_page, running)
        assert page.locator(".pb-ov-answer").inner_text() == compute({"tokens": 4096, "tp": 4})["answer"]
        page.locator("[data-field=tp] input[type=range]").press("ArrowRight")
        wanted = compute({"tokens": 4096})["rows"][0]["text"]
        page.wait_for_function(
            "(text) => document.querySelector('.pb-ov-words').innerText.startsWith(text)", arg=wanted
        )
        assert running.state["inputs"] == {"tokens": 4096}  # tp = 8 is the default
        assert running.state["outputs"] == json.loads(json.dumps(compute({"tokens": 4096})))


@pytest.mark.browser
def test_in_the_static_page_python_answers_and_the_address_keeps_the_state(open_page):
    page = static_page(open_page, OverlapRatios(), hash="#ratios?tokens=1024&model=llama3-8b")

    def wait(inputs: dict) -> None:
        wanted = compute(inputs)["rows"][0]["text"]
        page.wait_for_function(
            "(text) => document.querySelector('.pb-ov-words')?.innerText.startsWith(text)", arg=wanted
        )

    wait({"tokens": 1024, "model": "llama3-8b"})
    page.locator("[data-field=cluster] select").select_option("a100-8")
    wait({"tokens": 1024, "model": "llama3-8b", "cluster": "a100-8"})
    page.wait_for_function("location.hash.includes('cluster=a100-8')")
