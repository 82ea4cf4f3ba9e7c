"""The gossip widget: its nodes, links and curve are Python's, and every setting is a control, a link and a key."""

from __future__ import annotations

import math
import re

import pytest
from playbook_widgets import GossipMixing
from playbook_widgets.compute.gossip import DEFAULTS, NODES, TITLES, compute
from playbook_widgets.gossip import EXAMPLES, constants
from widget_homes import Form, in_module, showing

SCRIPT = GossipMixing.script
CONTROLS = {control["field"]: control for control in constants()["controls"]}
ODD = [
    {"topology": "hypercube", "nodes": 64},
    {"topology": "complete", "nodes": 48, "values": "1,2,3"},
    {"topology": "grid", "nodes": 61, "values": "-100,99.5"},
    {"topology": "ring", "nodes": 2, "values": "5,5"},
]
SEVERAL = [dict(inputs) for _, inputs, _ in EXAMPLES] + ODD


# --- in Python


def test_every_setting_is_a_control_whose_values_can_be():
    assert {*CONTROLS, "values", "node", "step"} == set(DEFAULTS)  # these three are set in the picture
    assert [value for value, *_ in CONTROLS["topology"]["choices"]] == list(TITLES)
    stops = CONTROLS["nodes"]["stops"]
    assert (stops, stops[0], stops[-1]) == (sorted(set(stops)), *NODES)
    for field in ("nodes", "parameters"):
        assert DEFAULTS[field] in CONTROLS[field]["stops"]


def test_the_summary_says_every_number():
    widget = GossipMixing({"topology": "torus"})
    text = widget.summary()
    for name, number, _ in widget.outputs["facts"]:
        assert f"<td>{name}</td><td>{number}</td>" in text
    assert widget.outputs["answer"] in text


# --- in the browser: the module over real Python

DRAWN = """() => {
  const of = (selector) => [...document.querySelectorAll(selector)], path = (el) => el?.getAttribute('d') ?? '';
  const nodes = of('.pb-go-nodes > g');
  return { width: document.querySelector('.pb-chart').clientWidth,
    titles: nodes.map((el) => el.querySelector('title').textContent),
    far: nodes.map((el) => parseInt(el.style.getPropertyValue('--far'))), sides: nodes.map((el) => el.dataset.side),
    at: nodes.map((el) => el.getAttribute('transform').match(/[-.\\d]+/g).map(Number)),
    chosen: nodes.findIndex((el) => el.hasAttribute('data-chosen')),
    links: (path(document.querySelector('.pb-go-links')).match(/M/g) ?? []).length,
    taken: of('.pb-go-taken path').length,
    left: path(document.querySelector('.pb-chart [data-line=left]')),
    bound: path(document.querySelector('.pb-chart [data-line=bound]')),
    dot: ['cx', 'cy'].map((key) => Number(document.querySelector('.pb-chart circle').getAttribute(key))) } }"""


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "go"

    def drawn(self) -> dict:
        return self.page.evaluate(DRAWN)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()


graph = showing(Page, GossipMixing)


def place(step: float, left: float, steps: int, width: float) -> tuple[float, float]:
    """Where a point of the curve must be: a logarithmic axis from 1 to 0.0001."""
    down = min(1.0, math.log(max(left, 1e-4)) / math.log(1e-4))
    return 56 + step / steps * (width - 56 - 14), 12 + down * (300 - 12 - 38)


def points(path: str) -> list[tuple[float, ...]]:
    return [tuple(map(float, point.split(","))) for point in path[1:].split("L")]


def links(rows: list) -> int:
    """Pairs of nodes of which one takes from the other."""
    return len({frozenset((i, j)) for i, row in enumerate(rows) for j, _ in row if i != j})


@pytest.mark.browser
def test_nodes_links_and_curve_are_pythons(graph):
    view = graph()
    for inputs in SEVERAL:
        for step in (0, 3):
            view.set({"topology": "ring", **inputs, "step": step})
            answer, drawn = compute(inputs), view.drawn()
            frames, steps = answer["frames"], len(answer["frames"]) - 1
            at = min(step, steps)
            shown = [float(re.split(": ", title)[1].replace("−", "-")) for title in drawn["titles"]]
            assert shown == pytest.approx(frames[at], rel=6e-3, abs=5e-5)
            most = max(abs(x - answer["mean"]) for x in frames[0]) or 1
            far = [60 * math.cbrt(min(1, abs(x - answer["mean"]) / most)) for x in frames[at]]
            assert drawn["far"] == pytest.approx(far, abs=0.51)
            sides = ["below" if x < answer["mean"] else "above" for x in frames[at]]
            assert drawn["sides"] == sides
            rows = answer["mixing"][at % len(answer["mixing"])]
            assert drawn["links"] == links(rows)
            assert drawn["taken"] == len(rows[0]) - 1
            for point, left in zip(points(drawn["left"]), enumerate(answer["left"]), strict=True):
                assert point == pytest.approx(place(*left, steps, drawn["width"]), abs=0.06)
            assert tuple(drawn["dot"]) == pytest.approx(
                place(at, answer["left"][at], steps, drawn["width"]), abs=0.06
            )
            assert bool(drawn["bound"]) == bool(answer["rate"])
            for step_of, point in zip(
                (0, None), points(drawn["bound"]) if drawn["bound"] else (), strict=False
            ):
                last = min(steps, math.log(1e-4) / math.log(answer["rate"])) if step_of is None else 0
                assert point == pytest.approx(
                    place(last, answer["rate"] ** last, steps, drawn["width"]), abs=0.06
                )
            assert view.text("answer") == answer["answer"]
        facts = view.page.locator(".pb-go-facts b").all_inner_texts()
        assert facts == [number for _, number, _ in answer["facts"]]


