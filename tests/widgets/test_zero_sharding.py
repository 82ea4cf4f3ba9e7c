"""The ZeRO widget: its controls are the library's settings, what it draws is what Python answers."""

from __future__ import annotations

import json
import re

import pytest
from playbook_widgets import ZeroSharding
from playbook_widgets.compute.zero_setting import (
    BANDWIDTH,
    DEFAULTS,
    GRAD_ACC,
    OPTIMIZER_BYTES,
    PARAMETERS,
    PRECISIONS,
    REPLICAS,
)
from playbook_widgets.compute.zero_stages import COLLECTIVES, compute
from playbook_widgets.compute.zero_words import NAMES
from playbook_widgets.zero_sharding import DIVIDES, MOVES, PRECISION_WORDS, constants, counts
from widget_homes import Form, in_module, showing

from playbook.figures.units import format_seconds, format_size
from playbook.shapes import PRESETS

CONTROLS = {control["field"]: control for control in constants()["controls"]}
KINDS = ("parameters", "gradients", "optimizer", "gathered")
LARGE = {"model": "llama3.1-405b", "replicas": 1000, "zero": 3, "reshard": False, "grad_acc": 16}


# --- in Python


def test_every_setting_is_a_control():
    assert set(CONTROLS) == set(DEFAULTS)


def test_every_choice_is_one_that_the_library_knows():
    assert set(PRECISION_WORDS) == set(PRECISIONS)
    assert set(MOVES) == set(COLLECTIVES)
    assert len(DIVIDES) == len(NAMES) == 4
    for field, control in CONTROLS.items():
        for value, words, *_ in control.get("choices", ()):
            assert words
            result = compute({field: value or None} if field == "model" else {field: value})
            assert result["values"][field] == (value or None if field == "model" else value)
    assert [value for value, *_ in CONTROLS["model"]["choices"]] == ["", *PRESETS]


def test_stops_rise_and_stay_within_what_is_allowed():
    limits = {
        "parameters": PARAMETERS,
        "replicas": REPLICAS,
        "grad_acc": GRAD_ACC,
        "optimizer_bytes": OPTIMIZER_BYTES,
        "bandwidth": BANDWIDTH,
    }
    for field, (least, most) in limits.items():
        stops = CONTROLS[field]["stops"]
        assert stops == sorted(set(stops))
        assert least <= stops[0] < stops[-1] <= most
        assert DEFAULTS[field] is None or DEFAULTS[field] in stops
    assert counts(10**6, 5 * 10**6) == [10**6, 1_500_000, 2 * 10**6, 3 * 10**6, 4 * 10**6, 5 * 10**6]
    assert {8 * 10**9, 70 * 10**9, 405 * 10**9} < set(CONTROLS["parameters"]["stops"])


def test_the_summary_says_what_every_stage_keeps_and_sends():
    widget = ZeroSharding({"parameters": "7.5B", "zero": 2})
    text, result = widget.summary(), compute({"zero": 2})
    assert "7.5B parameters with 2 + 2 + 12 bytes each on 64 replicas, 4 micro-batches a step" in text
    assert result["answer"] in text
    assert text.count("<tr>") == 1 + 4
    for stage in result["stages"]:
        cells = [format_size(stage["total"]), format_size(stage["traffic"]), format_seconds(stage["seconds"])]
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    assert "playbook memory --model" in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "zs"

    def stage(self, part: str, zero: int):
        return self.page.get_by_role("region", name=part).locator(f'.pb-zs-stage[data-zero="{zero}"]')

    def numbers(self, part: str) -> list[str]:
        return self.page.get_by_role("region", name=part).locator(".pb-zs-numbers").all_inner_texts()


KEEPS, SENDS = "What each rank keeps", "What each rank sends in a step"


sharding = showing(Page, ZeroSharding)


@pytest.mark.browser
def test_a_model_brings_its_parameters_and_a_number_drops_the_model(sharding):
    view = sharding({"parameters": "70B"})
    field = view.row("parameters").locator("input[type=text]")
    view.row("model").locator("select").select_option("llama3-8b")
    view.settle()
    assert view.inputs() == {"zero": 1, "model": "llama3-8b"}
    assert field.input_value() == "8.03B"
    assert "--model llama3-8b " in view.text("command")
    view.row("model").locator("select").select_option("")
    view.settle()
    assert view.inputs() == {"zero": 1, "parameters": 8_030_261_248}
    assert field.input_value() == "8.03B"
    view.row("model").locator("select").select_option("gpt2-xl")
    view.type("parameters", "13B")
    assert view.inputs() == {"zero": 1, "parameters": "13B"}
    assert view.row("model").locator("select").input_value() == ""


