"""My cluster's function: the ranking of ``playbook search``, one layout in detail, refusals beside the right control."""

import contextlib
import io
import json
import re
import shlex

import pytest
from playbook_widgets.compute import calculator, visualizer
from playbook_widgets.compute.my_cluster import DEFAULTS, TOP, command, compute, problem_of, published
from playbook_widgets.my_cluster import FITTED
from published_configs import PUBLISHED

from playbook.cli import main
from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS, default_reserve
from playbook.layout import Layout
from playbook.planning.calibration import names
from playbook.planning.flags import FRAMEWORKS, can_say
from playbook.planning.search import WORDS
from playbook_book.training_time import Duration

SMALL = {"model": "gpt2-xl", "gpus": 8, "global_batch": 32, "seq": 1024}


def searched(line):
    """The JSON that a ``playbook search …`` line prints."""
    program, *arguments = shlex.split(line)
    assert program == "playbook"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments, "--json"])
    assert status == 0, err.getvalue()
    return json.loads(out.getvalue())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"model": json.dumps(PUBLISHED["Qwen/Qwen3-0.6B"]), "accelerator": "A100-80"},
        {"memory": "40GB", "reserve": "2GB", "intra": 100, "inter": 12.5},
        {"gpus_per_node": 4, "fp8": "blockwise"},
        {"precision": "fp32"},
        {"train": "lora:16"},
        {"calibration": "megatron-h100"},
        {"accelerator": "rtx4090", "reserve": "1GB"},
        {"tp": "1, 2", "zero": "0,1", "recompute": "none,full", "runs_in": "megatron"},
    ],
)
def test_the_ranking_is_that_of_the_command(more):
    result = compute({**SMALL, **more})
    said = searched(result["command"])
    assert (said["candidates"], said["evaluated"]) == (result["candidates"], result["evaluated"])
    assert 1 < len(result["rows"]) <= TOP
    for row, layout in zip(result["rows"], said["layouts"], strict=True):
        assert (row["layout"], row["seconds"], row["mfu"]) == (
            layout["layout"],
            layout["step_s"],
            layout["mfu"],
        )
    times = [row["seconds"] for row in result["rows"]]
    assert times == sorted(times)


def test_the_parts_of_a_step_add_up_and_memory_is_within_the_reserve():
    result = compute({**SMALL, "reserve": "8GB"})
    assert [part for part, *_ in result["breakdown"]] == list(WORDS)
    assert sum(seconds for *_, seconds in result["breakdown"]) == pytest.approx(result["chosen"]["seconds"])
    report, memory = result["report"], ACCELERATORS["h100"].memory_bytes
    assert (result["memory"], result["reserve"], report["usable"]) == (
        memory,
        8 * 10**9,
        memory - 8 * 10**9,
    )
    for stage in report["stages"]:
        assert sum(stage["at_peak"].values()) == stage["total"] <= report["peak"] <= report["usable"]


def test_the_ranking_leaves_some_memory_free_and_a_layout_that_does_not_is_tight():
    best = compute(SMALL)["chosen"]
    almost = {**SMALL, "memory": f"{best['needs'] / 0.98 / 1e9:.3f}GB"}
    plain, filled = compute(almost), compute({**almost, "reserve": "0GB"})
    assert filled["chosen"] == best
    assert plain["reserve"] == default_reserve(plain["memory"])
    assert {row["verdict"] for row in plain["rows"]} == {"fits"}
    assert max(row["needs"] for row in plain["rows"]) <= plain["memory"] - plain["reserve"] < best["needs"]
    looked = compute({**almost, "layout": best["layout"]})
    assert (looked["at"], looked["chosen"]) == (None, {**best, "verdict": "tight"})
    less = {**almost, "memory": f"{best['needs'] / 1.01 / 1e9:.3f}GB", "layout": best["layout"]}
    assert "GB on a rank of stage 0, but h100 has" in compute(less)["error"]["message"]


def test_an_answer_repeats_what_it_is_of():
    for setting in (SMALL, {**SMALL, "gpus": 12}):
        assert compute({**setting, "map": False})["asked"] == setting


def test_any_layout_can_be_looked_at():
    best, second = compute(SMALL)["rows"][:2]
    result = compute({**SMALL, "layout": second["layout"]})
    assert (result["at"], result["chosen"]) == (1, second)
    assert result["why"].startswith(second["layout"])
    slow = "dp=2,pp=4,micro_batch=1,grad_acc=16"
    result = compute({**SMALL, "layout": slow})
    assert result["at"] is None
    assert result["chosen"]["pp"] == 4
    assert result["chosen"]["seconds"] > result["rows"][-1]["seconds"]
    assert compute({**SMALL, "gpus": 16, "layout": slow})["at"] == 0  # that was a layout of 8
    assert compute({**SMALL, "layout": "dp=x"})["error"]["field"] == "dp"
    assert best == compute({**SMALL, "layout": ""})["chosen"]


