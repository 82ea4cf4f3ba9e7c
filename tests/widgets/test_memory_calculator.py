"""The memory calculator: its controls are the library's settings, and a reader's every move reaches Python and back."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ET

import pytest
from playbook_widgets import MemoryCalculator
from playbook_widgets.compute.calculator import DEFAULTS, compute
from playbook_widgets.compute.sizes import MOE_CONTROLS, SHAPE_CONTROLS
from playbook_widgets.memory_calculator import constants
from playbook_widgets.memory_controls import doublings
from published_configs import PUBLISHED
from widget_homes import Form, bridged_page, in_module, static_page, stop_time

from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS

SCRIPT = MemoryCalculator.script
SMALL = {"model": "llama3-8b", "tp": 2, "sp": True, "gpus": 8, "zero": 1}
#: On GPUs that hold it: advice on a model of this size takes a second.
STAGES = {
    "model": "llama3-70b",
    "tp": 4,
    "pp": 8,
    "grad_acc": 16,
    "recompute": "selective",
    "memory": "288GB",
}
SPARSE = {"model": "mixtral-8x7b", "dp": 8, "ep": 8, "tp": 2, "zero": 1, "seq": 4096}
TOO_LARGE = {"model": "llama3-8b", "dp": 8}

CONTROLS = {control["field"]: control for group in constants()["groups"] for control in group["controls"]}


def result_of(config: dict, *, advice: bool = False) -> dict:
    return compute({"configs": [config], "advice": advice})["results"][0]


# --- in Python


def test_every_setting_of_the_library_is_a_control():
    assert set(CONTROLS) == {*DEFAULTS, *SHAPE_CONTROLS, *MOE_CONTROLS}
    assert sum(len(group["controls"]) for group in constants()["groups"]) == len(CONTROLS)


@pytest.mark.parametrize("field", [f for f, c in CONTROLS.items() if "choices" in c])
def test_every_choice_is_one_that_the_library_knows(field):
    for value, words in CONTROLS[field]["choices"]:
        assert words
        model = {"model": "qwen3-30b-a3b"} if field.startswith("moe.") or field == "etp" else {}
        spread = {"etp": {"dp": 4, "ep": 4, "sp": True}, "train": {"pp": 1}}.get(field, {})
        result = result_of({**STAGES, **model, **spread, field: value})
        assert "error" not in result, result
        assert result["values"][field] == value


def test_stops_rise_and_hold_the_sizes_of_the_presets():
    for control in CONTROLS.values():
        assert list(control.get("stops", ())) == sorted(set(control.get("stops", ())))
    for preset in constants()["presets"].values():
        experts = ["moe.experts", "moe.top_k", "moe.ffn", "moe.every", "moe.balance_loss"]
        for field in (
            "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "dropout",
            *(experts if preset["sizes"]["moe.experts"] else ()),
        ):  # fmt: skip
            assert preset["sizes"][field] in CONTROLS[field]["stops"]
    assert doublings(1, 16) == (1, 2, 3, 4, 6, 8, 12, 16)
    assert doublings(2, 8, threes=False) == (2, 4, 8)


def test_what_a_preset_sets_is_what_the_result_says():
    for name, preset in constants()["presets"].items():
        values = result_of({"model": name})["values"]
        assert {field: values[field] for field in preset["sizes"]} == preset["sizes"], name


def test_summary_holds_verdict_stages_and_command():
    small = {**STAGES, "memory": "80GB"}
    text, result = MemoryCalculator(small).summary(), result_of(small)
    assert f"{result['peak'] / 1e9:.1f} GB of 80.0 GB on each GPU: does not fit" in text
    assert text.count("<tr>") == 1 + 8
    assert f"<td>{result['stages'][7]['total'] / 1e9:.1f} GB</td>" in text
    assert "playbook memory --model llama3-70b" in text
    assert (
        "to spare. 46.7B parameters, 12.9B active per token.</p>"
        in MemoryCalculator({**SPARSE, "recompute": "full"}).summary()
    )


def test_summary_of_a_comparison_and_of_a_refusal():
    text = MemoryCalculator(SMALL, {**SMALL, "tp": 3, "gpus": 9}).summary()
    assert "<p>A: 5" in text
    assert "<p>B: tp must divide heads = 32" in text


def test_three_configurations_are_refused():
    with pytest.raises(ConfigError, match="compares two configurations, got 3"):
        MemoryCalculator({}, {}, {})


# --- in the browser: the module over real Python


class Page(Form):
    """The calculator as a reader meets it."""

    def config(self, side: int = 0) -> dict:
        return self.page.evaluate("(side) => window.model.get('inputs').configs[side]", side)

    def configs(self) -> list[dict]:
        return self.page.evaluate("window.model.get('inputs').configs")

    def verdict(self) -> str:
        return " ".join(self.page.locator(".pb-mc-verdict .pb-mc-line").first.inner_text().split())

    def open_groups(self):
        self.page.evaluate("document.querySelectorAll('.pb-set-group').forEach((el) => (el.open = true))")


@pytest.fixture
def calculator(open_page):
    def show(*configs: dict, **options) -> Page:
        return Page(bridged_page(open_page, MemoryCalculator(*configs), **options))

    return show


def other(field: str, now):
    """A choice that is not the one that is set."""
    return next(value for value, _ in CONTROLS[field]["choices"] if value != now)


def bases(view: Page) -> dict:
    return view.page.evaluate("window.model.get('outputs').results[0].values")


#: What an arrow key adds in a field of fractions.
STEPS = {"dropout": 0.01, "moe.balance_loss": 0.0001, "moe.z_loss": 0.0001}


@pytest.mark.browser
def test_every_number_moves_by_mouse_keyboard_and_typing(calculator):
    view = calculator({"model": "mixtral-8x7b"})
    stop_time(view.page)  # the reader never rests, and gets no advice on what fits nowhere
    view.open_groups()
    defaults = bases(view)
    numbers = [(field, control) for field, control in CONTROLS.items() if control["kind"] == "number"]
    for i, (field, control) in enumerate(numbers):
        row = view.row(field)
        slider, stops = row.locator("input[type=range]"), control["stops"]
        slider.scroll_into_view_if_needed()
        box = slider.bounding_box()
        view.page.mouse.click(box["x"] + box["width"] - 6, box["y"] + box["height"] / 2)
        assert view.config()[field] == stops[-1] != defaults[field], field
        if field in STEPS or i % 4 == 0:  # one control is made like another
            slider.press("ArrowLeft")
            assert view.config().get(field, defaults[field]) == stops[-2], field
            row.locator("input[type=text]").press("ArrowUp")
            step = STEPS.get(field, 1)
            assert view.config()[field] == pytest.approx(stops[-2] + step), field
            view.type(field, str(7 * step))
            assert view.config()[field] == 7 * step, field
        row.get_by_role("button", name=f"Reset {control['label']}").click()
        assert field not in view.config()
        view.settle()
        assert row.locator("input[type=text]").input_value() == str(bases(view)[field])
    for text, seq in {"4k": 4096, "16,384": 16384, " 1e5": 100_000}.items():  # as people write them
        view.type("seq", text)
        assert view.config()["seq"] == seq


@pytest.mark.browser
def test_every_choice_and_switch_moves_by_mouse_and_keyboard(calculator):
    view = calculator({"model": "qwen3-30b-a3b", "tp": 2, "pp": 2, "dp": 2, "ep": 2})
    stop_time(view.page)
    view.open_groups()
    at_first = bases(view)
    for field, control in CONTROLS.items():
        row, now = view.row(field), {**at_first, **view.config()}.get(field)
        if control["kind"] == "switch":
            row.locator("label").click()
            assert view.config()[field] is (not now), field
            row.locator("input").press("Space")
            assert field not in view.config(), field
        elif control["kind"] == "choice":
            wanted = other(field, now)
            row.get_by_text(dict(control["choices"])[wanted], exact=True).click()
            assert view.config()[field] == wanted, field
            row.locator("input:checked").press("ArrowRight")
            assert view.config().get(field, now) != wanted, field
            row.locator("input:checked").press("ArrowLeft")
            assert view.config()[field] == wanted, field
        elif control["kind"] == "select":
            before = view.config()
            row.locator("select").focus()
            keys = ["ArrowDown", "ArrowUp"]
            if [value for value, _ in control.get("choices", ())][-1:] == [now]:
                keys.reverse()
            view.page.keyboard.press(keys[0])
            assert view.config()[field] != before.get(field, now), field
            view.page.keyboard.press(keys[1])
            assert view.config().get(field, now) == now, field


@pytest.mark.browser
def test_memory_of_ones_own_is_slid_typed_and_reset(calculator):
    view = calculator(SMALL)
    row, text = view.row("memory"), view.row("memory").locator("input[type=text]")
    assert text.input_value() == "85.52GB"
    row.locator("input[type=range]").press("End")
    view.settle()
    assert view.config()["memory"] == "288GB"
    assert row.locator("input[type=range]").get_attribute("aria-valuetext") == "288 GB"
    text.press("ArrowDown")
    view.settle()
    assert view.config()["memory"] == text.input_value() == "287GB"
    view.type("memory", "96")
    assert view.config()["memory"] == text.input_value() == "96GB"
    view.type("reserve", "6 GiB")
    assert view.verdict().split(" fits")[0].endswith("of 96 GB")
    assert "6.44 GB of 96 GB should stay free" in view.page.locator(".pb-mc-facts").inner_text()
    view.type("memory", "lots")
    assert "number with its unit" in row.get_by_role("alert").inner_text()
    row.get_by_role("button", name="Reset GPU memory").click()
    view.settle()
    assert text.input_value() == "85.52GB"
    view.type("memory", "89GiB")
    view.row("accelerator").locator("select").select_option("l40s")
    view.settle()
    assert "memory" not in view.config()
    assert text.input_value() == "48.31GB"


CONFIG_JSON = json.dumps(PUBLISHED["meta-llama/Llama-3.2-1B"], indent=2)


@pytest.mark.browser
def test_a_config_json_is_pasted(calculator):
    view = calculator({"model": "llama3-8b", "layers": 30, "tp": 2})
    row, box = view.row("model"), view.row("model").locator("textarea")
    assert box.is_hidden()
    row.locator("select").select_option("own")
    assert box.is_visible()
    assert box.evaluate("(el) => el === document.activeElement")
    view.settle()
    assert view.config()["model"] == "llama3-8b"  # nothing has been pasted yet
    box.fill(CONFIG_JSON)
    view.page.wait_for_function("window.model.get('outputs').results[0].own")
    assert view.config() == {"model": CONFIG_JSON, "tp": 2}
    assert view.verdict().startswith(f"{result_of(view.config())['peak'] / 1e9:.3g} GB")
    assert "1.24B parameters" in view.page.locator(".pb-mc-facts").inner_text()
    assert box.input_value() == CONFIG_JSON
    view.open_groups()
    view.type("layers", "12")
    assert view.config()["layers"] == 12
    view.type("layers", "16")
    assert "layers" not in view.config()  # as the pasted model has it
    link = in_module(view.page, SCRIPT, "m.encode(window.model.get('inputs'), window.model.get('outputs'))")
    assert len(link) < 500
    back = in_module(view.page, SCRIPT, "m.decode(decodeURIComponent(x))", link)["configs"][0]
    assert result_of(back)["peak"] == result_of(view.config())["peak"]
    assert "planned as" not in row.locator("xpath=..").inner_text().lower()
    box.fill(CONFIG_JSON.replace("llama", "own"))
    view.page.wait_for_selector(
        "text=Planned as the book's model of these sizes: model_type 'own' is not known here"
    )
    box.fill('{"model_type": "t5"}')
    view.page.wait_for_selector(".pb-set-model [role=alert]:not([hidden])")
    assert "model_type must be one of" in row.get_by_role("alert").inner_text()
    row.locator("select").select_option("gpt2")
    view.settle()
    assert view.config() == {"model": "gpt2", "tp": 2}
    assert box.is_hidden()


@pytest.mark.browser
def test_a_model_is_found_by_words_of_its_name(calculator):
    view = calculator({"model": "llama3-8b"})
    row = view.row("model")
    find, select = row.get_by_role("searchbox"), row.locator("select")
    find.fill("qwen3 8b")
    assert [o for o in select.locator("option").all_inner_texts() if "qwen3-8b" in o]
    assert 2 < select.locator("option").count() < 8
    assert select.evaluate("(el) => el.size") > 2
    find.press("Escape")
    assert select.evaluate("(el) => [el.size, el.value]") == [0, "llama3-8b"]
    find.fill("https://huggingface.co/meta-llama/Llama-3.1-70B")
    find.press("Enter")
    view.settle()
    assert view.config()["model"] == "llama3.1-70b"
    assert select.locator("option").count() > 40
    find.fill("mistral")
    find.press("ArrowDown")
    assert select.evaluate("(el) => el === document.activeElement")
    select.select_option("mistral-7b")
    view.settle()
    assert view.config()["model"] == "mistral-7b"
    assert find.input_value() == ""
    find.fill("no such model")
    find.press("Enter")
    assert view.config()["model"] == "mistral-7b"


SCRIPT_OF_A_RUN = """TP=4
torchrun --nproc-per-node 8 --nnodes 2 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 \\
  --ffn-hidden-size 14336 --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --bf16 \\
  --disable-bias-linear --untie-embeddings-and-output-weights --position-embedding-type rope --rotary-base 500000 \\
  --hidden-dropout 0 --attention-dropout 0 --vocab-size 128256 --make-vocab-size-divisible-by 1 --sequence-parallel \\
  --tensor-model-parallel-size $TP --seq-length 4096 --global-batch-size 64 --use-distributed-optimizer --lr 1e-4 \\
  --max-position-embeddings 8192 --cp-comm-type a2a+p2p"""
OF_THE_RUN = {
    "model": "llama3-8b", "seq": 4096, "precision": "bf16-mixed-main-grads", "attention": "sdpa", "dp": 4, "tp": 4,
    "sp": True, "zero": 1, "grad_acc": 16, "fused": "swiglu,weight-gradients",
}  # fmt: skip


@pytest.mark.browser
def test_a_run_is_pasted(calculator):
    """Its settings take the place of its text: all that is shown, copied and linked is of them."""
    view = calculator({"model": "llama2-7b", "layers": 30, "pp": 2, "accelerator": "a100-40"})
    row, box = view.row("model"), view.row("model").locator("textarea")
    row.locator("select").select_option("own")
    box.fill(SCRIPT_OF_A_RUN)
    view.page.wait_for_function("window.model.get('inputs').configs[0].tp === 4")
    view.settle()
    assert view.config() == {**OF_THE_RUN, "accelerator": "a100-40"}
    assert row.locator("select").input_value() == "llama3-8b"
    assert view.verdict().startswith(f"{result_of(view.config())['peak'] / 1e9:.3g} GB")
    left = view.page.locator(".pb-mc-pasted")
    assert left.locator("summary").inner_text() == "Read from Megatron-LM; 2 left open"
    assert left.locator("li").all_inner_texts() == ["--cp-comm-type a2a+p2p: read as p2p", "not read: --lr"]
    row.locator("select").select_option("own")  # of a run without a model, the model stays
    box.fill(
        '{"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    )
    view.page.wait_for_function("window.model.get('inputs').configs[0].zero === 2")
    view.settle()
    kept = {"model": "llama3-8b", "seq": 4096, "accelerator": "a100-40"}
    assert view.config() == {**kept, "zero": 2, "micro_batch": 2, "precision": "fp32"}
    row.locator("select").select_option("gpt2")
    view.settle()
    assert left.is_hidden()
    row.locator("select").select_option("own")
    box.fill("--num-layers 4 --hidden-size 64 --num-attention-heads 7")
    view.page.wait_for_selector(".pb-set-model [role=alert]:not([hidden])")
    assert "hidden must be a multiple of heads" in row.get_by_role("alert").inner_text()


@pytest.mark.browser
def test_names_are_the_same_in_any_case(calculator):
    view = calculator({"model": "Llama3.2-1B", "accelerator": "L40S", "layers": 16})
    assert [view.row(field).locator("select").input_value() for field in ("model", "accelerator")] == [
        "llama3.2-1b",
        "l40s",
    ]
    assert view.row("layers").get_attribute("data-own") is None  # the preset's


@pytest.mark.browser
def test_a_slider_being_moved_keeps_the_focus_and_the_picture_follows(calculator):
    view = calculator(SMALL)
    slider = view.row("seq").locator("input[type=range]")
    slider.focus()
    for _ in range(4):
        view.page.keyboard.press("ArrowRight")
        view.settle()
        assert slider.evaluate("(el) => el === document.activeElement")
    wanted = result_of(view.config())
    assert view.config()["seq"] > 8192
    assert view.verdict().startswith(f"{wanted['peak'] / 1e9:.3g} GB of 85.5 GB")
    assert slider.get_attribute("aria-valuetext") == f"{view.config()['seq']} tokens"


@pytest.mark.browser
def test_experts_are_offered_to_models_that_have_them(calculator):
    view = calculator({"model": "llama3-8b"})
    view.open_groups()
    of_experts = [
        view.row(field).locator("input, select").first for field in ("ep", "moe.top_k", "moe.every")
    ]
    latent, facts = view.page.locator(".pb-mc-latent"), view.page.locator(".pb-mc-facts")
    assert all(el.is_disabled() for el in of_experts)
    assert latent.is_hidden()
    assert "8.03B parameters ·" in facts.inner_text()
    view.row("model").locator("select").select_option("llama4-maverick")
    view.settle()
    assert all(el.is_enabled() for el in of_experts)
    assert view.row("moe.every").locator("input[type=text]").input_value() == "2"
    assert "401B parameters, 17.2B active per token" in facts.inner_text()
    assert "1 in 2 blocks" in view.page.locator(".pb-set-brief").last.text_content()
    assert view.row("moe.balance_over").locator("select").is_disabled()  # there is no such loss
    view.row("model").locator("select").select_option("deepseek-v3")
    view.settle()
    assert "kv_rank 512" in latent.inner_text()
    assert view.row("head_dim").locator("input").first.is_disabled()


@pytest.mark.browser
def test_what_keeps_experts_from_fitting_stands_with_the_advice(calculator):
    view = calculator({"model": "mixtral-8x7b"})
    wanted = result_of({"model": "mixtral-8x7b"})["limit"]
    assert wanted.startswith("Experts are 97 %")
    assert wanted in view.page.locator("section", has=view.page.locator(".pb-mc-advice")).last.inner_text()


REFUSED = [("tp", "3"), ("tp", "abc"), ("layers", "0"), ("seq", "-5"), ("dropout", "1.5")]


@pytest.mark.browser
def test_a_refused_value_shows_its_sentence_beside_its_control_and_keeps_the_picture(calculator):
    view = calculator({"model": "llama3-8b", "dp": 8, "zero": 3, "recompute": "full"})
    view.open_groups()
    before, width = view.verdict(), view.page.locator(".pb-mc-segment").first.bounding_box()["width"]
    for field, text in REFUSED:
        view.type(field, text)
        refusal = result_of(view.config())["error"]
        assert refusal["field"] == field
        said = view.row(field).get_by_role("alert")
        assert said.inner_text() == refusal["message"]
        box = view.row(field).locator("input[type=text]")
        assert box.input_value() == text
        assert box.get_attribute("aria-invalid") == "true"
        assert said.get_attribute("id") in box.get_attribute("aria-describedby").split()
        assert view.verdict() == f"{before} last valid"
        assert view.page.locator(".pb-mc-segment").first.bounding_box()["width"] == width
        view.row(field).get_by_role("button", name="Reset").click()
        view.settle()
        assert view.page.get_by_role("alert").count() == 0
        assert view.verdict() == before


@pytest.mark.browser
def test_a_refusal_in_a_folded_group_opens_it(calculator):
    view = calculator(SMALL)
    folded = view.page.locator("details.pb-set-group").filter(has=view.row("heads"))
    assert folded.get_attribute("open") is None
    view.set({"configs": [{"heads": 7}]})
    assert folded.get_attribute("open") is not None
    assert "heads" in folded.get_by_role("alert").inner_text()


@pytest.mark.browser
def test_bars_are_as_long_as_what_they_hold(calculator):
    view = calculator(SMALL)
    stop_time(view.page)
    for config in (SMALL, STAGES, SPARSE):
        view.set({"configs": [config]})
        result = result_of(config)
        track = view.page.locator(".pb-mc-track").first.bounding_box()
        scale = track["width"] / max(result["peak"], result["memory"]) / 1.03
        for bar, stage in zip(view.page.locator(".pb-mc-bar").all(), result["stages"], strict=True):
            for category, size in stage["at_peak"].items():
                segment = bar.locator(f"[data-category={category}]")
                wide = segment.bounding_box()["width"] if size else 0
                assert wide == pytest.approx(size * scale, abs=0.1)
        line = view.page.locator(".pb-mc-capacity").first.bounding_box()
        assert line["x"] - track["x"] == pytest.approx(result["memory"] * scale, abs=1)


BREAKDOWNS = [
    SMALL, STAGES, SPARSE, TOO_LARGE, {"model": "tiny-gpt2"}, {"model": "gpt2-xl", "attention": "reference"},
    {**SMALL, "zero": 3, "recompute": "full"}, {**SMALL, "zero": 2, "offload": True, "precision": "fp8-lm-o3"},
    {"model": "deepseek-v3", "tp": 8, "pp": 4, "ep": 8, "dp": 8, "schedule": "dualpipe", "grad_acc": 32},
]  # fmt: skip


#: What formulas of counts and of buffers say in words.
WORDS_IN_FORMULAS = {"bytes", "parameters", "of", "bucket", "block", "per", "weight"}


@pytest.mark.browser
def test_breakdowns_add_up_to_their_bars_and_explain_every_symbol(calculator):
    view = calculator(SMALL)
    stop_time(view.page)  # nor is there advice on what does not fit
    opened, formulas, shown = (view.page.locator(f".pb-mc-{s}") for s in ("term", "formula", "symbols"))
    for config in BREAKDOWNS:
        view.set({"configs": [config]})
        result = result_of(config)
        for category, held in result["stages"][-1]["at_peak"].items():
            if not held:
                continue
            view.page.locator(".pb-mc-bar").last.locator(f"[data-category={category}]").focus()
            view.page.keyboard.press("Enter")
            parts = opened.evaluate_all("(all) => all.map((row) => Number(row.dataset.bytes))")
            assert sum(parts) == pytest.approx(held, abs=1), (config, category)
            assert view.page.locator('.pb-mc-category[aria-expanded="true"]').count() == 1
            used = set(re.findall("[A-Za-z]+", " ".join(formulas.all_inner_texts())))
            said = dict(row.split("\t")[:2] for row in shown.inner_text().splitlines())
            assert {s: int(re.sub(r"\D", "", v)) for s, v in said.items()} == {
                s: result["symbols"][s] for s in used & set(result["symbols"])
            }
            assert used <= {*result["symbols"], *WORDS_IN_FORMULAS}


@pytest.mark.browser
def test_arrow_keys_go_along_bars_and_a_click_opens_a_stage(calculator):
    view = calculator(STAGES)
    assert view.page.locator('.pb-mc-stages [tabindex="0"]').count() == 1
    view.page.locator(".pb-mc-stage").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        view.page.keyboard.press(key)
    focused = view.page.evaluate("document.activeElement.getAttribute('aria-label')")
    gradients = result_of(STAGES)["stages"][2]["at_peak"]["gradients"]
    assert focused.startswith(f"stage 2, gradients: {gradients / 1e9:.3g} GB")
    view.page.keyboard.press("Enter")
    assert "On each GPU of stage 2" in view.page.locator(".pb-mc-breakdown").inner_text()
    view.page.locator(".pb-mc-stage").nth(5).click()
    assert "On each GPU of stage 5" in view.page.locator(".pb-mc-breakdown").inner_text()
    view.button("Show the highest peak").click()
    assert f"stage {result_of(STAGES)['fullest']}" in view.page.locator(".pb-mc-breakdown h3").inner_text()


@pytest.mark.browser
def test_two_configurations_side_by_side(calculator):
    view = calculator(SMALL)
    view.button("Compare").click()
    assert view.configs() == [SMALL, SMALL]
    view.row("recompute").locator("select").select_option("full")
    view.settle()
    full = {**SMALL, "recompute": "full"}
    assert view.configs() == [SMALL, full]
    a, b = result_of(SMALL)["peak"], result_of(full)["peak"]
    lines = view.page.locator(".pb-mc-line").all_inner_texts()
    assert [f"{peak / 1e9:.3g} GB" in line for peak, line in zip((a, b), lines, strict=True)] == [True, True]
    assert (
        f"B needs {(a - b) / 1e9:.3g} GB less than A" in view.page.locator(".pb-mc-difference").inner_text()
    )
    boxes = [chart.bounding_box() for chart in view.page.locator(".pb-mc-chart").all()]
    assert boxes[0]["y"] == boxes[1]["y"]
    together = view.page.locator(".pb-mc-table tfoot").inner_text().split()
    assert float(together[-1].replace("−", "-")) == pytest.approx((b - a) / 1e9, abs=0.006)
    view.button("Swap").click()
    view.settle()
    assert view.configs() == [full, SMALL]
    assert view.verdict().startswith(f"A {b / 1e9:.3g} GB")
    view.button("Set configuration A").click()
    assert view.row("recompute").locator("select").input_value() == "full"
    view.button("Remove B").click()
    assert view.configs() == [full]
    assert view.page.locator(".pb-mc-chart").count() == 1
    view.button("Compare").click()
    view.row("unit").get_by_text("GiB", exact=True).click()
    assert [config["unit"] for config in view.configs()] == ["GiB", "GiB"]
    view.row("unit").get_by_role("button", name="Reset Unit").click()
    assert view.configs() == [full, full]


@pytest.mark.browser
@pytest.mark.parametrize("gpus", [None, 8])
def test_applying_advice_makes_it_fit(calculator, gpus):
    config = {"model": "llama3-8b", "gpus": 8} if gpus else TOO_LARGE
    view = calculator(config)
    assert "does not fit, by" in view.verdict()
    view.page.wait_for_selector(".pb-mc-advice li")
    advice = result_of(config, advice=True)["advice"]
    cards = view.page.locator(".pb-mc-advice li")
    assert cards.count() == len(advice) > 1
    assert f"{advice[0]['peak'] / 1e9:.3g} GB" in cards.first.inner_text()
    cards.first.get_by_role("button").click()
    view.settle()
    assert view.page.evaluate("window.model.get('inputs').advice") is False
    now = result_of(view.config())
    assert now["peak"] == advice[0]["peak"]
    assert view.config().get("gpus") == gpus
    assert f"{now['peak'] / 1e9:.3g} GB of 85.5 GB fits, " in view.verdict()
    assert cards.first.is_hidden()


@pytest.mark.browser
def test_advice_that_needs_more_gpus_says_so_and_comes_last(calculator):
    """One RTX 4090: a model that nothing puts on it, and one that full recomputation does."""
    large = {"model": "llama3-8b", "gpus": 1, "accelerator": "rtx4090", "seq": 2048}
    view, advice = calculator(large), result_of(large, advice=True)["advice"]
    assert min(one["gpus"] for one in advice) == 2
    cards = view.page.locator(".pb-mc-advice li")
    for card, one in zip(cards.all(), advice, strict=True):
        assert card.locator("b").first.inner_text().endswith(f", on {one['gpus']} GPUs")
    note = view.page.locator("section", has=view.page.locator(".pb-mc-advice")).last.inner_text()
    assert "Nothing was found that fits on 1 GPU; on more, these do." in note
    small = {
        "model": "llama3.2-1b",
        "gpus": 1,
        "accelerator": "rtx4090",
        "seq": 4096,
        "fused": "all",
        "memory": "23GB",
    }
    view, advice = calculator(small), result_of(small, advice=True)["advice"]
    gpus = [one["gpus"] for one in advice]
    assert (gpus[0], gpus[-1]) == (1, 2)
    names = [card.locator("b").first.inner_text() for card in view.page.locator(".pb-mc-advice li").all()]
    assert [", on 2 GPUs" in name for name in names] == [n == 2 for n in gpus]
    assert (
        f"A step of about {1e3 * advice[0]['seconds']:.3g} ms"
        in view.page.locator(".pb-mc-advice li").first.inner_text()
    )
    view.button(f"Apply {names[-1]}").click()
    assert view.config()["gpus"] == 2


@pytest.mark.browser
def test_what_leaves_too_little_is_tight(calculator):
    tight = {**SMALL, "memory": f"{result_of(SMALL)['peak'] / 0.98 / 1e9:.3f}GB"}
    view, result = calculator(tight), result_of(tight)
    words = f"tight, {result['spare'] / 1e9:.3g} GB to spare, less than the {result['reserve'] / 1e9:.3g} GB kept free"
    assert view.verdict().endswith(words)
    assert view.page.locator(".pb-mc-bar[data-tight]:not([data-over])").count() == 1
    view.page.wait_for_selector(".pb-mc-advice li")
    assert (
        f"What would leave {result['reserve'] / 1e9:.3g} GB free"
        in view.page.locator(".pb-mc-detail").inner_text()
    )
    assert words in saved(view, "Save picture")
    free, line = (view.page.locator(f".pb-mc-{part}").bounding_box() for part in ("free", "capacity"))
    track = view.page.locator(".pb-mc-track").bounding_box()
    assert free["x"] + free["width"] == pytest.approx(line["x"], abs=1)
    scale = (line["x"] - track["x"]) / result["memory"]
    assert free["width"] == pytest.approx(result["reserve"] * scale, abs=1)
    view.type("reserve", "0")
    assert "fits, " in view.verdict()
    assert view.config()["reserve"] == "0GB"
    view.row("reserve").get_by_role("button", name="Reset").click()
    view.settle()
    assert "reserve" not in view.config()
    assert view.verdict().endswith(words)


@pytest.mark.browser
def test_a_gpu_says_what_its_memory_is_in_both_units(calculator):
    view = calculator(SMALL)
    note = view.row("accelerator").locator(".pb-set-note")
    assert note.inner_text() == "79.6 GiB = 85.5 GB"
    for name, gpu in ACCELERATORS.items():
        if name == "cpu":
            continue
        view.row("accelerator").locator("select").select_option(name)
        gib, gb = re.fullmatch(r"([\d.]+) GiB = ([\d.]+) GB", note.inner_text()).groups()
        assert float(gib) == pytest.approx(gpu.memory_bytes / 2**30, abs=0.051), name
        assert float(gb) == pytest.approx(gpu.memory_bytes / 1e9, abs=0.051), name
    assert note.get_attribute("id") in view.row("accelerator").locator("select").get_attribute(
        "aria-describedby"
    )


@pytest.mark.browser
def test_what_is_not_of_the_settings_is_dimmed_and_cannot_be_taken_along(calculator):
    view = calculator(SMALL)  # which fits: nothing is asked for at rest
    results, said = view.page.locator(".pb-mc-results"), view.page.locator(".pb-computing")
    taking = [view.button(name) for name in ("Copy command", "Copy link", "Save JSON", "Save picture")]
    assert results.get_attribute("aria-busy") is None
    assert all(el.is_enabled() for el in taking)
    view.hold()
    before = view.verdict()
    view.row("recompute").locator("select").select_option("full")
    assert results.get_attribute("aria-busy") == "true"
    assert not any(el.is_enabled() for el in taking)
    view.page.wait_for_selector(".pb-computing:not([hidden])")
    assert said.inner_text() == "Computing … Until then the results are those of the settings before."
    assert view.verdict() == before
    dimmed = "getComputedStyle(document.querySelector('.pb-mc-sides')).filter.includes('opacity')"
    view.page.wait_for_function(dimmed)
    view.release()
    view.page.wait_for_selector(".pb-mc-results:not([aria-busy])")
    assert said.is_hidden()
    assert all(el.is_enabled() for el in taking)
    assert view.verdict() != before
    view.type("tp", "3")
    view.release()
    view.page.wait_for_selector(".pb-mc-results:not([aria-busy])")
    assert results.get_attribute("data-stale") == ""
    assert not any(el.is_enabled() for el in taking)


@pytest.mark.browser
def test_a_link_that_cannot_be_shows_no_other_numbers(open_page):
    page = static_page(open_page, MemoryCalculator(SMALL), hash="#calculator?model=gpt2&gpus=12&tp=8")
    page.wait_for_function("document.querySelector('[data-field=tp] input[type=text]')?.value === '8'")
    assert page.locator(".pb-mc-peak").is_hidden()
    page.wait_for_function(
        "document.querySelector('.pb-computing')?.innerText.startsWith('No result: gpus must be')"
    )
    for part in (".pb-mc-peak", ".pb-mc-segment", ".pb-mc-table", ".pb-mc-command", ".pb-mc-facts p"):
        assert not any(el.is_visible() for el in page.locator(part).all()), part
    page.evaluate("location.hash = '#calculator?model=gpt2'")
    wanted = f"{result_of({'model': 'gpt2'})['peak'] / 1e9:.3g} GB"
    page.wait_for_function("(text) => document.querySelector('.pb-mc-peak')?.innerText === text", arg=wanted)
    assert page.locator(".pb-computing").is_hidden()
    page.locator('[data-field="tp"] input[type=text]').fill("5")
    page.wait_for_selector(".pb-mc-stale:not([hidden])")
    assert page.locator(".pb-mc-peak").inner_text() == wanted  # what the reader has seen, and is called so


@pytest.mark.browser
def test_advice_is_asked_for_only_at_rest_and_only_when_needed(calculator):
    view = calculator(SMALL)
    assert view.inputs()["advice"] is True  # as the widget was made
    elapse = stop_time(view.page)
    slider = view.row("micro_batch").locator("input[type=range]")
    for _ in range(6):
        slider.press("ArrowRight")
        view.settle()
        assert view.inputs()["advice"] is False
    assert result_of(view.config())["verdict"] != "fits"
    elapse()
    assert view.inputs()["advice"] is True
    view.type("micro_batch", "1")
    elapse()
    assert result_of(view.config())["verdict"] == "fits"
    assert view.inputs()["advice"] is False


@pytest.mark.browser
def test_presets_clear_sizes_and_gpus_and_dp_take_turns(calculator):
    view = calculator({"model": "llama3-8b", "layers": 30, "hidden": 2048, "tp": 2, "gpus": 8})
    assert view.row("dp").locator("input[type=text]").input_value() == "4"
    view.row("model").locator("select").select_option("gpt2")
    assert view.config() == {"model": "gpt2", "tp": 2, "gpus": 8}
    view.type("dp", "2")
    assert view.config() == {"model": "gpt2", "tp": 2, "dp": 2}
    assert view.row("gpus").locator("input[type=text]").input_value() == "4"
    view.type("gpus", "16")
    assert view.config() == {"model": "gpt2", "tp": 2, "gpus": 16}
    assert view.row("dp").locator("input[type=text]").input_value() == "8"


@pytest.mark.browser
def test_reset_leaves_the_model_and_the_gpu(calculator):
    kept = {"model": "llama3-8b", "accelerator": "h200", "memory": "100GB", "reserve": "5GB", "unit": "GiB"}
    view = calculator({**SMALL, **kept, "layers": 30, "recompute": "full"})
    view.button("Reset").click()
    assert view.config() == kept


@pytest.mark.browser
def test_a_size_set_back_to_the_presets_leaves_the_link(calculator):
    view = calculator({"model": "llama3-8b"})
    view.open_groups()
    view.type("layers", "30")
    assert view.config() == {"model": "llama3-8b", "layers": 30}
    assert view.row("layers").get_by_role("button", name="Reset").is_visible()
    view.type("layers", "32")
    assert view.config() == {"model": "llama3-8b"}
    assert view.row("layers").get_by_role("button", name="Reset").is_hidden()


@pytest.mark.browser
def test_the_curve_reads_out_every_length(calculator):
    view, curve = calculator(SMALL), result_of(SMALL)["curve"]
    plot, said = view.page.locator(".pb-chart"), view.page.locator(".pb-mc-note:has(+ .pb-chart)")
    length = int(re.sub(r"\D", "", re.search(r"about (.*) tokens", said.inner_text())[1]))
    assert result_of({**SMALL, "seq": 2 * (length // 2)})["spare"] == pytest.approx(0, abs=2.5e9)
    plot.focus()
    view.page.keyboard.press("Home")
    for seq, peak in zip(curve["seq"], curve["peak"], strict=True):
        words = f"{seq // 1024}k" if seq >= 1024 else str(seq)
        assert said.inner_text().startswith(f"{words} tokens: {peak / 1e9:.3g} GB"), seq
        assert plot.get_attribute("aria-valuetext") in said.inner_text()
        view.page.keyboard.press("ArrowRight")
    box = plot.bounding_box()
    view.page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    assert said.inner_text().startswith("128k tokens")


@pytest.mark.browser
def test_gib_are_powers_of_two(calculator):
    view, peak = calculator(SMALL), result_of(SMALL)["peak"]
    view.row("unit").get_by_text("GiB", exact=True).click()
    view.settle()
    assert view.config()["unit"] == "GiB"
    assert view.verdict().startswith(f"{peak / 2**30:.3g} GiB of 79.6 GiB")
    assert view.row("memory").locator("input[type=text]").input_value() == "79.65GiB"
    assert view.page.locator(".pb-mc-command code").text_content().endswith("--unit GiB")
    assert view.page.locator(".pb-mc-table tfoot").inner_text().split()[1] == f"{peak / 2**30:.2f}"


@pytest.mark.browser
def test_links_hold_the_state_and_ignore_what_they_do_not_know(open_page):
    page = open_page("")
    readable = {"configs": [{"model": "llama3-70b", "tp": 8, "zero": 1}], "advice": False}
    assert in_module(page, SCRIPT, "m.encode(x)", readable) == "model=llama3-70b&tp=8&zero=1"
    rng, values = random.Random(0), [0, 1, 8, 0.1, True, False, "abc", "1f1b", "a;b&c=d %", "", "é"]
    asked = []
    for _ in range(100):
        keys = rng.sample(sorted(CONTROLS), rng.randrange(1, 9))
        configs = [{key: rng.choice(values) for key in keys} for _ in range(rng.randrange(1, 3))]
        asked.append({"configs": configs, "advice": False})
    assert in_module(page, SCRIPT, "x.map((one) => m.decode(m.encode(one)))", asked) == asked
    said = in_module(
        page, SCRIPT, "m.decode(x)", "tp=8&nonsense=1&__proto__=2&seq=8kk&zero;model=gpt2;model=third"
    )
    assert said == {"configs": [{"tp": 8, "seq": "8kk"}, {"model": "gpt2"}], "advice": False}
    every = dict.fromkeys(CONTROLS, 1)
    assert in_module(page, SCRIPT, "m.decode(m.encode(x))", {"configs": [every]})["configs"] == [every]


def saved(view: Page, name: str) -> str:
    with view.page.expect_download() as download:
        view.button(name).click()
    return download.value.path().read_text(encoding="utf-8")


@pytest.mark.browser
def test_saved_json_is_what_python_computes(calculator):
    view = calculator(SMALL)
    document = json.loads(saved(view, "Save JSON"))
    assert document["inputs"]["configs"] == [SMALL]
    assert document["outputs"] == json.loads(json.dumps(compute(document["inputs"])))


@pytest.mark.browser
def test_saved_picture_stands_alone(calculator):
    view, result = calculator(STAGES), result_of(STAGES)
    text = saved(view, "Save picture")
    tree = ET.fromstring(text)
    assert re.findall(r"""(?:href|url)\b|https?://(?!www\.w3\.org)""", text) == []
    words = " ".join(t.text for t in tree.iter("{http://www.w3.org/2000/svg}text"))
    assert f"{result['peak'] / 1e9:.3g} GB of 288 GB" in words
    assert result["command"] in words
    bars = [r for r in tree.iter("{http://www.w3.org/2000/svg}rect") if r.get("height") == "17"]
    assert len(bars) == sum(bool(size) for stage in result["stages"] for size in stage["at_peak"].values())


