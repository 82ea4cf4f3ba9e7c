"""Every page of the built book, as a reader's browser sees it: wide and narrow, light and dark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import serve
from html_links import pages_of
from playwright.sync_api import Browser, BrowserContext, Page

pytestmark = pytest.mark.browser

MOST_BYTES = 1_500_000
PATIENCE = 180_000  # ms: the machine may be busy with other things
PYTHON = "/vendor/pyodide/|/pb/python/"
ELSEWHERE = re.compile(r"^(?!http://127\.0\.0\.1:|data:|blob:)")
Look = tuple[int, Literal["light", "dark"]]
LOOKS: tuple[Look, ...] = ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark"))
#: Either width once, and either theme.
PAIRS = ((LOOKS[0], LOOKS[3]), (LOOKS[3], LOOKS[0]), (LOOKS[1], LOOKS[2]), (LOOKS[2], LOOKS[1]))
#: A page of each kind, all of which axe-core reads, and its colours in both looks: the landing page, a chapter, a tool,
#: text, source, the search. Colours, which take it longest, are the same on the others.
KINDS = (
    "book/index.html",
    "book/one-gpu/memory.html",
    "book/tools/memory-calculator.html",
    "book/errata.html",
    "source/src/playbook/model/norms.html",
    "search.html",
)

# Which elements stick out of the page, those aside that scroll inside a box of their own.
OVERFLOW = """() => {
  const page = document.documentElement;
  if (page.scrollWidth <= page.clientWidth) return [];
  const boxed = (element) => {
    for (let box = element.parentElement; box && box !== document.body; box = box.parentElement)
      if (getComputedStyle(box).overflowX !== "visible") return true;
  };
  const wide = [...document.body.querySelectorAll("*")].filter(
    (element) => element.getBoundingClientRect().right > page.clientWidth + 1 && !boxed(element));
  return [`${page.scrollWidth} px of ${page.clientWidth}`, ...wide.slice(0, 4).map((e) => e.outerHTML.slice(0, 120))];
}"""

NAMELESS = """() => {
  const missing = [
    'img:not([alt])', 'article img[alt=""]', '[role="img"]:not([aria-label], [aria-labelledby], [alt])',
    'article svg:not([role], [aria-hidden="true"], [aria-hidden="true"] svg, [role="img"] svg, button svg)'];
  return [...document.querySelectorAll(missing.join())].map((element) => element.outerHTML.slice(0, 160));
}"""

SHOWN = """() => {
  const { mode, theme } = document.documentElement.dataset;
  return [mode, theme, getComputedStyle(document.body).backgroundColor];
}"""
FRAMES = "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
# Keys reach what scrolls now, once the page has seen that it has another width.
REACHABLE = """() => [...document.querySelectorAll("pre, .cell_output > .output")].every((element) =>
  element.tabIndex === 0 || !element.checkVisibility()
  || (element.scrollWidth <= element.clientWidth && element.scrollHeight <= element.clientHeight))
