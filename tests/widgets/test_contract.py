"""What every widget of settings promises alike: refusals, links, controls, examples, paper, and each of its homes."""

from __future__ import annotations

import importlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import playbook_widgets
import pytest
from playbook_widgets import goodput, gossip, mesh_explorer, overlap
from widget_homes import TYPE, Form, Kernel, answer, bridged_page, draw_over_kernel, in_module, kernel

from playbook.errors import PlaybookError

LONG = "a long word that is no number of anything whatsoever"
# All that the widget shows of its answer, as elements; what is said of a refusal is no part of it.
RESULTS = """() => {
  const copy = document.querySelector("#stage > *").cloneNode(true);
  const apart = ["settings", "status", "stale", "examples"].map((name) => `[class*="-${name}"]`);
  copy.querySelectorAll(`${apart}, [data-field], [aria-live]`).forEach((el) => el.remove());
  copy.querySelectorAll("[data-stale]").forEach((el) => el.removeAttribute("data-stale"));
  return copy.innerHTML;
}"""
# The words that can be seen, outside of what steers; and the fields that can.
WORDS = """() => {
  const apart = ["settings", "tools", "player", "examples", "reading", "help"].map((name) => `[class*="-${name}"]`);
  const steers = `button, [data-field], ${apart}`;
  const seen = (el) => el.checkVisibility({ visibilityProperty: true, opacityProperty: true })
    && el.getBoundingClientRect().width > 2;
  const all = [...document.querySelectorAll("#stage *")].filter(seen);
  const words = all.filter((el) => !el.childElementCount && el.textContent.trim() && !el.closest(steers));
  return [words.map((el) => el.textContent), all.filter((el) => el.matches("input, select, textarea")).length];
}"""


