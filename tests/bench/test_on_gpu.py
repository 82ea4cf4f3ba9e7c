"""``benchmarks/on_gpu.py`` without a GPU: steps are processes with limits, and one that ends badly loses no other."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

from playbook_book.bench.fp8 import FP8
from playbook_book.bench.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def on_gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("on_gpu", ROOT / "benchmarks/on_gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["on_gpu"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def bare(tmp_path, monkeypatch) -> None:
    """A machine with PyTorch and nothing that is usually beside it."""
    absent = "numpy matplotlib tqdm IPython pytest hypothesis scipy transformers anywidget"
    for name in absent.split():
        (tmp_path / "bare" / name).mkdir(parents=True)
        text = f"raise ModuleNotFoundError('{name} is not here', name='{name}')\n"
        (tmp_path / "bare" / name / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "bare"))


KILLED = """
import os, pathlib, sys
sys.path.insert(0, "benchmarks")
from on_gpu import write
write(pathlib.Path(sys.argv[1]), {"measured": [1, 2]})
os.kill(os.getpid(), 9)
"""
SLOW = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("begun")
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(600)
"""


def test_steps_that_end_badly_lose_no_other(on_gpu, bare, tmp_path, monkeypatch):
    """One fails, one is killed after it has written something, one takes too long, one measures."""
    record, pid, wait = tmp_path / "cpu", tmp_path / "pid", subprocess.Popen.wait

    def until_begun(process: subprocess.Popen, timeout: float | None = None) -> int:
        while timeout == 15 and process.poll() is None and not (pid.is_file() and pid.read_text()):
            time.sleep(0.01)
        return wait(process, 0.1 if timeout == 15 else timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_begun)
    real = {step.name: step for step in on_gpu.all_steps("cpu", 0, record)}
    steps = [
        on_gpu.Step("failing", ("-c", "raise MemoryError('all gone')"), 60.0),
        on_gpu.Step("killed", ("-c", KILLED, f"{record}-killed.json"), 60.0),
        on_gpu.Step("slow", ("-c", SLOW, str(pid)), 15.0),
        on_gpu.Step("missing", ("-c", "1"), 60.0, "it needs 2 GPUs"),
        on_gpu.Step("attention", real["attention"].arguments, 600.0),
    ]
    summary = tmp_path / "cpu-on-gpu.json"
    on_gpu.run_steps(steps, time.monotonic() + 3600, summary, on_gpu.provenance("c0ffee", None, 0))
    found = json.loads(summary.read_text(encoding="utf-8"))
    assert {"date", "command", "commit", "python", "torch", "platform", "gpu"} <= set(found["provenance"])
    ended = {row["step"]: row for row in found["steps"]}
    assert {name: row["status"] for name, row in ended.items()} == {
        "failing": "failed",
        "killed": "failed",
        "slow": "out of time",
        "missing": "left out",
        "attention": "done",
    }, ended["attention"]["output"]
    assert "MemoryError: all gone" in ended["failing"]["output"]
    assert ended["killed"]["returncode"] == -9
    assert json.loads((tmp_path / "cpu-killed.json").read_text()) == {"measured": [1, 2]}
    assert ended["slow"]["output"] == "begun"
    _gone(int(pid.read_text()))
    measured = json.loads((tmp_path / "cpu-attention.json").read_text(encoding="utf-8"))
    assert {"date", "command", "torch", "commit"} <= set(measured["provenance"])
    errors = [error for row in measured["blocks"].values() for error in row["errors"].values()]
    errors += [error for row in measured["ring"].values() for error in row.values()]
    assert len(errors) == 4 * 5 + 4 * 4
    assert max(errors) < 1e-5


def _gone(pid: int) -> None:
    """A process that was killed has ended, or waits for its parent to see it."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.01)
    os.kill(pid, 9)
    pytest.fail(f"process {pid} has outlived its step")


def test_without_time_nothing_starts(on_gpu, tmp_path):
    step = on_gpu.Step("never", ("-c", f"open({str(tmp_path / 'started')!r}, 'w')"), 60.0)
    (row,) = on_gpu.run_steps([step], time.monotonic() + 1, tmp_path / "cpu-on-gpu.json", {})
    assert (row["status"], row["output"]) == ("left out", "1 s were left")
    assert not (tmp_path / "started").exists()


HALF = """
import sys, time
from pathlib import Path
sys.path.insert(0, "benchmarks")
from on_gpu import Step, run_steps
folder = Path(sys.argv[1])
code = "import sys; open(sys.argv[1].split('=')[1], 'w').write('{\\"measured\\": 7}')"
steps = [Step("first", ("-c", code, f"--record={folder / 'cpu-first.json'}"), 60.0),
         Step("second", ("-c", "import time; time.sleep(600)"), 600.0)]
run_steps(steps, time.monotonic() + 3600, folder / "cpu-on-gpu-1.json", {})
"""


def test_what_is_killed_in_the_middle_leaves_one_file_with_all_until_then(tmp_path):
    bundle = tmp_path / "cpu-on-gpu-1.json"
    with subprocess.Popen(
        [sys.executable, "-c", HALF, str(tmp_path)], cwd=ROOT, start_new_session=True
    ) as process:
        while not bundle.is_file():
            assert process.poll() is None
            time.sleep(0.05)
        children = subprocess.run(
            ["pgrep", "-P", str(process.pid)], capture_output=True, text=True
        ).stdout.split()
        process.kill()
    for child in children:  # each in a session of its own
        os.kill(int(child), 9)
    found = json.loads(bundle.read_text(encoding="utf-8"))
    assert [(row["step"], row["status"]) for row in found["steps"]] == [("first", "done")]
    assert found["records"] == {"cpu-first.json": {"measured": 7}}


def test_wheels_travel_with_the_checkout(on_gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    (tmp_path / "wheels").mkdir()
    wheel = tmp_path / "wheels/liger_kernel-0.8.5-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("liger_kernel.py", "NAME = 'travelled'")
    found = on_gpu.paths(tmp_path)
    assert found == [*(str(tmp_path / name) for name in ("src", "widgets", "book")), str(wheel), "/elsewhere"]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))
    command = [sys.executable, "-c", "import liger_kernel; print(liger_kernel.NAME)"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.strip() == "travelled"


def test_tests_that_failed_before_a_kill_are_named(on_gpu, tmp_path):
    """As one process of pytest says it, and as several do."""
    said = """