@pytest.mark.browser
def test_the_optimizers_bytes_follow_the_precision_until_they_are_set(sharding):
    view = sharding()
    field = view.row("optimizer_bytes").locator("input[type=text]")
    view.row("precision").locator("select").select_option("fp32")
    view.settle()
    assert field.input_value() == "8"
    view.type("optimizer_bytes", "4")
    view.row("precision").locator("select").select_option("bf16-mixed")
    view.settle()
    assert (field.input_value(), view.inputs()["optimizer_bytes"]) == ("4", 4)
    view.type("optimizer_bytes", "12")
    assert view.inputs() == {"zero": 1}


@pytest.mark.browser
def test_a_stage_is_chosen_at_its_bar(sharding):
    view = sharding()
    for zero in (3, 0, 2):
        view.stage(KEEPS, zero).get_by_role("button").click()
        view.settle()
        assert view.inputs() == {"zero": zero}
        assert view.text("size") == format_size(compute({"zero": zero})["stages"][zero]["total"])
        pressed = view.page.locator('.pb-zs-name[aria-pressed="true"]').all_inner_texts()
        assert pressed == [NAMES[zero]]
        assert view.page.locator(".pb-zs-stage[data-chosen]").count() == 2
    view.stage(KEEPS, 1).get_by_role("button").focus()
    view.page.keyboard.press("Space")
    assert view.inputs() == {"zero": 1}


