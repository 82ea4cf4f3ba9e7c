"""``playbook sweep`` as a user meets it: real runs, killed and resumed, here and as jobs."""

from __future__ import annotations

import csv
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import terminal
from leftovers import alive, descendants, remaining

from benchmarks.faults.runs import command_of
from playbook.cli import main
from playbook.commands.sweep_table import accuracy, ordered, summary, table
from playbook.launch.sweep.results import COLUMNS
from playbook.launch.warm import python_path

SMALL = json.dumps({"layers": 1, "hidden": 16, "heads": 2, "vocab": 256, "max_seq": 64, "name": "small"})
SIZES = ["--model", SMALL, "--seq", "16", "--global-batch", "4", "--steps", "5", "--warmup", "2"]
MEASURED = Path(__file__).parents[1] / "benchmarks" / "results" / "cpu-2-cores-calibration.toml"


def start(folder: Path, *flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "playbook", "sweep", *SIZES, "--out", "out", *flags]
    # What is killed leaves its temporary files: with the test's own.
    here = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": python_path()}
    return subprocess.Popen(
        command, cwd=folder, env=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=terminal.listen,
    )  # fmt: skip


def until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait for what the sweep does next; it has five minutes, and must be there still."""
    limit = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.01)


def trains(pid: int) -> bool:
    """Whether one of its runs has begun."""
    return any(" train " in command_of(one) for one in descendants(pid))


def rows(folder: Path) -> list[dict[str, str]]:
    path = folder / "out" / "results.csv"
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_interrupted_killed_and_resumed_it_loses_nothing_and_leaves_nothing(tmp_path, monkeypatch, capsys):
    flags = ["--layout", "zero=0", "--layout", "tp=3", "--calibration", str(MEASURED), "--json"]
    interrupted = start(tmp_path, *flags)
    until(lambda: trains(interrupted.pid), interrupted)
    processes = descendants(interrupted.pid)
    interrupted.send_signal(signal.SIGINT)
    printed, said = interrupted.communicate(timeout=120)
    assert interrupted.returncode == 130, said
    assert "the same command goes on from here" in said
    assert json.loads(printed)["counts"]["refused"] == 1
    assert remaining(processes, 30) == []
    with (tmp_path / "out" / "results.csv").open("a") as file:
        file.write('torn,small,"dp=')

    more = [*flags, "--layout", "micro_batch=2"]
    killed = start(tmp_path, *more)
    until(lambda: len(rows(tmp_path)) == 2 and trains(killed.pid), killed)
    processes = descendants(killed.pid)
    killed.kill()
    killed.communicate(timeout=60)
    assert remaining(processes, 30) == []
    before = (tmp_path / "out" / "results.csv").read_bytes()
    assert sorted(row["status"] for row in rows(tmp_path)) == ["ok", "refused"]

    monkeypatch.chdir(tmp_path)
    assert main(["sweep", *SIZES, "--out", "out", *flags]) == 0  # nothing is left to run
    summary = json.loads(capsys.readouterr().out)
    assert (tmp_path / "out" / "results.csv").read_bytes() == before
    assert summary["counts"] == {"ok": 1, "refused": 1}
    assert summary["missing"] == 0
    row, refused = summary["rows"]
    assert refused["reason"] == "tp must divide heads = 2 (1, 2), got 3"
    assert row["status"] == "ok"
    assert row["step_q1_s"] <= row["step_s"] <= row["step_q3_s"]
    assert row["steps"] == 3
    assert row["tokens_per_s_per_gpu"] == pytest.approx(64 / row["step_s"], rel=1e-3)
    assert row["peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.01)
    assert row["predicted_step_s"] > 0
    assert (row["gbs"], row["seq"], row["precision"]) == (4, 16, "float32")
    assert row["micro_batch"] * row["grad_acc"] * row["dp"] == 4


@pytest.mark.slow
def test_a_job_goes_on_without_its_collector_and_is_found_again(tmp_path):
    """And one of this machine is ended by Ctrl-C."""
    flags = ["--local-executor", "--layout", "", "--json"]
    killed = start(tmp_path, *flags)
    ids = tmp_path / "out" / "jobs.json"
    until(ids.exists, killed)
    killed.kill()
    killed.communicate(timeout=60)
    ((key, job),) = json.loads(ids.read_text()).items()
    assert alive(job) or (tmp_path / "out" / "jobs" / f"{key}.result").exists()

    more = start(tmp_path, *flags, "--layout", "micro_batch=2")
    until(lambda: len(rows(tmp_path)) == 1 and trains(more.pid), more)
    ((_, other),) = json.loads(ids.read_text()).items()
    processes = descendants(more.pid)
    more.send_signal(signal.SIGINT)
    printed, said = more.communicate(timeout=120)
    assert more.returncode == 130, said
    assert "jobs that go on" not in said
    assert other in processes
    assert remaining([job, *processes], 30) == []
    assert json.loads(printed)["counts"] == {"ok": 1}
    assert json.loads(ids.read_text()) == {}


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("", "there is nothing to run: give --layout, --layouts or --grid"),
        ("--layout dq=2", "unknown layout field 'dq'; did you mean dp?"),
        ("--grid dp", "grid has 'dp', but must be fields with values, such as dp=1,2 tp=1,2"),
        ("--grid dp=2 --gpus 3", "grid has no layout of 3 GPUs: give other values"),
        ("--layout dp=2 --gpus 3", "gpus is 3, which is for a grid: give --grid with it"),
        ("--layouts none.txt", "layouts file 'none.txt' cannot be read: no such file or directory"),
        ("--layout dp=2 --model nun", "unknown model 'nun'"),
        ("--layout dp=2 --seq 65", "seq is 65, but small has positions for at most max_seq=64 tokens"),
        ("--layout dp=2 --data none.txt", "data is 'none.txt', which is no file"),
        ("--layout dp=2 --steps 2", "steps is 2, but must be more than the warmup of 2"),
        ("--layout dp=2 --warmup 1", "warmup must be at least 2, got 1"),
        ("--layout dp=2 --repeat 0", "repeat must be at least 1, got 0"),
        ("--layout dp=2 --timeout 0", "timeout must be a number above 0, got 0.0"),
        ("--layout dp=2 --again fail", "unknown status 'fail'; did you mean failed?"),
        ("--layout dp=2 --at-once 2", "--at-once is for jobs: give --slurm or --local-executor with it"),
        ("--layout dp=2 --slurm gpus=8", "unknown setting of slurm 'gpus=8'"),
        (
            "--layout dp=2 --slurm time=9 --local-executor",
            "--slurm and --local-executor are two ways to run jobs",
        ),
        (
            "--layout dp=2 --cluster h100-8",
            "cluster is 'h100-8', which is for a prediction: give --calibration",
        ),
        (
            "--layout dp=2 --calibration h100",
            "calibration h100 is of no machine: give the --cluster that it is for",
        ),
        ("--layout dp=2 --calibration none.toml", "cannot read calibration file 'none.toml'"),
        ("--layout dp=2 --calibration h10 --cluster h100-8", "unknown calibration 'h10'"),
        ("--layout dp=2 tp=2", "'tp=2' is no flag: those of `playbook train` come after --"),
        ("--layout dp=2 -- --seq 8", "--seq is said by the sweep itself: leave it out after --"),
        (
            "--layout dp=2 -- --dtype float8",
            "dtype must be one of float32, bfloat16, float16, got 'float8'",
        ),
        ("--layout dp=2 -- --dtyp float8 --sed", "playbook train: unrecognized arguments: --sed"),
        ("--layout dp=2 --out taken", "out is 'taken', which cannot be a folder (file exists)"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(tmp_path, monkeypatch, capsys, flags, sentence):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").touch()
    status: object
    try:
        status = main(["sweep", *SIZES, *shlex.split(flags)])
    except SystemExit as end:  # argparse
        status = end.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert printed.err.removeprefix("playbook sweep: ").startswith(sentence)
    assert printed.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "taken"]


def test_layouts_that_no_model_has_are_rows_with_their_reasons(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = [*SIZES, "--grid", "tp=3,4", "zero=0,4", "--gpus", "12"]
    assert main(["sweep", *flags, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["counts"] == {"refused": 4}
    reasons = {row["layout"]: row["reason"] for row in summary["rows"]}
    assert reasons == {
        "dp=4,tp=3,zero=0": "tp must divide heads = 2 (1, 2), got 3",
        "dp=4,tp=3,zero=4": "zero must be 0, 1, 2 or 3, got 4",
        "dp=3,tp=4,zero=0": "global_batch is 4, but must be a multiple of dp=3, a share for each rank",
        "dp=3,tp=4,zero=4": "zero must be 0, 1, 2 or 3, got 4",
    }
    assert main(["sweep", *flags]) == 0
    printed = capsys.readouterr()
    assert "4 layouts, 0 of them to run" in printed.err
    assert "refused: zero must be 0, 1, 2 or 3, got 4" in printed.out
    assert main(["sweep", *flags, "--again", "refused"]) == 0
    assert len(rows_of(tmp_path / "sweep")) == 4
    assert main(["sweep", *flags, "--seq", "8"]) == 2
    assert "seq is 8, but sweep holds a sweep with 16: name another folder" in capsys.readouterr().err


def rows_of(folder: Path) -> list[str]:
    return (folder / "results.csv").read_text().splitlines()[1:]


def test_how_well_steps_were_predicted_is_said():
    def row(measured: float, predicted: float | str, status: str = "ok") -> dict[str, str]:
        return dict.fromkeys(COLUMNS, "1") | {
            "status": status, "reason": "no memory", "step_s": str(measured), "predicted_step_s": str(predicted)
        }  # fmt: skip

    rows = [row(0.1, 0.11), row(0.2, 0.16), row(0.4, 0.6), row(0.8, 0.56), row(5, ""), row(9, 1, "oom")]
    found = accuracy(rows)
    assert found is not None
    assert found["layouts"] == 4
    assert found["median_error"] == pytest.approx((0.2 + 0.3) / 2)
    # Squared differences of ranks: 0, 0, 1, 1; and 1 - 6 · 2 / (4 · 15).
    assert found["rank_correlation"] == pytest.approx(0.8)
    assert table(rows).endswith("predicted steps of 4 layouts: median error 25.0%, rank correlation 0.80")
    equal = accuracy([row(0.1, 0.3), row(0.2, 0.3), row(0.4, 0.5)])
    assert equal is not None
    assert equal["rank_correlation"] == pytest.approx(3**0.5 / 2)  # ranks 1, 2, 3 and 1.5, 1.5, 3
    assert accuracy(rows[:2]) is None
    assert accuracy([row(0.1, 0.2)] * 3) is None


def test_the_fastest_is_first_and_words_are_no_numbers():
    given = [("1e5", "ok", "0.4"), ("refused", "refused", ""), ("12", "ok", "0.1")]
    rows = [
        dict.fromkeys(COLUMNS, "") | {"key": key, "status": status, "step_s": step}
        for key, status, step in given
    ]
    found = summary(ordered(rows), 1)
    assert found["counts"] == {"ok": 2, "refused": 1}
    assert [(row["key"], row["step_s"]) for row in found["rows"]] == [
        ("12", 0.1),
        ("1e5", 0.4),
        ("refused", None),
    ]
