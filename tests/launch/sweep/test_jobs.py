"""A sweep's jobs: what is asked of Slurm, word for word, and what their ends mean."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from playbook.errors import LaunchError
from playbook.launch.slurm import SlurmJob
from playbook.launch.sweep.jobs import Jobs, executor, minutes, parse_slurm, sized
from playbook.launch.sweep.runs import Task

submitit = pytest.importorskip("submitit")
EXPECTED = Path(__file__).with_name("expected.sbatch")


def task(folder: Path, job: SlurmJob | None) -> Task:
    return Task("0123456789ab", folder, ("--layout", "dp=16"), 16, 64, 2, 1, 300.0, job)


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Path:
    """A machine with an srun that nobody calls."""
    (tmp_path / "srun").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "srun").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path


def test_the_batch_script_is_the_one_that_is_checked_in(cluster):
    asked = parse_slurm(
        "partition=gpu, time=1-2:30:20, gpus_per_node=8, cpus_per_gpu=6, account=me, setup=source venv"
    )
    found = executor(cluster / "jobs", task(cluster, sized(asked, 16)))
    script = found._make_submission_file_text(found._submitit_command_str, "uid")
    script = script.replace(sys.executable, "PYTHON").replace(str(cluster), "FOLDER")
    assert script == EXPECTED.read_text()


def test_a_job_of_a_part_of_a_node():
    assert sized(SlurmJob(gpus_per_node=8), 2) == SlurmJob(nodes=1, gpus_per_node=2)
    assert sized(SlurmJob(gpus_per_node=4), 12) == SlurmJob(nodes=3, gpus_per_node=4)
    with pytest.raises(LaunchError, match="12 ranks are no whole number of nodes with gpus_per_node=8"):
        sized(SlurmJob(gpus_per_node=8), 12)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("90", 90),
        ("5:30", 6),
        ("01:00:00", 60),
        ("0:10:01", 11),
        ("2-0", 2880),
        ("1-2:03", 1563),
        ("1-0:0:1", 1441),
    ],
)
def test_times_as_slurm_reads_them(text, whole):
    assert SlurmJob(time=text).time == text
    assert minutes(text) == whole


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("partiton=gpu", "unknown setting of slurm 'partiton=gpu'; did you mean partition=…?"),
        ("partition", "unknown setting of slurm 'partition'; did you mean partition=…?"),
        ("time=1,time=2", "slurm has time twice: give it once"),
        ("gpus_per_node=two", "gpus_per_node must be an integer, got 'two'"),
        ("time=tomorrow", "time is 'tomorrow', but must be minutes, hours:minutes:seconds or days-hours"),
        ("partition=a b", "partition is 'a b', but must be one word"),
    ],
)
def test_bad_requests_are_answered_in_one_sentence(text, sentence):
    with pytest.raises(LaunchError) as caught:
        parse_slurm(text)
    assert str(caught.value).startswith(sentence)


def test_where_there_is_no_slurm_or_no_submitit(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="srun is not on the path"):
        executor(tmp_path, task(tmp_path, SlurmJob()))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(LaunchError, match=re.escape("submitit is not installed: pip install submitit")):
        executor(tmp_path, task(tmp_path, None))


def test_a_job_that_is_gone_without_a_result_has_failed(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs.json").write_text(
        '[{"key": "k", "id": "4194305", "kind": "local"}]'
    )  # no process has this number
    (tmp_path / "jobs" / "4194305_0_log.err").write_text("Traceback\nImportError: no module\n\n")
    jobs = Jobs(tmp_path)
    ((key, found),) = list(jobs.ended())
    assert (key, found["status"]) == ("k", "failed")
    assert found["reason"].endswith("ImportError: no module")
    jobs.forget("k")
    assert Jobs(tmp_path).submitted == {}
