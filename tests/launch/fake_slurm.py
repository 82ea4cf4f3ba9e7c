#!/usr/bin/env python
"""Stand-ins for sbatch, sacct, scontrol, scancel and srun on one machine: 127.0.0.1, 127.0.0.2, … are its nodes.

Started through links of these names. They know the options that are listed here, as Slurm's manual has them, and
refuse all others; sbatch waits for the job and has its status, but with --parsable, which prints its id at once. Files
beside the programs are what they know of each other: ``warn``, which a test makes when the time of a job is up but for
the seconds of its --signal, ``preempt``, which it makes when another job needs the nodes, ``requeue``, ``cancelled``,
``step``, the srun whose descendants are the processes of the job's step, and ID.state, once a job has ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUESTS = ("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "partition")
REQUESTS += ("account", "signal", "open-mode", "array", "switches")
STATE = Path(sys.argv[0]).parent


def free_job_id(tasks: int = 1) -> int:
    """For a test: an id, not as in another process, whose ports, and those of its array's tasks, are free."""
    while True:
        first = random.SystemRandom().randrange(70_000, 79_990)
        with contextlib.suppress(OSError):
            for task in range(tasks):
                with socket.socket() as listener:
                    listener.bind(("", first + task - 50_000))
            return first


def sbatch() -> int:
    """Keep a copy of the script, read its #SBATCH lines up to the first command, and run it on the first node."""
    parser = argparse.ArgumentParser("sbatch", allow_abbrev=False)
    for request in REQUESTS:
        parser.add_argument(f"--{request}")
    parser.add_argument("--requeue", action="store_true")
    given = argparse.ArgumentParser("sbatch", allow_abbrev=False)
    given.add_argument("--parsable", action="store_true")
    given.add_argument("--output")
    given.add_argument("script", type=Path, nargs="?")
    args = given.parse_args()
    if args.parsable:
        with open(args.output, "wb") as log:
            subprocess.Popen([sys.argv[0], args.script], stdout=log, stderr=log, start_new_session=True)
        # "Outputs only the job id number and the cluster name if present, separated by a semicolon":
        # https://slurm.schedmd.com/sbatch.html#OPT_parsable
        print(os.environ["FAKE_JOB_ID"])
        return 0
    text = args.script.read_text() if args.script else sys.stdin.read()
    header = re.match(r"(?:#.*\n|\s*\n)*", text)
    lines = re.findall(r"^#SBATCH (.*)$", header[0] if header else "", flags=re.MULTILINE)
    request = parser.parse_args([word for line in lines for word in shlex.split(line)])
    tasks = int((request.array or "1-1").removesuffix("%1").removeprefix("1-"))
    status = 0
    for task in range(1, tasks + 1):
        job_id = int(os.environ["FAKE_JOB_ID"]) + task - 1
        env = {
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOB_NAME": request.job_name,
            "SLURM_NNODES": request.nodes,
            "SLURM_JOB_NODELIST": f"127.0.0.[1-{request.nodes}]" if int(request.nodes) > 1 else "127.0.0.1",
        }
        if request.array:
            env |= {"SLURM_ARRAY_JOB_ID": os.environ["FAKE_JOB_ID"], "SLURM_ARRAY_TASK_ID": str(task)}
        if not (STATE / "cancelled").exists():
            status = run_until_done(text, env, request)
            (STATE / f"{job_id}.state").write_text("FAILED" if status else "COMPLETED")
    return status


def sacct() -> int:
    """``sacct -n -P -X -o JobID,State -j JOB,…``: no header, fields "delimited with |" without one at the end, and jobs
    without their steps (https://slurm.schedmd.com/sacct.html). A real one says nothing of a job in its first second."""
    assert sys.argv[1:-1] == ["-n", "-P", "-X", "-o", "JobID,State", "-j"], sys.argv
    for job in sys.argv[-1].split(","):
        state = STATE / f"{job}.state"
        print(f"{job}|{state.read_text() if state.exists() else 'RUNNING'}")
    return 0


