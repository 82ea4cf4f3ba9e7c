"""A widget's homes, driven for real: a Jupyter kernel spoken to as JupyterLab does, and the static page.

``kernel`` runs a cell that makes a widget and keeps its traits in step through comm messages. ``draw_over_kernel`` draws
the widget's own module in Chromium over that kernel: a click goes the whole way, page, kernel, Python, kernel, page.
``static_page`` draws it as the built book does, with Python in the browser. ``bridged_page`` draws it as the page does,
but over the test's own Python, which answers at once: there most of a widget's tests live, with a ``Form`` to type into.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from colour_vision import VISIONS, difference, lab
from jupyter_client.manager import start_new_kernel
from playbook_widgets import Widget

SECONDS = 60
AXE = Path(__file__).parents[1] / "widgets" / "node_modules" / "axe-core" / "axe.min.js"


class Kernel:
    """A kernel in which ``code``, whose last line is a widget, has run; ``state`` holds the widget's synced traits."""

    def __init__(self, code: str):
        self.manager, self.client = start_new_kernel()
        self.state: dict[str, Any] = {}
        self.comm = ""
        self.execute(code)

    def execute(self, code: str) -> None:
        """Run a cell; raises with its traceback if it fails."""
        self._wait(self.client.execute(code))

    def update(self, **traits: Any) -> dict[str, Any]:
        """Set traits from the front end, as a widget's ``save_changes`` does; the state after the kernel's answer."""
        data = {"method": "update", "state": traits, "buffer_paths": []}
        message = self.client.session.msg("comm_msg", {"comm_id": self.comm, "data": data})
        self.client.shell_channel.send(message)
        self.state.update(traits)
        self._wait(message["header"]["msg_id"])
        return self.state

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)

    def _wait(self, parent: str) -> None:
        """Read messages until the kernel has finished with ``parent``."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            message = self.client.get_iopub_msg(timeout=SECONDS)
            if message["parent_header"].get("msg_id") != parent:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "error":
                raise RuntimeError("\n".join(content["traceback"]))
            if kind == "status" and content["execution_state"] == "idle":
                return
            self._hear(kind, content)
        raise TimeoutError(f"the kernel has not answered within {SECONDS} s")

    def _hear(self, kind: str, content: dict[str, Any]) -> None:
        state = content.get("data", {}).get("state", {})
        if kind == "comm_open" and "_esm" in state:
            self.comm, self.state = content["comm_id"], dict(state)
        elif kind == "comm_msg" and content["comm_id"] == self.comm:
            self.state.update(state)


@contextmanager
def kernel(code: str) -> Iterator[Kernel]:
    """A ``Kernel`` that is gone afterwards."""
    running = Kernel(code)
    try:
        yield running
    finally:
        running.close()


# The model that anywidget gives a module, over two functions of the test: one reads the state, one sends changes.
PAGE = """<style id="style"></style><div id="stage"></div><script type="module">
const state = await window.kernelState(), listeners = new Map();
const emit = (event) => [...(listeners.get(event) ?? [])].forEach((callback) => callback());
const dirty = new Set();
const model = {
  get: (key) => state[key],
  set: (key, value) => { state[key] = value; dirty.add(key); emit(`change:${key}`); },
  on: (event, callback) => listeners.set(event, (listeners.get(event) ?? new Set()).add(callback)),
  off: (event, callback) => callback ? listeners.get(event)?.delete(callback) : listeners.delete(event),
  save_changes: async () => {
    const sent = Object.fromEntries([...dirty].map((key) => [key, state[key]]));
    dirty.clear();
    const answer = await window.kernelUpdate(JSON.stringify(sent));
    for (const [key, value] of Object.entries(JSON.parse(answer))) {
      if (key in sent) continue;
      state[key] = value;
      emit(`change:${key}`);
    }
  },
};
document.getElementById("style").textContent = state._css;
const module = URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" }));
const widget = await import(module);
await widget.default.render({ model, el: document.getElementById("stage") });
document.body.dataset.drawn = "yes";
</script>"""


def draw_over_kernel(open_page: Callable, running: Kernel, **options: Any):
    """A page with the module and the style that the kernel sent, drawn over the kernel's live widget."""

    def update(text: str) -> str:
        before = dict(running.state)
        after = running.update(**json.loads(text))
        return json.dumps({key: value for key, value in after.items() if value != before[key]})

    page = open_page(PAGE, expose={"kernelState": lambda: running.state, "kernelUpdate": update}, **options)
    page.wait_for_function("document.body.dataset.drawn == 'yes'")
    return page


