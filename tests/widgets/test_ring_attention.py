"""The ring-attention widget: its controls are the library's settings, what it draws is what Python answers."""

from __future__ import annotations

import pytest
from playbook_widgets import RingAttention
from playbook_widgets.compute.ring_attention import DEFAULTS, MODELS, compute
from playbook_widgets.ring_attention import constants
from widget_homes import Form, showing

from playbook.figures.units import format_count, format_seconds, format_size
from playbook.layout.tokens import TokenRanges

CONTROLS = {control["field"]: control for control in constants()["controls"]}
LARGE = {"ranks": 16, "seq": "64k", "backward": True, "model": "llama3.1-405b", "step": 5}


# --- in Python


def test_every_setting_is_a_control():
    assert set(CONTROLS) == set(DEFAULTS) - {"step"}


def test_every_choice_and_every_stop_is_one_that_the_library_takes():
    for field, control in CONTROLS.items():
        if field == "kv_heads":
            continue  # those that do not divide the heads are refused
        for value in control.get("stops") or [value for value, *_ in control["choices"]]:
            given = {"heads": value, "kv_heads": 1} if field == "heads" else {field: value}
            assert compute(given)["values"][field] == value, (field, value)
        stops = control.get("stops", [0, 1])
        assert stops == sorted(set(stops))
    assert [value for value, *_ in CONTROLS["model"]["choices"]] == list(MODELS)


def test_the_summary_says_every_step():
    text, result = RingAttention({"placement": "contiguous"}).summary(), compute({"placement": "contiguous"})
    assert "8192 tokens under a causal mask on 4 ranks by ring, contiguous: the forward pass" in text
    assert result["answer"] in text
    assert text.count("<tr>") == 1 + 4
    assert "<td>0, 0, 4.19M, 4.19M</td><td>0, 1</td>" in text


# --- in the browser: the module over real Python


class Page(Form):
    """The widget as a reader meets it."""

    prefix = "ra"

    def at(self) -> int:
        return int(self.page.get_by_role("slider", name="Step", exact=True).input_value())

    def blocks(self) -> list[str]:
        """Past, now or next, for each block of the mask."""
        return self.page.locator(".pb-ra-block").evaluate_all("(all) => all.map((el) => el.dataset.when)")

    def ranks(self) -> list[list[str]]:
        """Whose keys each rank has, and what it does."""
        parts = "[...el.querySelectorAll('.pb-ra-keys, .pb-ra-does')].map((part) => part.innerText.replace('\\n', ' '))"
        return self.page.locator(".pb-ra-ranks > li").evaluate_all(f"(all) => all.map((el) => {parts})")


attention = showing(Page, RingAttention)


def when(result: dict, at: int) -> list[str]:
    return ["past" if b["step"] < at else "now" if b["step"] == at else "next" for b in result["blocks"]]


@pytest.mark.browser
def test_the_keyboard_alone_steps_plays_and_sets(attention):
    """From the first control on with Tab, arrows, space bar, Home and End; nothing needs a mouse."""
    view = attention({"placement": "contiguous"})
    result, keys = compute({"placement": "contiguous"}), view.page.keyboard
    view.page.locator(".pb-ra-mask").focus()
    for key, at in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", 4), ("Home", 0)):
        keys.press(key)
        assert view.at() == at
        assert view.blocks() == when(result, at)
        assert view.inputs().get("step", 0) == at
    keys.press("ArrowRight")
    assert view.text("caption").startswith(
        "Step 2 of 4. Each rank computes with the keys of the rank before it"
    )
    assert "Rank 0 has nothing to compute" in view.text("caption")
    assert view.ranks()[:2] == [["K, V of 3", "idle"], ["K, V of 0", "4.19M pairs"]]
    view.row("placement").locator("input:checked").focus()
    keys.press("ArrowRight")
    view.settle()
    assert view.inputs() == {"context": "ring", "step": 1, "placement": "zigzag"}
    assert {does for _, does in view.ranks()} == {"2.1M pairs"}
    for _ in range(2):
        keys.press("Tab")
    assert view.page.evaluate("document.activeElement.id.endsWith('-ranks')")
    keys.press("ArrowUp")
    view.settle()
    assert view.inputs() == {"context": "ring", "placement": "zigzag", "ranks": 5}  # other steps begin anew
    view.page.get_by_role("button", name="Play").focus()
    view.page.evaluate("document.querySelector('.pb-ra-speed label:last-child input').click()")
    keys.press("Enter")
    view.page.wait_for_function("document.querySelector('.pb-ra-caption').innerText.startsWith('Done.')")
    assert (view.at(), view.inputs()["step"]) == (5, 5)
    assert set(view.blocks()) == {"past"}