def run_until_done(text: str, env: dict[str, str], request: argparse.Namespace) -> int:
    """The script on the first node, again whenever it has gone back to the queue; warned when a test says so."""
    for restart in range(100):
        env["SLURM_RESTART_COUNT"] = str(restart)
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as copy:
            copy.write(text)
            copy.flush()
            shell = subprocess.Popen(["bash", copy.name], env={**os.environ, **env})
            while shell.poll() is None:
                if (STATE / "warn").exists():
                    (STATE / "warn").unlink()
                    whom, _, rest = request.signal.partition(":")
                    assert whom == "B", "only the batch shell is warned here"
                    shell.send_signal(getattr(signal, f"SIG{rest.partition('@')[0]}"))
                if (STATE / "preempt").exists():
                    (STATE / "preempt").rename(STATE / "requeue")
                    send(signal.SIGTERM)
                time.sleep(0.02)
        if not (STATE / "requeue").exists():
            return shell.returncode
        assert request.requeue, "a job without --requeue cannot go back to the queue"
        (STATE / "requeue").unlink()
    raise AssertionError("a job that goes back to the queue for ever")


def scontrol() -> int:
    """``scontrol show hostnames LIST`` and ``scontrol requeue JOB``."""
    if sys.argv[1] == "requeue":
        assert sys.argv[2] == os.environ["SLURM_JOB_ID"], sys.argv
        (STATE / "requeue").touch()
        return 0
    assert sys.argv[1:3] == ["show", "hostnames"], sys.argv
    print("\n".join(hosts(sys.argv[3])))
    return 0


def scancel() -> int:
    """``scancel --signal=NAME JOB``: to all processes of the job's step; ``scancel --state=PENDING ARRAY``."""
    parser = argparse.ArgumentParser("scancel", allow_abbrev=False)
    parser.add_argument("--signal")
    parser.add_argument("--state")
    parser.add_argument("job")
    args = parser.parse_args()
    if args.state:
        assert (args.state, args.job) == ("PENDING", os.environ["SLURM_ARRAY_JOB_ID"]), args
        (STATE / "cancelled").touch()
        return 0
    assert args.job == os.environ["SLURM_JOB_ID"], args
    send(getattr(signal, f"SIG{args.signal}"))
    return 0


def send(number: int) -> None:
    """To all processes of the job's step, as Slurm does: torchrun has it, and so have the ranks."""
    for pid in descendants(int((STATE / "step").read_text())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, whatever session they are in."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


def hosts(nodelist: str) -> list[str]:
    """The names in a list as Slurm abbreviates it."""
    found = re.fullmatch(r"(.*)\[(\d+)-(\d+)\]", nodelist)
    return [f"{found[1]}{i}" for i in range(int(found[2]), int(found[3]) + 1)] if found else [nodelist]


def srun() -> int:
    """One task on each node; the largest status of a task."""
    parser = argparse.ArgumentParser("srun", allow_abbrev=False)
    for option in ("ntasks-per-node", "cpus-per-task", "kill-on-bad-exit", "output", "open-mode"):
        parser.add_argument(f"--{option}")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    (STATE / "step").write_text(str(os.getpid()))
    assert args.ntasks_per_node == args.kill_on_bad_exit == "1", args
    tasks = []
    for node, host in enumerate(hosts(os.environ["SLURM_JOB_NODELIST"])):
        env = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURMD_NODENAME": host}
        with open(args.output.replace("%n", str(node)), "ab" if args.open_mode == "append" else "wb") as log:
            apart = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            tasks.append(subprocess.Popen(args.command, env={**os.environ, **env}, **apart))
    while not any(statuses := [task.poll() for task in tasks]) and None in statuses:
        time.sleep(0.05)
    for sign, seconds in ((signal.SIGTERM, 30), (signal.SIGKILL, 5)):
        limit = time.monotonic() + seconds
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, sign)
        while any(task.poll() is None for task in tasks) and time.monotonic() < limit:
            time.sleep(0.05)
    return max(task.returncode % 256 for task in tasks)


if __name__ == "__main__":
    programs = {"sbatch": sbatch, "sacct": sacct, "scancel": scancel, "scontrol": scontrol, "srun": srun}
    sys.exit(programs[Path(sys.argv[0]).name]())