"""
# In another look again what that changes; what is slight is not even looked for. Of pages of a kind that has been read
# only what they have of their own is left for it: no frame of all pages, no colours of code, no formulas or drawings.
VIOLATIONS = """async ([kind, again]) => {
  const colours = ["color-contrast", "link-in-text-block"];
  if (!kind) {
    const alike = ".bd-header, .bd-sidebar, .bd-footer, .pb-widget, svg[role=img] > *";
    document.querySelectorAll(alike).forEach((el) => el.remove());
    document.querySelectorAll("pre, .katex").forEach((el) => (el.textContent = el.textContent));
  }
  const slight = axe._audit.rules.filter(({ impact }) => impact !== "serious" && impact !== "critical");
  const off = [...slight.map(({ id }) => id), ...(kind ? [] : colours)];
  const rules = Object.fromEntries(off.map((id) => [id, { enabled: false }]));
  const only = again ? { runOnly: [...colours, "scrollable-region-focusable"] } : { rules };
  const { violations } = await axe.run({ resultTypes: ["violations"], preload: kind, ...only });
  return violations.filter(({ impact }) => impact === "serious" || impact === "critical")
    .map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.slice(0, 3).map((n) => n.html.slice(0, 160)).join(" | ")}`);
}"""
# All that the browser loaded, decoded; but for Python, which a page loads when a widget needs it.
BYTES = """(python) => performance.getEntries().filter(({ name }) => !RegExp(python).test(name))
  .reduce((sum, { decodedBodySize }) => sum + (decodedBodySize ?? 0), 0)"""


def words(look: Look) -> str:
    return f"{look[0]}-{look[1]}"


@pytest.fixture(scope="module")
def context(browser: Browser) -> Iterator[BrowserContext]:
    # Colours that fade would not be what they will be when axe looks.
    context = browser.new_context(reduced_motion="reduce")
    context.set_default_timeout(PATIENCE)
    yield context
    context.close()


def visit(context: BrowserContext, address: str, look: Look) -> tuple[Page, list[str]]:
    """Open a page; the page, and what goes wrong there, requests that leave this machine among it."""
    page, problems = context.new_page(), list[str]()
    page.on("request", lambda asked: problems.append(asked.url) if ELSEWHERE.match(asked.url) else None)
    page.on(
        "response", lambda said: problems.append(f"{said.status} {said.url}") if said.status >= 400 else None
    )
    page.on("console", lambda said: problems.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.set_viewport_size({"width": look[0], "height": 900})
    page.emulate_media(color_scheme=look[1])
    page.goto(address, wait_until="load")
    page.evaluate("document.fonts.ready.then(() => {})")
    page.evaluate(FRAMES)
    page.wait_for_function("!document.querySelector('.pb-widget[data-state=starting]')")
    return page, problems


def switch(page: Page, look: Look) -> None:
    """The same page as a reader has it who turns a tablet, or whose system turns dark: once it has followed."""
    page.emulate_media(color_scheme=look[1])
    page.set_viewport_size({"width": look[0], "height": 900})
    page.wait_for_function("(theme) => document.documentElement.dataset.theme === theme", arg=look[1])
    page.evaluate(FRAMES)
    page.wait_for_function(REACHABLE)


def violations(page: Page, kind: bool, again: bool) -> list[str]:
    """What axe-core has found twice: on a busy machine a page may take its new form while axe reads the old one."""
    found: list[str] = []
    for _ in range(3):
        before, found = found, page.evaluate(VIOLATIONS, [kind, again])
        if not found or found == before:
            return found
        page.evaluate(FRAMES)
        page.wait_for_function(REACHABLE)
    return found


def cases() -> Iterator[Any]:
    """Every page of the site, wide and narrow, in one visit; the next one's begins with another look.

    Pages of source are alike, so that eight are opened: the three heaviest, and five spread evenly over the others.
    """
    pages = pages_of(serve.SITE) or ["book/index.html"]
    source = [page for page in pages if page.startswith("source/")]
    heaviest = sorted(source, key=lambda page: (serve.SITE / page).stat().st_size)[-3:]
    others = [page for page in source if page not in heaviest]
    spread = [page for page in others[:: -(-len(others) // 5) or 1] if page not in KINDS]
    opened = [page for page in pages if page not in source or page in KINDS] + heaviest + spread
    for i, page in enumerate(opened):
        yield pytest.param(page, PAIRS[i % 4], id=page)


@pytest.mark.parametrize(("name", "looks"), list(cases()))
def test_page(context: BrowserContext, site: str, name: str, looks: tuple[Look, ...]) -> None:
    """No request leaves, nothing fails or overflows, all pictures have words, axe-core has nothing serious.

    Formulas, widgets and colours are alike: axe-core reads them on a page of each kind, and widgets in ``tests/widgets``.
    Other pages are wide and narrow in one theme, and axe-core reads them as they are then.
    """
    page, problems = visit(context, site + name, looks[0])
    kind = name in KINDS
    try:
        loaded = page.evaluate(BYTES, PYTHON)
        page.add_script_tag(url="/axe.js")
        for look in looks if kind else (looks[0], (looks[1][0], looks[0][1])):
            again = look != looks[0]
            if again:
                switch(page, look)
            assert page.evaluate(OVERFLOW) == [], look
            assert page.evaluate(NAMELESS) == [], look
            if kind or again:
                assert violations(page, kind, again and kind) == [], look
        assert not problems
        assert 0 < loaded <= MOST_BYTES
    finally:
        page.close()


def test_a_page_of_each_kind_is_there(built_book: Path) -> None:
    assert [name for name in KINDS if not (built_book / name).is_file()] == []


def test_root_leads_to_the_landing_page(context: BrowserContext, site: str) -> None:
    page = context.new_page()
    page.goto(site)
    page.wait_for_url("**/book/index.html")
    assert page.locator("article h1").inner_text().startswith("playbook")
    page.close()


def test_the_landing_page_moves_where_motion_is_wanted_and_rests_when_told(
    browser: Browser, site: str
) -> None:
    with browser.new_context() as context:
        page = context.new_page()
        page.goto(site + "book/index.html")
        state = "getComputedStyle(document.querySelector('.pb-time')).animationPlayState"
        assert page.evaluate(state) == "running"
        page.get_by_label("Pause").check()
        assert page.evaluate(state) == "paused"
        page.emulate_media(reduced_motion="reduce")
        assert not page.locator(".pb-time").is_visible()
        assert (
            page.locator(".pb-moving rect.pb-op-F").count()
            == page.locator(".pb-moving rect.pb-op-B").count()
            == 32
        )


@pytest.mark.parametrize("look", PAIRS[0], ids=words)
def test_search_finds_and_leads_to_a_chapter(context: BrowserContext, site: str, look: Look) -> None:
    page, problems = visit(context, site + "search.html?q=parameters", look)
    result = page.locator("#search-results ul.search li a").first
    result.wait_for()
    result.click()
    page.wait_for_url("**/book/**")
    assert not problems
    page.close()


@pytest.mark.parametrize("look", PAIRS[2], ids=words)
def test_theme_button_changes_the_colours(context: BrowserContext, site: str, look: Look) -> None:
    """In turn as the system, light and dark; what was chosen stays on the next page."""
    page, _ = visit(context, site + "book/errata.html", look)
    button, shown = page.locator("button.theme-switch-button").first, {}
    for _ in range(3):
        button.click()
        mode, theme, colour = page.evaluate(SHOWN)
        assert theme == (look[1] if mode == "auto" else mode)
        shown[mode] = colour
    assert set(shown) == {"auto", "light", "dark"}
    assert shown["auto"] == shown[look[1]]
    assert (
        sum(map(int, re.findall(r"\d+", shown["light"])))
        > 600
        > 150
        > sum(map(int, re.findall(r"\d+", shown["dark"])))
    )
    chosen = page.evaluate(SHOWN)
    page.goto(site + "book/references.html")
    assert page.evaluate(SHOWN) == chosen
    page.evaluate("localStorage.clear()")  # the next page is to follow the system again
    page.close()


@pytest.mark.parametrize("name", ["book/errata.html", "source/src/playbook/source.html"])
def test_paper_is_light(context: BrowserContext, site: str, name: str) -> None:
    page, _ = visit(context, site + name, (1280, "dark"))
    theme = "document.documentElement.dataset.theme"
    page.evaluate(f'addEventListener("beforeprint", () => {{ window.printed = {theme}; }})')
    page.pdf()
    assert page.evaluate("window.printed") == "light"
    assert page.evaluate(theme) == "dark"
    page.close()


def test_source_links_lead_to_lines_of_the_sites_own_pages(built_book: Path) -> None:
    """The pages and lines themselves are looked up with all other links, in test_links."""
    chapters = [path.read_text(encoding="utf-8") for path in built_book.glob("book/*/*.html")]
    links = [link for text in chapters for link in re.findall(r'<a class="pb-source" href="([^"]*)"', text)]
    assert links
    assert [
        link for link in links if not re.fullmatch(r"\.\./\.\./source/(src|book)/.*\.html#L\d+", link)
    ] == []
