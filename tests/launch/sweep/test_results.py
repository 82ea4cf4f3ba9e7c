"""A sweep's folder: its specification, and whole lines for its configurations, whatever ended the sweep before."""

from __future__ import annotations

import csv
import dataclasses
import subprocess
import sys

import pytest

from playbook.errors import ConfigError
from playbook.launch.sweep.results import COLUMNS, Results, Spec, alone

SPEC = Spec({"name": "tiny", "layers": 2}, seq=64, global_batch=4, steps=6, warmup=2, repeat=1)


def read(folder) -> list[dict[str, str]]:
    with (folder / "results.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_lines_come_back(tmp_path):
    results = Results(tmp_path)
    results.add(
        {"key": "a", "status": "ok", "step_s": 0.123456789, "dp": 2, "layout": "dp=2,zero=1", "sp": True}
    )
    results.add({"key": "b", "status": "failed", "reason": 'rank 1 said "no",\nand left'})
    again = Results(tmp_path)
    assert again.rows == results.rows
    assert list(read(tmp_path)[0]) == list(COLUMNS)
    assert again.rows["a"]["step_s"] == "0.123457"
    assert again.rows["a"]["layout"] == "dp=2,zero=1"
    assert again.rows["a"]["peak_bytes"] == ""
    assert again.rows["b"]["reason"] == 'rank 1 said "no", and left'
    assert (tmp_path / "results.csv").read_text().count("\n") == 3


@pytest.mark.parametrize("torn", ["c,tiny,dp", 'c,tiny,"dp=2,', "c", "c" + "," * 60 + "\n"])
def test_a_torn_last_line_is_mended(tmp_path, torn):
    results = Results(tmp_path)
    results.add({"key": "a", "status": "ok"})
    whole = (tmp_path / "results.csv").read_bytes()
    with (tmp_path / "results.csv").open("a") as file:
        file.write(torn)
    mended = Results(tmp_path)
    assert (tmp_path / "results.csv").read_bytes() == whole
    mended.add({"key": "c", "status": "oom"})
    assert [(row["key"], row["status"]) for row in read(tmp_path)] == [("a", "ok"), ("c", "oom")]


def test_a_header_that_was_torn_is_written_again(tmp_path):
    (tmp_path / "results.csv").write_text("key,mod")
    Results(tmp_path).add({"key": "a", "status": "ok"})
    assert [row["key"] for row in read(tmp_path)] == ["a"]


def test_the_last_line_of_a_configuration_counts(tmp_path):
    results = Results(tmp_path)
    results.add({"key": "a", "status": "failed", "reason": "rank 0 left"})
    results.add({"key": "b", "status": "ok"})
    results.add({"key": "a", "status": "ok"})
    assert [(row["key"], row["status"], row["reason"]) for row in read(tmp_path)] == [
        ("a", "ok", ""),
        ("b", "ok", ""),
    ]
    with (tmp_path / "results.csv").open("a") as file:  # as other versions write
        file.write((tmp_path / "results.csv").read_text().splitlines()[2].replace(",ok,", ",oom,") + "\n")
    assert len(read(tmp_path)) == 3
    assert Results(tmp_path).rows["b"]["status"] == "oom"
    assert len(read(tmp_path)) == 2


def test_predictions_are_written_into_lines_that_are_there(tmp_path):
    results = Results(tmp_path)
    results.add({"key": "a", "status": "ok", "step_s": 0.5, "predicted_peak_bytes": 7})
    results.predict("a", {"predicted_step_s": 0.25, "predicted_peak_bytes": None, "dp": 3})
    results.predict("b", {"predicted_step_s": 0.25})
    results.write()
    (row,) = read(tmp_path)
    assert (row["predicted_step_s"], row["predicted_peak_bytes"], row["step_s"], row["dp"]) == (
        "0.25",
        "7",
        "0.5",
        "",
    )


def test_another_table_is_left_alone(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text("layout,seconds\ndp=2,1.5\n")
    with pytest.raises(ConfigError, match="has other columns than a sweep's: name another folder"):
        Results(tmp_path)
    assert path.read_text() == "layout,seconds\ndp=2,1.5\n"


def test_one_sweep_at_a_time_in_a_folder(tmp_path):
    code = "import sys; from pathlib import Path; from playbook.launch.sweep.results import alone\n"
    code += "with alone(Path(sys.argv[1])): print('in')"
    with alone(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60
        )
        assert "another sweep is running in" in done.stderr
    done = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.stdout == "in\n"


def test_a_key_is_that_of_a_layout_in_a_sweep():
    assert SPEC.key("dp=2") == dataclasses.replace(SPEC).key("dp=2") != SPEC.key("dp=4")
    assert SPEC.key("dp=2") != dataclasses.replace(SPEC, seq=32).key("dp=2")


def test_a_folder_holds_one_sweep(tmp_path):
    SPEC.settle(tmp_path)
    SPEC.settle(tmp_path)
    for change, sentence in (
        ({"seq": 32}, "seq is 32, but .* holds a sweep with 64"),
        ({"model": {"name": "other"}}, "model is 'other', but .* holds a sweep with 'tiny'"),
        ({"train": ("--dtype", "bfloat16")}, "train is --dtype bfloat16, but .* holds a sweep with none"),
        ({"data": "/a.txt"}, "data is '/a.txt', but .* holds a sweep with None"),
    ):
        with pytest.raises(ConfigError, match=f"{sentence}: name another folder"):
            dataclasses.replace(SPEC, **change).settle(tmp_path)
    (tmp_path / "sweep.json").write_text("{")
    with pytest.raises(ConfigError, match=r"sweep\.json' is not valid at line 1"):
        SPEC.settle(tmp_path)
