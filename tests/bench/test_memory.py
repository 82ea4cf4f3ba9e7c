"""``playbook bench memory``: cases that cover what can be set, and errors within what the book claims."""

import json

import pytest
import torch

from playbook.cli import main
from playbook.layout import RECOMPUTE
from playbook.shapes import load
from playbook_book.bench.memory import CASES, bench_memory, report_memory


@pytest.mark.parametrize("device", CASES)
def test_the_cases_cover_every_precision_mode_and_attention(device):
    cases = CASES[device]
    assert len(cases) >= 8
    assert {case.precision for case in cases} == {"fp32", "bf16-mixed", "autocast"}
    assert {case.recompute for case in cases} == set(RECOMPUTE)
    assert {case.attention for case in cases} == {"sdpa", "reference"}
    assert {load(case.model).gated for case in cases} == {True, False}


def test_the_cases_of_a_gpu_are_of_real_size_and_fit_80_gb():
    sizes = [load(case.model).num_parameters for case in CASES["cuda"]]
    assert min(sizes) > 0.1e9
    assert max(sizes) > 3e9
    assert all(case.predicted("cuda").total < 76e9 for case in CASES["cuda"])


def test_on_this_cpu_and_recorded(tmp_path, capsys, monkeypatch):
    """The two smallest cases, one of either block; tests of the planner measure what else can be set."""
    monkeypatch.setitem(CASES, "cpu", (CASES["cpu"][0], CASES["cpu"][6]))
    record = tmp_path / "new" / "memory.json"
    assert main(["bench", "memory", "--device", "cpu", "--json", "--record", str(record)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(record.read_text(encoding="utf-8"))
    assert result["provenance"]["torch"] == torch.__version__
    assert result["worst_error"] < 0.03
    assert "worst" in report_memory(result)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu():
    result = bench_memory("cuda")
    print(report_memory(result))
    assert result["median_error"] < 0.03