@dataclass(frozen=True)
class Contract:
    """One widget: ``answer`` is the element that says in words what Python's answer says."""

    name: str
    answer: str
    home: dict[str, Any]  # what every link says
    impossible: dict[str, Any]  # refused with these words where the cell is
    words: str
    refused: tuple[tuple[str, str], ...]  # what a reader types, field by field
    states: tuple[dict[str, Any], ...]  # settings that show all that it can
    moved: tuple[
        str, str, dict[str, Any]
    ]  # a control and a key, and the inputs that it makes of the first ones
    beside: dict[str, dict[str, Any]] = field(default_factory=dict)  # with which a control is there
    printed: int = 0  # of its fields
    apart: tuple[str, ...] = ()  # fields that no link holds, or holds as they were typed

    @property
    def widget(self) -> Any:
        return getattr(playbook_widgets, self.name)

    @property
    def defaults(self) -> dict[str, Any]:
        return importlib.import_module(self.widget.__module__).DEFAULTS

    def move(self) -> tuple[str, dict[str, Any]]:
        """Where to press the right arrow in the first state, and what has been set then."""
        constants = self.widget(self.home).constants
        control = next(control for control in constants["controls"] if control["field"] == self.moved)
        stops = control.get("stops") or [value for value, _ in control["choices"]]
        box = "input[type=range]" if "stops" in control else "input:checked"
        after = stops[stops.index(self.defaults[self.moved]) + 1]
        return f"[data-field={self.moved}] {box}", {self.moved: after}

    def compute(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return json.loads(answer(self.widget.function(), json.dumps(inputs)))

    def says(self, inputs: dict[str, Any]) -> str:
        """What stands in the page of these inputs."""
        outputs = self.compute(inputs)
        if self.name == "CollectivesAnimator":
            return f"{outputs['seconds'] * 1e6:.3g} µs"
        if self.name == "NumberFormats":
            return next(
                row["answer"] for row in outputs["rows"] if row["name"] == outputs["values"]["format"]
            )
        return (outputs if "answer" in outputs else outputs["pictures"][0])["answer"]

    def open(self, open_page: Any, inputs: dict[str, Any] | None = None, **options: Any) -> Form:
        return Form(bridged_page(open_page, self.widget(inputs), **options))


def examples(module: Any) -> tuple[dict[str, Any], ...]:
    return tuple(dict(inputs) for _, inputs, _ in module.EXAMPLES)


COLUMN = {"memory": "shared", "along": "column"}
CONTRACTS = [
    Contract(
        "CollectivesAnimator", ".pb-ca-time", {"collective": "all_reduce"},
        {"ranks": 99}, "ranks must be at most 16, got 99",
        (("ranks", "17"), ("bytes", "much")),
        ({"algorithm": "two_level", "ranks": 6, "ranks_per_node": 3, "step": 3},
         {"collective": "all_to_all", "ranks": 16, "ranks_per_node": 8}),
        "ranks",
        printed=9,
        beside={"ranks_per_node": {"ranks": 16}, "root": {"collective": "reduce", "ranks": 16}},
    ),
    Contract(
        "ExpertRouting", ".pb-ro-answer", {"remedy": "none"},
        {"ranks": 5}, "ranks must divide experts = 16",
        (("ranks", "5"), ("node", "3"), ("experts", "many"), ("top_k", "17"), ("tokens", "0"), ("skew", "9"),
         ("hidden", "-1"), ("top_groups", "3"), ("seed", "x")),
        ({"remedy": "bias", "experts": 256, "top_k": 8, "ranks": 16, "node": 8, "tokens": 16, "capacity": 1.5,
          "top_groups": 2},
         {"ranks": 1, "experts": 4}, {"remedy": "replicas", "capacity": 1, "spare": 4},
         {"remedy": "bias", "capacity": 0.5, "tokens": 1024}),
        "skew",
        beside={"bias_rate": {"remedy": "bias"}, "spare": {"remedy": "replicas"}},
    ),
    Contract(
        "GoodputCurve", ".pb-gp-answer", {"every": 3600},
        {"gpus": 0}, "gpus must be at least 1",
        (("gpus", "many"), ("save", "0"), ("every", "1.5"), ("restart", "-1")),
        (*examples(goodput), {"gpus": 1, "mtbf": 10_000_000, "every": 604_800},
         {"gpus": 1_000_000, "mtbf": 100, "save": 7200, "restart": 86_400, "every": 1}, {"restart": 0, "save": 1}),
        "save",
    ),
    Contract(
        "GossipMixing", ".pb-go-answer", {"topology": "ring"},
        {"topology": "hypercube", "nodes": 12}, "nodes is 12, but must be a power of two",
        (("nodes", "1"), ("parameters", "many"), ("value", "x"), ("value", "-101")),
        (*examples(gossip), {"topology": "hypercube", "nodes": 64},
         {"topology": "complete", "nodes": 48, "values": "1,2,3"},
         {"topology": "grid", "nodes": 61, "values": "-100,99.5"}, {"nodes": 2, "values": "5,5", "step": 1}),
        "nodes",
        apart=("values",),
    ),
    Contract(
        "MemoryAccess", ".pb-ma-answer", {"memory": "global"},
        {"vector": 8}, "vector must be at most 4",
        (("rows", "0"), ("block_x", "2000"), ("block_y", "many"), ("stride", "-1"), ("offset", "9999")),
        ({"along": "column"}, {"stride": 40, "size": 1, "offset": 3, "access": "write"},
         {"layout": "column-major", "vector": 4, "stride": 3, "rows": 200}, {"block_x": 5, "block_y": 3, "size": 16},
         COLUMN, {**COLUMN, "vector": 4, "remedy": "padding", "padding": 4},
         {"memory": "shared", "size": 2, "stride": 0, "block_x": 8, "block_y": 30, "rows": 20}, {"rows": 1, "step": 5},
         {"along": "column", "columns": 16384, "rows": 16384, "size": 16, "stride": 500}),
        "stride",
        beside={"padding": {"memory": "shared", "remedy": "padding"}, "remedy": {"memory": "shared"}},
    ),
    Contract(
        "MeshExplorer", ".pb-me-answer", {"rank": 5},
        {"rank": 20}, "rank must be below the layout's 16 ranks, got 20",
        (("tp", "3"), ("dp", "0"), ("pp", "33"), ("ep", "2"), ("rank", "16"), ("rank", "five"), ("per_node", "100")),
        (*examples(mesh_explorer), {**examples(mesh_explorer)[1], "rank": 16383},
         {"dp": 1, "tp": 1, "cp": 1, "pp": 1, "rank": 0}, {"dp": 8, "per_node": 72}, {"per_node": 1}),
        "seq",
        beside={"ep": {"model": "mixtral-8x7b"}},
        apart=("point",),
    ),
    Contract(
        "NumberFormats", ".pb-nf-answer", {"number": "0.1"},
        {"number": "much"}, "number must be a number such as",
        (("number", "much"), ("number", "2^5000"), ("number", "e4m3:0x100"), ("number", "")),
        ({"number": "70000", "format": "fp16"}, {"number": "-3e-8", "format": "e8m0"},
         {"number": "nan", "format": "e2m1"},
         {"number": "e5m2:0xff", "format": "e5m2"}, {"number": "-inf", "saturate": True, "format": "e4m3"},
         {"number": "-2^-25/3", "scale": 16, "rounding": "stochastic", "draw": 7, "format": "e4m3"},
         {"number": "-1.23456789e38", "rounding": "half_up", "scale": -3}),
        "rounding",
        apart=("number",),
    ),
    Contract(
        "OverlapRatios", ".pb-ov-answer", {"tokens": 8192},
        {"tp": 7}, "tp must divide heads",
        (("tokens", "many"), ("tp", "7"), ("reached", "0"), ("ep", "8")),
        (*examples(overlap), {"tokens": 64, "cluster": "b200-8"},
         {"model": "deepseek-v3", "tp": 1, "dp": 256, "ep": 256, "two_step": True, "tokens": 1048576},
         {"tp": 1, "dp": 1, "pp": 1}),
        "dp",
    ),
    Contract(
        "RingAttention", ".pb-ra-answer", {"context": "ring"},
        {"ranks": 32}, "ranks must be at most 16, got 32",
        (("kv_heads", "5"), ("ranks", "1"), ("seq", "long")),
        ({"ranks": 16, "seq": "64k", "backward": True, "model": "llama3.1-405b", "step": 5},
         {"context": "ulysses", "step": 1}, {"context": "gather", "causal": False}),
        "ranks",
    ),
    Contract(
        "ScheduleVisualizer", ".pb-sv-answer", {"schedule": "1f1b"},
        {"stages": 64}, "stages must be at most 32, got 64",
        (("stages", "33"), ("microbatches", "none")),
        ({"schedule": "dualpipe", "compare": "zb-h2", "stages": 32, "microbatches": 256, "limit": 40},
         {"schedule": "zb-v", "own": "0F0.0F1", "limit": 2}),
        "stages",
        beside={"vpp": {"schedule": "interleaved"}, "run": {"schedule": "interleaved"}, "fb": {"schedule": "dualpipe"}},
        apart=("trace", "path"),
    ),
    Contract(
        "ZeroSharding", ".pb-zs-answer", {"zero": 1},
        {"replicas": 5000}, "replicas must be at most 4096, got 5000",
        (("parameters", "many"), ("parameters", "3T"), ("replicas", "9999"), ("replicas", "abc"), ("grad_acc", "0"),
         ("optimizer_bytes", "65"), ("bandwidth", "-3")),
        ({"model": "llama3.1-405b", "replicas": 1000, "zero": 3, "reshard": False, "grad_acc": 64},
         {"zero": 0, "replicas": 1}, {"zero": 3, "parameters": "1M", "replicas": 4096, "precision": "fp32"}),
        "grad_acc",
    ),
]  # fmt: skip

every = pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract.name)


