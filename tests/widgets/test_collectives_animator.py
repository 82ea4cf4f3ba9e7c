"""The collectives animator: what it draws is the plan, replayed; a reader plays it, steps through it, and changes it."""

from __future__ import annotations

import itertools
import json
import re
from functools import partial

import pytest
from playbook_widgets import CollectivesAnimator
from playbook_widgets.collectives_animator import ABOUT, COLLECTIVES, NAMES, constants, sizes
from playbook_widgets.compute.animation import BYTES, DEFAULTS, NETWORKS, RANKS, compute, read
from widget_homes import Form, in_module, showing, stop_time

from playbook_book.collectives.plans import ALGORITHMS
from playbook_book.replay import end, replay

CONTROLS = {control["field"]: control for control in constants()["controls"]}
TWO_LEVELS = {"collective": "all_reduce", "algorithm": "two_level", "ranks": 6, "ranks_per_node": 3}


# --- in Python


def test_every_setting_is_a_control():
    assert set(CONTROLS) == set(DEFAULTS) - {"step"}


def test_every_collective_algorithm_and_network_has_a_name():
    assert set(COLLECTIVES) == set(ALGORITHMS) == set(ABOUT)
    for collective, algorithms in ALGORITHMS.items():
        assert set(ABOUT[collective]) == set(algorithms) <= set(NAMES)
        assert [name for name, *_ in constants()["collectives"][collective]["algorithms"]] == list(algorithms)
    assert [name for name, _ in CONTROLS["cluster"]["choices"]] == list(NETWORKS)


def test_stops_rise_and_stay_within_what_is_allowed():
    for field, (least, most) in {"ranks": RANKS, "bytes": BYTES}.items():
        stops = CONTROLS[field]["stops"]
        assert stops == sorted(set(stops))
        assert least <= stops[0] < stops[-1] <= most
    assert sizes(1000, 12_000) == [1000, 2000, 5000, 10_000]


def test_the_summary_says_what_every_message_carries():
    widget = CollectivesAnimator({"ranks": 4, "bytes": "4 MB"})
    text = widget.summary()
    assert "All-reduce of 4 000 000 bytes among 4 ranks, ring: 6 steps, 37.1 µs by the α–β model" in text
    assert "The busiest rank sends 6 000 000 bytes (2(N − 1)/N · K)." in text
    assert "The naive algorithm takes 6 steps and 87.1 µs." in text
    assert text.count("<tr>") == 1 + 6
    for message in read(widget.inputs).plan().messages:
        how = "added" if message.reduce else "kept"
        assert re.search(rf"{message.source} → {message.target} chunk \d, 1 000 000 B {how}", text)


@pytest.mark.parametrize("collective", ALGORITHMS)
def test_every_summary_can_be_written(collective):
    for algorithm in ALGORITHMS[collective]:
        text = CollectivesAnimator({"collective": collective, "algorithm": algorithm, "ranks": 4}).summary()
        assert COLLECTIVES[collective][0] in text
        assert ("naive algorithm takes" in text) == (algorithm != "naive")


# --- in the browser: the module over real Python

# A step, as a reader sees it: rows of a folded table, for each cell of a result its state and how many ranks are in it,
# the rows of the other table, how many arrows and pills there are, which cards are dimmed, and the caption.
STEP = """async (step) => {
  const all = (place, within = document) => [...within.querySelectorAll(place)], [scrub] = all(".pb-ca-scrub");
  scrub.value = step;
  scrub.dispatchEvent(new Event("input", { bubbles: true }));
  const table = async (title) => {
    const fold = all("details").find((el) => el.querySelector("summary").textContent.trim() === title);
    await (fold.open || new Promise((go) => {
      fold.addEventListener("toggle", go, { once: true }); // the widget fills it when it hears of it
      fold.open = true;
    }));
    return all("tbody tr", fold).map((row) => [...row.children].map((el) => el.textContent));
  };
  const cells = all(".pb-ca-card").map((card) => {
    const found = all(".pb-ca-cell", card), last = Math.max(...found.map((el) => +el.dataset.box));
    const shown = found.filter((el) => +el.dataset.box === last);
    return shown.map((el) => [el.dataset.state, el.querySelector("text").textContent]);
  });
  const idle = all(".pb-ca-card").flatMap((el, i) => ("idle" in el.dataset ? [i] : []));
  return [await table("What every rank holds now"), cells, await table("Messages of this step"),
    all(".pb-ca-arrow").length, all(".pb-ca-pill").length, idle, all(".pb-ca-caption")[0].innerText];
}"""


