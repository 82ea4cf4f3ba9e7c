"""The pipeline schedule visualizer: its controls are the library's settings, what it draws is what Python answers."""

from __future__ import annotations

import json

import pytest
from playbook_widgets import ScheduleVisualizer
from playbook_widgets.compute.visualizer import compute
from playbook_widgets.compute.visualizer_setting import DEFAULTS
from playbook_widgets.schedule_visualizer import constants
from widget_homes import Form, in_module, showing

SCRIPT = ScheduleVisualizer.script
CONTROLS = {control["field"]: control for control in constants()["controls"]}
OURS = {"trace", "own", "path", "step"}  # set in the picture, or brought


# --- in Python


def test_every_setting_is_a_control_whose_choices_the_library_takes():
    assert set(CONTROLS) == set(DEFAULTS) - OURS
    for field, control in CONTROLS.items():
        name = control.get("of", ["1f1b"])[0]
        for value in control.get("stops") or [value for value, *_ in control["choices"]]:
            given = {"schedule": name, "stages": 2, "microbatches": 12, "run": 2, field: value}
            if field == "run":
                given["microbatches"] = value
            assert compute(given)["values"][field] == value, (field, value)
        stops = control.get("stops", [0, 1])
        assert stops == sorted(set(stops))


def test_the_summary_says_who_does_what():
    text = ScheduleVisualizer(
        {"schedule": "1f1b", "compare": "zb-h1", "stages": 2, "microbatches": 3}
    ).summary()
    assert "1F1B on 2 ranks takes 12 for 3 micro-batches" in text
    assert "<td>1</td><td>F0 BW0 F1 BW1 F2 BW2</td><td>1</td>" in text
    assert "<td>0</td><td>F0 F1 B0 W0 F2 B1 W1 B2 W2</td><td>2</td>" in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "sv"

    @property
    def stage(self):
        return self.page.locator(".pb-sv-stage")

    def heard(self) -> str:
        return self.page.locator(".pb-sv-scene > .pb-unseen").inner_text()

    def keys(self, *keys: str) -> None:
        self.stage.focus()
        for key in keys:
            self.page.keyboard.press(key)
            if key in "abfwx" or key == "Backspace":
                self.settle()

    def spot(self, time: float, rank: int, total: float, down: float = 10) -> tuple[float, float]:
        """Where a time of a rank is on the page; four ranks of one schedule, wide enough for long names."""
        self.stage.scroll_into_view_if_needed()
        box = self.stage.bounding_box()
        return box["x"] + 50 + time / total * (box["width"] - 60), box["y"] + 46 + 58 * rank + down


visualizer = showing(Page, ScheduleVisualizer)


@pytest.mark.browser
def test_pointing_says_what_an_action_needs_why_a_rank_waits_and_what_it_keeps(visualizer):
    view = visualizer({"comm": 0.2, "limit": 3})
    total = compute({"comm": 0.2})["sides"][0]["numbers"]["makespan"]
    view.page.mouse.move(*view.spot(12.5, 1, total))
    tip = view.text("tip")
    assert tip.startswith("BW of micro-batch 1 on stage 1")
    assert (
        "F of micro-batch 1 on stage 1, over at 3.2; BW of micro-batch 1 on stage 2, rank 2, over at 11.8"
        in tip
    )
    assert "BW of micro-batch 1 on stage 0, rank 0, begins at 14.2" in tip
    view.page.mouse.move(*view.spot(7, 0, total))
    assert "rank 0 waits with BW of micro-batch 0 on stage 0 for BW of micro-batch 0 on stage 1" in view.text(
        "tip"
    )
    view.page.mouse.move(*view.spot(7, 0, total, down=40))
    assert view.text("tip").startswith("Rank 0 keeps the activations of 4 micro-batches")
    assert "3: too much" in view.text("tip")
    view.page.mouse.move(2, 2)
    assert not view.page.locator(".pb-sv-tip").is_visible()


@pytest.mark.browser
def test_the_keyboard_alone_reads_steps_and_zooms(visualizer):
    view = visualizer({"schedule": "zb-h1"})
    view.keys("ArrowDown")
    assert view.heard().startswith("Rank 0 waits") or view.heard().startswith(
        "F of micro-batch 0 on stage 0. on rank 0"
    )
    view.keys("ArrowRight", "ArrowDown")
    assert "on stage 1" in view.heard()
    view.keys("End")
    assert view.heard().startswith("W of micro-batch 7 on stage 1. on rank 1")
    view.keys("c")
    assert view.inputs() == {"schedule": "zb-h1", "path": True}
    assert view.text("caption").startswith("Critical path of ZB-H1: ")
    view.keys("+", "+")
    view.page.locator(".pb-sv-across").wait_for(state="visible")
    view.keys("0", "Escape", "c")
    view.page.locator(".pb-sv-across").wait_for(state="hidden")
    assert not view.heard()
    view.keys(",")
    assert view.inputs() == {"schedule": "zb-h1", "step": 26}
    assert view.text("caption") == "At 26: rank 0 W7 · rank 1 W7 · rank 2 W7 · rank 3 W7"
    view.row("stages").locator("input[type=range]").focus()
    view.page.keyboard.press("ArrowRight")
    view.settle()
    assert view.inputs() == {"schedule": "zb-h1", "stages": 5}  # another schedule is seen whole
    assert view.text("answer") == compute({"schedule": "zb-h1", "stages": 5})["answer"]
    view.page.evaluate("document.querySelector('.pb-sv-speed label:last-child input').click()")
    view.button("Play").press("Enter")
    view.page.wait_for_function("/^At [5-9]/.test(document.querySelector('.pb-sv-caption').innerText)")
    view.button("Pause").press("Enter")
    assert view.inputs()["step"] > 4