def test_every_widget_of_settings_has_a_contract():
    """The memory calculator and the cluster have two configurations, or a search, and tests of their own."""
    others = {"TraceViewer", "MemoryCalculator", "MyCluster"}
    assert sorted(contract.name for contract in CONTRACTS) == sorted({*playbook_widgets.WIDGETS} - others)


@every
def test_settings_that_cannot_be_are_refused_where_the_cell_is(contract):
    with pytest.raises(PlaybookError, match=contract.words):
        contract.widget(contract.impossible)


@pytest.mark.browser
def test_links_hold_the_state_and_ignore_what_they_do_not_know(open_page):
    page, rng = open_page(""), random.Random(0)
    values = [0, 1, 8.5, 1_000_000, "64 M", "abc", "a&b=c %", "", "é", True, False]
    for contract in CONTRACTS:
        keys = sorted(set(contract.defaults) - {*contract.apart, *contract.home})
        several = []
        for _ in range(100):
            some = rng.sample(keys, rng.randrange(1, min(9, len(keys) + 1)))
            several.append({**contract.home, **{key: rng.choice(values) for key in some}})
        script = contract.widget.script
        assert in_module(page, script, "x.map((inputs) => m.decode(m.encode(inputs)))", several) == several
        text = f"{keys[0]}=8&nonsense=1&__proto__=2&{keys[1]}=true&{keys[2]}"
        home = {} if contract.name == "MeshExplorer" else contract.home
        assert in_module(page, script, "m.decode(x)", text) == {**home, keys[0]: 8, keys[1]: True}