def test_the_map_has_the_best_of_each_cell():
    result = compute({**SMALL, "map": True})
    cells = {
        (tp, pp): cell
        for tp, row in zip(result["map"]["tp"], result["map"]["cells"], strict=True)
        for pp, cell in zip(result["map"]["pp"], row, strict=True)
    }
    assert set(cells) >= {(1, 1), (1, 8), (4, 2)}
    assert cells[8, 8] is None  # more ranks than GPUs
    best = result["rows"][0]
    assert min(cell["seconds"] for cell in filter(None, cells.values())) == best["seconds"]
    for row in result["rows"]:
        assert cells[row["tp"], row["pp"]]["seconds"] <= row["seconds"]
    for cell in filter(None, cells.values()):
        assert compute({**SMALL, "layout": cell["layout"]})["chosen"]["seconds"] == cell["seconds"]
    assert compute(SMALL)["map"] is None


def test_a_price_says_what_tokens_cost():
    row = compute({**SMALL, "price": 3})["rows"][0]
    tokens = 32 * 1024
    assert row["cost"] == pytest.approx(Duration(row["seconds"] * 1e9 / tokens, 8).cost(3))
    assert row["cost"] == pytest.approx(1e9 / row["rate"] / 3600 * 3)


def test_the_ranking_can_be_narrowed():
    small = {**SMALL, "model": "gpt2", "tp": "2,4", "pp": 1, "cp": "1", "zero": "1, 2", "recompute": "none"}
    result = compute({**small, "map": True})
    for row in (*result["rows"], result["chosen"]):
        assert row["tp"] in (2, 4)
        assert (row["pp"], row["cp"], row["recompute"]) == (1, 1, "none")
        assert row["zero"] in (1, 2)
    assert (result["map"]["tp"], result["map"]["pp"]) == ([2, 4], [1])


@pytest.mark.parametrize("framework", ["torchtitan", "deepspeed"])
def test_the_ranking_is_of_what_a_framework_can_run(framework):
    problem, _ = problem_of({**DEFAULTS, **SMALL})
    rows = compute(SMALL)["rows"]
    can = [row for row in rows if can_say(framework, problem.run(Layout.parse(row["layout"])))]
    assert 0 < len(can) < len(rows)
    assert compute({**SMALL, "runs_in": framework})["rows"][: len(can)] == can


def test_tokens_are_days_gpu_hours_and_money():
    result = compute({**SMALL, "tokens": 300, "price": 2})
    chosen, whole = result["chosen"], result["training"]
    assert whole["days"] == pytest.approx(300e9 / (8 * chosen["rate"]) / 86400)
    assert whole["gpu_hours"] == pytest.approx(whole["days"] * 24 * 8)
    assert whole["cost"] == pytest.approx(2 * whole["gpu_hours"]) == pytest.approx(300 * chosen["cost"])


def test_the_other_tools_show_the_same_layout():
    for setting in (SMALL, {**SMALL, "fp8": "blockwise", "memory": "64GB", "tp": 1, "pp": 4}):
        result = compute(setting)
        memory = result["elsewhere"]["memory-calculator.html#calculator"]
        (shown,) = calculator.compute({"configs": [memory]})["results"]
        assert shown["peak"] == result["report"]["peak"]
        assert shown["memory"] == result["memory"]
    assert "pipeline-schedules.html#schedules" not in result["elsewhere"]  # of 12 chunks on a rank
    plain = compute({**SMALL, "layout": "dp=2,pp=4,grad_acc=16"})["elsewhere"][
        "pipeline-schedules.html#schedules"
    ]
    assert plain == {"schedule": "1f1b", "stages": 4, "microbatches": 16, "vpp": 1}
    assert "error" not in visualizer.compute(plain)


def test_where_nothing_fits_more_gpus_are_tried():
    message = compute({"model": "llama3-70b", "gpus": 8, "seq": 4096})["error"]["message"]
    gpus, layout = re.fullmatch(r".*; on (\d+) GPUs (\S+) fits", message).groups()
    assert compute({"model": "llama3-70b", "gpus": int(gpus), "seq": 4096})["rows"]
    assert Layout.parse(layout).world_size == int(gpus)


def test_every_framework_says_the_layout_or_why_it_cannot():
    flags = compute(SMALL)["flags"]
    assert set(flags) == {*FRAMEWORKS}
    assert "--micro-batch-size" in flags["megatron"]


