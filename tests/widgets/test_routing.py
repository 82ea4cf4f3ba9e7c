"""The routing widget: its controls are the settings of its function, what it draws is what Python answers."""

from __future__ import annotations

import json
import re

import pytest
from playbook_widgets import ExpertRouting
from playbook_widgets.compute.routing import UPDATES, compute
from playbook_widgets.compute.routing_setting import DEFAULTS, REMEDIES
from playbook_widgets.compute.routing_words import in_ratio
from playbook_widgets.routing import constants
from widget_homes import BACKGROUNDS, Form, apart, in_module, rgb, showing

from playbook.figures.units import format_size

CONTROLS = {control["field"]: control for control in constants()["controls"]}
#: Many experts on many ranks, bands taken together, with drops, updates, and a limit on nodes.
LARGE = {
    "remedy": "bias", "experts": 256, "top_k": 8, "ranks": 32, "node": 8, "tokens": 16, "capacity": 1.5, "top_groups": 2,
}  # fmt: skip
#: Settings beside which each stop of a slider is possible.
BESIDE = {
    "experts": {"ranks": 4},
    "top_k": {},
    "ranks": {"experts": 32},
    "node": {"ranks": 16},
    "tokens": {"ranks": 4},
    "top_groups": {"ranks": 8, "node": 1, "experts": 64},
    "bias_rate": {"remedy": "bias"},
    "spare": {"remedy": "replicas"},
}


# --- in Python


def test_every_setting_is_a_control():
    assert {*CONTROLS, "step"} == set(DEFAULTS)
    assert tuple(value for value, _ in CONTROLS["remedy"]["choices"]) == REMEDIES


def test_every_choice_and_every_stop_is_one_that_python_takes():
    for field, control in CONTROLS.items():
        for value in [value for value, *_ in control.get("choices", ())] or control["stops"]:
            result = compute({**BESIDE.get(field, {}), field: None if value == "" else value})
            assert result["values"][field] == (None if value == "" else value), result
        stops = control.get("stops", [0])
        assert stops == sorted(set(stops))
        assert field not in BESIDE or DEFAULTS[field] in (None, *stops)


def test_the_summary_says_every_rank_and_what_is_sent():
    for inputs, at in (({}, 0), ({"remedy": "bias", "step": 4}, 4), ({"capacity": 1, "step": 9}, 0)):
        text, picture = ExpertRouting(inputs).summary(), compute(inputs)["pictures"][at]
        assert "64 tokens on each of 8 ranks, 4 of them in a node, choose 2 of 16 experts each" in text
        assert picture["answer"] in text
        assert text.count("<tr>") == 1 + 8 + 1 + 2
        for rank, experts in enumerate(picture["experts"]):
            cells = [rank, ", ".join(map(str, experts)), picture["ranks"][rank], picture["dropped"][rank]]
            assert "".join(f"<td>{cell}</td>" for cell in cells) in text
        for sizes in (picture["plain"], picture["two_steps"]):
            assert "".join(f"<td>{format_size(size)}</td>" for size in sizes) in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "ro"

    def values(self) -> dict:
        return self.page.evaluate("window.model.get('outputs').values")

    def at(self) -> int:
        return int(self.page.get_by_role("slider", name="Step", exact=True).input_value())

    def sums(self) -> list[str]:
        return [text.replace("\u202f", "") for text in self.page.locator(".pb-ro-sum").all_inner_texts()]

    def bands(self) -> list[dict]:
        """Of each band: how wide it begins and ends, in px, and what it is."""
        return self.page.locator(".pb-ro-bands path").evaluate_all(
            """(all) => all.map((el) => {
              const n = el.getAttribute("d").match(/-?[\\d.]+/g).map(Number);
              return { from: n[14] - n[1], to: n[8] - n[7], kind: el.dataset.kind,
                       rank: el.dataset.to, faded: el.hasAttribute("data-faded"), title: el.textContent };
            })"""
        )

    def picture(self) -> list:
        titles = sorted(band["title"] for band in self.bands())
        return [self.text("balance"), self.text("answer"), self.sums(), titles, self.text("traffic")]


def expected(result: dict, at: int = 0) -> list:
    """`Page.picture` of Python's answer, less the texts that only the page has."""
    picture = result["pictures"][at]
    pairs = zip(picture["ranks"], picture["missed"], strict=True)
    sums = [f"{rows}" + (f" (+{lost})" if lost else "") for rows, lost in pairs]
    return [in_ratio(picture["imbalance"]), picture["answer"], sums]


routing = showing(Page, ExpertRouting)


