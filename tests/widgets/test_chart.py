"""The chart of five widgets: read with a pointer or the keyboard, as a table, and set where a place can be set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from playbook_widgets import ExpertRouting, GoodputCurve, GossipMixing, MemoryCalculator, ZeroSharding
from widget_homes import Form, bridged_page, in_module


@dataclass(frozen=True)
class Case:
    """A widget; the head of its chart as a table, how the first and last rows begin, and what Enter sets at the end."""

    widget: Any
    head: tuple[str, ...]
    first: tuple[str, ...]
    last: tuple[str, ...]
    picked: dict[str, Any] | None = None


CASES = [
    Case(
        MemoryCalculator({"model": "llama3-8b", "zero": 3}),
        ("tokens", "parameters", "gradients", "optimizer", "activations", "buffers", "working memory", "together"),
        ("512", "16.1 GB"), ("128k", "16.1 GB"),
    ),
    Case(
        GossipMixing({"topology": "one-peer-exponential", "nodes": 4}),
        ("steps", "measured"), ("0", "100 %"), ("2", "0 %"), {"step": 2},
    ),
    Case(
        ExpertRouting({"remedy": "bias"}),
        ("updates of the biases", "busiest rank", "busiest expert"), ("0", "2.07", "3.69"), ("16", "1.04", "1.06"),
        {"step": 16},
    ),
    Case(GoodputCurve({}), ("from one checkpoint to the next", "useful"), ("4 s", "6 %"), ("146 h", "0 %")),
    Case(
        ZeroSharding({}),
        ("micro-batches in a step (G)", "no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3"),
        ("1", "1.97 Ψ", "1.97 Ψ", "1.97 Ψ", "2.95 Ψ"), ("64", "1.97 Ψ", "1.97 Ψ", "64 Ψ", "189 Ψ"),
        {"grad_acc": 64},
    ),
]  # fmt: skip


@pytest.mark.browser
@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.widget).__name__)
def test_a_chart_is_read_by_keyboard_and_pointer_and_as_a_table(open_page, case):
    view = Form(bridged_page(open_page, case.widget))
    page, plot = view.page, view.page.locator(".pb-chart")
    said = page.locator(".pb-chart + p, p:has(+ .pb-chart)").first
    table = page.locator("section:has(> .pb-chart) > .pb-unseen")
    rows = [row.locator("th, td").all_text_contents() for row in table.locator("tr").all()]
    assert rows[0] == [*case.head]
    for row, texts in ((rows[1], case.first), (rows[-1], case.last)):
        assert [text.replace("\u202f", " ") for text in row[: len(texts)]] == [*texts]
    rest, marker = said.inner_text(), page.locator(".pb-chart-now")
    plot.press("End")
    assert plot.get_attribute("aria-valuenow") == plot.get_attribute("aria-valuemax") == str(len(rows) - 2)
    assert said.inner_text() == plot.get_attribute("aria-valuetext") != rest
    place = marker.get_attribute("x1")
    plot.press("ArrowLeft")
    assert float(marker.get_attribute("x1")) < float(place)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 57, box["y"] + 30)
    assert plot.get_attribute("aria-valuenow") == "0"
    page.mouse.move(box["x"] + 57, box["y"] - 30)
    assert said.inner_text() == rest
    before = view.inputs()
    plot.press("End")
    plot.press("Enter")
    view.settle()
    assert view.inputs() == {**before, **(case.picked or {})}


@pytest.mark.browser
def test_ticks_are_equally_far_apart(open_page):
    page = open_page("")
    for numbers, ticks in (
        ([0, 17, 5], [0, 4, 8, 12, 16]),
        ([1, 4, 5], [1, 2, 3, 4]),
        ([0, 0, 5], [0]),
        ([9, 17, 3], [9, 12, 15]),
    ):
        assert in_module(page, "shared/chart.mjs", "m.evenly(...x)", numbers) == ticks