@pytest.mark.browser
def test_the_command_is_shown_and_copied(calculator):
    view = calculator(SMALL, permissions=["clipboard-read", "clipboard-write"])
    command = result_of(SMALL)["command"]
    assert view.page.locator(".pb-mc-command code").text_content() == command
    view.button("Copy command").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == command
    view.button("Copy link").click()
    assert view.page.evaluate("navigator.clipboard.readText()") == "http://127.0.0.1/#calculator?"


@pytest.mark.browser
def test_the_page_says_what_python_does(calculator):
    view = calculator(SMALL)
    status = view.page.locator(".pb-mc-status")
    failed = ("failed: no memory", "Python could not be started: no memory")
    for value, text in [("starting", "starting Python …"), ("idle", ""), failed]:
        view.page.evaluate("(value) => window.model.set('status', value)", value)
        assert status.inner_text() == text


@pytest.mark.browser
def test_an_answer_is_drawn_once(calculator):
    view = calculator(STAGES)
    answers = [result_of({**STAGES, "seq": 2**k}) for k in range(9, 14)]
    assert view.wasted("(answer) => window.model.set('outputs', { results: [answer] })", answers) == []


@pytest.mark.browser
def test_a_closed_calculator_hears_nothing(calculator):
    view = calculator(SMALL)
    before = view.verdict()
    view.page.evaluate("window.close()")
    view.page.evaluate("(r) => window.model.set('outputs', { results: [r] })", result_of(STAGES))
    assert view.verdict() == before


