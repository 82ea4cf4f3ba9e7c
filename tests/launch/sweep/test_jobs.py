"""A sweep's jobs: what Slurm is asked, and what the ends of jobs mean."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from playbook.errors import ConfigError, LaunchError
from playbook.launch.slurm import SlurmJob, batch_script, states, submit
from playbook.launch.sweep import jobs
from playbook.launch.sweep.jobs import Jobs, parse_slurm
from playbook.launch.sweep.task import Task

RESULT = {"status": "ok", "step_s": 0.5}


def task(folder: Path, job: SlurmJob | None) -> Task:
    return Task("0123456789ab", folder, ("--layout", "dp=16"), 16, 64, 2, 1, 300.0, job, {"dp": 16})


def lost(row: dict[str, Any]) -> tuple[str, str]:
    """Status and reason of a row that has its fields, and where it was made."""
    assert set(row) == {"dp", "status", "reason", "host", "date"}
    return row["status"], row["reason"]


def was_sent(folder: Path, key: str, log: str) -> None:
    """What a job has left beside its id."""
    (folder / "jobs" / f"{key}.json").write_text('{"fields": {"dp": 16}}')
    (folder / "jobs" / f"{key}.log").write_text(log)


@pytest.fixture
def slurm(tmp_path, monkeypatch) -> Path:
    """A folder of programs called sbatch, sacct and squeue that say what is in files of theirs, and note what they were
    called with. Without accounting sacct says so and fails, as Slurm's does: src/sacct/process.c."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "sacct", "squeue"):
        text = f'echo "$*" >> {folder}/{name}.called; cat {folder}/{name}.err >&2; cat {folder}/{name}.out; '
        (folder / name).write_text(f"#!/bin/sh\n{text}exit $(cat {folder}/{name}.status)\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(jobs, "LOOK_AT_SLURM", 0.0)
    say(folder, "sbatch", "17\n")
    say(folder, "sacct", "17|PENDING\n")
    say(folder, "squeue")
    return folder


def say(folder: Path, name: str, out: str = "", err: str = "", status: int = 0) -> None:
    for kind, text in (("out", out), ("err", err), ("status", str(status))):
        (folder / f"{name}.{kind}").write_text(text)


def test_a_job_of_slurm_is_the_command_of_its_task(slurm, tmp_path):
    job = parse_slurm(
        "partition=gpu, time=1-2:30:20, gpus_per_node=8, cpus_per_gpu=6, account=me, setup=source venv"
    ).sized(16)
    rows = Jobs(tmp_path).rows([task(tmp_path, job)], 1)
    file = tmp_path / "jobs" / "0123456789ab.json"
    file.with_suffix(".result").write_text("of an earlier job")
    say(slurm, "sacct", "17|COMPLETED\n")
    found = next(rows)
    assert lost(found) == ("failed", "the job ended without a result (completed): it said nothing")
    rows.close()
    script = file.with_suffix(".sh")
    assert script.read_text().splitlines() == [
        "#!/bin/bash",
        "#SBATCH --job-name=playbook",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --cpus-per-task=48",
        "#SBATCH --time=1-2:30:20",
        "#SBATCH --partition=gpu",
        "#SBATCH --account=me",
        "",
        "set -e -o pipefail",
        "",
        "source venv",
        f"exec {sys.executable} -m playbook sweep --task {file}",
    ]
    assert (
        slurm / "sbatch.called"
    ).read_text() == f"--parsable --output={file.with_suffix('.log')} {script}\n"
    assert set((slurm / "sacct.called").read_text().splitlines()) == {"-n -P -X -o JobID,State -j 17"}
    assert json.loads((tmp_path / "jobs.json").read_text()) == {"0123456789ab": "17"}


def test_the_id_is_what_stands_before_a_cluster_and_a_path_is_no_pattern(slurm, tmp_path):
    say(slurm, "sbatch", "17;west\n")
    assert submit(tmp_path / "job.sh", tmp_path / "50%j.log", os.environ) == "17"
    assert (
        slurm / "sbatch.called"
    ).read_text() == f"--parsable --output={tmp_path}/50%%j.log {tmp_path}/job.sh\n"


def test_bash_runs_setup_and_then_a_program_with_its_words(tmp_path):
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:])", "it's", "$HOME", ""]
    script = batch_script(words, SlurmJob(setup=("export NAME=x", "false || echo set up $NAME")))
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True)
    assert done.stdout == f"set up x\n{words[3:]}\n"
    done = subprocess.run(
        ["bash"], input=batch_script(words, SlurmJob(setup=("false",))), capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


def test_a_job_that_goes_on_is_found_by_the_next_call(slurm, tmp_path, monkeypatch):
    rows = Jobs(tmp_path).rows([task(tmp_path, SlurmJob())], 1)
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert json.loads((tmp_path / "jobs.json").read_text()) == {"0123456789ab": "17"}
    (tmp_path / "jobs" / "0123456789ab.result").write_text(json.dumps(RESULT))
    rows = Jobs(tmp_path).rows([task(tmp_path, SlurmJob())], 1)
    assert next(rows) == RESULT
    assert json.loads((tmp_path / "jobs.json").read_text()) == {
        "0123456789ab": "17"
    }  # until it is written down
    with pytest.raises(KeyboardInterrupt):
        next(rows)
    assert json.loads((tmp_path / "jobs.json").read_text()) == {}
    assert (slurm / "sbatch.called").read_text().count("\n") == 1


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("TIMEOUT", "timeout"),
        ("OUT_OF_MEMORY", "oom"),
        ("CANCELLED by 1000", "failed"),
        ("NODE_FAIL", "failed"),
    ],
)
def test_a_job_of_slurm_without_a_result_has_slurms_word_and_its_own_last_one(slurm, tmp_path, state, status):
    found = Jobs(tmp_path)
    found.sent["k"] = "17"
    was_sent(tmp_path, "k", "one\ntwo\n---\n")
    say(slurm, "sacct", f"17|{state}\n18|RUNNING\n")
    word = state.split()[0].lower()
    assert lost(next(found.rows([], 1))) == (status, f"the job ended without a result ({word}): two")
    assert (slurm / "sacct.called").read_text().count("\n") == 2  # its result may come late


