"""My cluster: controls that it shares with the memory calculator, a ranking to choose from, a map, a link, a command."""

from __future__ import annotations

import json

import pytest
from playbook_widgets import MyCluster
from playbook_widgets.compute.my_cluster import DEFAULTS, compute
from playbook_widgets.my_cluster import COLOURS, constants
from published_configs import PUBLISHED
from widget_homes import Form, bridged_page, in_module, static_page, stop_time

from playbook.planning.search import WORDS
from playbook.shapes import PRESETS

SCRIPT = MyCluster.script
SMALL = {"model": "gpt2-xl", "gpus": 8, "global_batch": 32, "seq": 1024}
STAGES = "dp=2,pp=4,grad_acc=16"
CONTROLS = {control["field"]: control for group in constants()["groups"] for control in group["controls"]}


def test_every_setting_is_a_control_and_every_part_has_a_colour():
    assert set(CONTROLS) == set(DEFAULTS) - {"layout"}
    assert set(COLOURS) == set(WORDS)
    for control in CONTROLS.values():
        assert list(control.get("stops", ())) == sorted(set(control.get("stops", ())))


def test_summary_holds_the_ranking_and_the_command():
    text = MyCluster(SMALL).summary()
    rows = compute(SMALL)["rows"]
    assert text.count("<tr>") == 1 + len(rows)
    assert f"<td>{rows[0]['layout']}</td><td>{rows[0]['seconds']:.3g}</td>" in text
    assert "playbook search --model gpt2-xl" in text
    assert "nothing fits on 1 GPU: " in MyCluster({"model": "llama3-70b", "gpus": 1}).summary()


class Page(Form):
    """The widget as a reader meets it."""

    def setting(self) -> dict:
        return {key: value for key, value in self.inputs().items() if key != "map"}

    def verdict(self) -> str:
        return " ".join(self.page.locator(".pb-mc-verdict .pb-mc-line").inner_text().split())

    def layouts(self) -> list[str]:
        return [el.get_attribute("title") for el in self.page.locator(".pb-cl-layout").all()]

    def chosen(self) -> str:
        return self.page.locator(".pb-cl-layout[aria-pressed=true]").get_attribute("title")

    def column(self, name: str) -> list[str]:
        return self.page.locator(f".pb-cl-table td[data-column={name}]").all_inner_texts()


def families(rows: list[dict]) -> dict[tuple, list[dict]]:
    """Rows that differ in micro-batches and chunks alone."""
    found: dict[tuple, list[dict]] = {}
    for row in rows:
        axes = tuple(row[key] for key in ("tp", "pp", "cp", "ep", "dp", "zero", "recompute"))
        found.setdefault(axes, []).append(row)
    return found


@pytest.fixture
def cluster(open_page):
    def show(setting: dict, **options) -> Page:
        return Page(bridged_page(open_page, MyCluster(setting), **options))

    return show


@pytest.mark.browser
def test_layouts_are_chosen_from_the_ranking_and_from_the_map(cluster):
    view = cluster(SMALL)
    rows = [alike[0] for alike in families(compute(SMALL)["rows"]).values()]
    assert view.layouts() == [row["layout"] for row in rows]
    assert view.chosen() == rows[0]["layout"]
    view.page.locator(".pb-cl-layout").nth(2).press("Enter")
    view.settle()
    assert view.setting()["layout"] == view.chosen() == rows[2]["layout"]
    assert view.verdict().endswith(f"a step with {rows[2]['layout']}")
    cell = view.page.get_by_role("button", name="tp 1, pp 4:")
    cell.click()
    view.settle()
    layout = view.setting()["layout"]
    assert "pp=4" in layout
    assert view.verdict().endswith(layout)
    assert cell.get_attribute("aria-pressed") == "true"
    cell.press("ArrowLeft")
    assert view.page.evaluate("document.activeElement.ariaLabel").startswith("tp 1, pp 2:")
    view.page.locator(".pb-cl-layout").first.click()
    assert view.setting() == SMALL | ({"layout": ""} if "layout" in view.setting() else {})