tests/kernels/test_elu.py::test_equals_its_twin[cuda] FAILED [ 10%]
[gw1] [ 20%] PASSED tests/kernels/test_elu.py::test_gradient
[gw0] [ 30%] FAILED tests/kernels/test_swiglu.py::test_gradient[cuda-8]
[gw0] [ 30%] ERROR tests/kernels/test_rotary.py::test_gradient
"""
    code = f"print({said!r} + 'x' * {2 * on_gpu.TAIL}, flush=True); import time; time.sleep(600)"
    row = on_gpu.run_step(on_gpu.Step("parity", ("-c", code), 600.0), 3.0)
    assert row["status"] == "out of time"
    assert set(row["output"]) == {"x"}
    assert row["failures"] == [
        "tests/kernels/test_elu.py::test_equals_its_twin[cuda]",
        "tests/kernels/test_swiglu.py::test_gradient[cuda-8]",
        "tests/kernels/test_rotary.py::test_gradient",
    ]
    assert on_gpu.named_failures("tests/kernels/test_elu.py::test_gradient PASSED [ 50%]") == {}


def test_a_record_says_which_clock_its_step_had(on_gpu, tmp_path):
    record = tmp_path / "h200-machine.json"
    record.write_text('{"provenance": {"gpu": "H200"}, "times": [1]}', encoding="utf-8")
    on_gpu.stamp(str(record), {"sm_mhz": 1980.0, "watts": 690.5})
    on_gpu.stamp(str(tmp_path / "none.json"), {"sm_mhz": 1980.0})
    on_gpu.stamp("", {"sm_mhz": 1980.0})
    told = json.loads(record.read_text(encoding="utf-8"))
    assert told == {"provenance": {"gpu": "H200", "sm_mhz": 1980.0, "watts": 690.5}, "times": [1]}
    assert [path.name for path in tmp_path.iterdir()] == [record.name]


def test_three_calls_have_every_step_once(on_gpu):
    parts = [name for part in on_gpu.PARTS for name in part]
    assert sorted(parts) == sorted(step.name for step in on_gpu.all_steps("cuda", 8, Path("nvidia")))


def test_every_file_with_a_test_for_gpus_is_run(on_gpu):
    """Except those of benchmarks, which are steps themselves."""
    marked = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("test_*.py")
        if "pytest.mark.gpu" in path.read_text(encoding="utf-8") and path.parent.name != "bench"
    }
    assert {path for path in marked if not path.startswith(f"{on_gpu.PARITY}/")} == set(on_gpu.TESTS)
    names = [step.name for step in on_gpu.all_steps("cuda", 8, Path("nvidia"))]
    assert len(names) == len(set(names))


def test_pieces_of_the_kernels_are_all_of_them_and_are_read_as_one(on_gpu):
    only = [name for _, names in on_gpu.PIECES.values() for name in names.split(",")]
    assert sorted(only) == sorted(KERNELS)
    steps = [step for step in on_gpu.all_steps("cuda", 1, Path("h200")) if step.name.endswith("-kernels")]
    assert len(steps) == len(on_gpu.PIECES)
    assert all(f"--record=h200-{step.name}.json" in step.arguments for step in steps)


def test_pieces_of_fp8_are_all_of_it(on_gpu):
    only = [name for _, names in on_gpu.FP8_PIECES.values() for name in names.split(",")]
    assert sorted(only) == sorted(FP8)
    steps = [step for step in on_gpu.all_steps("cpu", 0, Path("cpu")) if step.name.endswith("-fp8")]
    assert [step.missing for step in steps] == [""] * len(on_gpu.FP8_PIECES)
    assert all(f"--record=cpu-{step.name}.json" in step.arguments for step in steps)


COUNTED = """==PROF== Connected to process 7 (python3)
"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","7","vectorized_elementwise_kernel","Command line profiler metrics","dram__bytes_read.sum","byte","9"
"1","7","add_kernel","Command line profiler metrics","dram__bytes_read.sum","byte","1,000"
"1","7","add_kernel","Command line profiler metrics","dram__bytes_write.sum","byte","440"
"1","7","add_kernel","Command line profiler metrics","gpu__time_duration.sum","ns","2,500.5"
==PROF== Disconnected from process 7
"""


def test_counters_are_those_of_the_kernels_that_were_launched(on_gpu, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import gpu_counters

    counted = gpu_counters.read_log(COUNTED.splitlines())
    assert [one["name"] for one in counted] == ["vectorized_elementwise_kernel", "add_kernel"]
    ran = {"kernel": "vector_add", "bytes": 1200, "launched": ["add_kernel"]}
    (row,) = gpu_counters.beside([dict(ran)], counted)["kernels"]
    assert (row["counted"], row["ratio"]) == (1440, 1.2)
    assert row["launches"] == [{"name": "add_kernel", "read": 1000, "written": 440, "ns": 2500.5}]
    missing = gpu_counters.beside([dict(ran) | {"launched": ["add_kernel"] * 2}], counted)["missing"]
    assert missing == "ncu saw 1 launches of 2"