# What is set then, what the field says, whether it is refused and whether it says so.
NOW = """async (field) => {
  await window.settled();
  const row = document.querySelector(`[data-field="${field}"]`), { error } = window.model.get("outputs");
  return [window.model.get("inputs")[field], row.querySelector("input[type=text]")?.value ?? "", error?.field === field,
    row.querySelector("[role=alert]").checkVisibility()];
}"""
# Moves that are no mouse's and no key's: a control hears of them what it hears of those, where a pointer would meet it.
MEETS = """(el) => {
  el.scrollIntoView({ block: "nearest" });
  const { x, y, height } = el.getBoundingClientRect();
  if (document.elementFromPoint(x + 9, y + height / 2) !== el) throw new Error(`hidden by something: ${el.outerHTML}`);
}"""
SLIDE = f"""async ([field, last]) => {{
  const [slider, text] = document.querySelectorAll(`[data-field="${{field}}"] input`), found = [];
  const slide = (to) => ((slider.value = to), slider.dispatchEvent(new Event("input", {{ bubbles: true }})));
  const press = (key) => text.dispatchEvent(new KeyboardEvent("keydown", {{ key, bubbles: true, cancelable: true }}));
  ({MEETS})(slider);
  for (const move of [() => slide(0), () => slide(1), () => press("ArrowUp"), () => ({TYPE})([field, last])]) {{
    await move();
    found.push(await ({NOW})(field));
  }}
  return found;
}}"""
CHOOSE = f"""async ([field, ...places]) => {{
  const row = document.querySelector(`[data-field="${{field}}"]`), list = row.querySelector("select"), found = [];
  for (const place of places) {{
    const option = list ?? row.querySelectorAll("label > span")[place];
    ({MEETS})(option);
    if (list) (list.selectedIndex = place), list.dispatchEvent(new Event("change", {{ bubbles: true }}));
    else option.click();
    found.push(await ({NOW})(field));
  }}
  return found;
}}"""
OPTIONS = """(row) => {
  const options = [...row.querySelectorAll("option, input")];
  return [options.map((el) => el.value), options.findIndex((el) => el.selected || el.checked)];
}"""
REFUSED = f"""async ([field, text]) => {{
  const row = document.querySelector(`[data-field="${{field}}"]`), results = {RESULTS}, before = results();
  const [said, box] = ["[role=alert]", "input[type=text]"].map((part) => row.querySelector(part)), valid = box.value;
  const stale = document.querySelector("[class*=-stale]");
  await ({TYPE})([field, text]);
  const found = [window.model.get("outputs").error, said.innerText, box.value, box.ariaInvalid, before === results()];
  found.push(box.getAttribute("aria-describedby").split(" ").includes(said.id), stale.innerText !== "");
  await ({TYPE})([field, valid]);
  return [...found, [...document.querySelectorAll("[role=alert]"), stale].some((el) => el.checkVisibility())];
}}"""