@pytest.mark.browser
def test_the_ranking_is_sorted_unfolded_and_narrowed(cluster):
    setting = {**SMALL, "model": "gpt2"}
    view, rows = cluster(setting), compute(setting)["rows"]
    alike = list(families(rows).values())[:20]
    assert view.column("dp") == [str(one[0]["dp"]) for one in alike]
    assert not view.page.locator("th[data-column=ep]").is_visible()  # a dense model
    view.button("memory").click()
    least = sorted(range(len(rows)), key=lambda i: (rows[i]["needs"], i))
    assert view.layouts()[0] == rows[least[0]]["layout"]
    assert view.page.locator("th[aria-sort]").inner_text().startswith("memory")
    view.button("MFU").press("Enter")
    assert view.page.locator("th[aria-sort=descending]").inner_text().startswith("MFU")
    assert view.layouts()[0] == max(rows, key=lambda row: row["mfu"])["layout"]
    view.button("step").click()
    some, first = next((one, i) for i, one in enumerate(alike) if len(one) > 1)
    more = view.page.locator("tr", has=view.page.locator(f"[title='{some[0]['layout']}']")).locator(
        ".pb-cl-more"
    )
    assert more.inner_text() == f"+{len(some) - 1}"
    more.click()
    assert view.layouts()[first : first + len(some)] == [row["layout"] for row in some]
    more.click()
    assert len(view.layouts()) == len(alike)
    view.page.locator("td[data-column=mfu]").nth(1).click()  # anywhere in a row
    view.settle()
    assert view.chosen() == view.layouts()[1]
    view.page.evaluate("document.querySelectorAll('details').forEach((el) => (el.open = true))")
    view.type("tp", "2,4")
    assert set(view.column("tp")) == {"2", "4"}
    view.row("runs_in").locator("select").select_option("deepspeed")
    view.settle()
    assert "deepspeed" in view.page.locator(".pb-mc-command code").text_content()
    link = in_module(view.page, SCRIPT, "m.encode(window.model.get('inputs'), window.model.get('outputs'))")
    assert in_module(view.page, SCRIPT, "m.decode(x)", link)["tp"] == "2,4"
    view.type("pp", "two")
    assert "pp must be an integer" in view.row("pp").get_by_role("alert").inner_text()


@pytest.mark.browser
def test_the_step_is_drawn_as_long_as_its_parts(cluster):
    view, result = cluster({**SMALL, "layout": STAGES}), compute({**SMALL, "layout": STAGES})
    track = view.page.locator(".pb-cl-track").bounding_box()["width"]
    parts = [seconds for *_, seconds in result["breakdown"] if seconds]
    widths = [el.bounding_box()["width"] for el in view.page.locator(".pb-cl-track > i").all()]
    whole = result["chosen"]["seconds"]
    assert widths == pytest.approx([seconds / whole * track for seconds in parts], abs=0.5)
    assert view.page.locator(".pb-mc-bar").count() == 4
    assert result["why"] in view.page.locator(".pb-cl-why").inner_text()


@pytest.mark.browser
def test_settings_of_the_cluster_reach_python(cluster):
    view = cluster({**SMALL, "layout": STAGES})
    elapse = stop_time(view.page)  # no map at every rest
    view.type("gpus", "16")
    assert view.row("gpus").locator("input[type=text]").input_value() == "16"
    assert view.verdict().endswith(compute(view.setting())["chosen"]["layout"])
    view.type("gpus", "12")
    assert "multiple of the 8 of a node" in view.row("gpus").get_by_role("alert").inner_text()
    assert "last valid" in view.verdict()
    view.row("gpus").get_by_role("button", name="Reset GPUs").click()
    view.type("memory", "24")
    assert view.setting()["memory"] == "24GB"
    assert '"memory_bytes":24000000000' in view.page.locator(".pb-mc-command code").text_content()
    view.row("accelerator").locator("select").select_option("a100-80")
    view.settle()
    assert "memory" not in view.setting()
    view.row("model").locator("select").select_option("own")
    view.row("model").locator("textarea").fill(json.dumps(PUBLISHED["Qwen/Qwen3-0.6B"], indent=2))
    elapse()
    view.page.wait_for_function("window.model.get('outputs').own")
    assert "0.596B parameters" in view.page.locator(".pb-cl-facts").inner_text()
    link = in_module(view.page, SCRIPT, "m.encode(window.model.get('inputs'), window.model.get('outputs'))")
    assert "model_type" not in link
    assert "151936" in link
    differs = view.page.locator(".pb-mc-differs")
    assert not differs.is_visible()
    shape = {**PRESETS["gpt2-xl"].sizes(), "norms": "parallel"}
    view.row("model").locator("textarea").fill(json.dumps(shape))
    elapse()
    view.page.wait_for_selector("text=Planned as the book's model of these sizes: norms is 'parallel'.")
    view.button("torchtitan").click()
    assert "tensor_parallel_degree" in view.page.locator(".pb-cl-flags").inner_text()


