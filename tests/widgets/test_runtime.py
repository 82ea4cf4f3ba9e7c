"""Python in the page: started lazily, from a snapshot or without one, shared, and always with the latest inputs.

A small widget over the real ``compute`` of the memory calculator; the calculator's own page has tests of its own.
"""

import json
from pathlib import Path

import pytest
from playbook_widgets.base import STATIC, Widget
from playbook_widgets.compute.calculator import compute
from playbook_widgets.modules import bundle
from widget_homes import FRAMES, draw_over_kernel, kernel

FUNCTION = "playbook_widgets.compute.calculator:compute"

MODULE = """
export const encode = ({ configs }) => Object.entries(configs[0]).map((pair) => pair.join("=")).join("&");
export const decode = (text) => ({
  configs: [Object.fromEntries(text.split("&").filter(Boolean).map((pair) => pair.split("=")))],
});
export default {
  render({ model, el }) {
    const button = document.createElement("button");
    const show = () => (button.textContent = model.get("outputs").results[0].peak ?? "refused");
    el.model = model;
    model.on("change:outputs", show);
    show();
    el.append(button);
  },
};
"""


@pytest.fixture
def probe(tmp_path: Path, monkeypatch):
    """The HTML of a widget whose module shows the peak on a button; ``probe(start=…)``."""

    class Probe(Widget):
        _esm = MODULE
        script = "trace_viewer.mjs"
        compute = FUNCTION
        name = "probe"

        def spec(self):
            return {**super().spec(), "esm": f"{self.name}.mjs", "css": []}

    class Late(Probe):
        name = "late"

    def html(late=False, **options):
        (tmp_path / "pb" / "probe.mjs").write_text(MODULE, encoding="utf-8")
        slow = "await new Promise((done) => setTimeout(done, 600));" + MODULE
        (tmp_path / "pb" / "late.mjs").write_text(slow, encoding="utf-8")
        return (Late if late else Probe)({"configs": [{}]}, **options).static_html()

    return html


def peak(**config):
    """The same for every seq up to 2048: tests set more."""
    return compute({"configs": [config]})["results"][0]["peak"]


def wait_for_peak(page, wanted, nth=0):
    page.wait_for_function(f"document.querySelectorAll('button')[{nth}]?.textContent == '{wanted}'")


@pytest.fixture
def shown(open_page, probe):
    """``shown(start=…, count=…, **page)`` opens a page with that many widgets, drawn."""

    def show(count=1, start="touch", before="", **page):
        html = [
            probe(start=start).replace('id="probe"', f'id="{name}"') for name in ("probe", "other")[:count]
        ]
        opened = open_page(before + "".join(html), **page)
        opened.wait_for_function(f"document.querySelectorAll('[data-state=ready]').length == {count}")
        return opened

    return show


MODEL_OF = "document.querySelectorAll('.pb-widget-stage')[{}].model"
FIRST = MODEL_OF.format(0)


def set_inputs(page, config, nth=0):
    model = MODEL_OF.format(nth)
    page.evaluate(f"(c) => {{ {model}.set('inputs', {{configs: [c]}}); {model}.save_changes(); }}", config)


def python_starts(page):
    """Of each start, whether it was from the snapshot."""
    return page.evaluate("performance.getEntriesByName('pb-python').map((e) => e.detail.snapshot)")


@pytest.mark.parametrize("wake", ["hover", "focus"])
def test_the_first_state_needs_no_python_which_starts_when_the_reader_reaches_for_the_widget(shown, wake):
    page = shown()
    wait_for_peak(page, peak())
    assert page.evaluate(f"{FIRST}.get('status')") == "idle"
    page.evaluate(FRAMES)
    assert page.evaluate("performance.getEntriesByName('pb-python-start').length") == 0
    assert not page.evaluate("performance.getEntries().some((e) => e.name.includes('pyodide'))")
    getattr(page, wake)("button")
    page.wait_for_function("performance.getEntriesByName('pb-python-start').length == 1")


def test_a_widget_may_ask_for_python_at_once(shown):
    page = shown(start="view")
    page.wait_for_function("performance.getEntriesByName('pb-python-start').length == 1")


@pytest.mark.parametrize("snapshot", [None, b"\x1f\x8bnothing like it"], ids=["none", "broken"])
def test_without_a_snapshot_python_starts_the_ordinary_way(shown, tmp_path, browser_python, snapshot):
    python = tmp_path / "pb" / "python"
    python.unlink()
    python.mkdir()
    (python / "library.zip").write_bytes((browser_python / "library.zip").read_bytes())
    if snapshot:
        (python / "snapshot.bin.gz").write_bytes(snapshot)
    page = shown(errors=True)
    set_inputs(page, {"seq": 4096})
    wait_for_peak(page, peak(seq=4096))
    assert python_starts(page) == [False]