def after_each(view, field, *moves):
    return [(move(), view.page.evaluate(NOW, field))[1] for move in moves]


@pytest.mark.browser
@every
def test_every_control_moves_and_a_refused_value_shows_its_sentence_beside_it_and_keeps_the_picture(
    open_page, contract
):
    """By mouse, keyboard and typing; all are of one class: after the first of a kind the others get the events."""
    view, kinds = contract.open(open_page), set()
    for control in view.page.evaluate("window.model.get('constants').controls"):
        name, kind = control["field"], control["kind"]
        if not (stops := control.get("stops")) and not control.get("choices"):
            continue
        view.set({**contract.home, **contract.beside.get(name, {})})
        row, hands, default = view.row(name), kind not in kinds, contract.defaults[name]
        kinds.add(kind)
        if stops:
            slider, text = row.locator("input[type=range]"), row.locator("input[type=text]")
            if hands:
                slider.scroll_into_view_if_needed()
                box = slider.bounding_box()
                found = after_each(
                    view,
                    name,
                    partial(view.page.mouse.click, box["x"] + 9, box["y"] + box["height"] / 2),
                    partial(slider.press, "ArrowRight"),
                    partial(text.press, "ArrowUp"),
                    lambda text=text, stops=stops: (text.fill(str(stops[0])), text.press("Enter")),
                )
            else:
                found = view.page.evaluate(SLIDE, [name, str(stops[0])])
            stops = (stops[0], stops[2], stops[1], stops[0])
            for (value, written, refused, said), stop in zip(reversed(found), stops, strict=False):
                value = default if value is None else value  # None: as something else has it
                assert stop == (float(written) if value is None else value), name
                assert said == refused, name
                assert written
            continue
        (values, at), choices = row.evaluate(OPTIONS), [str(value) for value, *_ in control["choices"]]
        if kind == "select":
            assert sorted(values) == sorted(choices)  # in groups they stand in another order
        else:
            values = choices
        other = at + 1 if at + 1 < len(values) else at - 1
        if not hands:
            found = view.page.evaluate(CHOOSE, [name, other, at])
        elif kind == "select":
            key, box = "ArrowUp" if other > at else "ArrowDown", row.locator("select")
            found = after_each(view, name, partial(box.select_option, index=other), partial(box.press, key))
        else:
            key, option = "ArrowLeft" if other > at else "ArrowRight", row.locator("label span").nth(other)
            found = after_each(view, name, option.click, partial(row.locator("input:checked").press, key))
        chosen = [str(default if value is None else value) for value, *_ in found]
        assert chosen in ([values[other], values[at]], [values[other], "None"]), name
    view.set(contract.home)
    for name, text in contract.refused:
        refusal, *found = view.page.evaluate(REFUSED, [name, text])
        assert refusal["field"] in (name, f"{name}s")  # the control of one node's value is about all of them
        assert found == [refusal["message"], text, "true", True, True, True, False]


EXAMPLE = f"""async ([name, answer, refused]) => {{
  const place = document.querySelector("[class$=-examples]"), buttons = [...document.querySelectorAll("button")];
  const pressed = () => [...place.querySelectorAll("[aria-pressed=true]")].map((el) => el.innerText);
  buttons.find((el) => el.innerText === name && place.contains(el)).click();
  await window.settled();
  const said = ["[class$=-examples] [class$=-note]", answer].map((place) => document.querySelector(place).innerText);
  const found = [window.model.get("inputs"), ...said, pressed()];
  const forward = buttons.find((el) => (el.ariaLabel ?? el.innerText) === "Step forward");
  if (forward?.checkVisibility()) forward.click(); // whatever is shown of it
  found.push(pressed());
  await ({TYPE})(refused);
  return [...found, pressed()];
}}"""