@pytest.mark.browser
def test_a_number_that_is_chosen_is_one_and_a_remedy_shows_what_is_its_own(routing):
    view = routing()
    view.row("capacity").locator("select").select_option("1.25")
    view.settle()
    assert view.inputs() == {"remedy": "none", "capacity": 1.25}
    view.set({"remedy": "none"})
    for remedy, visible in (("bias", "bias_rate"), ("replicas", "spare"), ("none", None)):
        view.row("remedy").get_by_text(remedy, exact=True).click()
        view.settle()
        assert view.inputs() == {"remedy": remedy}
        for field in ("bias_rate", "spare"):
            assert view.row(field).is_visible() == (field == visible)
        assert view.page.locator(".pb-ro-player").is_visible() == (remedy == "bias")
        assert view.page.locator(".pb-chart").is_visible() == (remedy == "bias")


@pytest.mark.browser
def test_the_keyboard_alone_goes_through_the_updates(routing):
    """Tab, arrows, space bar, Home and End; nothing needs a mouse."""
    view = routing({"remedy": "bias"})
    result, keys = compute({"remedy": "bias"}), view.page.keyboard
    view.page.get_by_role("button", name="Play").focus()
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", UPDATES),
        ("Home", 0),
        ("ArrowRight", 1),
    ):
        keys.press(key)
        assert view.at() == at
        assert view.picture()[:3] == expected(result, at)
        assert view.inputs().get("step", 0) == at
    assert view.text("caption") == f"The same tokens, after 1 update of the biases (of {UPDATES})."
    slider = view.page.get_by_role("slider", name="Step", exact=True)
    assert slider.get_attribute("aria-valuetext") == "after 1 update of the biases"
    view.type("skew", "1.5")  # other text, the same place
    assert view.picture()[:3] == expected(compute({"remedy": "bias", "skew": 1.5}), 1)
    assert view.inputs() == {"remedy": "bias", "step": 1, "skew": 1.5}
    view.page.evaluate("document.querySelector('.pb-ro-speed label:last-child input').click()")
    view.page.get_by_role("button", name="Play").focus()
    keys.press("Enter")
    view.page.wait_for_function(f"document.querySelector('.pb-ro-scrub').value === '{UPDATES}'")
    view.page.wait_for_function(f"window.model.get('inputs').step === {UPDATES}")
    view.row("remedy").locator("input:checked").focus()
    keys.press("ArrowRight")
    view.settle()
    assert view.inputs() == {
        "remedy": "replicas",
        "skew": 1.5,
    }  # where there are no updates is no place among them


@pytest.mark.browser
def test_a_click_on_the_curve_goes_to_an_update(routing):
    view = routing({"remedy": "bias"})
    curve = view.page.locator(".pb-chart")
    curve.scroll_into_view_if_needed()
    tick = view.page.locator(".pb-chart-grid text", has_text=re.compile("^12$")).bounding_box()
    view.page.mouse.click(tick["x"] + tick["width"] / 2, curve.bounding_box()["y"] + 60)
    assert view.at() == 12
    picture = compute({"remedy": "bias"})["pictures"][12]
    said = f"busiest rank {in_ratio(picture['imbalance'])}, busiest expert {picture['busiest_expert']:.2f}."
    assert curve.get_attribute("aria-valuetext") == f"After 12 updates, over the mean: {said}"


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_bands_and_bars_are_as_wide_as_their_rows_are_many(routing, width):
    view = routing(width=width)
    several = (
        {"remedy": "replicas", "capacity": 1.25},
        LARGE,
        {"ranks": 1, "experts": 4},
        {"node": 1, "top_groups": 2},
    )
    for inputs in ({}, *several):
        view.set({"remedy": "none", **inputs})
        result = compute(inputs)
        picture, node = result["pictures"][0], result["values"]["node"]
        assert view.picture()[:3] == expected(result)
        bands, counted = view.bands(), {}
        for band in bands:
            rows, source = re.match(
                r"(\d+) rows? of rank (\d+)", band["title"].replace("\u202f", "")
            ).groups()
            counted[int(source), band["rank"]] = counted.get((int(source), band["rank"]), 0) + int(rows)
            band["rows"] = int(rows)
            if band["rank"] is not None:
                to = int(band["rank"])
                near = (
                    "own"
                    if to == int(source)
                    else "inside"
                    if to // node == int(source) // node
                    else "across"
                )
                assert band["kind"] == near
        scale = sum(band["from"] for band in bands) / result["choices"]
        for band in bands:
            assert band["from"] == pytest.approx(band["to"], abs=0.21)
            assert band["from"] == pytest.approx(band["rows"] * scale, abs=0.25)
        for source in range(len(picture["ranks"])):
            assert counted.get((source, None), 0) == picture["dropped"][source]
        for rank, rows in enumerate(picture["ranks"]):
            assert sum(count for (_, to), count in counted.items() if to == str(rank)) == rows
        boxes = view.page.locator(".pb-ro-bars .pb-ro-track").evaluate_all(
            """(all) => all.map((el) => [el, ...el.children].map((part) => part.getBoundingClientRect().width))"""
        )
        wide, most = boxes[0][0], max(box[1] for box in boxes)
        for (_, rows, lost, _), count, missed in zip(boxes, picture["ranks"], picture["missed"], strict=True):
            assert rows == pytest.approx(most * count / max(picture["ranks"]), abs=0.5)
            assert lost == pytest.approx(most * missed / max(picture["ranks"]), abs=0.5)
            assert rows + lost <= wide + 0.5
        ways = view.page.locator(".pb-ro-sums").all_inner_texts()
        for said, sizes in zip(ways, (picture["plain"], picture["two_steps"]), strict=True):
            assert said == f"{format_size(sizes[0])} within nodes, {format_size(sizes[1])} between nodes"


