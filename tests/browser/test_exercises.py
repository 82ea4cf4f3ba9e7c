"""Exercises in the built book: a reader solves some in the pages of five chapters, offline, and takes that along."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import serve
from playwright.sync_api import Browser, BrowserContext, Locator, Page

from playbook.cli import main
from playbook_book.exercises import exercises

pytestmark = pytest.mark.browser

PATIENCE = 180_000  # ms: the machine may be busy with other things
#: Of each of five chapters a number and a function.
SOLVED = {
    "one-gpu/memory": ("memory.longest", "memory.block"),
    "communication/collectives": ("collectives.tree", "collectives.broadcast"),
    "data-parallelism/zero": ("zero.bytes", "zero.owned"),
    "model-parallelism/pipeline": ("pipeline.microbatches", "pipeline.messages"),
    "at-scale/simulator": ("simulator.term", "simulator.waves"),
}
#: Pages whose exercises axe-core reads: one with what a page cannot grade as well.
LOOKED_AT: dict[str, Literal["light", "dark"]] = {"one-gpu/memory": "light", "data-parallelism/zero": "dark"}
SERIOUS = """async () => {
  const { violations } = await axe.run({ include: [".pb-ex", ".pb-elsewhere", ".pb-map", ".pb-progress"].filter(
    (name) => document.querySelector(name)).map((name) => [name]) }, { resultTypes: ["violations"], preload: false });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`);
}"""


@pytest.fixture
def context(browser: Browser, site: str) -> Iterator[BrowserContext]:
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    own, outside = (site, "data:", "blob:"), list[str]()
    context.on(
        "request", lambda request: None if request.url.startswith(own) else outside.append(request.url)
    )
    yield context
    context.close()
    assert outside == []


def solution(page: str, name: str) -> str:
    """The cell of the chapter that solves it: what it needs of the cells above is in the standard library."""
    notebook = json.loads((serve.ROOT / "book" / f"{page}.ipynb").read_text(encoding="utf-8"))
    sources = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    (found,) = (text for text in sources if f'check("{name}"' in text and "record=False" in text)
    return f"import math\n{found}"


def editor(page: Page, name: str) -> Locator:
    """The box for an answer, which is drawn when it comes near the view."""
    page.evaluate(
        """(name) => [...document.querySelectorAll(".pb-widget[data-widget='exercise.mjs']")]
      .find((el) => el.textContent.includes(`"${name}"`)).scrollIntoView()""",
        name,
    )
    return page.get_by_label(f"Your answer to {name},")


def answer(page: Page, name: str, source: str, said: str) -> None:
    box = editor(page, name)
    box.fill(source)
    box.press("Control+Enter")
    page.locator(".pb-ex", has=box).locator(".pb-verdict", has_text=said).wait_for()


@pytest.mark.parametrize("chapter", SOLVED)
def test_a_reader_solves_exercises(context: BrowserContext, site: str, chapter: str) -> None:
    """Two of each of five chapters: a wrong answer gets its hint, right ones a mark that a reload keeps."""
    page = context.new_page()
    number, function = SOLVED[chapter]
    page.goto(f"{site}book/{chapter}.html")
    known = exercises()[number]
    mistake, hint = known.wrong[0]
    answer(page, number, f'check("{number}", {mistake!r})', hint)
    answer(page, number, f'check("{number}", {known.right[0]!r})', f"✓ {number}: ")
    answer(page, function, solution(chapter, function), f"✓ {function}: ")
    if chapter in LOOKED_AT:
        page.emulate_media(color_scheme=LOOKED_AT[chapter])
        page.add_script_tag(url="/axe.js")
        assert page.evaluate(SERIOUS) == []
    page.reload()
    for name in SOLVED[chapter]:
        mark = page.locator(".pb-ex", has=editor(page, name)).locator(".pb-ex-mark")
        assert re.fullmatch(r"✓ solved on \d{4}-\d\d-\d\d", mark.inner_text())


def test_the_map_counts_what_was_solved_and_a_file_takes_it_along(
    context: BrowserContext,
    site: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    page = context.new_page()
    page.goto(f"{site}book/index.html")
    names = [name for pair in SOLVED.values() for name in pair]
    keep = "(names) => names.forEach((name) => localStorage.setItem(`playbook:${name}:solved`, '2026-02-03'))"
    page.evaluate(keep, names)
    page.goto(f"{site}book/index.html")
    for chapter in SOLVED:
        found = exercises(chapter.rpartition("/")[2])
        item = page.locator(f'.pb-map li:has(a[href="{chapter}.html"])')
        assert f"2 of {len(found)} solved" in item.inner_text()
    page.get_by_text(f"10 of {len(exercises())} exercises solved in this browser.").wait_for()
    page.set_viewport_size({"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.add_script_tag(url="/axe.js")
    assert page.evaluate(SERIOUS) == []
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save to a file").click()
    file = tmp_path / saved.value.suggested_filename
    saved.value.save_as(file)
    solved = {name for pair in SOLVED.values() for name in pair}
    assert json.loads(file.read_text()).keys() == solved

    # The command has solved others, among them one that needs PyTorch, and both get all.
    monkeypatch.setattr("platformdirs.user_state_path", lambda name: tmp_path / name)
    kept = tmp_path / "playbook" / "exercises.json"
    kept.parent.mkdir()
    kept.write_text('{"zero.accumulate": "2026-01-02"}')
    assert main(["exercises", "zero", "--progress", str(file)]) == 0
    assert "10 solved exercises were new here, 1 in" in capsys.readouterr().err
    assert json.loads(kept.read_text()).keys() == {*solved, "zero.accumulate"}
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Read a file").click()
    chooser.value.set_files(file)
    page.get_by_text(f"1 more from {file.name}.").wait_for()
    page.get_by_text(f"11 of {len(exercises())} exercises solved in this browser.").wait_for()
    page.goto(f"{site}book/data-parallelism/zero.html")
    elsewhere = page.locator('.pb-elsewhere[data-exercise="zero.accumulate"]')
    assert elsewhere.inner_text().endswith("book/data-parallelism/zero.ipynb. ✓ solved on 2026-01-02")


def test_keys_alone_solve_one(context: BrowserContext, site: str) -> None:
    """From the heading above, past the box of the first exercise, which Escape lets go of."""
    page = context.new_page()
    page.goto(f"{site}book/data-parallelism/zero.html")
    press, label = page.keyboard.press, "document.activeElement.labels?.[0]?.textContent ?? ''"
    editor(page, "zero.bytes").wait_for()
    page.evaluate("document.querySelector('#exercises a.headerlink').focus()")
    while not page.evaluate(label).startswith("Your answer to zero.bytes"):
        press("Tab")
    before = page.evaluate("document.activeElement.value")
    press("Escape")
    while not page.evaluate(label).startswith("Your answer to zero.owned"):
        press("Tab")
    assert page.get_by_label("Your answer to zero.bytes,").input_value() == before
    press("Control+a")
    page.keyboard.insert_text(solution("data-parallelism/zero", "zero.owned"))
    for key in ("Escape", "Tab", "Enter"):  # the button below the box
        press(key)
    page.get_by_role("status").filter(has_text="✓ zero.owned: ").wait_for()
    assert page.evaluate("document.activeElement.textContent") == "Check"


#: What a file may hold, and what is said of it.
NONE = {
    "no JSON": "This file does not say which exercises are solved: it is not JSON.",
    "[]": "it holds no names.",
    '{"zero.bytes": "soon"}': "“soon” is no date (of zero.bytes).",
    '{"<b>": "2026-01-02"}': "“<b>” is no name of an exercise.",
    '{"other.book": "2026-01-02"}': "Nothing new in progress.json.",
}


def test_a_file_that_is_none_is_refused_in_a_sentence(
    context: BrowserContext, site: str, tmp_path: Path
) -> None:
    file, page = tmp_path / "progress.json", context.new_page()
    page.goto(f"{site}book/index.html")
    page.get_by_role("button", name="Read a file").wait_for()
    assert not page.get_by_role("button", name="Save to a file").is_visible()
    for text, said in NONE.items():
        file.write_text(text, encoding="utf-8")
        page.locator(".pb-progress input").set_input_files(file)
        page.get_by_text(said).wait_for()
        assert not [key for key in page.evaluate("Object.keys(localStorage)") if key.startswith("playbook:")]
        page.get_by_text(f"0 of {len(exercises())} exercises solved").wait_for()