@pytest.mark.parametrize(
    ("setting", "field", "words"),
    [
        ({"model": "nobody"}, "model", "unknown model"),
        ({"model": '{"model_type":"llama"}'}, "model", "num_hidden_layers is missing"),
        ({"accelerator": "rtx9090"}, "accelerator", "unknown accelerator"),
        ({"memory": "96"}, "memory", "a number with its unit"),
        ({"gpus": 12}, "gpus", "multiple of the 8 of a node"),
        ({"gpus": 0}, "gpus", "at least 1"),
        ({"model": "llama3-70b", "gpus": 1}, "gpus", "nothing fits on 1 GPU: "),
        ({"gpus_per_node": "two"}, "gpus_per_node", "must be an integer"),
        ({"intra": 0}, "intra", "above 0"),
        ({"inter": "fast"}, "inter", "above 0"),
        ({"global_batch": 0}, "global_batch", "at least 1"),
        ({"seq": "1k"}, "seq", "must be an integer"),
        ({"precision": "fp7"}, "precision", "unknown precision"),
        ({"calibration": "h1000"}, "calibration", "unknown calibration"),
        ({"fp8": "narrow"}, "fp8", "unknown FP8 recipe"),
        ({"price": 0}, "price", "above 0"),
        ({"tokens": "all"}, "tokens", "above 0"),
        ({"tp": "2,x"}, "tp", "must be an integer, got 'x'"),
        ({"zero": "4"}, "zero", "unknown zero '4'"),
        ({"recompute": "some"}, "recompute", "unknown recompute"),
        ({"runs_in": "jax"}, "runs_in", "unknown runs_in"),
        ({"unit": "MB"}, "unit", "unknown unit"),
        ({"colour": "red"}, "colour", "not a setting"),
    ],
)
def test_a_refusal_names_the_control_to_change(setting, field, words):
    error = compute({**SMALL, **setting})["error"]
    assert error["field"] == field
    assert words in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize("name", sorted(set(ACCELERATORS) - {"cpu", "v100"}))
def test_every_gpu_can_be_chosen(name):
    small = {"model": "tiny", "gpus": 16, "global_batch": 32, "seq": 128}
    assert compute({**small, "accelerator": name})["memory"] == ACCELERATORS[name].memory_bytes


def test_a_number_that_a_gpu_cannot_compute_with_is_refused():
    assert "on v100, got 'bf16'" in compute({**SMALL, "accelerator": "v100"})["error"]["message"]


def test_frameworks_differ_and_all_that_can_be_chosen_are_there():
    assert {name for name, _ in FITTED if name} < set(names())
    names_of = ("megatron-h100", "", "fsdp-h100")
    best = [compute({**SMALL, "calibration": name})["rows"][0]["seconds"] for name in names_of]
    assert best == sorted(set(best))


def test_a_published_run_of_the_model_stands_beside_the_prediction():
    """DeepSeek-V3's report: 2.664 M GPU-hours of H800 for 14.8 T tokens are 1,543 tokens/s on each."""
    asked = {"model": "deepseek-v3", "accelerator": "h800", "gpus": 2048, "global_batch": 15360, "seq": 4096}
    problem, _ = problem_of({**DEFAULTS, **asked, "fp8": "blockwise"})
    found = published(problem)
    assert round(found["rate"]) == 1543
    assert found["predicted"] == pytest.approx(found["rate"], rel=0.1)
    assert found["source"].startswith("DeepSeek-V3's pre-training")
    llama = {"model": "llama3-8b", "gpus": 16, "global_batch": 32}
    eight = published(problem_of({**DEFAULTS, **llama, "seq": 8192})[0])
    assert (eight["gpus"], eight["precision"], round(eight["rate"])) == (8, "bf16", 5762)
    fitted = published(problem_of({**DEFAULTS, **llama, "seq": 8192})[0], "torchtitan-h100")
    assert abs(fitted["predicted"] / 5762 - 1) < abs(eight["predicted"] / 5762 - 1)
    assert found["needs"] > 85e9  # so that they keep less than is planned
    small = {**DEFAULTS, "model": "llama2-7b", "gpus": 8, "global_batch": 8, "memory": "10GB"}
    assert (
        published(problem_of(small)[0])["needs"] is None
    )  # by the memory of their GPUs, not of the reader's
    assert (
        published(problem_of({**DEFAULTS, **llama, "seq": 8192, "fp8": "rowwise"})[0])["precision"] == "fp8"
    )
    assert published(problem_of({**DEFAULTS, **llama, "accelerator": "b200"})[0]) is None


def test_speeds_of_ones_own_gpu():
    base = {**DEFAULTS, "model": "llama3.2-1b", "gpus": 8, "global_batch": 8, "accelerator": "a100-80"}
    slow, _ = problem_of({**base, "tflops": 156, "hbm": 1})
    chip = slow.cluster.accelerator
    assert (chip.peak("bf16"), chip.memory_bandwidth) == (156e12, 1e12)
    assert '"peak_flops":{"bf16":156000000000000.0' in command({**base, "tflops": 156}, slow)
    with pytest.raises(ConfigError, match="tflops must be"):
        problem_of({**base, "tflops": 0})