def static_page(open_page: Callable, widget: Widget, **options: Any):
    """A page as the built book has it, once the widget is drawn."""
    page = open_page(widget.static_html(), **options)
    page.wait_for_selector(".pb-widget[data-state=ready]")
    return page


# The page runtime's model, with the test's own Python in place of the one in the page; ``model``, ``close``
# and ``settled``, which waits for the answers that Python owes, are the test's.
BRIDGE = """<style>
html[data-theme=dark] {{ color-scheme: dark; --pst-color-background: #14181e; --pst-color-link: #84b4fa }}
html {{ --pst-color-background: #fff; --pst-color-link: #1b5fc4 }}</style>
{sheets}
<div id="stage"></div><script type="application/json" id="state">{state}</script><script type="module">
const {{ Model }} = await import("./pb/host.mjs"), module = (await import("./pb/{esm}")).default, owed = new Set();
class Bridged extends Model {{
  async save_changes() {{
    const answer = this.ask();
    owed.add(answer);
    await answer;
    owed.delete(answer);
  }}
  async ask() {{
    const asked = this.get("inputs"), text = await window.compute(JSON.stringify(asked));
    if (this.get("inputs") === asked) this.set("outputs", JSON.parse(text));
  }}
}}
window.settled = async () => {{ while (owed.size) await Promise.all(owed) }};
const state = JSON.parse(document.querySelector("#state").textContent);
window.model = new Bridged({{ ...state, status: "idle", link: "http://127.0.0.1/#{name}?" }});
window.close = module.render({{ model: window.model, el: document.querySelector("#stage") }});
document.body.dataset.ready = "yes";
</script>"""


@lru_cache(maxsize=200)
def answer(function: Callable[[dict], dict], asked: str) -> str:
    """What Python says: several tests ask it the same."""
    return json.dumps(function(json.loads(asked)))


def bridged_page(open_page: Callable, widget: Widget, **options: Any):
    """A page with the widget drawn over the test's own Python; ``window.model`` is its model, ``close`` takes it away."""
    spec, function = widget.spec(), widget.function()
    state = json.dumps(spec["state"]).replace("<", "\\u003c")
    sheets = "".join(f'<link rel="stylesheet" href="pb/{css}">' for css in ("widgets.css", *spec["css"]))
    html = BRIDGE.format(**{**spec, "sheets": sheets, "state": state})
    page = open_page(html, expose={"compute": partial(answer, function)}, **options)
    page.wait_for_selector("body[data-ready]")
    return page


