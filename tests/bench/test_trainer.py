"""``playbook bench trainer``: every variant trains the same model, and says what it used."""

import functools
import json

import pytest
import torch

from playbook.cli import main
from playbook.hardware import ACCELERATORS
from playbook_book.bench import trainer as bench

SMALL = '{"layers":2,"hidden":48,"heads":2,"vocab":300,"max_seq":64,"dropout":0.0}'


@pytest.fixture
def quick_compiler(monkeypatch):
    """Graphs are captured and run as they are: a C++ compiler takes its time, and may not be there."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="aot_eager"))


def test_on_this_cpu_and_recorded(tmp_path, capsys, quick_compiler):
    record = tmp_path / "trainer.json"
    flags = ["--model", SMALL, "--seq", "64", "--micro-batch", "3", "--grad-acc", "2", "--steps", "2"]
    assert main(["bench", "trainer", *flags, "--device", "cpu", "--json", "--record", str(record)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(record.read_text(encoding="utf-8"))
    assert [(run["recompute"], run["compile"]) for run in result["runs"]] == list(bench.VARIANTS)
    first = result["runs"][0]
    for run in result["runs"]:
        assert run["last_loss"] == pytest.approx(first["last_loss"], rel=1e-4)
        assert run["tokens_per_s"] == pytest.approx(2 * 3 * 64 / run["step_s"])
        assert run["mfu"] is None
        if not run["compile"]:  # what a compiler saves is its own affair
            assert abs(run["error"]) < 0.05
    assert result["runs"][3]["peak_bytes"] < first["peak_bytes"]
    assert len(bench.report_trainer(result).splitlines()) == 6


def test_a_gpu_is_known_by_its_name_and_memory(monkeypatch):
    class Properties:
        total_memory = 143 * 10**9

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    for name, memory, preset in (
        ("NVIDIA H100 80GB HBM3", 85e9, "h100"),
        ("NVIDIA H200", 150e9, "h200"),
        ("NVIDIA A100-SXM4-40GB", 42e9, "a100-40"),
        ("NVIDIA A100-SXM4-80GB", 85e9, "a100-80"),
        ("NVIDIA H100 PCIe", 85e9, "h100-pcie"),
        ("NVIDIA H100 NVL", 100e9, "h100-nvl"),
        ("NVIDIA L40S", 48e9, "l40s"),
        ("Tesla V100-SXM2-32GB", 34e9, "v100"),
        ("NVIDIA RTX A6000", 51e9, "rtxa6000"),
        ("NVIDIA GeForce RTX 4090", 25e9, "rtx4090"),
        ("NVIDIA GeForce RTX 2060", 6e9, None),
    ):
        Properties.total_memory = memory
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device, name=name: name)
        found = bench.this_accelerator("cuda")
        assert found == (ACCELERATORS[preset] if preset else None)
    assert bench.this_accelerator("cpu") is None


@pytest.mark.parametrize("flag", ["--steps", "--seq", "--micro-batch", "--grad-acc"])
def test_bad_sizes(flag, capsys):
    assert main(["bench", "trainer", flag, "0"]) == 2
    assert f"{flag[2:].replace('-', '_')} must be at least 1, got 0" in capsys.readouterr().err


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(capsys):
    assert main(["bench", "trainer", "--model", "smollm-135m", "--seq", "512", "--steps", "3"]) == 0
    print(capsys.readouterr().out)