class Page(Form):
    """The animator as a reader meets it."""

    def caption(self) -> str:
        return self.page.locator(".pb-ca-caption").inner_text()

    def place(self) -> int:
        """The step that comes next, counted from 0."""
        return int(self.page.locator(".pb-ca-scrub").input_value())

    def go(self, step: int):
        self.page.locator(".pb-ca-scrub").evaluate(
            "(el, step) => { el.value = step; el.dispatchEvent(new Event('input', { bubbles: true })) }", step
        )

    def pills(self) -> list[str]:
        return self.page.locator(".pb-ca-pill").evaluate_all(
            "(all) => all.map((el) => el.getAttribute('transform'))"
        )


animator = showing(Page, CollectivesAnimator)


@pytest.mark.browser
def test_every_list_offers_what_the_library_knows(animator):
    view = animator({"collective": "broadcast", "ranks": 4})
    for field, wanted in (
        ("collective", "all_gather"),
        ("algorithm", "recursive_doubling"),
        ("cluster", "loopback"),
    ):
        view.row(field).locator("select").select_option(wanted)
        view.settle()
        assert view.inputs()[field] == wanted
        assert view.page.evaluate(f"window.model.get('outputs').values.{field}") == wanted
    assert (
        "Every rank ends with the chunks of all ranks. Partners at distance"
        in view.page.locator(".pb-ca-about").inner_text()
    )
    view.row("algorithm").locator("select").focus()
    view.page.keyboard.press("ArrowUp")
    assert "algorithm" not in view.inputs()  # the ring, which is the default
    assert view.row("root").is_hidden()
    assert view.row("ranks_per_node").locator("input").first.is_disabled()


@pytest.mark.browser
def test_an_algorithm_that_the_next_collective_lacks_is_dropped(animator):
    view = animator({"algorithm": "halving_doubling", "step": 2})
    view.row("collective").locator("select").select_option("all_gather")
    assert view.inputs() == {"collective": "all_gather"}
    view.row("algorithm").locator("select").select_option("naive")
    view.row("collective").locator("select").select_option("barrier")
    assert view.inputs() == {"collective": "barrier", "algorithm": "naive"}
    assert view.row("bytes").locator("input").first.is_disabled()


@pytest.mark.browser
def test_a_refusal_from_a_link_stands_where_it_belongs(animator):
    view = animator()
    for inputs, place in (
        ({"algorithm": "rong"}, view.row("algorithm")),
        ({"nonsense": 1}, view.page.locator(".pb-ca-settings")),
    ):
        view.set({"collective": "all_reduce", **inputs})
        assert place.get_by_role("alert").inner_text() == compute(inputs)["error"]["message"]


PLAYED = [
    {},
    TWO_LEVELS,
    {"algorithm": "recursive_doubling", "ranks": 6},
    {"collective": "reduce", "algorithm": "binomial", "ranks": 7, "root": 3},
    {"collective": "scatter", "algorithm": "binomial", "ranks": 6, "root": 4},
    {"collective": "all_gather", "algorithm": "naive", "ranks": 3},
    {"collective": "all_to_all", "ranks": 4},
    {"collective": "barrier", "ranks": 5},
]