# Of each row of a region: how wide its track and its parts are, and what is said.
ROWS = """(region) => [...region.querySelectorAll(".pb-zs-stage")].map((row) => {
  const wide = (el) => el.getBoundingClientRect().width, parts = [...row.querySelectorAll("i[data-kind]")];
  return [wide(row.querySelector(".pb-zs-track")), Object.fromEntries(parts.map((el) => [el.dataset.kind, wide(el)])),
    row.querySelector("[role=img]").ariaLabel, row.querySelector("b").innerText];
})"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_bars_are_as_long_as_what_they_hold_and_send(sharding, width):
    view = sharding(width=width)
    for inputs in ({}, LARGE, {"parameters": "1M"}, {"precision": "fp32", "optimizer_bytes": 0}):
        view.set({"zero": 1, **inputs})
        result = compute(inputs)
        most = max(stage["total"] + stage["gathered"] for stage in result["stages"])
        far = most < result["capacity"] / 25
        scales = {KEEPS: most * 1.1 if far else max(most, result["capacity"]) * 1.02}
        scales[SENDS] = max(stage["traffic"] for stage in result["stages"]) * 1.02
        for part, scale in scales.items():
            rows = view.page.get_by_role("region", name=part).evaluate(ROWS)
            for stage, (wide, widths, aloud, number) in zip(result["stages"], rows, strict=True):
                sizes = {kind: stage[kind] for kind in KINDS} if part == KEEPS else stage["sent"]
                for kind, size in sizes.items():
                    assert (widths[kind] if size else 0) == pytest.approx(size / scale * wide, abs=0.1)
                total = format_size(stage["total"] + stage["gathered"] if part == KEEPS else stage["traffic"])
                assert aloud.startswith(f"{NAMES[stage['zero']]}: {total}.")
                assert number == total
        track, limit = view.stage(KEEPS, 0).locator(".pb-zs-track"), view.page.locator(".pb-zs-limit")
        if not far:
            (box, line) = track.bounding_box(), limit.bounding_box()["x"]
            place = result["capacity"] / scales[KEEPS] * box["width"]
            assert line - box["x"] == pytest.approx(place, abs=1)
        assert limit.inner_text() == format_size(result["capacity"]) + " →" * far


@pytest.mark.browser
def test_figure_1_of_the_zero_paper_is_on_the_page(sharding):
    view = sharding()
    assert [row.split("\n")[0] for row in view.numbers(KEEPS)] == ["120 GB", "31.4 GB", "16.6 GB", "1.88 GB"]
    assert [row.split("\n")[1].split(",")[0] for row in view.numbers(SENDS)] == [
        "1.97 Ψ",
        "1.97 Ψ",
        "4.92 Ψ",
        "11.8 Ψ",
    ]


@pytest.mark.browser
def test_words_and_formulas_are_those_of_python(sharding):
    view = sharding()
    for inputs in ({}, LARGE, {"zero": 3, "precision": "fp32"}, {"replicas": 1}):
        view.set({"zero": 1, **inputs})
        result = compute(inputs)
        stage = result["stages"][result["values"]["zero"]]
        assert view.text("size") == format_size(stage["total"] + stage["gathered"])
        assert view.text("answer") == result["answer"]
        verdict = "fits" if stage["fits"] else "does not fit"
        assert view.text("fits").startswith(f"{verdict}, ")
        assert format_size(abs(stage["spare"])) in view.text("fits")
        rows = view.page.locator(".pb-zs-formulas tr[data-kind]").all_inner_texts()
        terms = [*stage["memory_terms"], *stage["traffic_terms"]]
        for row, (_, formula, numbers, size) in zip(rows, terms, strict=True):
            assert re.split(r"[\t\n]+", row)[-3:] == [formula, f"= {numbers}", format_size(size)]
        totals = view.page.locator(".pb-zs-total td").all_inner_texts()
        assert totals == [format_size(stage["total"]), format_size(stage["traffic"])]
        command = view.page.locator(".pb-zs-command code").inner_text().replace("\n", "")
        assert command == result["command"]["text"]


@pytest.mark.browser
def test_what_is_said_of_the_stages_that_fit(sharding):
    view = sharding({"zero": 1})
    assert view.text("traffic").endswith("does not hide it.")
    for inputs, words in (
        ({"zero": 0}, "ZeRO-1 is the lowest stage that fits."),
        ({"zero": 3}, "ZeRO-1 is the lowest stage that fits."),
        ({"zero": 2, "parameters": "1B"}, "It would fit without ZeRO, too."),
        ({"parameters": "1T"}, "No stage fits."),
        ({**LARGE, "accelerator": "b200"}, "No stage fits; ZeRO-3 would if it freed weights after forward."),
    ):
        view.set({"zero": 1, **inputs})
        assert view.text("traffic").endswith(words)


# Of each card: its name, what it says, and of each band its place and that of what is held of it.
CARDS = """(all) => all.map((card) => {
  const box = (el) => (({ x, width, height }) => ({ x, width, height }))(el.getBoundingClientRect());
  const bands = [...card.querySelectorAll(".pb-zs-band")].map((band) => [box(band), box(band.querySelector("i"))]);
  return [card.querySelector("b").innerText, card.querySelector(".pb-zs-held").innerText, card.ariaLabel, bands];
})"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_ranks_hold_their_share(sharding, width):
    view = sharding(width=width)
    for replicas, zero in ((64, 1), (64, 3), (3, 2), (2, 0), (4096, 3)):
        view.set({"replicas": replicas, "zero": zero})
        cards = view.page.locator(".pb-zs-rank").evaluate_all(CARDS)
        names = [name for name, *_ in cards]
        assert (names[0], names[-1]) == ("rank 0", f"rank {replicas - 1}")
        assert ("…" in names) == (replicas > len(names))
        total = format_size(compute(view.inputs())["stages"][zero]["total"])
        for name, held, aloud, bands in cards:
            if name == "…":
                assert re.sub(r"\D", "", held) == str(replicas - len(names) + 1)
                continue
            rank = int(name.split()[1])
            for (whole, part), first in zip(bands, (3, 2, 1), strict=True):
                share = 1 / replicas if zero >= first else 1
                assert part["width"] == pytest.approx(max(2, share * whole["width"]), abs=0.2)
                start = min(rank * share * whole["width"] if share < 1 else 0, whole["width"] - part["width"])
                assert part["x"] - whole["x"] == pytest.approx(start, abs=0.2)
            assert [whole["height"] for whole, _ in bands] == pytest.approx([10, 10, 60], abs=0.2)
            assert held == total
            assert ("all parameters" in aloud) == (zero < 3)


