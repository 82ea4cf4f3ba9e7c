"""The memory calculator in the built book: at once, without a kernel or a network, and with the library's numbers."""

from __future__ import annotations

import json
import re
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser

TOOL = "book/tools/memory-calculator.html"
CHAPTER = "book/one-gpu/memory.html"
PYTHON = re.compile(r"/vendor/pyodide/|/pb/python/|python_worker")
CALCULATOR = ".pb-widget#calculator"

# Presses the right arrow on a slider as often as asked, and tells the milliseconds from the press to the picture of its
# answer, each of which the module draws with the outputs.
UPDATES = """async ([field, presses]) => {
  const slider = document.querySelector(`[data-field="${field}"] input[type=range]`);
  const verdict = document.querySelector(".pb-mc-verdict");
  const times = [];
  for (let i = 0; i < presses; i++) {
    const computed = performance.getEntriesByName("pb-compute").length, start = performance.now();
    slider.value = Number(slider.value) + (i % 2 ? -1 : 1);
    slider.dispatchEvent(new Event("input", { bubbles: true }));
    while (performance.getEntriesByName("pb-compute").length === computed) await new Promise((go) => setTimeout(go));
    verdict.getBoundingClientRect(); // layout included
    times.push(performance.now() - start);
    await new Promise((go) => setTimeout(go));
  }
  return times;
}"""


