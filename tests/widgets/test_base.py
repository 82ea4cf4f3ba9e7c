"""The same cell serves a kernel and a static page; the page runtime keeps widgets apart."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from playbook_widgets import TraceViewer, Widget

from playbook.instruments.trace import Event, Lane, Trace

TRACE = Trace([Lane("host")], [Event('</script><b>&"', 0, 0, 5)])
VIEW = "application/vnd.jupyter.widget-view+json"


def spec_of(html: str) -> dict:
    text = re.search(
        r'<script type="application/json" class="pb-widget-spec">(.*?)</script>', html, re.S
    ).group(1)
    return json.loads(text)


def test_one_cell_serves_both_worlds():
    data, _ = TraceViewer(TRACE)._repr_mimebundle_()
    assert data[VIEW]["model_id"]
    assert data["text/html"].startswith('<div class="pb-widget"')
    assert data["text/plain"] == "TraceViewer(Trace(1 events on 1 lanes over 0.005 ms))"


def test_static_html_carries_the_whole_state():
    viewer = TraceViewer(TRACE, title="A < B")
    spec = spec_of(viewer.static_html())
    assert spec["esm"] == "trace_viewer.mjs"
    assert spec["state"] == {"inputs": viewer.inputs, "outputs": viewer.outputs, "constants": {}}
    assert spec["state"]["outputs"]["names"] == ['</script><b>&"']


def test_names_cannot_break_out_of_the_page():
    html = TraceViewer(TRACE, title="<img src=x>").static_html()
    assert html.count("</script>") == 1

    seen: set[str] = set()

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            seen.add(tag)

    Tags().feed(html)
    assert "script" in seen
    assert not seen & {"b", "img"}


def test_live_view_syncs_module_style_and_state():
    viewer = TraceViewer(TRACE)
    state = viewer.get_state()
    assert "export default" in state["_esm"]
    assert "--pb-compute" in state["_css"]
    assert ".pb-trace" in state["_css"]
    assert state["outputs"]["names"] == ['</script><b>&"']
    viewer.set_state({"inputs": {"search": "mm", "window": [1, 2]}})
    assert viewer.inputs == {"search": "mm", "window": [1, 2]}


def test_a_kernel_gets_one_text_that_reaches_for_nothing():
    """It has the text alone: no file beside it, and no other host."""
    for cls in Widget.__subclasses__():
        if hasattr(cls, "script"):
            assert not re.search(r"^\s*import\b|\bimport\s*[.(]|https?://", cls._esm, re.M)


BROKEN = (
    '<div class="pb-widget" data-widget="broken.mjs"><div class="pb-widget-summary"><p>Plain words.</p></div>'
    '<script type="application/json" class="pb-widget-spec">{"esm":"broken.mjs","state":{}}</script></div>'
)


@pytest.mark.browser
def test_a_failing_widget_says_so_and_leaves_the_others_alone(open_page, tmp_path):
    (tmp_path / "pb" / "broken.mjs").write_text("export default { render() { throw new Error('no ink') } }")
    elsewhere = BROKEN.replace('"broken.mjs","state"', '"../elsewhere.mjs","state"')
    page = open_page(BROKEN + elsewhere + TraceViewer(TRACE).static_html(), errors=True)
    page.wait_for_selector(".pb-widget[data-state=ready]")
    page.wait_for_function("document.querySelectorAll('.pb-widget[data-state=failed]').length === 2")
    first, second = page.locator(".pb-widget[data-state=failed]").all()
    assert "could not be drawn (no ink)" in first.inner_text()
    assert "Plain words." in first.inner_text()
    assert "is not a module of this book" in second.inner_text()
    assert any("no ink" in problem for problem in page.problems)


@pytest.mark.browser
def test_widgets_far_below_wait_until_they_come_near(open_page):
    html = TraceViewer(TRACE).static_html()
    page = open_page(f'{html}<div style="height: 5000px"></div>{html}')
    page.wait_for_selector(".pb-widget[data-state=ready]")  # the near one; one observer looks after both
    widget = page.locator(".pb-widget").last
    assert widget.get_attribute("data-state") is None
    assert "1 event on 1 lane" in widget.inner_text()
    widget.scroll_into_view_if_needed()
    page.wait_for_function("document.querySelectorAll('.pb-widget[data-state=ready]').length === 2")


@pytest.mark.browser
def test_the_model_is_the_one_modules_expect(open_page):
    page = open_page("")
    heard = page.evaluate(
        """async () => {
          const { Model } = await import("./pb/host.mjs"), heard = [], model = new Model({ a: 1, b: 2 });
          const listen = () => heard.push(model.get("a"));
          model.on("change:a change:b", listen);
          model.set("a", 5); model.set("a", 5); model.set("b", 3);
          model.off("change:b", listen); model.set("b", 4);
          model.off("change:a"); model.set("a", 6);
          model.save_changes();
          try { model.send({}) } catch (error) { heard.push(error.message) }
          return heard;
        }"""
    )
    assert heard == [5, 5, "a static page has no kernel to send messages to"]


@pytest.mark.browser
def test_without_javascript_the_summary_stands(open_page):
    page = open_page(TraceViewer(TRACE, title="Step").static_html(), java_script_enabled=False)
    assert "Step: 1 event on 1 lane over 5 µs." in page.locator("main").inner_text()
    assert "100%" in page.locator("main").inner_text()