@pytest.mark.browser
def test_what_a_step_costs_and_leaves_free_has_its_unit(cluster):
    view, result = cluster(SMALL), compute(SMALL)
    cost = f"${result['chosen']['cost']:.2f}"
    assert view.column("cost")[0] == cost
    days = f"1T tokens take {result['training']['days']:.1f} days"
    assert days in view.page.locator(".pb-cl-whole").inner_text()
    assert f"10⁹ tokens cost {cost}" in view.page.locator(".pb-cl-facts").inner_text()
    assert view.row("accelerator").locator(".pb-set-note").inner_text() == "79.6 GiB = 85.5 GB"
    assert "leave 3.42 GB of each GPU free" in view.page.locator("section[aria-label=Layouts]").inner_text()
    tight = f"{result['chosen']['needs'] / 0.98 / 1e9:.3f}GB"
    view = cluster({**SMALL, "memory": tight, "layout": result["chosen"]["layout"]})
    assert "GB on the fullest GPU: tight, " in view.page.locator(".pb-cl-facts").inner_text()
    assert view.page.locator(".pb-cl-layout[aria-pressed=true]").count() == 0


@pytest.mark.browser
def test_what_is_not_of_the_settings_is_dimmed_and_cannot_be_taken_along(cluster):
    view = cluster(SMALL)
    results, said = view.page.locator(".pb-mc-results"), view.page.locator(".pb-computing")
    taking = [view.button(name) for name in ("Copy flags", "Copy command", "Copy link", "Save JSON")]
    assert all(el.is_enabled() for el in taking)
    view.hold()
    before = view.verdict()
    view.row("model").locator("select").select_option("gpt2")
    assert results.get_attribute("aria-busy") == "true"
    assert not any(el.is_enabled() for el in taking)
    view.page.wait_for_selector(".pb-computing:not([hidden])")
    assert "Computing … " in said.inner_text()
    view.page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert 0 <= said.bounding_box()["y"] < 900  # wherever the reader looks
    assert view.verdict() == before
    view.release()
    view.page.wait_for_selector(".pb-mc-results:not([aria-busy])")
    assert said.is_hidden()
    assert view.verdict() != before
    assert all(el.is_enabled() for el in taking)


@pytest.mark.browser
def test_a_link_that_cannot_be_shows_no_other_numbers(open_page):
    query = "model=gpt2&seq=512&global_batch=32&gpus=12&accelerator=rtx9090"
    page = static_page(open_page, MyCluster(SMALL), hash=f"#cluster?{query}")
    assert page.locator(".pb-mc-peak").is_hidden()
    for refused in ("unknown accelerator", "gpus must be"):
        page.locator(".pb-computing", has_text=f"No result: {refused}").wait_for()
        for part in (".pb-mc-verdict", ".pb-mc-detail"):
            assert page.locator(part).is_hidden()
        page.locator('[data-field="accelerator"] select').select_option("a100-80")
    page.locator('[data-field="gpus"] input[type=text]').fill("8")
    wanted = compute({"model": "gpt2", "seq": 512, "global_batch": 32, "gpus": 8, "accelerator": "a100-80"})
    page.locator(".pb-mc-of", has_text=wanted["chosen"]["layout"]).wait_for(state="visible")
    assert page.locator(".pb-mc-detail").is_visible()


@pytest.mark.browser
def test_a_link_holds_the_state(open_page):
    page = open_page("")
    state = {**SMALL, "layout": STAGES, "memory": "96GB", "price": 1.5}
    back = in_module(page, SCRIPT, "m.decode(m.encode(x))", state)
    assert back == {**state, "map": False}
    # A browser may give the address back decoded.
    assert in_module(page, SCRIPT, "m.decode(decodeURIComponent(m.encode(x)))", state) == back
    assert in_module(page, SCRIPT, "m.decode(x)", "gpus=8&nonsense=1") == {"gpus": 8, "map": False}