LOOKS = ((1280, "light"), (390, "dark"))
FRAMES = "new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))"
#: By how many px the page is wider than the window, and what is cut off by its own place.
TOO_WIDE = """() => {
  const cut = (el) => {
    const { display, fontSize, textOverflow } = getComputedStyle(el);
    return el.clientWidth && el.scrollWidth > el.clientWidth + 1 && display !== "inline" && fontSize !== "0px"
      && textOverflow !== "ellipsis";
  };
  const out = (el) => {
    const at = el.getBoundingClientRect(), box = el.ownerSVGElement.getBoundingClientRect();
    return box.width && at.width && (at.left < box.left - 3 || at.right > box.right + 3 || at.bottom > box.bottom + 4);
  };
  const field = "input[type=text]:not([aria-invalid=true])";
  const whole = `#stage :is(label, button, ${field}, b, i:not([data-kind=tick]), span, p, th, td, li, h3)`;
  const found = [...document.querySelectorAll(whole)].filter((el) => !el.childElementCount && cut(el)
    && !el.closest(".pb-unseen, .pb-scroll, .pb-scroll *"));
  found.push(...[...document.querySelectorAll("#stage svg text")].filter(out));
  const wide = document.documentElement.scrollWidth - innerWidth;
  return [...(wide > 0 ? [`${wide} px too wide`] : []), ...found.map((el) => `cut off: ${el.outerHTML.slice(0, 200)}`)];
}"""
# What axe-core finds serious. After its first look at a page in a theme it looks at what is of another kind than all that
# it has seen there, once: another tag, class or colour, other attributes, or in something of another kind.
SERIOUS = """async (theme) => {
  document.documentElement.dataset.theme = theme;
  const seen = ((window.seen ??= {})[theme] ??= new Set()), kinds = new Map(), first = !seen.size, fresh = new Set();
  for (const el of document.querySelectorAll("main, main *")) {
    const { color, backgroundColor, fill, opacity, fontSize, fontWeight } = getComputedStyle(el);
    const own = [...el.attributes].map(({ name, value }) => /^(class|role|type)$/.test(name) ? value : [name, !value]);
    const kind = [kinds.get(el.parentElement), el.tagName, color, backgroundColor, fill, opacity, fontSize, fontWeight,
      el.checkVisibility({ visibilityProperty: true }), !el.textContent.trim(), !el.childElementCount, ...own].join();
    kinds.set(el, kind);
    if (seen.size !== seen.add(kind).size || first) fresh.add(el);
  }
  if (!fresh.size) return [];
  const grave = axe._audit.rules.filter(({ impact }) => ["serious", "critical"].includes(impact));
  for (const rule of grave) {
    const matches = (rule.judges ??= rule.matches);
    rule.matches = (node, ...more) => fresh.has(node) && matches.call(rule, node, ...more);
  }
  const slight = axe._audit.rules.filter((rule) => !grave.includes(rule)).map(({ id }) => [id, { enabled: false }]);
  const asked = { resultTypes: ["violations"], preload: false, rules: Object.fromEntries(slight) };
  const { violations } = await axe.run("main", asked);
  return violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`);
}"""
PROBLEMS = f"""async (theme) => {{
  await {FRAMES};
  return [...({TOO_WIDE})(), ...(theme ? await ({SERIOUS})(theme) : [])];
}}"""
SET = """(inputs) => {
  window.model.set("inputs", inputs);
  window.model.save_changes();
  return window.settled();
}"""
TYPE = """([field, text]) => {
  const box = document.querySelector(`[data-field="${field}"] input[type=text]`);
  if (!box.checkVisibility() || box.disabled) throw new Error(`${field} cannot be typed`);
  box.focus();
  box.value = text;
  box.dispatchEvent(new Event("input", { bubbles: true }));
  box.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true }));
  return window.settled();
}"""
# What a change makes and throws away again.
WASTED = """([change, values]) => {
  const made = new MutationObserver(() => {}), apply = eval(change);
  made.observe(document.querySelector("#stage"), { childList: true, subtree: true });
  return values.flatMap((value) => {
    apply(value);
    const added = new Set(made.takeRecords().flatMap((record) => [...record.addedNodes]));
    return [...added].filter((node) => !node.isConnected).map((node) => node.outerHTML ?? node.textContent);
  });
}"""
HOLD = """() => {
  const answer = window.compute;
  window.compute = (text) => new Promise((go) => (window.go = () => go(answer(text))));
  window.settled = () => null;
}"""
TIMERS = """() => {
  const waiting = new Map();
  let last = 0;
  window.setTimeout = (call) => (waiting.set(++last, call), last);
  window.clearTimeout = (id) => waiting.delete(id);
  window.elapse = () => [...waiting].forEach(([id, call]) => (waiting.delete(id), call()));
}"""