@pytest.mark.browser
@pytest.mark.parametrize(
    "inputs",
    [{"placement": "contiguous"}, {"causal": False, "ranks": 3}, LARGE],
    ids=str,
)
def test_the_mask_is_the_one_that_python_counts(attention, inputs):
    """The area of each block on the page is that of its pieces; work and numbers are Python's."""
    view, result = attention({**inputs, "step": 1}, width=1280), compute(inputs)
    boxes = view.page.locator(".pb-ra-block").evaluate_all(
        "(all) => all.map((el) => { const b = el.getBBox(); return [b.x, b.y, b.width, b.height] })"
    )
    frame = view.page.locator(".pb-ra-frame").evaluate(
        "(el) => { const b = el.getBBox(); return [b.x, b.y, b.width] }"
    )
    scale = frame[2] / result["padded"]
    assert len(boxes) == len(result["blocks"])
    for (x, y, wide, high), block in zip(boxes, result["blocks"], strict=True):
        q0, k0 = (min(piece[i] for piece in block["pieces"]) for i in (0, 2))
        q1, k1 = (max(piece[i] for piece in block["pieces"]) for i in (1, 3))
        wanted = [frame[0] + k0 * scale, frame[1] + q0 * scale, (k1 - k0) * scale, (q1 - q0) * scale]
        assert [x, y, wide, high] == pytest.approx(wanted, abs=0.2)
    assert view.blocks() == when(result, 1)
    assert view.text("balance") == format_seconds(result["seconds"])
    assert f"busiest / mean = {result['work']['balance']:.2f}" in view.text("of")
    assert view.text("answer") == result["answer"]
    bars = view.page.locator(".pb-ra-work > li")
    assert bars.locator(".pb-ra-does").all_inner_texts() == [format_count(n) for n in result["work"]["pairs"]]
    assert result["work"]["pairs"] == [
        TokenRanges(result["values"]["placement"], result["padded"], n, result["values"]["causal"]).work(rank)
        for n in [result["values"]["ranks"]]
        for rank in range(n)
    ]
    assert format_size(result["sent"]) in view.page.locator(".pb-ra-facts").inner_text()


@pytest.mark.browser
def test_another_way_is_chosen_at_its_bar_and_a_step_in_the_picture_of_time(attention):
    view = attention({"step": 2})
    view.button("Ulysses").click()
    view.settle()
    assert view.inputs() == {"context": "ulysses"}
    assert view.page.locator(".pb-ra-block").count() == 1
    assert view.text("caption").startswith("Step 1 of 3. Tokens for heads: each rank sends q")
    view.button("all-gather, contiguous").click()
    view.settle()
    assert view.inputs() == {"context": "gather", "placement": "contiguous"}
    view.button("ring, contiguous").click()
    view.settle()
    box = view.page.locator(".pb-ra-timeline svg").bounding_box()
    view.page.mouse.click(box["x"] + 66 + 0.9 * (box["width"] - 110), box["y"] + 30)
    assert (view.at(), view.inputs()["step"]) == (3, 3)
    view.type("ranks", "16")
    assert view.page.get_by_role("button", name="Ulysses").is_disabled()
    assert "ranks must divide kv_heads = 8" in view.page.locator(".pb-ra-rivals").inner_text()


@pytest.mark.browser
def test_a_model_brings_its_heads(attention):
    view = attention()
    view.type("heads", "16")
    assert view.inputs() == {"context": "ring", "heads": 16}
    view.row("model").locator("select").select_option("gpt2-xl")
    view.settle()
    assert view.inputs() == {"context": "ring", "model": "gpt2-xl"}
    assert view.row("kv_heads").locator("input[type=text]").input_value() == "25"