@pytest.mark.browser
def test_the_rows_of_one_rank_alone(routing):
    view = routing()
    name = view.page.get_by_role("button", name="Show the rows of rank 6 alone")
    name.focus()
    view.page.keyboard.press("Space")
    assert name.get_attribute("aria-pressed") == "true"
    assert {band["rank"] for band in view.bands() if not band["faded"]} == {"6"}
    view.type("ranks", "4")  # there is no such rank any more
    assert not any(band["faded"] for band in view.bands())
    view.type("ranks", "8")
    name.click()
    name.click()
    assert name.get_attribute("aria-pressed") == "false"
    assert not any(band["faded"] for band in view.bands())


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_ways_look_different_to_every_eye(routing, theme):
    """Bands on the page's background, and the patches beside their names."""
    view = routing(theme=theme)
    page = BACKGROUNDS[theme]
    found = view.page.evaluate(
        """() => Object.fromEntries(["own", "inside", "across"].map((kind) => {
          const style = getComputedStyle(document.querySelector(`.pb-ro-bands path[data-kind=${kind}]`));
          return [kind, [style.fill, Number(style.fillOpacity)]];
        }))"""
    )
    looks = {}
    for kind, (fill, opacity) in found.items():
        looks[kind] = [c * opacity + p * (1 - opacity) for c, p in zip(rgb(fill), page, strict=True)]
    apart(looks)


@pytest.mark.browser
def test_tables_say_what_is_drawn(routing):
    view, result = (
        routing({"remedy": "replicas", "capacity": 1.25}),
        compute({"remedy": "replicas", "capacity": 1.25}),
    )
    (picture,) = result["pictures"]
    for summary in view.page.locator(".pb-ro-fold > summary").all():
        summary.focus()
        view.page.keyboard.press("Enter")
    view.page.wait_for_selector(".pb-ro-fold:last-of-type tbody tr")
    experts, pairs = (
        [row.split("\t") for row in fold.locator("tbody tr").all_inner_texts()]
        for fold in view.page.locator(".pb-ro-fold").all()
    )
    for e, row in enumerate(experts):
        homes = [rank for rank, own in enumerate(picture["experts"]) if e in own]
        assert row == [str(e), str(picture["loads"][e]), ", ".join(map(str, homes)), "0"]
    assert [sum(int(row[1 + rank]) for row in pairs) for rank in range(8)] == picture["ranks"]
    assert [int(row[-1]) for row in pairs] == picture["dropped"]


@pytest.mark.browser
def test_a_refusal_from_a_link_stands_where_it_belongs_also_of_what_a_remedy_hides(routing):
    view = routing()
    for inputs, place in (
        ({"capacity": 7}, view.row("capacity")),
        ({"spare": 99}, view.row("spare")),
        ({"bias_rate": 5}, view.row("bias_rate")),
        ({"nonsense": 1}, view.page.locator(".pb-ro-settings")),
    ):
        view.set({"remedy": "none", **inputs})
        assert place.get_by_role("alert").inner_text() == compute(inputs)["error"]["message"]


@pytest.mark.browser
def test_names_are_pushed_apart_and_stay_within(open_page):
    page = open_page("")
    for places, end, pushed in (
        ([10, 50], 100, [10, 50]),
        ([10, 12, 14], 100, [10, 22, 34]),
        ([80, 99, 99], 100, [76, 88, 100]),
    ):
        assert in_module(page, "routing/flows.mjs", "m.apart(...x)", [places, end]) == pushed


@pytest.mark.browser
def test_saved_and_replicated(routing):
    view = routing({"remedy": "bias", "step": 2}, permissions=["clipboard-read", "clipboard-write"])
    with view.page.expect_download() as download:
        view.button("Save JSON").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))
    view.button("Copy command").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == document["outputs"]["command"]
    view.button("Copy code").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == document["outputs"]["pictures"][2]["code"]
    view.button("Copy link").click()
    assert "#routing?" in view.page.evaluate("navigator.clipboard.readText()")
    view.row("remedy").get_by_text("replicas", exact=True).click()
    view.settle()
    assert view.button("Copy command").is_hidden()  # no training run has replicas
