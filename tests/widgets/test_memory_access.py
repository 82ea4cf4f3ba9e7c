"""The memory access widget: its controls are the settings of its function, what it draws is what Python answers."""

from __future__ import annotations

import json
import re

import pytest
from playbook_widgets import MemoryAccess
from playbook_widgets.compute.access import compute
from playbook_widgets.compute.access_setting import CHOICES, DEFAULTS, LIMITS, SIDES, SIZES
from playbook_widgets.memory_access import constants
from widget_homes import BACKGROUNDS, Form, apart, rgb, showing

CONTROLS = {control["field"]: control for control in constants()["controls"]}
COLUMN = {"memory": "shared", "along": "column"}
#: Settings that show what the first state does not: idle threads, vectors, small elements, blocks of other shapes.
SEVERAL = [
    {"along": "column"},
    {"stride": 40, "size": 1, "offset": 3, "access": "write"},
    {"layout": "column-major", "vector": 4, "stride": 3, "rows": 200},
    {"block_x": 5, "block_y": 3, "size": 16},
    COLUMN,
    {**COLUMN, "vector": 4, "remedy": "padding", "padding": 4},
    {"memory": "shared", "size": 2, "stride": 0, "block_x": 8, "block_y": 30, "rows": 20},
]
#: Settings beside which each stop of a slider is possible.
BESIDE = {
    "block_x": {"block_y": 1},
    "block_y": {"block_x": 1},
    "padding": {"memory": "shared", "remedy": "padding"},
}


# --- in Python


def test_every_setting_is_a_control():
    assert {*CONTROLS, "step", "thread"} == set(DEFAULTS)
    for field, control in CONTROLS.items():
        if field in CHOICES:
            assert tuple(value for value, _ in control["choices"]) == CHOICES[field]


def test_every_choice_and_every_stop_is_one_that_python_takes():
    for field, control in CONTROLS.items():
        values = [value for value, *_ in control.get("choices", ())] or control["stops"]
        for value in values:
            beside = {"size": 1} if field == "vector" else {"memory": "shared"} if field == "remedy" else {}
            result = compute({**BESIDE.get(field, {}), **beside, field: value})
            assert result["values"][field] == value, result
        if control["kind"] == "number":
            assert values == sorted(set(values))
            assert {DEFAULTS[field]} - {None} <= set(values)
            assert LIMITS[field][0] <= values[0] < values[-1] <= LIMITS[field][1]
    assert set(SIDES.values()) <= set(CONTROLS["rows"]["stops"])
    assert tuple(value for value, _ in CONTROLS["size"]["choices"]) == SIZES


def test_the_summary_says_every_warp():
    text, result = MemoryAccess({"along": "column", "step": 3}).summary(), compute({"along": "column"})
    assert (
        "A block of 32 × 8 threads reads a matrix in global memory: 1\u202f024 × 1\u202f024 elements of 4 bytes"
        in text
    )
    assert result["pictures"][3]["answer"] in text
    assert "value = A[row * 1024 + column];" in text
    assert text.count("<tr>") == 1 + 8
    assert "<td>7</td><td>32</td><td>32</td><td>1024</td><td>128</td><td>12.5\u202f%</td>" in text
    tile = MemoryAccess({**COLUMN, "rows": 16, "step": 99}).summary()
    assert "<td>0</td><td>16</td><td>16</td><td>1</td><td>16</td>" in tile
    assert compute({**COLUMN, "rows": 16})["pictures"][7]["answer"] in tile
    idle = MemoryAccess({"rows": 1}).summary()
    assert "<td>1</td><td>0</td><td>0</td><td>0</td><td>0</td><td>none</td>" in idle


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "ma"

    def values(self) -> dict:
        return self.page.evaluate("window.model.get('outputs').values")

    def at(self) -> int:
        return int(self.page.get_by_role("slider", name="Step", exact=True).input_value())

    def marks(self, place: str) -> list[dict]:
        """Of each mark in a line or in the matrix: kind, text, thread, and its box in shares of its parent's."""
        return self.page.locator(f".pb-ma-{place} > i").evaluate_all(
            """(all) => all.map((el) => {
              const own = el.getBoundingClientRect(), box = el.parentNode.getBoundingClientRect();
              const edge = el.parentNode.clientLeft, wide = box.width - 2 * edge, high = box.height - 2 * edge;
              return { kind: el.dataset.kind, text: el.textContent, thread: el.dataset.thread ?? null,
                       chosen: el.hasAttribute("data-chosen"), line: el.parentNode.previousElementSibling?.textContent,
                       left: (own.left - box.left - edge) / wide, width: own.width / wide,
                       top: (own.top - box.top - edge) / high, height: own.height / high };
            })"""
        )


