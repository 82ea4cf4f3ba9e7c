"""``playbook bench kernels`` without a GPU: all who compete agree, bytes are those of formulas, no time is a result."""

import argparse
import json
import math
import sys

import pytest
import torch

from playbook.cli import main
from playbook.hardware import ACCELERATORS
from playbook_book import recorded
from playbook_book.bench import command, kernels
from playbook_book.bench.contenders import Case, Contender, installed, liger
from playbook_book.bench.kernels import INTERPRETED, KERNELS, bench_kernels, report_kernels
from playbook_book.bench.product_cases import product_cases
from playbook_book.bench.replays import Times, times_in_turns
from playbook_book.bench.row_cases import row_cases

A_SECOND = Times(1.0, 1.0, 1.0, 1, "host")


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    file = tmp_path_factory.mktemp("new") / "folder" / "cpu-kernels.json"
    with pytest.MonkeyPatch.context() as patch:  # interpreted once, to be compared
        patch.setattr(kernels, "times_in_turns", lambda calls, *_: dict.fromkeys(calls, A_SECOND))
        assert main(["bench", "kernels", "--device", "cpu", "--record", str(file)]) == 0
    return file


@pytest.fixture(scope="module")
def measured(record):
    return json.loads(record.read_text(encoding="utf-8"))


def contenders(result: dict) -> list[dict]:
    return [one for case in result["cases"] for one in case["contenders"]]


def test_every_kernel_is_there_in_its_directions(measured):
    found = {}
    for case in measured["cases"]:
        found.setdefault(case["kernel"], set()).add(case["direction"])
    alone = {"matmul", "grouped_matmul", "grouped_gradient", "adamw", "vector_add", "ladder"}
    expected = {name: {"forward"} if name in alone else {"forward", "both"} for name in KERNELS}
    assert found == expected | {"linear_cross_entropy": {"both"}}
    assert list(found) == list(KERNELS)  # the most valuable first


def test_all_who_ran_agree_with_the_twin_in_fp32(measured):
    ran = [one for one in contenders(measured) if "seconds" in one]
    assert len(ran) > 50
    assert all(one["agrees"] for one in ran), [one for one in ran if not one["agrees"]]
    assert not kernels.wrong_results(measured)
    assert {case["reference"] for case in measured["cases"]} == {"fp32"}
    for case in measured["cases"]:
        names = [one["name"] for one in case["contenders"] if one["ours"] and "seconds" in one]
        assert names or case["kernel"] == "ladder"  # which is CUDA C++ alone


def test_bytes_touched_are_those_of_the_formulas(measured):
    counted = 0
    for case in measured["cases"]:
        for one in case["contenders"]:
            if "counted_bytes" in one and case["kernel"] != "linear_cross_entropy":
                # the sector that has the ends of groups, or the gradient that comes to a loss
                sector = case["kernel"].startswith("grouped") or case["kernel"] == "cross_entropy"
                assert one["counted_bytes"] - case["bytes"] in ((0, 32) if sector else (0,)), case
                counted += 1
    assert counted >= 20


def test_times_of_the_interpreter_are_no_result(measured, record, capsys):
    assert measured["interpreted"]
    assert measured["copy_bytes_per_s"] is None
    assert all(not case["ratios"] and case["roofline_s"] is None for case in measured["cases"])
    assert all(one["timing"] == "host" for one in contenders(measured) if "seconds" in one)
    assert not recorded.kernels(record.parent).date  # these are predicted
    text = report_kernels(measured)
    assert INTERPRETED in text
    assert " ms" not in text
    assert "GB/s" not in text


def test_who_is_missing_says_why(measured):
    missing = {one["name"]: one["missing"] for one in contenders(measured) if "missing" in one}
    assert missing["Liger"] == "its kernels need a GPU"
    assert missing["compiled"] == "torch.compile is compared on a GPU"
    assert {"SDPA cuDNN", "FlexAttention", "naive", "tensor_cores"} <= set(missing)