@pytest.mark.browser
def test_what_is_drawn_at_each_step_is_the_plan_replayed(animator):
    view = animator()
    for inputs in PLAYED:
        view.set({"collective": "all_reduce", **inputs})
        whole = read(inputs).plan()
        held, wanted = replay(whole), end(whole)
        sums = whole.collective in ("reduce", "all_reduce", "barrier")
        for place in range(whole.steps + 1):
            holding, cells, rows, arrows, pills, dimmed, caption = view.page.evaluate(STEP, place)
            sent = [m for m in whole.messages if m.step == place]
            assert holding == [
                [str(rank), *("+".join(map(str, sorted(ranks))) or "–" for ranks in chunks)]
                for rank, chunks in enumerate(held[place])
            ]
            for rank, chunks in enumerate(cells):
                for chunk, (state, number) in enumerate(chunks):
                    ranks = held[place][rank][chunk]
                    done = ranks and ranks == wanted[rank][chunk]
                    assert state == ("done" if done else "part" if ranks else "none")
                    assert number in ("", str(len(ranks)) if sums else "")
            if sent:
                assert [(int(row[0]), int(row[1])) for row in rows] == [(m.source, m.target) for m in sent]
                assert [row[4] for row in rows] == ["added" if m.reduce else "kept" for m in sent]
            assert arrows == pills == len(sent)
            idle = set(range(whole.ranks)) - {rank for m in sent for rank in (m.source, m.target)}
            assert dimmed == (sorted(idle) if sent else [])
            assert caption.startswith(f"Step {place + 1} of {whole.steps}" if sent else "Done")


@pytest.mark.browser
def test_stepping_by_buttons_and_keys(animator):
    view = animator({"ranks": 4})
    assert view.button("Step back").is_disabled()
    view.button("Step forward").click()
    view.page.wait_for_function("document.querySelector('.pb-ca-scrub')?.value === '1'")
    assert view.inputs() == {"collective": "all_reduce", "ranks": 4, "step": 1}
    view.page.locator(".pb-ca-stage").focus()
    for key, place in (("End", 6), ("ArrowLeft", 5), ("ArrowLeft", 4), ("Home", 0)):
        view.page.keyboard.press(key)
        assert view.place() == place
    for _ in range(3):  # pressed while a step is under way: it is finished at once
        view.page.keyboard.press("ArrowRight")
    assert view.place() == 2
    view.page.wait_for_function("document.querySelector('.pb-ca-scrub')?.value === '3'")
    view.page.locator(".pb-ca-scrub").press("ArrowRight")
    assert view.place() == 4
    view.page.locator(".pb-ca-scrub").press("End")
    assert view.button("Step forward").is_disabled()
    assert view.caption().startswith("Done")
    view.row("bytes").locator("input[type=text]").press("ArrowLeft")
    assert view.place() == 6  # arrows in a field stay there


# The test's own clock: a frame is asked for with `tick`, which is gone when nobody asks for another.
CLOCK = """() => {
  performance.now = () => 0;
  window.requestAnimationFrame = (f) => (window.tick = f);
  window.cancelAnimationFrame = () => (window.tick = null);
}"""


@pytest.mark.browser
def test_playing_moves_messages_pauses_and_ends(animator):
    view = animator({"ranks": 3})
    tick = partial(view.page.evaluate, "(at) => window.tick(at)")
    view.page.locator(".pb-ca-speed").get_by_text("2×").click()
    view.page.evaluate(CLOCK)
    at_rest = view.pills()
    view.button("Play").click()
    tick(300)  # half of a step at this speed
    moved = view.pills()
    assert len(moved) == 3
    assert all(a != b for a, b in zip(at_rest, moved, strict=True))
    tick(600)
    view.button("Pause").click()
    assert view.page.evaluate("window.tick") is None
    assert view.place() == 1
    view.page.locator(".pb-ca-speed").get_by_text("4×").click()
    view.page.locator(".pb-ca-stage").focus()
    view.page.keyboard.press("Space")
    for at in (300, 600, 900):  # a step each
        assert not view.caption().startswith("Done")
        tick(at)
    assert view.caption().startswith("Done")
    assert view.page.evaluate("window.tick") is None
    assert view.inputs()["step"] == 4
    view.button("Play").click()  # from the start again
    assert view.caption().startswith("Step 1")
    tick(300)
    assert view.caption().startswith("Step 2")