def stop_time(page) -> Callable[[], None]:
    """From now on what the page does later happens when the function that this returns is called."""
    page.evaluate(TIMERS)
    return lambda: page.evaluate("window.elapse()")


class Form:
    """A widget on a ``bridged_page`` as a reader meets it; ``prefix`` is that of its classes."""

    prefix = ""

    def __init__(self, page):
        self.page = page

    def text(self, name: str) -> str:
        return self.page.locator(f".pb-{self.prefix}-{name}").first.inner_text()

    def inputs(self) -> dict:
        return self.page.evaluate("window.model.get('inputs')")

    def set(self, inputs: dict) -> None:
        """As a link does."""
        self.page.evaluate(SET, inputs)

    def settle(self) -> None:
        """Until the outputs are those of the inputs."""
        self.page.evaluate("window.settled()")

    def frames(self) -> None:
        """Until all that was asked for is painted."""
        self.page.evaluate(FRAMES)

    def hold(self) -> None:
        """From now on Python takes its time: it answers when ``release`` says so."""
        self.page.evaluate(HOLD)

    def release(self) -> None:
        self.page.evaluate("window.go()")

    def row(self, field: str):
        """The control of a field, with its label and its refusal."""
        return self.page.locator(f'[data-field="{field}"]')

    def type(self, field: str, text: str) -> None:
        """As the keyboard does."""
        self.page.evaluate(TYPE, [field, text])

    def button(self, name: str):
        return self.page.get_by_role("button", name=name, exact=True)

    def problems(self, *states: dict) -> list:
        """What axe-core finds serious, what sticks out and what is cut off: as it stands, or in each of these states.

        At every width; by axe-core the first state is looked at in both looks, of the others each in one.
        """
        page, found = self.page, []
        if not page.evaluate("'axe' in window"):
            page.add_script_tag(path=str(AXE))
        for i, state in enumerate(states or [None]):
            if state:
                self.set(state)
            for turn, (width, theme) in enumerate((*LOOKS, (760, ""))):
                page.set_viewport_size({"width": width, "height": 900})
                judged = theme if i == 0 or i % 2 == turn else ""
                found += [(width, theme, state, one) for one in page.evaluate(PROBLEMS, judged)]
        return found

    def wasted(self, change: str, values: list) -> list:
        """Elements that ``change`` of each of ``values``, a function of the page, made in vain: drawn twice."""
        return self.page.evaluate(WASTED, [change, values])

    def elements(self) -> int:
        """Of how many elements the widget consists."""
        return self.page.locator("#stage *").count()


def showing(form: type[Form], widget: Any) -> Any:
    """A fixture: ``show(inputs)`` draws the widget for a reader."""

    @pytest.fixture
    def show(open_page: Callable) -> Callable:
        return lambda inputs=None, **options: form(bridged_page(open_page, widget(inputs), **options))

    return show


BACKGROUNDS = {"light": (255, 255, 255), "dark": (0x14, 0x18, 0x1E)}


def rgb(colour: str) -> list[float]:
    """Red, green and blue (to 255) of a colour as browsers compute it."""
    parts = [float(part) for part in re.findall(r"[\d.]+", colour.partition("(")[2].removeprefix("srgb"))[:3]]
    return [255 * part for part in parts] if "srgb" in colour else parts


def apart(colours: dict[str, Sequence[float]]) -> None:
    """Fails unless every two of the colours look different to every eye."""
    for vision, (one, a), (other, b) in product(VISIONS, colours.items(), colours.items()):
        seen = [lab("#" + "".join(f"{round(part):02x}" for part in colour), vision) for colour in (a, b)]
        assert one == other or difference(*seen) >= 12, (vision, one, other, colours)


def in_module(page, file: str, expression: str, argument: Any = None) -> Any:
    """What an expression comes to where ``m`` is a module of the page and ``x`` the argument."""
    code = f"async (x) => {{ const m = await import('./pb/{file}'); return {expression} }}"
    return page.evaluate(code, argument)
