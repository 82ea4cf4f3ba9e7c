"""``playbook bench fp8`` without a GPU: all who compete agree, bytes are those of formulas, runs take turns."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from playbook.cli import main
from playbook.kernels.jit import launches
from playbook.precision.products import product_torch
from playbook.precision.scaling import quantize, quantize_torch
from playbook_book import recorded
from playbook_book.bench import fp8, kernels
from playbook_book.bench.fp8 import FP8, Work, report_fp8, step_rows
from playbook_book.bench.fp8_cases import LLAMA, RECIPES, fp8_cases
from playbook_book.bench.kernels import INTERPRETED
from playbook_book.bench.replays import Times
from playbook_book.instruments import measured as instrument

A_SECOND = Times(1.0, 1.0, 1.0, 1, "host")
KERNELS = [name for name in FP8 if name not in ("emulated", "steps")]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "cpu-fp8.json"
    only = ",".join([*KERNELS, "emulated"])
    arguments = ["bench", "fp8", "--device", "cpu", "--repeats", "3", "--only", only, "--record", str(file)]
    with pytest.MonkeyPatch.context() as patch:  # interpreted once, to be compared
        patch.setattr(kernels, "times_in_turns", lambda calls, *_: dict.fromkeys(calls, A_SECOND))
        assert main(arguments) == 0
    assert not recorded.fp8(file.parent).date  # times of an interpreter are no result: these are predicted
    return json.loads(file.read_text(encoding="utf-8"))


def test_every_product_of_every_recipe_and_all_that_quantises_is_there(measured):
    products = [(case["kernel"], case["size"].split(", ")[1]) for case in measured["cases"][:9]]
    assert products == [(recipe, name) for recipe in RECIPES for name in ("x·Wᵀ", "dy·W", "dyᵀ·x")]
    assert list(dict.fromkeys(case["kernel"] for case in measured["cases"])) == KERNELS
    assert {"date", "commit", "torch", "triton", "command"} <= set(measured["provenance"])


def test_all_who_ran_agree_and_ours_touch_what_the_formula_says(measured):
    for case in measured["cases"]:
        ran = {one["name"]: one for one in case["contenders"] if "seconds" in one}
        assert all(one["agrees"] for one in ran.values()), case
        ours = [one for one in ran.values() if one["ours"]]
        assert ours
        for one in ours:  # whose scales may fill the last sector of each factor in part
            assert 0 <= one["counted_bytes"] - case["bytes"] < 64, (case["kernel"], case["size"], one)
            assert one["error"] <= (3e-3 if case["kernel"] in RECIPES else 1e-6)
        if case["kernel"] in ("tensorwise", "rowwise"):
            assert {"tiles", "tma", "bf16 torch", "torch"} <= set(ran)


class OnGpu(torch.Tensor):
    """It says so: who dispatches by where a tensor is shows what it would launch."""

    is_cuda = True  # type: ignore[assignment]


def test_on_a_gpu_the_twins_of_what_quantises_are_not_the_kernels(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for case in (one for one in fp8_cases(False, False) if one.kernel.startswith("quantize")):
        given = [x.as_subclass(OnGpu) for x in case.make(torch.Generator().manual_seed(0))]
        with launches() as found:
            for twin in (case.twin, *(one.run for one in case.contenders if not one.ours)):
                twin(*given)
        assert not found, case.kernel
    with launches() as found:  # what a model calls does launch one
        quantize(torch.randn(128, 256).as_subclass(OnGpu), "e4m3", "tile")
    assert len(found) == 1


def test_emulated_products_are_emulated_on_a_gpu_too():
    x = torch.randn(16, 256).as_subclass(OnGpu)
    with launches() as found:
        a, b = (quantize_torch(t, "e4m3", "tile") for t in (x, x))
        y = product_torch(a, b)  # which would ask for the capability of a GPU
    assert not found
    assert y.shape == (16, 16)


def test_who_is_missing_says_why(measured):
    missing = {
        one["name"]: one["missing"]
        for case in measured["cases"]
        for one in case["contenders"]
        if "missing" in one
    }
    assert missing["DeepGEMM"] == "its kernels need a GPU"
    assert missing["torch"] == "it needs a GPU of compute capability 9.0"


def test_emulated_products_stand_beside_those_in_fp32(measured):
    assert [row["recipe"] for row in measured["emulated"]] == list(RECIPES)
    for row in measured["emulated"]:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["fp32_seconds"])
        assert 0.01 < row["error"] < 0.06  # half a unit in the last place of E4M3 is 2⁻⁴


def test_whole_steps_beside_the_same_run_without_fp8(monkeypatch):
    monkeypatch.setitem(fp8.WORK, "cpu", (Work("tiny", 1, 16, 1, "float32", warm_up=1, layers=2),))
    monkeypatch.setitem(sys.modules, "torchao.float8", None)  # as if it were not installed
    rows = list(step_rows("cpu"))
    assert [(row["trainer"], row["recipe"]) for row in rows] == [
        *(("ours", recipe) for recipe in RECIPES),
        ("torchao", "tensorwise"),
        ("torchao", "rowwise"),
    ]
    for row in rows[:3]:
        assert row["ratio"] == pytest.approx(row["seconds"] / row["base_seconds"])
        assert row["last_loss"] != row["base_last_loss"]
        assert row["last_loss"] == pytest.approx(row["base_last_loss"], rel=0.02)
    assert len({row["base_last_loss"] for row in rows[:3]}) == 1
    assert all("ModuleNotFoundError" in row["missing"] for row in rows[3:])
    text = report_fp8({"provenance": {"gpu": None, "platform": "here", "torch": "2", "triton": "3"}, "interpreted": True,
                       "copy_bytes_per_s": None, "cases": [], "emulated": [], "steps": rows})  # fmt: skip
    assert INTERPRETED in text
    assert "ours      blockwise" in text
    assert "left out: ModuleNotFoundError" in text


def test_turns_go_forth_and_back_and_the_first_do_not_count(monkeypatch):
    clock, order = iter(range(100)), []
    monkeypatch.setattr(instrument.time, "perf_counter", lambda: float(next(clock)))

    def step(name: str) -> float:
        order.append(name)
        return float(len(order))

    work = Work("tiny", 1, 8, 2, "float32", warm_up=1)
    found = fp8._in_turns([lambda: step("a"), lambda: step("b")], work, "cpu")
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert found == [(1.0, 5.0), (1.0, 6.0)]


def test_large_cases_are_those_of_the_small_run():
    """They are made where there is a GPU alone; here their bytes and FLOPs are looked at."""
    large, small = fp8_cases(True, False), fp8_cases(False, False)
    assert {case.kernel for case in large} == {case.kernel for case in small} == set(KERNELS)
    needs = {(case.kernel, case.size): case.needs["forward"] for case in large}
    assert len(needs) == len(large)
    n = 8192
    moved, flops = needs["blockwise", "8,192 × 8,192 × 8,192, x·Wᵀ"]
    assert (moved, flops) == (2 * n * n + 4 * (n * n // 128 + (n // 128) ** 2) + 2 * n * n, 2 * n**3)
    for inputs, outputs in LLAMA:
        assert needs["blockwise", f"{outputs:,} × 8,192 × {inputs:,}, dyᵀ·x"][1] == 2 * n * inputs * outputs
    assert all(case.dtype == torch.float8_e4m3fn for case in large)


def test_what_cannot_be_run_is_said_at_once(capsys):
    assert main(["bench", "fp8", "--device", "cpu", "--only", "mxfp8"]) == 2
    assert "unknown case 'mxfp8'" in capsys.readouterr().err
    assert main(["bench", "fp8", "--device", "cpu", "--repeats", "0"]) == 2
    assert "repeats must be at least 1, got 0" in capsys.readouterr().err
    with pytest.raises(StopIteration):
        next(fp8.bench_fp8("cpu", []))