def test_squeue_is_asked_where_sacct_does_not_know_a_job(slurm):
    """It has only just been sent, or the cluster keeps no accounts. A job that it does not know either is gone."""
    assert states(["17"]) == {"17": "PENDING"}
    assert not (slurm / "squeue.called").exists()
    say(slurm, "squeue", "18|RUNNING\n")
    assert states(["17", "18", "19"]) == {"17": "PENDING", "18": "RUNNING", "19": ""}
    assert (slurm / "squeue.called").read_text() == "-h -t all -o %i|%T -j 18,19\n"
    say(slurm, "sacct", err="Slurm accounting storage is disabled\n", status=1)
    assert states(["18"]) == {"18": "RUNNING"}
    say(slurm, "squeue", err="slurm_load_jobs error: Invalid job id specified\n", status=1)
    assert states(["18"]) == {"18": ""}
    say(
        slurm,
        "squeue",
        err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
        status=1,
    )
    assert states(["18"]) == {}  # it may go on


def test_a_job_of_a_part_of_a_node():
    assert SlurmJob(gpus_per_node=8).sized(2) == SlurmJob(nodes=1, gpus_per_node=2)
    assert SlurmJob(gpus_per_node=4).sized(12) == SlurmJob(nodes=3, gpus_per_node=4)
    with pytest.raises(LaunchError, match="12 ranks are no whole number of nodes with gpus_per_node=8"):
        SlurmJob(gpus_per_node=8).sized(12)


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
    assert SlurmJob(time=text).minutes == whole


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


def test_where_slurm_refuses_or_is_not_there(slurm, tmp_path, monkeypatch):
    error = "sbatch: error: invalid partition specified: gpu"
    say(
        slurm,
        "sbatch",
        err=f"{error}\nsbatch: error: Batch job submission failed: Invalid partition name\n",
        status=1,
    )
    with pytest.raises(
        LaunchError, match="the job of 0123456789ab was not accepted: sbatch: error: Batch job subm"
    ):
        next(Jobs(tmp_path).rows([task(tmp_path, SlurmJob())], 1))
    assert not (tmp_path / "jobs.json").exists()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        LaunchError, match=r"^sbatch is not on the path: Slurm jobs are submitted on a node of the clu"
    ):
        next(Jobs(tmp_path).rows([task(tmp_path, SlurmJob())], 1))
    with pytest.raises(LaunchError, match=r"^sacct is not on the path"):
        states(["17"])


def test_a_job_of_this_machine_that_is_gone_without_a_result_has_failed(tmp_path):
    found = Jobs(tmp_path)
    found.sent |= {"k": 4194305, "other": os.getpid()}  # no process has that number, and this one is another
    was_sent(tmp_path, "k", "Traceback\nImportError: no module\n\n")
    was_sent(tmp_path, "other", "")
    assert [lost(row) for row in found.rows([], 1)] == [
        ("failed", "the job ended without a result: ImportError: no module"),
        ("failed", "the job ended without a result: it said nothing"),
    ]
    assert Jobs(tmp_path).sent == {}


def test_jobs_of_an_earlier_version_are_no_jobs_of_this_one(tmp_path):
    (tmp_path / "jobs.json").write_text('[{"key": "k", "id": "17", "kind": "slurm"}]')
    with pytest.raises(
        ConfigError, match=r"jobs\.json is of an earlier version: remove it once its jobs have ended"
    ):
        Jobs(tmp_path)
    (tmp_path / "jobs.json").write_text("[]")
    assert Jobs(tmp_path).sent == {}
    (tmp_path / "jobs.json").write_text('{"k": "17"}')  # and somebody has removed its files
    assert Jobs(tmp_path).sent == {}
    (tmp_path / "jobs.json").write_text("{")
    with pytest.raises(ConfigError, match=r"jobs file .* is not valid at line 1"):
        Jobs(tmp_path)