@pytest.mark.browser
def test_messages_move_as_the_model_has_them(animator):
    """In a step with fast and slow links, the fast messages have arrived when the slow ones are under way."""
    view = animator({"ranks": 4, "ranks_per_node": 2})
    [step, *_] = compute(view.inputs())["steps"]
    view.page.evaluate(CLOCK)
    view.button("Step forward").click()
    places = []
    for part in (0.0, 0.5, 0.9):
        view.page.evaluate("(at) => window.tick(at)", 1200 * part)
        places.append(view.pills())
    for m, *seen in zip(step["messages"], *places, strict=True):
        arrived = m["end"] < step["end"] / 2
        assert (seen[1] == seen[2]) == arrived
        assert seen[0] != seen[2]


@pytest.mark.browser
def test_readers_who_want_no_motion_get_none(animator):
    view = animator({"ranks": 3}, reduced_motion="reduce")
    view.button("Step forward").click()
    assert view.place() == 1
    view.page.locator(".pb-ca-speed").get_by_text("4×").click()
    elapse = stop_time(view.page)
    view.button("Play").click()
    before = view.pills()
    view.frames()
    assert (view.place(), view.pills()) == (1, before)
    for place in (2, 3, 4):
        elapse()
        assert view.place() == place
    assert view.caption().startswith("Done")
    assert (
        view.page.locator(".pb-ca-card").first.evaluate("(el) => getComputedStyle(el).transitionDuration")
        == "0s"
    )


@pytest.mark.browser
def test_a_new_size_keeps_the_place_and_a_new_plan_starts_anew(animator):
    view = animator({"ranks": 5, "step": 3})
    assert view.caption().startswith("Step 4 of 8")
    view.type("bytes", "1 MB")
    assert view.caption().startswith("Step 4 of 8: 5 messages of 200 kB")
    view.row("cluster").locator("select").select_option("loopback")
    view.settle()
    assert view.place() == 3
    view.type("ranks", "6")
    assert view.caption().startswith("Step 1 of 10")
    assert "step" not in view.inputs()


@pytest.mark.browser
def test_numbers_are_those_of_python(animator):
    view = animator()
    for inputs in ({}, {"algorithm": "naive"}, {"ranks": 16}, {"collective": "barrier"}):
        result = compute(inputs)
        view.page.evaluate("(outputs) => window.model.set('outputs', outputs)", result)
        facts = dict(row.split("\n")[:2] for row in view.page.locator(".pb-ca-facts li").all_inner_texts())
        assert view.page.locator(".pb-ca-time").inner_text() == words(result["seconds"])
        assert facts["Steps"] == str(len(result["steps"]))
        assert facts["Busiest rank sends"] == in_bytes(max(result["sent"]))
        assert ("Bus bandwidth" in facts) == (inputs.get("collective") != "barrier")
        if "Bus bandwidth" in facts:
            assert facts["Bus bandwidth"] == f"{in_bytes(result['bus_bandwidth'])}/s"
            assert facts["Algorithm bandwidth"] == f"{in_bytes(result['algorithm_bandwidth'])}/s"
        naive, twin = result["algorithms"][0]["seconds"], view.page.locator(".pb-ca-twin").inner_text()
        if inputs.get("algorithm") == "naive":
            best = min(rival["seconds"] for rival in result["algorithms"])
            assert f"takes {words(best)}, 1/{naive / best:.3g} of that" in twin
        else:
            assert f"takes {words(naive)}, {naive / result['seconds']:.3g} times as long" in twin


def words(seconds: float) -> str:
    return f"{seconds * 1e6:.3g} µs" if seconds < 1e-3 else f"{seconds * 1e3:.3g} ms"


def in_bytes(size: float) -> str:
    power = next(p for p in (3, 2, 1, 0) if size >= 1000**p)
    return f"{size / 1000**power:.3g} {['B', 'kB', 'MB', 'GB'][power]}"