@pytest.mark.browser
def test_a_schedule_by_hand_is_refused_with_a_reason_taken_back_and_named(visualizer):
    view = visualizer({"stages": 2, "microbatches": 2, "compare": "zb-h1", "path": True})
    view.keys("+", "+")  # what is in view, and the critical path, are of another schedule
    view.button("Build your own").click()
    view.settle()
    across = view.page.get_by_label("Part of the step in view")
    across.wait_for(state="hidden")
    assert "path" not in view.inputs()
    assert view.inputs()["own"] == ""
    view.button("F0 on rank 1: F of micro-batch 0 on stage 1").press("Enter")
    reason = (
        "F of micro-batch 0 on stage 1 needs F of micro-batch 0 on stage 0, which rank 0 has not done yet."
    )
    assert view.text("said-build") == f"Not possible: {reason}"
    view.page.mouse.click(*view.spot(3, 0, 9))  # on the lane of rank 0
    view.settle()
    assert view.inputs()["own"] == "0F0"
    view.keys(
        "f", "Backspace", "a", "ArrowDown", "a", "x", "ArrowUp", "x", "ArrowDown", "a", "a", "ArrowUp", "a"
    )
    assert view.text("said-build") == "Complete. You have rebuilt 1f1b."
    assert view.inputs()["own"] == "0F0.0F1.1F0.1X0.0X0.1F1.1X1.0X1"
    assert view.text("answer").startswith(
        "You have rebuilt 1f1b. Your schedule is complete and takes 9; 1F1B takes 9."
    )
    assert in_module(view.page, SCRIPT, "m.decode(m.encode(x))", view.inputs()) == view.inputs()
    view.button("Clear").click()
    view.settle()
    view.keys("+", "+")
    across.press("End")
    view.keys("f")  # what it places begins at 0
    view.page.wait_for_function("(input) => input.value === '0'", arg=across.element_handle())
    view.button("Leave").click()
    view.settle()
    assert "own" not in view.inputs()


@pytest.mark.browser
def test_a_run_is_laid_below_its_prediction_and_the_first_schedule_is_saved(visualizer):
    view = visualizer({"schedule": "1f1b"})
    with view.page.expect_download() as saved:
        view.button("Save JSON").click()
    trace = json.loads(saved.value.path().read_text())
    assert [a["op"] for a in trace["ranks"][3][:2]] == ["F", "BW"]
    for rank in trace["ranks"]:
        rank[-1]["end"] += 1
    view.page.get_by_text("Lay a real run over it").click()
    field = view.page.get_by_label("Trace or schedule as JSON")
    field.fill("no trace")
    view.button("Draw it").click()
    assert "This is no JSON" in view.page.locator("details:has(textarea) [role=alert]").inner_text()
    field.fill(json.dumps(trace))
    view.button("Draw it").click()
    view.settle()
    assert "The run (1f1b) took 34;" in view.text("answer")
    assert view.row("stages").is_hidden()
    with view.page.expect_download() as saved:
        view.button("Save picture").click()
    picture = saved.value.path().read_text()
    assert ">Predicted</text>" in picture
    assert ">BW7</text>" in picture
    view.button("Take it away").click()
    view.settle()
    assert view.inputs() == {"schedule": "1f1b"}


@pytest.mark.browser
def test_times_bring_their_model_and_links_keep_what_is_set(visualizer):
    view = visualizer({"schedule": "zb-h2"})
    view.row("times").locator("select").select_option("14.6b-16x64")
    view.settle()
    assert view.inputs() == {
        "schedule": "zb-h2",
        "stages": 16,
        "microbatches": 64,
        "times": "14.6b-16x64",
    }
    assert view.row("f").locator("input[type=text]").input_value() == "11.307"
    wanted = {"schedule": "zb-v", "compare": "1f1b", "f": "1/1/1/2", "overlap": False, "limit": 6, "step": 3}
    assert in_module(view.page, SCRIPT, "m.decode(m.encode(x))", wanted) == wanted


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_pointing_draws_nothing_of_the_picture_again(visualizer, width):
    view = visualizer(width=width)
    large = {"schedule": "dualpipe", "compare": "zb-h2", "stages": 32, "microbatches": 256, "limit": 40}
    for inputs in (large, {"schedule": "zb-v", "own": "0F0.0F1", "limit": 2}):
        view.set(inputs)
        view.frames()
        box = view.stage.bounding_box()
        view.page.evaluate("performance.clearMeasures()")
        for place in range(9):
            view.page.mouse.move(box["x"] + box["width"] * (place + 1) / 10, box["y"] + 50 + place)
        points, draws = view.page.evaluate(
            "['pb-point', 'pb-draw'].map((name) => performance.getEntriesByName(name).length)"
        )
        assert 0 < points <= 9  # once for each place, in the layer above it
        assert draws == 0
    assert view.page.get_by_label("B and W apart").is_checked()  # as ZB-V has them
