"""results.csv: whole lines, one for each configuration, whatever ended the sweep before."""

from __future__ import annotations

import csv
import subprocess
import sys

import pytest

from playbook.errors import ConfigError
from playbook.launch.sweep.results import COLUMNS, Results, alone


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
    assert len(read(tmp_path)) == 3  # nothing that is on disk is taken away while the sweep goes on
    results.close()
    assert [(row["key"], row["status"], row["reason"]) for row in read(tmp_path)] == [
        ("a", "ok", ""),
        ("b", "ok", ""),
    ]


def test_predictions_are_written_into_lines_that_are_there(tmp_path):
    results = Results(tmp_path)
    results.add({"key": "a", "status": "ok", "step_s": 0.5, "predicted_peak_bytes": 7})
    results.predict("a", {"predicted_step_s": 0.25, "predicted_peak_bytes": None, "dp": 3})
    results.predict("b", {"predicted_step_s": 0.25})
    results.close()
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