@pytest.mark.browser
def test_formula_and_count_are_held_together(animator):
    view = animator()
    said = view.page.locator(".pb-ca-facts li").first
    assert "as 2(N − 1)/N · K says, to the byte" in said.inner_text()
    view.type("bytes", "10000003")
    assert "2(N − 1)/N · K is 1.2 bytes off: N does not divide K" in said.inner_text()
    view.row("algorithm").locator("select").select_option("halving_doubling")
    view.settle()
    assert "counted; no simple formula" in said.inner_text()


@pytest.mark.browser
def test_the_strip_shows_each_message_twice_to_scale_and_a_click_goes_there(animator):
    inputs = {"algorithm": "naive", "ranks": 4, "bytes": "20 MB"}
    view, result = animator(inputs), compute(inputs)
    view.page.locator(".pb-ca-strip").scroll_into_view_if_needed()
    tracks = [t.bounding_box() for t in view.page.locator(".pb-ca-track").all()]
    scale = tracks[0]["width"] / result["seconds"]
    alpha = result["network"]["intra"]["alpha"]
    for step, group in zip(result["steps"], view.page.locator(".pb-ca-bars > g").all(), strict=True):
        [message] = step["messages"]
        for kind, rank in (("sends", message["from"]), ("receives", message["to"])):
            box = group.locator(f".pb-ca-{kind}").bounding_box()
            start = tracks[0]["x"] + (message["start"] + alpha) * scale
            assert box["x"] == pytest.approx(start, abs=0.5)
            assert box["x"] + box["width"] == pytest.approx(tracks[0]["x"] + message["end"] * scale, abs=1)
            assert tracks[rank]["y"] <= box["y"] < tracks[rank]["y"] + tracks[rank]["height"]
    busy = view.page.locator(".pb-ca-rows text").all_text_contents()[1::2]
    assert busy == [f"{round(100 * b / result['seconds'])}\u202f%" for b in result["busy"]]
    for step in (4, 1):
        middle = (result["steps"][step]["start"] + result["steps"][step]["end"]) / 2
        view.page.mouse.click(tracks[0]["x"] + middle * scale, tracks[1]["y"] + 4)
        assert view.place() == step


@pytest.mark.browser
def test_bytes_of_every_link_and_of_every_rank(animator):
    view = animator()
    for inputs in ({"algorithm": "naive", "ranks": 4}, TWO_LEVELS, {"collective": "all_to_all", "ranks": 9}):
        result = compute(inputs)
        view.page.evaluate("(outputs) => window.model.set('outputs', outputs)", result)
        found = view.page.locator("[data-link]").evaluate_all(
            "(all) => all.map((el) => [el.dataset.link, el.textContent, el.title])"
        )
        sizes = {f"{a} {b}": size for a, b, size in result["links"]}
        assert len(found) == result["values"]["ranks"] * (result["values"]["ranks"] - 1)
        for link, text, title in found:
            assert text == (in_bytes(sizes[link]) if link in sizes else "0 B")
            assert title.endswith(text)
        assert view.page.locator(".pb-ca-sum").all_inner_texts() == [
            in_bytes(size) for size in result["sent"]
        ]
        now = view.page.locator("[data-link][data-now]").evaluate_all(
            "(all) => all.map((el) => el.dataset.link)"
        )
        assert set(now) == {f"{m['from']} {m['to']}" for m in result["steps"][0]["messages"]}


@pytest.mark.browser
def test_the_other_algorithms_are_a_click_away(animator):
    view = animator({"ranks": 10, "ranks_per_node": 4})
    rows = view.page.locator(".pb-ca-rivals li")
    rivals = compute(view.inputs())["algorithms"]
    for row, rival in zip(rows.all(), rivals, strict=True):
        assert (words(rival["seconds"]) if "seconds" in rival else rival["error"]) in row.inner_text()
    widths = [
        row.locator("i").bounding_box()["width"]
        for row in rows.all()
        if "µs" in row.inner_text() or "ms" in row.inner_text()
    ]
    times = [rival["seconds"] for rival in rivals if "seconds" in rival]
    assert [w / widths[0] for w in widths] == pytest.approx([t / times[0] for t in times], abs=0.01)
    rows.get_by_role("button", name="recursive doubling").click()
    view.settle()
    assert view.inputs()["algorithm"] == "recursive_doubling"
    assert rows.get_by_role("button", name="recursive doubling").get_attribute("aria-pressed") == "true"