WAYS = "(all) => all.map((el) => [el.title, el.querySelector('i').getBoundingClientRect().height])"


def number(text: str) -> int:
    return int(text.replace("\u202f", ""))


access = showing(Page, MemoryAccess)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_every_byte_is_drawn_where_it_lies(access, width):
    view = access(width=width)
    for inputs in SEVERAL:
        view.set({"memory": "global", **inputs})
        result = compute(inputs)
        picture, wide = result["pictures"][0], result["bytes"]
        found = view.marks("bytes")
        cells = [mark for mark in found if mark["thread"] is not None]
        drawn = {}
        for mark in cells:
            drawn[128 * (number(mark["line"]) // 128) + round(mark["left"] * 128)] = mark["text"]
            assert mark["width"] * 128 == pytest.approx(wide, abs=0.2)
        assert drawn == {at: f"×{len(who)}" if len(who) > 1 else str(who[0]) for at, who in picture["cells"]}
        if result["values"]["memory"] == "global":
            moved = {number(m["line"]) // 32 + round(m["left"] * 4) for m in found if m["kind"] == "sector"}
            assert moved == set(picture["sectors"])
            assert len([m for m in found if m["kind"] == "free"]) == 4 * len(picture["lines"]) - len(moved)
            continue
        for mark in cells:
            ways = picture["ways"][round(mark["left"] * 32 - 0.25)]
            assert mark["kind"] == ("conflict" if ways > 1 else "cell")
        bars = view.page.locator(".pb-ma-ways > span").evaluate_all(WAYS)
        assert [title.split()[2] for title, _ in bars] == [str(ways) for ways in picture["ways"]]
        heights = [height for _, height in bars]
        for height, ways in zip(heights, picture["ways"], strict=True):
            assert height == pytest.approx(max(heights) * ways / max(picture["ways"]), abs=0.6)


@pytest.mark.browser
def test_the_matrix_shows_what_threads_take_and_what_comes_with_it(access):
    view = access()
    for inputs in SEVERAL:
        view.set({"memory": "global", **inputs})
        result = compute(inputs)
        picture, values = result["pictures"][0], result["values"]
        top, left, rows, columns = picture["window"]
        marks, box = view.marks("matrix"), view.page.locator(".pb-ma-matrix").bounding_box()["width"]
        assert len([mark for mark in marks if mark["kind"] == "cell"]) == picture["active"]
        for mark in marks:
            if mark["thread"] is not None:
                row, column, _ = picture["threads"][int(mark["thread"])]
                assert mark["left"] == pytest.approx((column - left) / columns, abs=0.002)
                assert mark["top"] == pytest.approx((row - top) / rows, abs=0.002)
                across = values["vector"] if values["layout"] == "row-major" else 1
                assert mark["width"] == pytest.approx(max(across / columns, 3 / box), abs=0.003)


@pytest.mark.browser
def test_numbers_and_words_are_pythons(access):
    view = access()
    for inputs in SEVERAL:
        view.set({"memory": "global", **inputs})
        result = compute(inputs)
        picture, block = result["pictures"][0], result["block"]
        assert view.text("answer") == picture["answer"]
        facts = {
            item.locator("span").first.inner_text(): item.locator("b").inner_text().replace("\u202f", "")
            for item in view.page.locator(".pb-ma-facts > li").all()
        }
        if "sectors" in picture:
            assert number(view.text("cost").split()[0]) == len(picture["sectors"])
            percent = float(facts.pop("Efficiency").removesuffix("%"))
            assert percent == pytest.approx(100 * picture["needed"] / picture["moved"], rel=0.01)
            assert {name: int(text) for name, text in facts.items()} == {
                "Sectors": len(picture["sectors"]),
                "Lines": len(picture["lines"]),
                "Bytes moved": picture["moved"],
                "Bytes needed": picture["needed"],
                "Sectors of the block": block["sectors"],
            }
        else:
            assert number(view.text("cost").split()[0]) == picture["passes"]
            ways = max(picture["ways"])
            assert view.text("of") == (f"a {ways}-way bank conflict" if ways > 1 else "no bank conflict")
            assert {name: int(text.split()[0]) for name, text in facts.items()} == {
                "Passes": picture["passes"],
                "Busiest bank": ways,
                "Words": picture["words"],
                "Bytes needed": picture["needed"],
                "Passes of the block": block["passes"],
            }
        codes = view.page.locator(".pb-ma-code code").all_text_contents()
        assert codes == [result["cuda"], picture["python"]]


@pytest.mark.browser
def test_another_memory_has_another_array_and_controls_of_its_own(access):
    view = access({"rows": 64, "offset": 2, "step": 3})
    assert view.row("offset").is_visible()
    assert view.row("remedy").is_hidden()
    view.row("memory").get_by_text("shared", exact=True).click()
    view.settle()
    assert view.inputs() == {"memory": "shared"}
    assert (view.values()["rows"], view.values()["columns"], view.at()) == (32, 32, 0)
    assert view.row("rows").locator("input[type=text]").input_value() == "32"
    assert view.row("offset").is_hidden()
    assert view.row("padding").is_hidden()
    view.row("remedy").get_by_text("padding", exact=True).click()
    view.settle()
    view.type("padding", "4")
    assert view.inputs() == {"memory": "shared", "remedy": "padding", "padding": 4}
    view.row("remedy").locator("input:checked").press("ArrowRight")
    view.settle()
    assert view.inputs() == {"memory": "shared", "remedy": "swizzle"}
    view.row("memory").locator("input:checked").press("ArrowLeft")
    view.settle()
    assert view.inputs() == {"memory": "global"}


@pytest.mark.browser
def test_the_keyboard_alone_goes_through_the_warps(access):
    view = access({"along": "column"})
    result, keys = compute({"along": "column"}), view.page.keyboard
    view.page.get_by_role("button", name="Play").focus()
    for key, at in (
        ("ArrowRight", 1),
        ("ArrowRight", 2),
        ("ArrowLeft", 1),
        ("End", 7),
        ("Home", 0),
        ("ArrowRight", 1),
    ):
        keys.press(key)
        assert view.at() == at
        assert view.text("answer") == result["pictures"][at]["answer"]
        assert view.inputs().get("step", 0) == at
    assert view.text("caption") == "Warp 1 of the 8 in a block of 32 × 8 threads."
    slider = view.page.get_by_role("slider", name="Step", exact=True)
    assert slider.get_attribute("aria-valuetext") == "warp 1"
    view.type("stride", "2")  # another access, the same warp
    assert view.text("answer") == compute({"along": "column", "stride": 2})["pictures"][1]["answer"]
    view.page.evaluate("document.querySelector('.pb-ma-speed label:last-child input').click()")
    view.page.get_by_role("button", name="Play").focus()
    keys.press("Enter")
    view.page.wait_for_function("window.model.get('inputs').step === 7")
    view.type("block_y", "1")  # there is one warp alone
    assert view.page.locator(".pb-ma-player").is_hidden()
    assert (
        view.text("answer")
        == compute({"along": "column", "stride": 2, "block_y": 1})["pictures"][0]["answer"]
    )


@pytest.mark.browser
def test_a_thread_is_chosen_by_keys_and_by_clicks_and_its_address_said(access):
    view = access({"offset": 1})
    threads = view.page.get_by_role("listbox")
    threads.focus()
    for key, thread in (
        ("ArrowRight", 1),
        ("ArrowDown", 9),
        ("ArrowUp", 1),
        ("ArrowUp", 1),
        ("End", 31),
        ("ArrowRight", 31),
    ):
        view.page.keyboard.press(key)
        assert view.inputs().get("thread", 0) == thread, key
        assert threads.get_attribute("aria-activedescendant").endswith(f"-t{thread}")
        selected = view.page.locator('.pb-ma-thread[aria-selected="true"]')
        assert selected.inner_text() == str(thread)
        for place in ("bytes", "matrix"):
            assert [mark["thread"] for mark in view.marks(place) if mark["chosen"]] == [str(thread)]
    assert view.text("said-thread") == "Thread 31 (x 31, y 0) reads A[0][31]: byte 128, sector 4, line 1."
    assert view.at() == 0
    view.page.locator(".pb-ma-bytes > i", has_text=re.compile("^7$")).click()
    assert view.text("said-thread") == "Thread 7 (x 7, y 0) reads A[0][7]: byte 32, sector 1, line 0."
    view.page.locator('.pb-ma-matrix > i[data-thread="12"]').click()
    assert view.inputs() == {"memory": "global", "offset": 1, "thread": 12}
    view.page.locator(".pb-ma-thread").first.click()
    assert view.inputs() == {"memory": "global", "offset": 1}


@pytest.mark.browser
def test_pointing_shows_a_thread_for_as_long(access):
    view = access({"along": "column", "thread": 3})
    for place, thread in ((".pb-ma-bytes > i", 20), (".pb-ma-matrix > i", 21), (".pb-ma-thread", 22)):
        view.page.locator(f'{place}[data-thread="{thread}"]').hover()
        assert view.text("said-thread").startswith(f"Thread {thread} (x {thread}, y 0) reads A[{thread}][0]")
        assert [mark["thread"] for mark in view.marks("bytes") if mark["chosen"]] == [str(thread)]
        assert view.page.locator('.pb-ma-thread[aria-selected="true"]').inner_text() == "3"
        view.page.mouse.move(1, 1)
        assert view.text("said-thread").startswith("Thread 3 ")
    assert view.inputs() == {"memory": "global", "along": "column", "thread": 3}


@pytest.mark.browser
def test_what_is_said_of_a_thread(access):
    view = access()
    for inputs, said in (
        (
            {**COLUMN, "vector": 4, "thread": 3},
            "Thread 3 (x 3, y 0) reads A[3][0] to A[3][3]: byte 384, banks 0 to 3.",
        ),
        ({"memory": "shared", "size": 2, "thread": 3}, "Thread 3 (x 3, y 0) reads A[0][3]: byte 6, bank 1."),
        ({"columns": 8, "thread": 9}, "Thread 9 (x 9, y 0) is outside the matrix and inactive."),
        ({"block_x": 8, "block_y": 1, "thread": 9}, "The block has no thread 9 in this warp."),
        (
            {"layout": "column-major", "vector": 2, "access": "write", "step": 1, "thread": 1},
            "Thread 1 (x 1, y 1) writes A[2][1] to A[3][1]: byte 4\u202f104, sector 128, line 32.",
        ),
    ):
        view.set({"memory": "global", **inputs})
        assert view.text("said-thread") == said


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_needed_and_in_conflict_look_different_to_every_eye(access, theme):
    """On the page's background; what is moved and not needed is hatched, and carries no number."""
    page = BACKGROUNDS[theme]
    view = access({**COLUMN, "vector": 4}, theme=theme)
    found = view.page.evaluate(
        """() => Object.fromEntries(["cell", "conflict"].map((kind) =>
          [kind, getComputedStyle(document.querySelector(`.pb-ma-swatch[data-kind=${kind}]`)).backgroundColor]))"""
    )
    apart({"page": page, **{kind: rgb(colour) for kind, colour in found.items()}})
    view.set({"memory": "global", "along": "column"})
    hatched = view.page.locator(".pb-ma-bytes > i[data-kind=sector]").first
    assert "repeating-linear-gradient" in hatched.evaluate("(el) => getComputedStyle(el).backgroundImage")


@pytest.mark.browser
def test_the_table_says_every_address(access):
    view = access({"along": "column", "rows": 30})
    view.page.get_by_text("All threads as a table").click()
    view.page.wait_for_selector(".pb-ma-fold tr")
    rows = view.page.locator(".pb-ma-fold tr").all_inner_texts()
    assert len(rows) == 33
    assert rows[5].split("\t") == ["4", "A[4][0]", "16\u202f384", "sector 512, line 128"]
    assert rows[32].split("\t")[:2] == ["31", "inactive"]
    view.button("Step forward").click()
    assert view.page.locator(".pb-ma-fold tr").nth(5).inner_text().split("\t")[1] == "A[4][1]"


@pytest.mark.browser
def test_saved_and_copied(access):
    view = access({"along": "column", "step": 2}, permissions=["clipboard-read", "clipboard-write"])
    with view.page.expect_download() as download:
        view.button("Save JSON").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))
    for name, text in (
        ("CUDA", document["outputs"]["cuda"]),
        ("Python", document["outputs"]["pictures"][2]["python"]),
    ):
        view.button(f"Copy {name}").click()
        assert view.page.evaluate("navigator.clipboard.readText()") == text
    view.button("Copy link").click()
    assert "#warp?" in view.page.evaluate("navigator.clipboard.readText()")