@pytest.mark.browser
def test_fits_every_width_and_passes_axe(calculator):
    """As it opens, with all of it open and a refusal, and with two configurations."""
    view = calculator(TOO_LARGE, reduced_motion="reduce")
    view.page.wait_for_selector(".pb-mc-advice li")
    assert view.problems() == []
    view.open_groups()
    for category in view.page.locator(".pb-mc-category").all():
        category.click()
    view.type("tp", "a long word that divides no heads whatsoever")
    assert view.row("tp").get_by_role("alert").is_visible()
    assert view.problems() == []
    view.row("tp").get_by_role("button", name="Reset").click()
    view.button("Compare").click()
    view.type("pp", "4")
    assert view.problems() == []


@pytest.mark.browser
def test_on_a_phone_the_verdict_stays_and_groups_tell_their_values(calculator):
    view = calculator(SMALL, width=390)
    groups = view.page.locator("details.pb-set-group")
    assert groups.evaluate_all("(all) => all.filter((el) => el.open).length") == 0
    assert "DP 4, TP 2, SP, ZeRO-1" in groups.first.inner_text()
    view.page.locator(".pb-mc-actions").scroll_into_view_if_needed()
    assert view.page.locator(".pb-mc-peak").bounding_box()["y"] >= 0
    assert view.page.evaluate("scrollY") > 400