@pytest.mark.browser
def test_a_chunk_that_is_pointed_at_says_what_is_in_it(animator):
    view = animator({"step": 2})
    reading = view.page.locator(".pb-ca-reading")
    cell = view.page.locator('.pb-ca-cell[data-rank="2"][data-chunk="4"]')
    cell.hover()
    assert reading.inner_text() == "Rank 2, chunk 4: the sum of ranks 0, 1 and 2."
    view.go(8)
    assert reading.inner_text() == "Rank 2, chunk 4: the sum of ranks 0, 1, 2, 3 and 4, finished."
    view.set({"collective": "all_to_all", "ranks": 3, "step": 1})
    for box, words in (
        ("0", "Rank 0, chunk for rank 1: sent."),
        ("1", "Rank 0, chunk from rank 1: nothing yet."),
    ):
        view.page.locator(f'.pb-ca-cell[data-rank="0"][data-chunk="1"][data-box="{box}"]').hover()
        assert view.page.locator(".pb-ca-reading").inner_text() == words


@pytest.mark.browser
def test_no_two_ranks_stand_in_each_others_way(open_page):
    page = open_page("")
    results = []
    for collective, algorithm in [(c, a) for c, algorithms in ALGORITHMS.items() for a in algorithms]:
        for ranks, per_node in itertools.product((2, 3, 6, 9, 12, 15, 16), (8, 3)):
            inputs = {"collective": collective, "algorithm": algorithm, "ranks": ranks}
            result = compute({**inputs, "ranks_per_node": per_node, "root": ranks // 2})
            if "error" not in result:
                results.append({key: result[key] for key in ("values", "nodes", "start")})
    gap = """x.flatMap((result) => [326, 358, 730, 1100].map((width) => {
      const { places, card, height } = m.arrange(result, width);
      const away = (a, b) => [Math.abs(a.x - b.x), Math.abs(a.y - b.y)];
      const inside = (p) => p.x >= card.width / 2 && p.x <= width - card.width / 2 && p.y >= card.height / 2
        && p.y <= height - card.height / 2;
      const between = (a, b) => Math.max(away(a, b)[0] - card.width, away(a, b)[1] - card.height);
      const gaps = places.flatMap((a, i) => [inside(a) ? 99 : -99, ...places.slice(i + 1).map((b) => between(a, b))]);
      return [Math.min(...gaps), width, result.values];
    }))"""
    least, *where = min(
        in_module(page, "collectives_animator/places.mjs", gap, results), key=lambda row: row[0]
    )
    assert least >= 0.5, where


@pytest.mark.browser
def test_saved_and_copied(animator):
    view = animator({"ranks": 4}, permissions=["clipboard-read", "clipboard-write"])
    with view.page.expect_download() as download:
        view.button("Save JSON").click()
    document = json.loads(download.value.path().read_text(encoding="utf-8"))
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))
    view.button("Copy code").click()
    copied = view.page.evaluate("navigator.clipboard.readText()")
    assert copied == 'plan("all_reduce", "ring", ranks=4, elements=10000000).messages'
    view.button("Copy link").click()
    assert "#collectives-animator?" in view.page.evaluate("navigator.clipboard.readText()")


@pytest.mark.browser
def test_a_step_is_drawn_once(animator):
    view = animator({"ranks": 16})
    step = """(i) => {
      const slider = document.querySelector(".pb-ca-scrub");
      slider.value = i; slider.dispatchEvent(new Event("input"));
    }"""
    assert view.wasted(step, list(range(16))) == []


@pytest.mark.browser
def test_a_closed_animator_hears_nothing_and_stands_still(animator):
    view = animator({"ranks": 3})
    view.button("Play").click()
    view.page.evaluate("window.close()")
    before = view.caption(), view.pills()
    view.page.evaluate("(r) => window.model.set('outputs', r)", compute({"ranks": 7}))
    view.frames()
    assert (view.caption(), view.pills()) == before