def test_liger_is_found_and_asked_as_it_is_called(monkeypatch, tmp_path):
    assert liger("liger_swiglu", lambda f: f, cuda=True).missing == "liger-kernel is not installed"
    folder = tmp_path / "liger_kernel" / "transformers"
    folder.mkdir(parents=True)
    for package in (folder, folder.parent):
        (package / "__init__.py").touch()
    (folder / "functional.py").write_text("def liger_swiglu(a, b):\n    return a - b\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = liger("liger_swiglu", lambda f: f, cuda=True)
    assert (found.missing, found.run(5, 3)) == ("", 2)
    assert "has no attribute 'liger_rope'" in liger("liger_rope", lambda f: f, cuda=True).missing
    for name in [name for name in sys.modules if name.startswith("liger_kernel")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("RuntimeError('no nvcc')", "RuntimeError: no nvcc"),
        ("OSError('libbroken.so: cannot open')", "OSError: libbroken.so: cannot open"),
        ("ModuleNotFoundError('No module named x', name='x')", "ModuleNotFoundError: No module named x"),
    ],
)
def test_what_cannot_be_imported_costs_its_own_rows_alone(raised, said, monkeypatch, tmp_path):
    (tmp_path / "broken_peer.py").write_text(f"raise {raised}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    theirs = installed("Broken", "broken-peer", "broken_peer", "gemm", lambda f: f)
    assert theirs.missing == said


def wrong(scale: float, error: Exception | None = None) -> Case:
    def ours(x: torch.Tensor) -> torch.Tensor:
        if error:
            raise error
        return x * scale

    return case_of(ours)


def case_of(ours) -> Case:
    """A doubling, which ``ours`` is to compute."""
    return Case(
        "elu", "8", torch.float32, lambda g: [torch.randn(8, generator=g)], 1, lambda x: 2 * x,
        (Contender("ours", ours, ours=True), Contender("eager", lambda x: 2 * x)), {"forward": (64, 0), "both": (96, 0)},
    )  # fmt: skip


@pytest.mark.parametrize("direction", ["forward", "both"])
def test_a_wrong_result_is_called_wrong(direction):
    row = kernels._row(wrong(2.1), direction, "cpu", 1)
    ours, eager = row["contenders"]
    assert ours["error"] == pytest.approx(0.05)
    assert (ours["agrees"], eager["agrees"]) == (False, True)
    nothing = kernels._row(wrong(float("nan")), direction, "cpu", 1)["contenders"][0]
    assert not nothing["agrees"]


def test_a_wrong_gradient_of_a_right_result_is_called_wrong():
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, dy):
            return 3 * dy

    ours = kernels._row(case_of(Wrong.apply), "both", "cpu", 1)["contenders"][0]
    assert not ours["agrees"]
    assert kernels._row(case_of(Wrong.apply), "forward", "cpu", 1)["contenders"][0]["agrees"]


def test_one_wrong_number_is_found_which_the_norm_hides():
    """A fragment of 64 × 8 that was never written, in a matrix of 2,048²: 1 in 8,192 numbers."""
    y = torch.randn(2048, 2048, generator=torch.Generator().manual_seed(0))
    x = y.clone()
    x[640:704, 128:136] = 0
    norm, largest = kernels._errors([x], [y])
    for dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn):
        of_norm, of_one = kernels.AGREES[dtype]
        rounded = kernels._errors([y.to(dtype)], [y])
        assert rounded[0] < of_norm
        assert rounded[1] < of_one < largest
    assert norm == pytest.approx(math.sqrt(512 / 2048**2), rel=0.1)
    assert norm < 1.6e-2  # which was the bound of bf16 once


def test_nan_in_any_tensor_and_other_shapes_are_wrong():
    y = torch.ones(3)
    for error in kernels._errors([y, torch.tensor([1.0, math.nan, 1.0])], [y, y]):
        assert math.isnan(error)
    assert kernels._errors([y[:, None]], [y]) == (math.inf, math.inf)  # whose difference would be (3, 3)
    assert kernels._errors([y, y[:0]], [y, y[:0]]) == (0, 0)


@pytest.mark.parametrize(("scale", "code"), [(2.1, 1), (math.nan, 1), (2.0, 0)])
def test_the_command_fails_where_a_result_is_wrong(scale, code, tmp_path, capsys):
    file = tmp_path / "record.json"

    def measure(device, only, large, repeats):
        return kernels.measure_cases(kernels.new_record(device), [wrong(scale)], device, repeats)

    def bench(asked):
        result, wrong = command._cases(asked, measure, KERNELS, None, 1)
        return result, report_kernels, wrong

    assert command._run(bench, argparse.Namespace(device="cpu", json=False, record=file)) == code
    said = capsys.readouterr()
    assert ("TOO LARGE" in said.out) == ("elu 8, both: ours" in said.err) == bool(code)
    assert "eager" not in said.err
    assert len(json.loads(file.read_text(encoding="utf-8"))["cases"]) == 2  # it is recorded all the same


