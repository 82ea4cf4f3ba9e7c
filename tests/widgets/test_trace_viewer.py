"""The trace viewer: its data in Python, its behaviour in a real browser on a profiled transformer step."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from playbook_widgets.trace_viewer import TraceViewer, compact
from torch.profiler import ProfilerActivity, profile, record_function
from widget_homes import AXE, TIMERS, in_module

from playbook import shapes
from playbook.figures import PALETTE
from playbook.instruments.trace import Event, Lane, Trace
from playbook.model.transformer import Transformer
from playbook_book.instruments.recorder import Recorder


@pytest.fixture(scope="module")
def step() -> Trace:
    """A profiled training step of the tiny model."""
    torch.manual_seed(0)
    model = Transformer(shapes.load("tiny"))
    tokens = torch.randint(0, 256, (1, 64))
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as prof:
        with record_function("forward"):
            loss, _ = model.loss(tokens, tokens)
        with record_function("backward"):
            loss.backward()
    return Trace.from_profiler(prof)


def two_streams() -> Trace:
    """host: launches at 0 and 10 µs, a wait [20, 100); compute [30, 60) and [60, 90); copy stream [40, 100)."""
    events = [
        Event("launch a", 0, 0, 5, "launch"),
        Event("launch b", 0, 10, 5, "launch"),
        Event("synchronize", 0, 20, 80, "idle"),
        Event("kernel a", 1, 30, 30, "compute", {"grid": [4, 1, 1]}),
        Event("kernel b", 1, 60, 30, "compute"),
        Event("all-reduce", 2, 40, 60, "communication"),
    ]
    lanes = [Lane("host"), Lane("stream 1", "stream"), Lane("stream 2", "stream")]
    return Trace(lanes, events, [(0, 3), (1, 4)])


def many(count: int, seed: int = 0) -> Trace:
    """``count`` nested events on four lanes."""
    rng = random.Random(seed)
    lanes = [Lane("host"), *(Lane(f"stream {i}", "stream") for i in range(3))]
    events, clock = [], [0.0] * 4
    while len(events) < count:
        lane, length = rng.randrange(4), rng.uniform(2, 50)
        category = rng.choice(["compute", "communication", "memory"])
        events.append(Event(f"op {rng.randrange(60)}", lane, clock[lane], length, category))
        if rng.random() < 0.5:
            events.append(
                Event(f"inner {rng.randrange(60)}", lane, clock[lane] + 1, length / 2 - 1, "compute")
            )
        clock[lane] += length + rng.uniform(0, 5)
    return Trace(lanes, events[:count])


# --- the data


def test_compact_gives_back_every_event_to_the_nanosecond(step):
    data = compact(step)
    starts = list(itertools.accumulate(data["events"]["start"]))
    for i, event in enumerate(step.events):
        assert data["names"][data["events"]["name"][i]] == event.name
        assert data["categories"][data["events"]["category"][i]][:2] == [
            event.category,
            PALETTE[event.category],
        ]
        assert starts[i] == round(event.start * 1000)
        assert data["events"]["duration"][i] == round(event.duration * 1000)
        arguments = data["events"]["args"][i]
        assert (data["args"][arguments] if arguments >= 0 else {}) == event.args
    assert data["lanes"] == [[lane.name, lane.kind] for lane in step.lanes]


def test_two_thousand_real_events_stay_below_150_kB(step):
    trace = step.longest(2000)
    assert len(trace) > 1000
    assert len(TraceViewer(trace).static_html().encode()) < 150_000 * len(trace) / 2000


def test_a_long_trace_keeps_its_longest_events_and_says_so():
    viewer = TraceViewer(many(300), max_events=100)
    assert len(viewer.outputs["events"]["name"]) == 100
    assert viewer.outputs["dropped"] == 200
    assert "the longest of 300" in viewer.summary()


def test_phases_around_work_are_marked():
    recorder = Recorder()
    with recorder.span("forward", category="F"), recorder.span("matmul"):
        pass
    kinds = {name: kind for name, _, kind in compact(recorder.trace())["categories"]}
    assert kinds == {"F": "phase", "compute": "work"}
    alone = Trace([Lane("rank 0")], [Event("F0", 0, 0, 1, "F")])
    assert compact(alone)["categories"][0][2] == "work"


def test_summary_tells_lanes_in_words():
    text = TraceViewer(two_streams(), title="Step").summary()
    assert "Step: 6 events on 3 lanes over 100 µs." in text
    assert "<td>stream 1</td><td>60 µs (60%)</td><td>40 µs</td><td>compute</td>" in text


def test_an_empty_trace_has_a_viewer():
    assert "0 events on 0 lanes" in TraceViewer(Trace([], [])).summary()


# --- the pure functions of the module, against Python's


def call(page, expression: str, trace: Trace):
    code = f"(() => {{ const t = x && m.decode(x); return ({expression}) }})()"
    return in_module(page, "trace_viewer/trace.mjs", code, compact(trace))


@pytest.mark.browser
def test_browser_and_python_agree_on_times(open_page, step):
    page = open_page("")
    for trace in (step, many(500)):
        assert call(page, "[...t.own]", trace) == pytest.approx(trace.self_times(), abs=0.01)
        busy = call(page, "m.busyPerLane(t, t.low, t.high)", trace)
        assert busy == pytest.approx([lane.busy for lane in trace.summary()], rel=1e-4)
        low, high = 0.3 * trace.duration, 0.6 * trace.duration
        cut = {lane.lane: lane.busy for lane in trace.trim(low, high).summary()}
        window = call(page, f"m.busyPerLane(t, {low}, {high})", trace)
        assert window == pytest.approx([cut.get(lane.name, 0) for lane in trace.lanes], rel=1e-3)
        top = call(page, "m.topNames(t, 5)", trace)
        assert [row["name"] for row in top] == [row.name for row in trace.top(5)]
        assert [row["total"] for row in top] == pytest.approx([row.total for row in trace.top(5)], rel=1e-4)


@pytest.mark.browser
def test_times_are_written_in_sensible_units(open_page):
    times = {0: "0 µs", 0.25: "250 ns", 12.34: "12.3 µs", 1234: "1.23 ms", 2.5e6: "2.5 s"}
    found = in_module(open_page(""), "trace_viewer/trace.mjs", "x.map((us) => m.formatTime(us))", [*times])
    assert found == [*times.values()]


@pytest.mark.browser
def test_ticks_are_round_and_share_a_unit(open_page):
    page = open_page("")
    shown = call(
        page, "(() => { const k = m.ticks(0, 1234, 800); return k.values.map(k.label) })()", two_streams()
    )
    assert shown[:3] == ["0.0 ms", "0.2 ms", "0.4 ms"]
    shown = call(
        page, "(() => { const k = m.ticks(3.2, 4.1, 500); return k.values.map(k.label) })()", two_streams()
    )
    assert shown == ["3.2 µs", "3.4 µs", "3.6 µs", "3.8 µs", "4.0 µs"]


# --- the viewer in the page


class Timeline:
    """The viewer as a reader meets it."""

    def __init__(self, page):
        self.page = page
        page.wait_for_selector(".pb-widget[data-state=ready]")
        self.stage = page.locator(".pb-trace-stage")
        self.tip = page.locator(".pb-trace-tip")
        self.settle()

    def settle(self):
        self.page.evaluate("() => new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)))")

    def press(self, *keys: str):
        for key in keys:
            self.page.keyboard.press(key)
        self.settle()

    def window(self) -> list[float] | None:
        """Start and end of what is shown (µs), as the model learns it; None when all of it is."""
        self.page.evaluate("window.elapse()")
        return self.page.evaluate("window.model.get('inputs').window")

    def colours(self, pixels: int = 150) -> set[str]:
        """The opaque colours of at least so many pixels of the canvas."""
        return set(
            self.page.evaluate(
                """(least) => { const c = document.querySelector(".pb-trace-stage canvas"), seen = {};
                const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data;
                for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) {
                  const k = "#" + [d[i], d[i+1], d[i+2]].map((v) => v.toString(16).padStart(2, "0")).join("");
                  seen[k] = (seen[k] ?? 0) + 1 }
                return Object.keys(seen).filter((k) => seen[k] >= least) }""",
                pixels,
            )
        )


# The runtime keeps the model to itself; the test listens at its constructor's only side effect, structuredClone.
SPY = """const clone = structuredClone; window.structuredClone = (s) => { const c = clone(s);
  window.model = { get: (k) => c[k] }; return c }"""  # and time passes when the test says so


@pytest.fixture
def timeline(open_page):
    def show(trace: Trace, timers: str = TIMERS, **options) -> Timeline:
        html = f"<script>{SPY}; ({timers})()</script>" + TraceViewer(trace, title="Step").static_html()
        return Timeline(open_page(html, **options))

    return show


@pytest.mark.browser
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_draws_a_real_step_in_the_colours_of_the_book(timeline, step, theme):
    view = timeline(step, theme=theme)
    assert view.colours() >= {PALETTE["compute"], PALETTE["B"]}
    text = view.page.locator(".pb-trace").inner_text()
    assert f"{len(step)} events" in text
    assert view.page.locator(".pb-widget-summary").is_hidden()


@pytest.mark.browser
def test_text_follows_the_theme_when_it_changes(timeline):
    view = timeline(two_streams())
    light, dark = "#222222", "#ced6dd"
    assert light in view.colours(10)
    assert dark not in view.colours(10)
    view.page.evaluate("document.documentElement.dataset.theme = 'dark'")
    view.settle()
    assert dark in view.colours(10)
    assert light not in view.colours(10)
    assert view.colours() >= {PALETTE["compute"], PALETTE["communication"]}


@pytest.mark.browser
def test_new_outputs_from_the_kernel_are_drawn_and_closing_stops_listening(open_page):
    page = open_page("<div id=here></div>")
    said = page.evaluate(
        """async ([first, second]) => {
          const { Model } = await import("./pb/host.mjs"), viewer = (await import("./pb/trace_viewer.mjs")).default;
          const el = document.querySelector("#here"), model = new Model({ inputs: {}, outputs: first });
          const close = viewer.render({ model, el }), before = el.innerText;
          model.set("outputs", second);
          el.querySelector("input").value = "all-";
          el.querySelector("input").dispatchEvent(new Event("input"));
          const after = el.innerText;
          close();
          model.set("outputs", first);
          return [before, after, el.innerText];
        }""",
        [{**compact(many(40)), "title": "One"}, {**compact(two_streams()), "title": "Two"}],
    )
    assert "40 events" in said[0]
    assert "6 events" in said[1]
    assert "1 found · 60 µs" in said[1]
    assert said[2] == said[1]


@pytest.mark.browser
def test_buttons_and_keys_zoom_and_move(timeline):
    view = timeline(two_streams())
    assert view.window() is None
    view.page.get_by_role("button", name="Zoom in").click()
    assert view.window() == pytest.approx([25, 75])
    view.stage.focus()
    view.press("ArrowRight")
    assert view.window() == pytest.approx([32.5, 82.5])
    view.press("ArrowLeft", "ArrowLeft", "+")
    assert view.window() == pytest.approx([30, 55])
    view.press("-", "-", "-")
    assert view.window() is None
    view.press("+", "0")
    assert view.window() is None


@pytest.mark.browser
def test_wheel_zooms_only_with_ctrl(timeline):
    view = timeline(two_streams())
    box = view.stage.bounding_box()
    view.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 60)
    view.page.mouse.wheel(0, 100)
    assert view.window() is None
    view.page.keyboard.down("Control")
    view.page.mouse.wheel(0, -120)
    view.page.keyboard.up("Control")
    low, high = view.window()
    assert high - low == pytest.approx(100 / 2.71828, rel=0.01)
    assert low + (high - low) / 4 == pytest.approx(25, abs=0.1)  # the time under the pointer stays there


@pytest.mark.browser
def test_dragging_moves_and_shift_measures(timeline):
    view = timeline(two_streams())
    view.page.get_by_role("button", name="Zoom in").click()
    box = view.stage.bounding_box()
    middle = box["y"] + 60
    view.page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + box["width"] * 0.7, middle, steps=4)
    view.page.mouse.up()
    assert view.window() == pytest.approx([15, 65], abs=0.2)
    view.page.get_by_role("button", name="Show the whole trace").click()
    view.page.get_by_role("button", name="Measure").click()
    view.page.mouse.move(box["x"] + box["width"] * 0.30, middle)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + box["width"] * 0.50, middle, steps=4)
    view.page.mouse.up()
    said = view.page.locator(".pb-trace-range").inner_text()
    assert "Selected 20 µs, from 30 µs to 50 µs" in said
    rows = [line.split("\t") for line in said.splitlines() if "busy" in line]
    assert [row[:2] for row in rows] == [
        ["host", "0 % busy"],
        ["stream 1", "100 % busy"],
        ["stream 2", "50 % busy"],
    ]
    view.page.get_by_role("button", name="Clear").click()
    assert view.page.locator(".pb-trace-range").is_hidden()


@pytest.mark.browser
def test_two_fingers_pinch(timeline):
    view = timeline(two_streams(), has_touch=True)
    box = view.stage.bounding_box()
    client = view.page.context.new_cdp_session(view.page)

    def touch(kind: str, *places: float):
        points = [
            {"x": box["x"] + box["width"] * p, "y": box["y"] + 60, "id": i} for i, p in enumerate(places)
        ]
        client.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", 0.4, 0.6)
    touch("touchMove", 0.3, 0.7)
    touch("touchMove", 0.2, 0.8)
    touch("touchEnd")
    low, high = view.window()
    assert high - low == pytest.approx(100 / 3, rel=0.05)
    assert (low + high) / 2 == pytest.approx(50, abs=1)


@pytest.mark.browser
def test_hovering_tells_about_an_event_and_its_launch(timeline):
    view = timeline(two_streams())
    box = view.stage.bounding_box()
    assert view.tip.is_hidden()
    found = None
    for y in range(30, int(box["height"]), 8):  # down the column at 45 µs, where kernel a runs
        view.page.mouse.move(box["x"] + box["width"] * 0.45, box["y"] + y)
        view.settle()
        if view.tip.is_visible() and "kernel a" in view.tip.inner_text():
            found = view.tip.inner_text()
            break
    assert found, "no tooltip over kernel a"
    for words in ("30 µs", "compute", "stream 1", "launch a", "in the queue", "[4,1,1]"):
        assert words in found
    view.page.mouse.move(5, 5)
    view.settle()
    assert view.tip.is_hidden()


@pytest.mark.browser
def test_the_keyboard_reaches_every_event(timeline):
    view = timeline(two_streams())
    view.page.get_by_role("button", name="Measure").focus()
    for _ in range(8):  # past the legend
        view.press("Tab")
        if view.page.evaluate("document.activeElement.classList.contains('pb-trace-stage')"):
            break
    view.press(".")
    assert "launch a" in view.tip.inner_text()
    view.press(".")
    assert "launch b" in view.tip.inner_text()
    view.press("ArrowDown")
    assert "kernel a" in view.tip.inner_text()
    assert "kernel a, start 30 µs, duration 30 µs" in view.page.locator("[aria-live]").inner_text()
    view.press(".", "m")
    assert "Selected 30 µs" in view.page.locator(".pb-trace-range").inner_text()
    view.press("Enter")
    low, high = view.window()
    assert low < 60 < 90 < high < 95
    view.press("Escape")
    assert view.tip.is_hidden()
    assert view.page.locator(".pb-trace-range").is_hidden()


@pytest.mark.browser
def test_the_tooltip_reads_well_inside_jupyterlab(timeline):
    """JupyterLab floats every ``dt`` in a fifth of the width, and cuts an output off at the edge of its box."""
    view = timeline(two_streams())
    view.page.add_style_tag(
        content="main dl dt { float: left; width: 20%; padding: 0 8px } main { overflow: hidden }"
    )
    view.stage.focus()
    view.press(".", "ArrowDown", "ArrowDown")
    assert "all-reduce" in view.tip.inner_text()  # on the lowest row
    tip, root = view.tip.bounding_box(), view.page.locator(".pb-trace").bounding_box()
    assert tip["y"] + tip["height"] <= root["y"] + root["height"]
    for term in view.tip.locator("dt").all():
        box = term.bounding_box()
        assert box["height"] < 30, f"{term.inner_text()!r} is broken into lines"


@pytest.mark.browser
def test_finding_and_fading(timeline):
    view = timeline(two_streams())
    find = view.page.get_by_label("Find")
    find.fill("KERNEL")
    view.settle()
    assert "2 found · 60 µs" in view.page.locator(".pb-trace").inner_text()
    assert PALETTE["communication"] not in view.colours()
    assert PALETTE["compute"] in view.colours()
    find.press("Enter")
    assert "kernel a" in view.page.locator("[aria-live]").inner_text()
    find.fill("")
    view.page.get_by_role("button", name="compute").click()
    view.settle()
    assert PALETTE["compute"] not in view.colours()
    assert PALETTE["communication"] in view.colours()


@pytest.mark.browser
def test_legend_adds_up_and_is_printed_without_controls(timeline):
    view = timeline(two_streams())
    legend = view.page.locator(".pb-trace-legend").inner_text().split("\n")
    assert {" ".join(line.split()) for line in legend if line.strip()} == {
        "idle 80 µs",
        "compute 60 µs",
        "communication 60 µs",
        "launch 10 µs",
    }
    view.page.emulate_media(media="print")
    assert view.page.locator(".pb-trace-tools").is_hidden()
    assert view.page.locator(".pb-trace-legend").is_visible()
    assert view.stage.is_visible()


@pytest.mark.browser
def test_fits_a_phone_and_passes_axe(timeline, step):
    view = timeline(step, width=390, timers="() => null")  # axe-core has timers of its own
    view.page.locator("details").first.locator("summary").click()
    assert view.page.evaluate("document.documentElement.scrollWidth") <= 390
    view.page.add_script_tag(path=str(AXE))
    for theme in ("light", "dark"):
        view.page.evaluate("(theme) => (document.documentElement.dataset.theme = theme)", theme)
        view.settle()
        result = view.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
        assert [(v["id"], v["nodes"][0]["html"][:120]) for v in result["violations"]] == []


@pytest.mark.browser
def test_of_five_thousand_events_a_frame_draws_what_can_be_seen(timeline):
    """Calls of the canvas, in the frame after each key: far fewer than a rectangle and a name for each event."""
    view = timeline(many(5000))
    frames = view.page.evaluate(
        """async () => { const stage = document.querySelector(".pb-trace-stage"), calls = [];
        const c = CanvasRenderingContext2D.prototype;
        for (const name of ["fillRect", "strokeRect", "fillText", "fill", "stroke"]) {
          const draw = c[name];
          c[name] = function (...a) { calls[calls.length - 1] += 1; return draw.apply(this, a) };
        }
        stage.focus();
        for (const key of ["+", "+", "ArrowRight", "-", "0", "+", "ArrowLeft", "+", "-", "-"]) {
          calls.push(0);
          stage.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
          await new Promise((r) => requestAnimationFrame(() => requestAnimationFrame(r)));
        }
        return calls }"""
    )
    assert min(frames) > 0
    assert max(frames) < 5000, frames
