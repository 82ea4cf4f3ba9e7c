"""The mesh explorer: its controls are the library's settings, what it lights and draws is what Python answers."""

from __future__ import annotations

import json

import pytest
from playbook_widgets import MeshExplorer
from playbook_widgets.compute.mesh import DEFAULTS, GROUPS, LIMITS, MOST_RANKS, compute
from playbook_widgets.mesh_explorer import EXAMPLES, constants
from widget_homes import Form, in_module, showing

from playbook.figures.units import format_size
from playbook.shapes import PRESETS

SCRIPT = MeshExplorer.script
CONTROLS = {control["field"]: control for control in constants()["controls"]}
LLAMA = EXAMPLES[1][1]


# --- in Python


def test_every_setting_but_what_a_pointer_is_on_is_a_control():
    assert set(CONTROLS) == set(DEFAULTS) - {"point"}


def test_every_choice_is_one_that_the_library_knows():
    assert [value for value, _ in CONTROLS["model"]["choices"]] == list(PRESETS)
    for field in ("sp", "zero"):
        for value, words in CONTROLS[field]["choices"]:
            assert words
            assert compute({field: value})["values"][field] == value
    assert constants()["experts"] == [name for name, shape in PRESETS.items() if shape.moe]


def test_stops_rise_and_stay_within_what_is_allowed():
    limits = {**LIMITS, "rank": (0, MOST_RANKS - 1)}
    for field, control in CONTROLS.items():
        if control["kind"] == "number":
            stops = control["stops"]
            assert stops == sorted(set(stops))
            assert limits[field][0] <= stops[0] < stops[-1] <= limits[field][1]
            assert DEFAULTS[field] in stops


def test_the_summary_says_what_a_rank_is_and_sends():
    text, result = MeshExplorer().summary(), compute({})
    assert "Rank 5 of 16 ranks on 2 nodes." in text
    assert result["answer"] in text
    for one in result["sent"]:
        cells = (one["axis"], format_size(one["within"]), format_size(one["across"]))
        assert "".join(f"<td>{cell}</td>" for cell in cells) in text
    assert "<td>cp</td><td>0</td><td>2</td><td>5, 7</td><td>1</td>" in text
    assert result["command"] in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "me"

    def rank(self, number: int):
        return self.page.locator(f'.pb-me-rank[data-rank="{number}"]')

    def lit(self) -> dict[int, list[str]]:
        """The groups by which ranks are lit, by rank."""
        strips = "[...el.querySelectorAll('.pb-me-band > i')].map((strip) => strip.dataset.group)"
        lit = f"(all) => all.map((el) => [+el.dataset.rank, {strips}])"
        return dict(self.page.locator(".pb-me-rank[data-lit]").evaluate_all(lit))

    def own(self) -> int:
        return int(self.page.locator(".pb-me-rank[data-own]").get_attribute("data-rank"))


def expected(result: dict) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for group in result["groups"]:
        for rank in group["ranks"]:
            found.setdefault(rank, []).append(group["name"])
    return found


explorer = showing(Page, MeshExplorer)


@pytest.mark.browser
def test_groups_of_the_chosen_rank_are_lit_each_with_its_letter(explorer):
    view, result = explorer(), compute({})
    assert view.lit() == expected(result)
    assert view.page.locator(".pb-me-rank").count() == 16
    assert [name.inner_text() for name in view.page.locator(".pb-me-name").all()] == ["node 0", "node 1"]
    for rank, names in expected(result).items():
        letters = "" if rank == 5 else " ".join(GROUPS[name][0] for name in names)
        assert view.rank(rank).locator(".pb-me-letters").inner_text() == letters
        aloud = ", the rank shown" if rank == 5 else f", with rank 5 in {', '.join(names)}"
        assert view.rank(rank).locator(".pb-unseen").text_content() == aloud
    assert view.page.get_by_role("option", name="0", exact=True).count() == 1


@pytest.mark.browser
def test_pointing_shows_a_rank_for_as_long_and_a_click_chooses_it(explorer):
    view = explorer()
    view.rank(12).hover()
    view.settle()
    assert view.own() == 12
    assert view.lit() == expected(compute({"rank": 12}))
    assert view.row("rank").locator("input[type=text]").input_value() == "5"
    assert view.rank(5).get_attribute("aria-selected") == "true"
    assert in_module(view.page, SCRIPT, "m.encode(x)", view.inputs()) == "rank=5"
    view.page.mouse.move(1, 1)
    view.settle()
    assert (view.own(), view.inputs()) == (5, {"rank": 5})
    view.rank(9).click()
    view.settle()
    view.page.mouse.move(1, 1)
    view.settle()
    assert (view.own(), view.inputs()) == (9, {"rank": 9})


@pytest.mark.browser
def test_arrow_keys_go_to_ranks_and_stay_in_the_mesh(explorer):
    view = explorer()
    ranks = view.page.get_by_role("listbox")
    ranks.focus()
    for key, rank in (
        ("ArrowRight", 6), ("ArrowLeft", 5), ("ArrowUp", 5), ("ArrowDown", 13), ("ArrowDown", 13), ("End", 15),
        ("ArrowRight", 15), ("Home", 0), ("ArrowLeft", 0),
    ):  # fmt: skip
        view.page.keyboard.press(key)
        view.settle()
        assert view.inputs() == {"rank": rank}, key
        assert view.own() == rank
        assert ranks.get_attribute("aria-activedescendant") == view.rank(rank).get_attribute("id")