@pytest.mark.browser
def test_padding_is_said(sharding):
    view = sharding()
    note = view.page.locator(".pb-zs-ranks + .pb-zs-note")
    assert "padding" not in note.inner_text()
    view.set({"zero": 1, "parameters": "1000001", "replicas": 4})
    assert "A share is 250k parameters (3 of padding in all)" in note.inner_text()


@pytest.mark.browser
def test_growth_is_drawn_and_a_click_sets_the_micro_batches(sharding):
    view = sharding()
    result = compute(view.inputs())
    names = view.page.locator(".pb-zs-names text").all_text_contents()
    assert names == ["no ZeRO, ZeRO-1", "ZeRO-2", "ZeRO-3"]
    dots = [view.page.locator(f".pb-chart circle[data-line='{zero}']") for zero in range(4)]
    heights = [float(dot.get_attribute("cy")) for dot in dots]
    assert heights[0] == pytest.approx(heights[1], abs=0.5)
    assert heights[1] > heights[2] > heights[3]
    svg = view.page.locator(".pb-chart svg")
    svg.scroll_into_view_if_needed()
    x = view.page.locator(".pb-chart-grid text", has_text=re.compile("^32$")).bounding_box()
    box = svg.bounding_box()
    view.page.mouse.click(x["x"] + x["width"] / 2, box["y"] + 40)
    view.settle()
    assert view.inputs()["grad_acc"] == 32
    said = view.page.locator(".pb-chart + .pb-zs-note").inner_text()
    elements = [stage["elements"] for stage in compute({"grad_acc": 32})["stages"]]
    assert f"With 32 micro-batches, no ZeRO and ZeRO-1 send 1.97 Ψ, ZeRO-2 sends {elements[2]:.3g} Ψ" in said
    assert elements[2] > result["stages"][2]["elements"]
    view.type("grad_acc", "1")
    assert (
        view.page.locator(".pb-chart + .pb-zs-note")
        .inner_text()
        .startswith("With 1 micro-batch, no ZeRO, ZeRO-1 and ZeRO-2 send")
    )
    view.type("replicas", "1")
    assert svg.is_hidden()
    assert view.page.locator(".pb-chart + .pb-zs-note").inner_text() == "One replica sends nothing."


@pytest.mark.browser
def test_a_refusal_from_a_link_stands_where_it_belongs(sharding):
    view = sharding()
    for inputs, place in (
        ({"model": "llama9"}, view.row("model")),
        ({"zero": 7}, view.row("zero")),
        ({"nonsense": 1}, view.page.locator(".pb-zs-settings")),
    ):
        view.set({"zero": 1, **inputs})
        assert place.get_by_role("alert").inner_text() == compute(inputs)["error"]["message"]


@pytest.mark.browser
def test_names_of_lines_that_end_together_are_joined(open_page):
    page = open_page("")
    for numbers, groups in (
        ([2, 2, 65, 192], [[0, 1], [2], [3]]),
        ([2, 2, 2, 3], [[0, 1, 2], [3]]),
        ([], []),
    ):
        assert in_module(page, "zero_sharding/growth.mjs", "m.group(x)", numbers) == groups


@pytest.mark.browser
def test_saved_and_copied(sharding):
    view = sharding({"parameters": "8B"}, permissions=["clipboard-read", "clipboard-write"])
    with view.page.expect_download() as download:
        view.button("Save JSON").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))
    view.button("Copy command").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == document["outputs"]["command"]["text"]
    view.button("Copy link").click()
    assert "#zero-sharding?" in view.page.evaluate("navigator.clipboard.readText()")
    more = document["outputs"]["command"]["parameters"] - 8 * 10**9
    note = view.page.locator(".pb-zs-command + .pb-zs-note")
    assert str(abs(more)) in re.sub(r"\s", "", note.inner_text())
    view.row("model").locator("select").select_option("tiny")
    view.settle()
    assert "the bytes above" in note.inner_text()


@pytest.mark.browser
def test_the_page_says_what_python_does(sharding):
    view = sharding()
    failed = ("failed: no memory", "Python could not be started: no memory")
    for value, text in [("starting", "starting Python …"), ("idle", ""), failed]:
        view.page.evaluate("(value) => window.model.set('status', value)", value)
        assert view.page.locator(".pb-zs-status").text_content() == text
