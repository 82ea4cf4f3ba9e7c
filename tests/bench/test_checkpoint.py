"""``playbook bench checkpoint``: all ways write the same state, and the ratios are those of the medians."""

from __future__ import annotations

import json

import pytest

from playbook.cli import main

SMALL = '{"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 256, "max_seq": 16}'


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_ours_takes_turns_with_what_pytorch_has(tmp_path, capsys):
    record = tmp_path / "new" / "checkpoint.json"
    flags = ["--model", SMALL, "--repeats", "2", "--device", "cpu", "--folder", str(tmp_path), "--json"]
    assert main(["bench", "checkpoint", *flags, "--record", str(record)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(record.read_text()) == found
    seconds = found["seconds"]
    assert found["ratios"]["save / DCP"] == pytest.approx(seconds["save"] / seconds["save DCP"])
    assert found["ratios"]["exposed / save"] == pytest.approx(seconds["exposed"] / seconds["save"])
    assert min(seconds.values()) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["new"]  # nothing is left of what was written


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_one_turn_is_its_own_quartiles(tmp_path, capsys):
    flags = ["--model", SMALL, "--repeats", "1", "--device", "cpu", "--folder", str(tmp_path), "--json"]
    assert main(["bench", "checkpoint", *flags]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["quartiles"] == {key: [seconds] * 3 for key, seconds in found["seconds"].items()}


def test_turns_must_be_taken(capsys):
    assert main(["bench", "checkpoint", "--repeats", "0"]) == 2
    assert "repeats must be at least 1, got 0" in capsys.readouterr().err