class Seen:
    """The addresses that a page and its workers have asked for."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    @property
    def python(self) -> list[str]:
        return [url for url in self.urls if PYTHON.search(url)]

    @property
    def external(self) -> list[str]:
        return [url for url in self.urls if not url.startswith(("http://127.0.0.1:", "data:", "blob:"))]


@pytest.fixture
def visit(browser: Browser, site: str) -> Iterator[Callable[..., tuple[Page, Seen]]]:
    """``visit(path)`` opens a page of the book; ``hold`` keeps Python from arriving."""
    contexts = []

    def open_page(path: str, hold: bool = False, **options: Any) -> tuple[Page, Seen]:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, **options)
        context.set_default_timeout(180_000)  # the machine may be busy with other things
        contexts.append(context)
        seen = Seen()
        context.on("request", lambda request: seen.urls.append(request.url))
        if hold:
            context.route(PYTHON, lambda route: None)
        page = context.new_page()
        page.goto(site + path)
        return page, seen

    yield open_page
    for context in contexts:
        context.close()


def ready(page: Page) -> None:
    page.locator(CALCULATOR).scroll_into_view_if_needed()
    page.wait_for_selector(f"{CALCULATOR}[data-state=ready]")


def python_is_up(page: Page) -> float:
    """Milliseconds that Python took to start, once it has."""
    page.wait_for_function("performance.getEntriesByName('pb-python').length > 0")
    return page.evaluate("performance.getEntriesByName('pb-python')[0].duration")


def verdict(page: Page) -> str:
    return " ".join(page.locator(".pb-mc-verdict .pb-mc-line").first.inner_text().split())


def type_into(page: Page, field: str, text: str) -> None:
    before = page.evaluate("performance.getEntriesByName('pb-compute').length")
    page.locator(f'[data-field="{field}"] input[type=text]').fill(text)
    page.locator(f'[data-field="{field}"] input[type=text]').press("Enter")
    page.wait_for_function("(n) => performance.getEntriesByName('pb-compute').length > n", arg=before)
    page.wait_for_selector(".pb-mc-verdict")


def command_of(page: Page) -> list[str]:
    text = page.locator(".pb-mc-command code, .pb-mc-command pre").first.inner_text()
    return shlex.split(text.replace("\\\n", " "))


def test_the_first_state_is_there_before_python_is(visit: Callable[..., tuple[Page, Seen]]) -> None:
    page, seen = visit(TOOL, hold=True)
    ready(page)
    assert re.match(r"[\d.]+ GB of 85.5 GB fits, [\d.]+ GB to spare", verdict(page))
    assert page.locator(".pb-mc-segment").count() == 6
    assert page.evaluate("performance.getEntriesByName('pb-python').length") == 0
    assert seen.python  # it was asked for, and has not come


def test_without_javascript_the_page_says_what_it_knows(visit: Callable[..., tuple[Page, Seen]]) -> None:
    page, _ = visit(TOOL, java_script_enabled=False)
    assert re.search(r"[\d.]+ GB of 85\.5 GB on each GPU: fits", page.locator(CALCULATOR).inner_text())


def test_a_chapter_loads_python_only_for_a_reader_who_reaches_for_it(
    visit: Callable[..., tuple[Page, Seen]],
) -> None:
    page, seen = visit(CHAPTER)
    ready(page)
    page.evaluate("new Promise(requestIdleCallback)")
    assert page.locator(".pb-mc-advice li").count() > 1  # the model of the chapter does not fit
    assert seen.python == []
    page.locator(f"{CALCULATOR} [data-field=seq] input[type=text]").focus()
    python_is_up(page)
    assert seen.python
    assert seen.external == []


def test_a_tool_goes_on_where_the_reader_has_stopped(visit: Callable[..., tuple[Page, Seen]]) -> None:
    """In the tool, not in a chapter; a link says otherwise, and a button goes back to the start."""
    page, _ = visit(TOOL)
    ready(page)
    start = verdict(page)
    type_into(page, "seq", "4,096")
    page.wait_for_function("location.hash.includes('seq=4096')")
    left = verdict(page)
    address = page.url.split("#")[0]
    page.goto("about:blank")
    page.goto(address)
    ready(page)
    page.wait_for_function(
        "(text) => document.querySelector('.pb-mc-verdict').innerText.includes(text)", arg=left.split()[0]
    )
    assert verdict(page) == left
    note = page.locator(".pb-recalled")
    assert note.inner_text() == "As you left it. Start anew"
    note.get_by_role("button").click()
    page.wait_for_function(
        "(text) => document.querySelector('.pb-mc-verdict').innerText.includes(text)", arg=start.split()[0]
    )
    assert note.count() == 0
    type_into(page, "seq", "2048")
    page.wait_for_function("location.hash.includes('seq=2048')")
    page.goto("about:blank")
    page.goto(f"{address}#calculator?model=gpt2")
    ready(page)
    page.wait_for_function("document.querySelector('.pb-mc-facts').innerText.includes('124M')")
    assert note.count() == 0


def test_python_starts_from_a_snapshot_and_answers_each_change_once(
    visit: Callable[..., tuple[Page, Seen]], record_property: Callable[[str, object], None]
) -> None:
    """Times are reported; what makes them short is the snapshot, and one answer for each change."""
    page, seen = visit(TOOL)
    ready(page)
    start = python_is_up(page)
    assert page.evaluate("performance.getEntriesByName('pb-python')[0].detail.snapshot") is True
    before = page.evaluate("performance.getEntriesByName('pb-compute').length")
    median = statistics.median(page.evaluate(UPDATES, ["seq", 11]))
    assert page.evaluate("performance.getEntriesByName('pb-compute').length") - before == 11
    said = f"Python up in {start / 1000:.1f} s, an answer of the calculator in {median:.1f} ms (median of 11)"
    record_property("measured", said)
    assert seen.external == []


def test_an_address_brings_its_state_back_and_the_page_says_what_the_command_line_says(
    visit: Callable[..., tuple[Page, Seen]],
) -> None:
    page, _ = visit(TOOL + "#calculator?model=llama3-70b&tp=8&pp=4&grad_acc=8&seq=3000&recompute=full")
    ready(page)
    type_into(page, "seq", "5000")
    type_into(page, "micro_batch", "3")
    page.wait_for_function("location.hash.includes('seq=5000') && location.hash.includes('micro_batch=3')")
    page.wait_for_function("document.querySelector('.pb-mc-command')?.innerText.includes('--micro-batch 3')")
    said, address = verdict(page), page.evaluate("location.pathname + location.hash").lstrip("/")
    words = command_of(page)
    assert words[:2] == ["playbook", "memory"]
    done = subprocess.run(
        [sys.executable, "-m", *words, "--json"], capture_output=True, text=True, timeout=60
    )
    report = json.loads(done.stdout)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save JSON").click()
    saved = json.loads(Path(download.value.path()).read_text())
    result = saved["outputs"]["results"][0]
    assert result["peak"] == report["peak"]
    for mine, theirs in zip(result["stages"], report["stages"], strict=True):
        assert mine["total"] == theirs["total"]
    again, _ = visit(address)
    ready(again)
    again.wait_for_function("(said) => document.querySelector('.pb-mc-verdict')?.innerText.includes(said)",
                            arg=said.split()[0])  # fmt: skip
    assert verdict(again) == said
    assert again.locator("[data-field=seq] input[type=text]").input_value() == "5000"
    assert again.locator("[data-field=micro_batch] input[type=text]").input_value() == "3"