def test_without_python_the_first_state_stays_and_the_widget_says_why(shown, tmp_path):
    (tmp_path / "pb" / "python").unlink()
    pyodide = tmp_path / "vendor" / "pyodide"
    pyodide.mkdir(parents=True)
    (pyodide / "pyodide.mjs").write_text("export const loadPyodide = async () => ({});")  # at once
    page = shown(errors=True, locale="en")  # a browser of its own, which has kept no Pyodide
    set_inputs(page, {"tp": 2})
    page.wait_for_function(f"{FIRST}.get('status').startsWith('failed')")
    assert page.evaluate(f"{FIRST}.get('status')").endswith("library.zip answers 404")
    wait_for_peak(page, peak())


def test_one_worker_serves_all_the_latest_inputs_win_and_a_refusal_is_an_output_like_any_other(shown):
    page = shown(count=2)
    page.evaluate(
        f"""() => {{ const model = {FIRST}; for (let i = 1; i <= 40; i++) {{
             model.set('inputs', {{configs: [{{seq: 4096 + 64 * i}}]}}); model.save_changes(); }} }}"""
    )
    wait_for_peak(page, peak(seq=4096 + 64 * 40))
    page.wait_for_function(f"{FIRST}.get('status') == 'idle'")
    # Python came up after the last of them: the others were never computed.
    assert page.evaluate("performance.getEntriesByName('pb-compute').length") == 1
    set_inputs(page, {"tp": 3})
    wait_for_peak(page, "refused")
    message = page.evaluate(f"{FIRST}.get('outputs').results[0].error")
    assert message == compute({"configs": [{"tp": 3}]})["results"][0]["error"]
    assert message["field"] == "tp"
    set_inputs(page, {"tp": 4}, 1)
    wait_for_peak(page, peak(tp=4), 1)
    wait_for_peak(page, "refused")
    assert len(page.workers) == 1
    assert python_starts(page) == [True]


def test_the_state_lives_in_the_address_whose_changes_and_links_lead_to_the_widget_drawn_or_not(
    open_page, probe
):
    def arrives(seq, **config):
        wait_for_peak(page, peak(seq=seq, **config))
        page.wait_for_function("document.querySelector('#probe')?.getBoundingClientRect().top < innerHeight")

    links = "".join(f'<a href="#probe?seq={seq}">{seq}</a>' for seq in (8192, 4096))
    page = open_page(f'{links}<div style="height: 9000px"></div>{probe()}')
    assert page.evaluate("document.querySelector('#probe').dataset.state") is None
    for seq in (8192, 4096):
        page.evaluate("scrollTo(0, 0)")
        page.get_by_role("link", name=str(seq)).click()
        arrives(seq)
    page.evaluate("location.hash = '#probe?seq=16384'")  # as a reader does who types it, or goes back
    wait_for_peak(page, peak(seq=16384))
    set_inputs(page, {"model": "gpt2", "seq": 1024})
    page.wait_for_function("location.hash == '#probe?model=gpt2&seq=1024'")
    assert page.evaluate(f"{FIRST}.get('link')").endswith("/#probe?model=gpt2&seq=1024")
    page.evaluate("scrollTo(0, 0)")
    page.reload()
    arrives(1024, model="gpt2")


@pytest.mark.parametrize("just_before", ["an answer", "a move"])
def test_a_widget_that_is_drawn_late_gets_its_state_whatever_another_one_says(open_page, probe, just_before):
    page = open_page(probe() + '<div style="height: 9000px"></div>' + probe(late=True))
    page.wait_for_function("document.querySelector('#probe').dataset.state == 'ready'")
    set_inputs(page, {"seq": 4096})
    wait_for_peak(page, peak(seq=4096))
    page.wait_for_function("location.hash == '#probe?seq=4096'")
    said = {
        "an answer": "model.set('outputs', {...model.get('outputs')})",
        "a move": "model.set('inputs', {configs: [{seq: 16384}]})",
    }[just_before]
    page.evaluate(f"() => {{ const model = {FIRST}; {said}; location.hash = '#late?seq=8192'; }}")
    wait_for_peak(page, peak(seq=8192), 1)
    assert page.evaluate("location.hash") == "#late?seq=8192"


CELL = """
from playbook_widgets import MemoryCalculator
MemoryCalculator()
"""


def test_a_kernel_computes_what_the_page_does():
    with kernel(CELL) as running:
        wanted = [{"model": "llama3-70b", "tp": 8, "pp": 4, "grad_acc": 8, "seq": 4096}]
        state = running.update(inputs={"configs": wanted, "advice": True})
        assert json.dumps(state["outputs"]) == json.dumps(
            json.loads(json.dumps(compute({"configs": wanted, "advice": True})))
        )
        running.update(inputs={"configs": [{"tp": 2}], "advice": False})
        assert running.state["outputs"]["results"][0]["peak"] == peak(tp=2)


def test_the_same_module_lives_over_a_kernel(open_page):
    with kernel(CELL) as running:
        page = draw_over_kernel(open_page, running)
        assert page.locator("#stage").inner_text()
        assert running.state["_esm"] == bundle(STATIC / "memory_calculator.mjs")