@pytest.mark.browser
def test_one_group_alone(explorer):
    view = explorer()
    group = view.page.locator('.pb-me-group[data-group="replicas"]')
    group.click()
    assert group.get_attribute("aria-pressed") == "true"
    assert view.lit() == {rank: ["replicas"] for rank in (1, 3, 5, 7)}
    group.focus()
    view.page.keyboard.press("Enter")
    assert view.lit() == expected(compute({}))


@pytest.mark.browser
def test_the_rank_stays_in_the_mesh_and_a_dense_model_has_no_expert_parallelism(explorer):
    view = explorer({"rank": 15})
    view.type("pp", "1")
    assert view.inputs() == {"rank": 7, "pp": 1}
    view.set({"rank": 0, "model": "mixtral-8x7b", "ep": 4})
    view.row("model").locator("select").select_option("tiny")
    view.settle()
    assert view.inputs() == {"rank": 0, "model": "tiny"}
    assert view.page.get_by_role("alert").count() == 0


# Of each bar: its name, how wide its track and what is sent at each level are, its number, and what is said.
BARS = """(all) => all.map((row) => {
  const width = (place) => row.querySelector(place)?.getBoundingClientRect().width ?? 0;
  return [row.querySelector("b").innerText, ...[".pb-me-track", "[data-level=within]", "[data-level=across]"].map(width),
    row.querySelector(".pb-me-numbers b").innerText, row.querySelector("[role=img]").ariaLabel];
})"""


@pytest.mark.browser
def test_bars_are_as_long_as_what_is_sent_by_level(explorer):
    view = explorer()
    for inputs in ({}, LLAMA, {"tp": 4, "per_node": 2}, {"cp": 8, "tp": 1, "zero": 3, "per_node": 4}):
        view.set({"rank": 5, **inputs})
        result = compute({"rank": 5, **inputs})
        sent = [one for one in result["sent"] if one["axis"] != "world"]
        most = max(one["within"] + one["across"] for one in sent)
        bars = view.page.locator(".pb-me-bar").evaluate_all(BARS)
        for (axis, wide, within, across, number, aloud), one in zip(bars, sent, strict=True):
            assert axis == one["axis"]
            lengths = [
                max(2, one[level] / most * wide) if one[level] else 0 for level in ("within", "across")
            ]
            assert [within, across] == pytest.approx(lengths, abs=0.1)
            assert number == format_size(one["within"] + one["across"])
            assert aloud.startswith(f"{axis}: {number}, ")
        assert view.text("answer") == result["answer"]
        assert view.page.locator(".pb-me-holds li").all_inner_texts() == result["holds"]
        assert view.page.locator(".pb-me-command code").inner_text().replace("\n", "") == result["command"]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_of_a_large_mesh_one_node_is_drawn_and_the_others_are_a_map(explorer, width):
    view = explorer(LLAMA, width=width)
    result = compute(LLAMA)
    assert view.page.locator(".pb-me-rank").count() == 8
    assert view.page.locator(".pb-me-name").inner_text() == "node 625"
    for group in result["groups"]:
        path = view.page.locator(f'.pb-me-map path[data-group="{group["name"]}"]')
        assert path.get_attribute("d").count("M") == group["nodes"]
    assert view.page.locator(".pb-me-fields").get_attribute("d").count("M") == 2048
    view.page.locator(".pb-me-map").scroll_into_view_if_needed()
    box = view.page.locator(".pb-me-map svg").bounding_box()
    view.page.mouse.move(box["x"] + 1, box["y"] + 1)
    view.settle()
    assert view.own() == 0  # the first node, and the place of rank 5000 in its own
    view.page.mouse.click(box["x"] + box["width"] - 2, box["y"] + box["height"] - 2)
    view.settle()
    assert view.inputs()["rank"] == 16384 - 8


@pytest.mark.browser
def test_a_line_of_the_map_is_a_stage_or_a_part_of_it(open_page):
    page = open_page("")
    for nodes, pp, width, columns in (
        (2048, 16, 720, 128), (2048, 16, 366, 64), (256, 16, 720, 16), (100, 3, 720, 100), (2047, 1, 720, 89),
        (5, 1, 10, 1), (16384, 4, 720, 128),
    ):  # fmt: skip
        assert in_module(page, "mesh_explorer/node_map.mjs", "m.columns(...x)", [nodes, pp, width]) == columns


@pytest.mark.browser
def test_saved_and_copied(explorer):
    view = explorer({"rank": 7}, permissions=["clipboard-read", "clipboard-write"])
    with view.page.expect_download() as download:
        view.button("Save JSON").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))
    view.button("Copy command").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == document["outputs"]["command"]
    view.button("Copy link").click()
    assert "#mesh-explorer?" in view.page.evaluate("navigator.clipboard.readText()")