@pytest.mark.browser
def test_a_run_is_pasted_and_looked_at_beside_what_is_faster(cluster):
    view = cluster({"gpus": 8, "global_batch": 16, "model": "llama3-8b", "price": 3})
    row = view.row("model")
    row.locator("select").select_option("own")
    row.locator("textarea").fill(
        "torchrun --nproc-per-node 8 --num-layers 22 --hidden-size 2048 --ffn-hidden-size 5632 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 4 --swiglu --normalization RMSNorm --disable-bias-linear --bf16 "
        "--untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 32000 --seq-length 2048 "
        "--tensor-model-parallel-size 2 --sequence-parallel --micro-batch-size 2 --global-batch-size 32 "
        "--max-position-embeddings 2048 --hidden-dropout 0 --attention-dropout 0"
    )
    view.page.wait_for_function("window.model.get('inputs').layout?.startsWith('dp=4,tp=2')")
    view.settle()
    inputs = view.page.evaluate("window.model.get('inputs')")
    assert inputs["model"].startswith('{"layers":22,"hidden":2048')
    assert (inputs["global_batch"], inputs["price"]) == (32, 3)
    assert inputs["layout"] == "dp=4,tp=2,sp,micro_batch=2,grad_acc=4"
    chosen = view.page.evaluate("window.model.get('outputs').chosen")
    assert chosen["layout"] == inputs["layout"]
    assert "Read from Megatron-LM" in view.page.locator(".pb-mc-pasted").inner_text()


@pytest.mark.browser
def test_fits_every_width_and_passes_axe(cluster):
    # With cells where nothing fits.
    wide = {"model": "llama3-70b", "gpus": 16, "global_batch": 64, "seq": 4096}
    view = cluster(wide, reduced_motion="reduce")
    view.page.evaluate("document.querySelectorAll('details').forEach((el) => (el.open = true))")
    assert view.problems() == []
    view.page.set_viewport_size({"width": 390, "height": 900})
    view.type("gpus", "12")
    assert view.problems() == []


@pytest.mark.browser
def test_in_the_static_page_python_searches(open_page):
    page = static_page(
        open_page, MyCluster(SMALL), hash="#cluster?model=gpt2-xl&gpus=4&global_batch=32&seq=1024"
    )
    wanted = compute({**SMALL, "gpus": 4})["chosen"]["layout"]
    page.wait_for_function(
        "(layout) => document.querySelector('.pb-mc-of')?.innerText.endsWith(layout)", arg=wanted
    )
    page.wait_for_function("document.querySelectorAll('.pb-cl-heat button').length > 2")
    href = page.get_by_role("link", name="Memory calculator of this layout").get_attribute("href")
    assert "/book/tools/memory-calculator.html#calculator?model=gpt2-xl&seq=1024&dp=4" in href


@pytest.mark.browser
def test_a_long_search_can_be_stopped_and_gives_way_to_the_next(open_page):
    page = static_page(
        open_page, MyCluster(SMALL), hash="#cluster?model=deepseek-v3&gpus=256&global_batch=1024"
    )
    said = page.locator(".pb-computing")
    model, peak = page.locator('[data-field="model"] select'), page.locator(".pb-mc-facts").first
    model.select_option("gpt2-xl")  # which waits for the first search, or for Python
    page.get_by_role("button", name="Stop").click()
    said.get_by_text("Stopped: there is no result of these settings.").wait_for()
    assert page.get_by_role("button", name="Stop").is_hidden()
    page.evaluate("performance.clearMeasures()")
    model.select_option("qwen3-235b-a22b")
    said.get_by_text("Computing").wait_for()
    begun = "performance.getEntriesByName('pb-python').length"
    page.wait_for_function(begun)  # what is set before is asked in place of the search
    page.evaluate("performance.now = () => 1e9")  # a long time later
    model.select_option("gpt2-xl")
    page.locator(".pb-mc-facts", has_text="1.56B parameters").wait_for()
    assert page.evaluate(f"[{begun}, performance.getEntriesByName('pb-compute').length]") == [2, 1]
    assert peak.is_visible()
    assert said.is_hidden()
