"""Jobs that Slurm itself starts, warns, preempts and requeues, on nodes that are this machine."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import slurm as slurm_tool
import two_agents
from helpers import ODD_WORDS
from leftovers import remaining, signed_in
from real_slurm import NODES, Cluster

from playbook.cli import main
from playbook.launch import slurm, warm
from playbook.launch.logs import read_json_log
from playbook.launch.sweep import jobs

TESTS = Path(__file__).parents[1]
STEPS = 9


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """One for the tests of this file, with a torchrun whose ranks need not import PyTorch again; where Slurm is not
    installed they are skipped, and the summary says so.
    """
    if slurm_tool.find() is None:
        pytest.skip(slurm_tool.MISSING)
    torchrun = tmp_path_factory.mktemp("bin") / "torchrun"
    torchrun.write_text(f"#!{sys.executable}\n{(TESTS / 'forked_torchrun.py').read_text()}")
    torchrun.chmod(0o755)
    path = [str(torchrun.parent), str(Path(sys.executable).parent), os.environ["PATH"]]
    with Cluster() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join(path))
        patch.setenv("PYTHONPATH", os.pathsep.join([warm.python_path(), str(TESTS)]))
        patch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture(scope="module")
def late(cluster, tmp_path_factory) -> dict[str, tuple[Path, str]]:
    """Folders and ids of two jobs that train and whose time is up. Slurm looks every thirty seconds: they are sent
    first, and other tests run meanwhile.
    """
    sent = {}
    with pytest.MonkeyPatch.context() as patch:
        for name, how, more in (
            ("requeued", ("dp=2", "5,6,7"), {"nodes": 2, "partition": "low", "requeue": True}),
            ("array", ("",), {"nodes": 1, "array": 3}),
        ):
            patch.chdir(tmp_path_factory.mktemp(name))
            sent[name] = (
                Path.cwd(),
                submit(train(*how), slurm.SlurmJob(gpus_per_node=1, cpus_per_gpu=1, **more)),
            )
        for layout in ("dp=2", ""):
            undisturbed(layout)  # a controller that has just begun starts jobs after three seconds
        for name, one in (("requeued", ""), ("array", "_1")):
            folder, job = sent[name]
            patch.chdir(folder)
            cluster.until(Path("waits-5").exists, said)
            # Two minutes before its end a job is warned.
            cluster.ask("scontrol", "update", f"JobId={job}{one}", "TimeLimit=2")
    return sent


@pytest.fixture(autouse=True)
def here(cluster, tmp_path, monkeypatch) -> None:
    """Jobs are sent from a folder of the test."""
    monkeypatch.chdir(tmp_path)


def submit(command: list[str], job: slurm.SlurmJob) -> str:
    """Send the job of a command as a user does; what its shell says is in ``shell.log``."""
    Path("job.sh").write_text(slurm.sbatch_script(command, job))
    return slurm.submit(Path("job.sh"), Path("shell.log"), os.environ)


def becomes(cluster: Cluster, job: str, *others: str) -> str:
    """The state in which a job ends, or the first of others."""
    cluster.until(lambda: slurm.states([job])[job] in {*slurm.ENDED, *others}, said)
    return slurm.states([job])[job]


def logs() -> list[str]:
    """The output of each node."""
    return [path.read_text() for path in sorted(Path().glob("logs/*/node-*.log"))]


def said() -> str:
    """All that the job has printed so far."""
    return "\n".join([Path("shell.log").read_text(), *logs()])


FAILS = """
import json, os, sys, time
from leftovers import sign_in

sign_in(".")
names = "RANK WORLD_SIZE GROUP_RANK LOCAL_RANK SLURM_NODEID SLURMD_NODENAME MASTER_ADDR GREETING OMP_NUM_THREADS"
found = json.dumps([[os.environ[name] for name in names.split()], sys.argv[1:]])
os.write(1, f"FOUND {found}\\n".encode())  # at one go: ranks of a node share a log, and print writes line ends apart
while len(os.listdir("there")) < 4:
    if not os.path.exists(own := f"there/{os.environ['RANK']}"):
        open(own, "w")
    time.sleep(0.01)
if os.environ["RANK"] == "3":
    raise ValueError("bad shape")
time.sleep(1000)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("late")  # so that they are sent first
def test_a_rank_that_fails_ends_the_job_on_all_nodes(cluster, tmp_path):
    """Each rank had its number, its node, and what it was told."""
    Path("work.py").write_text(FAILS)
    Path("there").mkdir()
    setup = ('export GREETING="it\'s $((6 * 7))"',)
    job = submit(
        ["work.py", *ODD_WORDS], slurm.SlurmJob(nodes=2, gpus_per_node=2, cpus_per_gpu=3, setup=setup)
    )
    assert becomes(cluster, job) == "FAILED", said()
    for node, text in enumerate(logs()):
        found = sorted(map(json.loads, re.findall("^FOUND (.*)$", text, re.MULTILINE)))
        own = [str(node), "{}", str(node), NODES[node], NODES[0], "it's 42", "3"]
        assert found == [[[str(2 * node + i), "4", *(w.format(i) for w in own)], ODD_WORDS] for i in (0, 1)]
        assert ("ValueError: bad shape" in text) == (node == 1)
    assert len(signed_in(tmp_path)) == 4
    assert remaining(signed_in(tmp_path), 30) == []