@pytest.mark.browser
@every
def test_an_example_stands_in_the_controls(open_page, contract):
    if not (examples := contract.widget(contract.home).constants.get("examples")):
        return
    view = contract.open(open_page, contract.states[0])
    for example in examples:
        inputs, note, answer, *pressed = view.page.evaluate(
            EXAMPLE, [example["name"], contract.answer, contract.refused[0]]
        )
        assert inputs == {**contract.home, **example["inputs"]}
        assert note == example["note"]
        assert contract.says(example["inputs"]) in answer
        assert pressed == [[example["name"]], [example["name"]], []]
    view.page.locator("[class$=-examples]").get_by_role("button", name=example["name"], exact=True).click()
    view.settle()
    assert view.inputs() == inputs


@pytest.mark.browser
@every
def test_paper_has_all_the_words_an_answer_is_drawn_once_and_a_closed_widget_hears_nothing(
    open_page, contract
):
    view = contract.open(open_page)
    words, controls = view.page.evaluate(WORDS)
    assert controls
    view.page.emulate_media(media="print")
    on_paper, controls = view.page.evaluate(WORDS)
    assert controls == contract.printed
    assert [text for text in words if text not in on_paper] == []
    view.page.emulate_media(media="screen")
    first, answers = view.page.evaluate(RESULTS), [contract.compute(inputs) for inputs in contract.states]
    assert view.wasted("(answer) => window.model.set('outputs', answer)", answers) == []
    view.frames()
    before = view.page.evaluate(RESULTS)
    assert before != first
    view.page.evaluate("window.close()")
    view.page.evaluate("(answer) => window.model.set('outputs', answer)", contract.compute({}))
    view.frames()
    assert view.page.evaluate(RESULTS) == before


@pytest.mark.browser
@every
def test_fits_every_width_and_passes_axe(open_page, contract):
    """As it opens, with all that it can show (in one look each), and with all of it open and a refusal."""
    view = contract.open(open_page, reduced_motion="reduce")
    states = [contract.home, *({**contract.home, **inputs} for inputs in contract.states)]
    assert view.problems(*states) == []
    view.set(states[1])
    view.page.evaluate("document.querySelectorAll('details').forEach((el) => (el.open = true))")
    name, _ = contract.refused[0]
    view.type(name, LONG)
    assert view.row(name).get_by_role("alert").is_visible()
    assert view.problems() == []


@pytest.fixture(scope="module")
def notebook() -> Iterator[Kernel]:
    with kernel("import playbook_widgets") as running:
        yield running


SAYS = "([place, text]) => document.querySelector(place)?.innerText.includes(text)"


@pytest.mark.browser
@every
def test_over_a_real_kernel(notebook, open_page, contract):
    notebook.execute(f"playbook_widgets.{contract.name}({contract.home!r})")
    page = draw_over_kernel(open_page, notebook)
    assert contract.says({}) in page.locator(contract.answer).inner_text()
    control, inputs = contract.move()
    page.locator(control).press("ArrowRight")
    page.wait_for_function(SAYS, arg=[contract.answer, contract.says(inputs)])
    assert notebook.state["inputs"] == {**contract.home, **inputs}
    assert notebook.state["outputs"] == contract.compute(inputs)


@pytest.mark.browser
def test_in_the_static_page_python_answers_and_the_address_keeps_the_state(open_page):
    """All of them on one page, with one Python: a link, a move of the reader's, and the link that it makes."""
    html = "".join(contract.widget(contract.states[-1]).static_html() for contract in CONTRACTS)
    page = open_page(html)
    for contract in CONTRACTS:
        name, (control, inputs) = contract.widget.name, contract.move()
        link = "&".join(f"{key}={value}" for key, value in contract.home.items())
        page.evaluate("(hash) => (location.hash = hash)", f"#{name}?{link}")
        answer = f"#{name} {contract.answer}"
        page.wait_for_function(SAYS, arg=[answer, contract.says({})])
        page.locator(f"#{name} {control}").press("ArrowRight")
        page.wait_for_function(SAYS, arg=[answer, contract.says(inputs)])
        said = in_module(page, contract.widget.script, "m.encode(x)", {**contract.home, **inputs})
        page.wait_for_function("(hash) => location.hash === hash", arg=f"#{name}?{said}")
