"""Recorded runs say where they come from, and are found again."""

import json

import pytest

from playbook.bench import RESULTS, provenance, records


def test_records_are_found_by_kind_and_ordered_by_date(tmp_path):
    assert records("memory", tmp_path) == []
    for name, date in (("b-memory", "2026-01-02"), ("a-memory", "2026-01-03"), ("a-train", "2026-01-01")):
        (tmp_path / f"{name}.json").write_text(json.dumps({"provenance": {"date": date}}), encoding="utf-8")
    assert [r["provenance"]["date"] for r in records("memory", tmp_path)] == ["2026-01-02", "2026-01-03"]


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.name)
def test_every_committed_record_has_its_provenance(file):
    made = json.loads(file.read_text(encoding="utf-8"))["provenance"]
    assert {"date", "command", "python", "torch", "platform", "gpu"} <= set(made)


def test_a_command_does_not_say_where_it_was_recorded(monkeypatch):
    for flags in (["--record", "/home/me/a.json"], ["--record=/home/me/a.json"]):
        monkeypatch.setattr("sys.argv", ["/bin/playbook", "bench", "train", *flags, "--json"])
        assert provenance("cpu")["command"] == "playbook bench train --json"