def test_the_time_of_a_wrong_result_is_compared_with_nobody():
    ours = {"name": "ours", "ours": True, "seconds": 2e-3, "timing": "graph", "agrees": False}
    peer = {"name": "eager", "ours": False, "seconds": 8e-3, "timing": "graph", "agrees": True}
    row = {"flops": 0, "bytes": 10**9, "contenders": [ours, peer]}
    assert kernels._with_shares(row, torch.bfloat16, None, None)["ratios"] == {}


def test_what_raises_loses_no_other():
    ours, eager = kernels._row(wrong(2.0, MemoryError("all gone")), "both", "cpu", 1)["contenders"]
    assert ours["missing"] == "MemoryError: all gone"
    assert "seconds" in eager


def test_a_time_becomes_shares_of_the_roofline_and_of_a_copy():
    def row(flops: int) -> dict:
        ours = {"name": "ours", "ours": True, "seconds": 2e-3, "timing": "graph"}
        peer = {"name": "eager", "ours": False, "seconds": 8e-3, "timing": "calls"}
        return {"flops": flops, "bytes": 4_800_000_000, "contenders": [ours, peer]}

    h200 = ACCELERATORS["h200"]
    moved = kernels._with_shares(row(0), torch.bfloat16, h200, 4e12)
    assert (moved["limited_by"], moved["roofline_s"]) == ("bytes", pytest.approx(1e-3))
    ours, eager = moved["contenders"]
    assert (ours["gbps"], ours["roofline"]) == (pytest.approx(2400), pytest.approx(0.5))
    assert (ours["of_copy"], eager["of_copy"]) == (pytest.approx(0.6), pytest.approx(0.15))
    assert moved["ratios"] == {"eager": 0.25}
    multiplied = kernels._with_shares(row(int(989e12 * 1e-3 * 2)), torch.bfloat16, h200, 4e12)
    ours = multiplied["contenders"][0]
    assert (multiplied["limited_by"], ours["of_copy"]) == ("FLOPs", None)
    assert (ours["roofline"], ours["tflops"]) == (pytest.approx(1.0), pytest.approx(989))
    unknown = kernels._with_shares(row(0), torch.bfloat16, None, 4e12)["contenders"][0]
    assert (unknown["roofline"], unknown["of_copy"]) == (None, pytest.approx(0.6))


def test_large_cases_are_those_of_the_small_run():
    """They are made where there is a GPU alone; here their bytes and FLOPs are looked at."""
    large, small = ([*product_cases(s, False), *row_cases(s, False)] for s in (True, False))
    assert {case.kernel for case in large} == {case.kernel for case in small} == set(KERNELS)
    needs = {(case.kernel, case.size): case.needs for case in large}
    assert len(needs) == len(large) - 2  # two of them in two types
    square = needs["matmul", "8,192 × 8,192 × 8,192, x·Wᵀ"]["forward"]
    assert square == (3 * 2 * 8192**2, 2 * 8192**3)
    long = needs["attention", "1 × 16,384, 16 heads of 128"]
    assert long["forward"][1] == 4 * 16 * 16_384**2 * 128 // 2
    assert long["both"][1] == 3.5 * long["forward"][1]


def test_what_cannot_be_run_is_said_at_once(capsys):
    assert main(["bench", "kernels", "--device", "cpu", "--only", "rmsnorm"]) == 2
    assert "unknown kernel 'rmsnorm'" in capsys.readouterr().err
    assert main(["bench", "kernels", "--device", "cpu", "--repeats", "0"]) == 2
    assert "repeats must be at least 1, got 0" in capsys.readouterr().err


def test_by_the_host_every_function_runs_once():
    calls = []
    found = times_in_turns({"a": lambda: calls.append("a"), "b": lambda: 1 / 0}, "cpu", 9)
    assert calls == ["a"]
    assert isinstance(found["a"], Times)
    assert (found["a"].runs, found["a"].timing) == (1, "host")
    assert isinstance(found["b"], ZeroDivisionError)


def test_the_record_is_there_as_soon_as_there_is_something_in_it():
    running = bench_kernels("cpu", ["vector_add", "elu"])
    assert [len(next(running)["cases"]) for _ in range(3)] == [1, 2, 3]