@pytest.mark.browser
def test_prints_the_verdict_bars_and_values(calculator):
    view = calculator(SMALL)
    view.page.emulate_media(media="print")
    for shown in (".pb-mc-verdict", ".pb-mc-bars", ".pb-mc-table", ".pb-mc-command code"):
        assert view.page.locator(shown).first.is_visible(), shown
    for hidden in (".pb-mc-controls", ".pb-mc-tools"):
        assert view.page.locator(hidden).first.is_hidden(), hidden


@pytest.mark.browser
def test_in_the_static_page_python_answers_and_the_address_keeps_the_state(open_page):
    page = static_page(open_page, MemoryCalculator(SMALL), hash="#calculator?model=llama3-8b&tp=4")
    page.wait_for_function("document.querySelector('[data-field=tp] input[type=text]')?.value === '4'")
    wanted = result_of({"model": "llama3-8b", "tp": 4})
    page.wait_for_function(
        f"document.querySelector('.pb-mc-peak')?.innerText === '{wanted['peak'] / 1e9:.3g} GB'"
    )
    page.locator("[data-field=zero]").get_by_text("2", exact=True).click()
    page.wait_for_function("location.hash.includes('zero=2')")
    page.locator("[data-field=model] select").select_option("own")
    page.locator("[data-field=model] textarea").fill(CONFIG_JSON)
    page.wait_for_function("location.hash.includes('128256') && !location.hash.includes('model_type')")
    address = page.evaluate("location.hash")
    again = static_page(open_page, MemoryCalculator(SMALL), hash=address)
    again.wait_for_function("document.querySelector('.pb-mc-facts')?.innerText.includes('1.24B parameters')")
