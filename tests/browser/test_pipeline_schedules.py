"""The page of pipeline schedules in the built book: the largest one from a link, drawn once, whatever is pointed at."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Request

pytestmark = pytest.mark.browser

TOOL = "book/tools/pipeline-schedules.html"
LARGE = "#schedules?schedule=1f1b&stages=32&microbatches=256&times=28.3b-32x256"

# Milliseconds that each move of the pointer across the picture takes, with all that it makes the page do.
POINT = """() => {
  const stage = document.querySelector(".pb-sv-stage"), box = stage.getBoundingClientRect(), times = [];
  for (let k = 0; k < 40; k++) {
    const start = performance.now(), place = { clientX: box.left + 80 + 15 * k, clientY: box.top + 60 + 9 * k };
    stage.dispatchEvent(new PointerEvent("pointermove", { ...place, bubbles: true }));
    stage.getBoundingClientRect(); // layout included
    times.push(performance.now() - start);
  }
  return times.sort((a, b) => a - b);
}"""


def test_32_stages_and_256_micro_batches_stay_fluid(
    browser: Browser, site: str, record_property: Callable[[str, object], None]
) -> None:
    """How often what is drawn. Times are reported, that of the first answer with Python's start."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(180_000)  # the machine may be busy with other things
    outside: list[str] = []

    def look(request: Request) -> None:
        if not request.url.startswith((site, "data:", "blob:")):
            outside.append(request.url)

    page.on("request", look)
    page.goto(site + TOOL + LARGE)
    page.wait_for_function("document.querySelector('.pb-sv-answer')?.innerText.includes('8392 ms')")
    compute = page.evaluate("performance.getEntriesByName('pb-compute').at(-1).duration")
    page.evaluate("performance.clearMeasures('pb-draw')")
    page.locator(".pb-sv-stage").focus()
    for key in ("ArrowDown", "+", "+", "+", "ArrowRight", "-", "-", "-"):
        page.keyboard.press(key)
        page.evaluate("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    draws = page.evaluate(
        "performance.getEntriesByName('pb-draw').map((e) => e.duration).sort((a, b) => a - b)"
    )
    page.evaluate("performance.clearMeasures()")
    moves = page.evaluate(POINT)
    points, again = page.evaluate(
        "['pb-point', 'pb-draw'].map((name) => performance.getEntriesByName(name).length)"
    )
    times = {"compute": compute, "draw": draws[len(draws) // 2], "point": moves[len(moves) // 2]}
    record_property("milliseconds", times)
    assert 0 < len(draws) <= 8  # at most once for each key
    assert 0 < points <= len(moves)  # and once for each move, in the layer above the picture,
    assert again == 0  # of which nothing is drawn again
    assert outside == []
    page.close()
