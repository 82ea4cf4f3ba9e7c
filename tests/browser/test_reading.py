"""What helps to read: the glossary from A to Z and its filter, and the button that hides the code of all pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

pytestmark = pytest.mark.browser

# Of what these tests are about: the rest of their pages is read with all pages.
SERIOUS = """(about) => axe.run(about, { preload: false }).then(({ violations }) => violations
  .filter(({ impact }) => ["serious", "critical"].includes(impact)).map(({ id, nodes }) => [id, nodes[0].html]))"""
# Of every letter its text, and that of the heading that it leads to and of the first entry below.
LED = """(letters) => letters.map((letter) => {
  const heading = document.querySelector(letter.getAttribute("href"));
  const first = heading.parentElement.querySelector(`#${CSS.escape(heading.id)} ~ dl > dt`);
  return [letter, heading, first].map((el) => el.innerText);
})"""
#: Code that stands there, but for that of solutions, which a reader unfolds one by one.
CODE = "div.cell:not(.tag_hide-cell) .cell_input, div.cell:not(.tag_hide-cell) details.hide, .pb-show pre"


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield context.new_page()


def test_letters_lead_to_the_glossarys_headings(page: Page, site: str) -> None:
    page.goto(site + "book/glossary.html")
    letters = page.get_by_role("navigation", name="From A to Z").get_by_role("link")
    found = letters.evaluate_all(LED)
    assert len(found) > 20
    for letter, heading, first in found:
        assert heading == letter
        assert letter in (first[0].upper(), "0–9", "α–ω")
    page.add_script_tag(url="/axe.js")
    assert page.evaluate(SERIOUS, ".pb-letters, .pb-filter, .pb-letter") == []


def test_a_further_name_leads_to_its_entry(page: Page, site: str) -> None:
    page.goto(site + "book/glossary.html")
    line = page.locator("dt", has_text="GPipe").last.locator("xpath=following-sibling::dd[1]")
    line.get_by_role("link", name="AFAB").click()
    page.wait_for_url("**#term-AFAB")
    expect(page.locator("#term-AFAB")).to_be_in_viewport()


def test_the_filter_shows_entries_by_name_and_else_by_text(page: Page, site: str) -> None:
    page.goto(site + "book/glossary.html")
    field, told = page.get_by_label("Filter"), page.locator(".pb-filter [role=status]")
    whole = page.locator("dl.glossary > dd:visible").count()
    assert whole > 300
    field.fill("All  reduce")
    shown = page.locator("dl.glossary > dt:visible").all_inner_texts()
    assert "all-reduce" in [name.rstrip("#") for name in shown]
    entries = page.locator("dl.glossary > dd:visible").count()
    assert 0 < entries < 10
    expect(told).to_have_text(f"{entries} of {whole} entries")
    assert page.locator("h2.pb-letter:visible").count() == page.locator(".pb-letters li:visible").count() < 10
    field.fill("gloo on CPUs")
    expect(page.locator("#term-backend")).to_be_visible()
    expect(told).to_contain_text("by their text")
    field.fill("no such term")
    expect(told).to_have_text(f"0 of {whole} entries")
    page.evaluate("location.hash = 'term-ZeRO'")
    expect(page.locator("#term-ZeRO")).to_be_in_viewport()
    assert field.input_value() == ""


def test_code_is_hidden_by_keyboard_and_stays_hidden_on_other_pages(page: Page, site: str) -> None:
    page.goto(site + "book/one-gpu/memory.html")
    button, code = page.get_by_role("button", name="Hide code"), page.locator(CODE)
    expect(button).to_have_attribute("aria-pressed", "false")
    assert code.locator("visible=true").count() > 20
    outputs = page.locator("div.cell:not(.tag_hide-cell) .cell_output")
    shown = outputs.locator("visible=true").count()
    seen = page.get_by_role("heading", name="Bytes per parameter")
    seen.scroll_into_view_if_needed()
    top = (seen.bounding_box() or {})["y"]
    button.focus()
    page.keyboard.press("Enter")
    expect(button).to_have_attribute("aria-pressed", "true")
    assert code.locator("visible=true").count() == 0
    assert outputs.locator("visible=true").count() == shown
    page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    assert abs((seen.bounding_box() or {})["y"] - top) < 200  # of more than 2,000 that are gone above it
    page.add_script_tag(url="/axe.js")
    assert page.evaluate(SERIOUS, ".article-header-buttons, .cell_output") == []
    page.goto(site + "book/one-gpu/first-steps.html")
    expect(button).to_have_attribute("aria-pressed", "true")
    assert code.locator("visible=true").count() == 0
    button.press("Space")
    expect(button).to_have_attribute("aria-pressed", "false")
    page.reload()
    assert code.locator("visible=true").count() > 10


def test_folded_cells_are_named_by_what_they_hold(page: Page, site: str) -> None:
    page.goto(site + "book/one-gpu/memory.html")
    names = page.locator("details.hide > summary > .collapsed").all_inner_texts()
    assert names[0] == "Imports"
    assert {"Code of this figure", "Code of this table", "Solution"} <= set(names)


def test_lines_of_prose_end_early_and_bars_of_a_widget_where_its_axis_ends(page: Page, site: str) -> None:
    page.goto(site + "book/at-scale/overlap.html")
    widest = "(all) => Math.max(...all.map((one) => one.getBoundingClientRect().width))"
    assert page.locator("article section > p").evaluate_all(widest) <= 37 * 16
    page.locator(".pb-widget").first.scroll_into_view_if_needed()
    ends = "(one) => { const { left, right } = one.getBoundingClientRect(); return [left, right]; }"
    track, axis = (page.locator(f".pb-ov-{name}").first.evaluate(ends) for name in ("track", "ticks"))
    assert track == axis