@pytest.mark.slow
def test_a_sweep_sends_jobs_and_collects_what_they_measured(cluster, monkeypatch, capsys):
    monkeypatch.setattr(jobs, "LOOK_AT_SLURM", 0.5)
    asked = "partition=gpu,time=10,gpus_per_node=2,cpus_per_gpu=1"
    sizes = [
        "--model",
        two_agents.MODEL,
        "--seq",
        "16",
        "--global-batch",
        "4",
        "--steps",
        "5",
        "--warmup",
        "2",
    ]
    flags = ["--slurm", asked, "--layout", "dp=2", "--out", "out", "--json", "--", "--device", "cpu"]
    assert main(["sweep", *sizes, *flags]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["status"], row["steps"], row["dp"]) == ("ok", 3, 2), row
    assert row["tokens_per_s_per_gpu"] == pytest.approx(64 / row["step_s"] / 2, rel=1e-3)
    assert row["peak_bytes"] == pytest.approx(row["predicted_peak_bytes"], rel=0.01)


TRAINS = """
import os, signal, sys, time
from pathlib import Path
from leftovers import sign_in
from playbook.cli import main
from playbook.launch.logs import JsonLog

sign_in(".")
write, WAITS = JsonLog.step, list(map(int, sys.argv.pop(1).split(",")))

def step(log, record):
    write(log, record)
    waits = Path(f"waits-{record['step']}")
    if record["step"] in WAITS and not waits.exists():
        waits.touch()
        while signal.SIG_IGN not in map(signal.getsignal, (signal.SIGUSR1, signal.SIGTERM)):  # until it is asked
            time.sleep(0.01)

JsonLog.step = step
sys.exit(main(sys.argv[1:]))
"""


def train(layout: str, waits: str = "5") -> list[str]:
    """The command of a run whose first rank waits after some steps, once each, until it is asked to leave."""
    Path("work.py").write_text(TRAINS)
    more = f"--steps {STEPS} --device cpu --quiet --log run.jsonl --checkpoint c --every 2 --resume"
    return ["work.py", waits, "train", *two_agents.train_flags(layout), *more.split()]


def steps() -> list[tuple[int, float, float]]:
    return [(r["step"], r["loss"], r["grad_norm"]) for r in read_json_log(Path("run.jsonl"))]


@cache
def undisturbed(layout: str) -> list[tuple[int, float, float]]:
    """The steps of a run that nothing stops."""
    with tempfile.TemporaryDirectory() as folder:
        return two_agents.quiet(Path(folder), two_agents.train_flags(layout), STEPS)


def goes_on(cluster: Cluster, job: str, until: str = "job.sh") -> None:
    """Have a job that is back in the queue begin in a second, and come as far as to write a file.

    Not within this second: nodes have revoked what it was sent with, and would take what is sent again for the same.
    """
    cluster.ask("scontrol", "update", f"JobId={job}", "TimeLimit=60", "StartTime=now+1")
    cluster.until(Path(until).exists, said)


@pytest.mark.slow
def test_a_job_goes_back_to_the_queue_and_on(cluster, late, monkeypatch):
    """When its time is up, when it makes way for a more urgent one, and, with another node, when one of its nodes fails:
    the losses are those of a run that nothing stops, bit for bit.
    """
    folder, job = late["requeued"]
    monkeypatch.chdir(folder)
    assert becomes(cluster, job, "PENDING") == "PENDING", said()
    assert "saved and left, as asked, after 6 steps" in said()

    goes_on(cluster, job, "waits-6")
    all_nodes = slurm.SlurmJob(nodes=3, gpus_per_node=4, cpus_per_gpu=1, partition="urgent")
    Path("urgent.sh").write_text(slurm.batch_script(["true"], all_nodes))
    urgent = slurm.submit(Path("urgent.sh"), Path("urgent.log"), os.environ)
    assert becomes(cluster, urgent) == "COMPLETED"
    assert becomes(cluster, job, "PENDING") == "PENDING", said()
    assert "saved and left, as asked, after 1 steps" in said()

    goes_on(cluster, job, "waits-7")
    cluster.fail(NODES[3])
    assert becomes(cluster, job, "PENDING") == "PENDING", said()

    goes_on(cluster, job)
    assert becomes(cluster, job) == "COMPLETED", said()
    assert [step for step, *_ in steps()] == [*range(8), 7, STEPS - 1]
    assert sorted(set(steps())) == undisturbed("dp=2")
    assert len(signed_in(Path())) == 8
    assert remaining(signed_in(Path()), 30) == []
    cluster.repair(NODES[3])


@pytest.mark.slow
def test_the_next_job_of_an_array_goes_on_and_the_rest_is_cancelled_when_all_is_done(
    cluster, late, monkeypatch
):
    folder, job = late["array"]
    monkeypatch.chdir(folder)
    queue = ["squeue", "-h", "-r", "-t", "all", "-o", "%K %T", "-j", job]
    cluster.until(lambda: not re.search("PENDING|RUNNING|COMPLETING", cluster.ask(*queue)), said)
    assert sorted(cluster.ask(*queue).splitlines()) == ["1 COMPLETED", "2 COMPLETED", "3 CANCELLED"], said()
    assert "saved and left, as asked, after 6 steps" in logs()[0]
    assert "scancel: error" not in said()
    assert steps() == undisturbed("")