@pytest.mark.browser
def test_the_keyboard_alone_sets_values_and_goes_through_the_steps(graph):
    view = graph({"topology": "one-peer-exponential"})
    view.page.locator(".pb-go-stage").focus()
    view.press("ArrowRight", "ArrowRight", "ArrowUp")
    assert view.inputs() == {"topology": "one-peer-exponential", "values": "10,0,1", "node": 2}
    view.press("Shift+ArrowUp")
    view.press("ArrowDown", "ArrowLeft")
    view.press("ArrowLeft", "ArrowLeft")
    assert view.inputs()["values"] == "10,0,10"
    assert view.drawn()["chosen"] == 15
    view.press("Tab", "Tab", "Control+a")  # over the slider of the value to its field
    view.page.keyboard.type("-2.5")
    view.press("Enter")
    assert view.inputs()["values"] == "10,0,10" + ",0" * 12 + ",-2.5"
    view.page.locator(".pb-go-forward").focus()
    view.press("Enter", "Enter")
    assert view.inputs()["step"] == 2
    view.press("End")
    assert view.text("caption").startswith("After 4 steps: 0")
    mean = (10 + 10 - 2.5) / 16
    assert [float(t.split(": ")[1]) for t in view.drawn()["titles"]] == pytest.approx([mean] * 16, rel=5e-3)
    view.button("Reset").press("Enter")
    assert "step" not in view.inputs()
    view.press("Shift+Tab")
    assert view.text("caption").startswith("At the start")


@pytest.mark.browser
def test_a_pointer_chooses_a_node_whose_value_is_slid_or_typed(graph):
    view = graph()
    stage = view.page.locator(".pb-go-stage svg")
    x, y = view.drawn()["at"][5]
    stage.click(position={"x": x + 3, "y": y - 3})
    assert view.inputs() == {"topology": "ring", "node": 5}
    assert "Node 5: 0. In the next step it takes 33" in view.text("words")
    view.type("value", "7,5")
    assert view.inputs()["values"] == "10,0,0,0,0,7.5"
    view.row("value").locator("input[type=range]").press("ArrowRight")
    view.settle()
    assert view.inputs()["values"] == "10,0,0,0,0,9"  # the stop after 8, the nearest to 7.5
    view.page.locator(".pb-go-forward").click()
    view.button("Only this node").click()
    view.settle()
    assert view.inputs() == {"topology": "ring", "node": 5, "values": "0,0,0,0,0,10"}  # from the beginning
    view.button("First half").click()
    view.settle()
    assert view.inputs()["values"] == ",".join(["10"] * 8)
    view.button("Random").click()
    view.settle()
    drawn = [int(text) for text in view.inputs()["values"].split(",")]
    assert len(drawn) <= 16
    assert set(drawn) <= set(range(11))


@pytest.mark.browser
def test_a_click_on_the_curve_goes_to_its_step_and_other_steps_begin_anew(graph):
    view = graph({"topology": "torus"})
    steps, width = len(compute({"topology": "torus"})["frames"]) - 1, view.drawn()["width"]
    view.page.locator(".pb-chart").click(position={"x": place(5, 1, steps, width)[0], "y": 80})
    assert view.inputs() == {"topology": "torus", "step": 5}
    view.type("parameters", "7.5B")
    assert view.inputs() == {"topology": "torus", "step": 5, "parameters": "7.5B"}
    view.type("nodes", "9")
    assert view.inputs() == {"topology": "torus", "nodes": 9, "parameters": "7.5B"}
    assert view.text("caption").startswith("At the start")


@pytest.mark.browser
def test_playing_ends_with_the_last_step(graph):
    view = graph({"topology": "one-peer-exponential", "nodes": 4})
    view.page.get_by_role("radio", name="4×").check(force=True)
    view.button("Play").click()
    view.page.wait_for_function("window.model.get('inputs').step === 2")
    assert view.button("Play").is_visible()


@pytest.mark.browser
def test_a_link_holds_values_as_they_were_typed(open_page):
    page = open_page("")
    inputs = {"topology": "torus", "nodes": 9, "values": "10,0,-2.5", "step": 3, "node": 2}
    text = "topology=torus&nodes=9&values=10%2C0%2C-2.5&step=3&node=2"
    assert in_module(page, SCRIPT, "m.encode(x)", inputs) == text
    assert in_module(page, SCRIPT, "m.decode(x)", text) == inputs
    assert in_module(page, SCRIPT, "m.decode(x)", "values=10") == {"topology": "ring", "values": "10"}


@pytest.mark.browser
def test_colours_move_only_where_motion_is_wanted(graph):
    view = graph()
    lasts = "getComputedStyle(document.querySelector('.pb-go-nodes circle')).transitionDuration"
    assert view.page.evaluate(lasts) == "0.4s"
    view.page.emulate_media(reduced_motion="reduce")
    assert view.page.evaluate(lasts) == "0s"
