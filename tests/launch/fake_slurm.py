#!/usr/bin/env python
"""Stand-ins for sbatch, scontrol and srun on one machine, whose loopback addresses 127.0.0.1, 127.0.0.2, … are the nodes.

Started through links of these names. They know the options that are listed here, as Slurm's manual has them, and
refuse all others; sbatch waits for the job and has its status.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REQUESTS = ("job-name", "nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time", "partition")
REQUESTS += ("account", "signal", "open-mode")


def sbatch() -> int:
    """Keep a copy of the script, read its #SBATCH lines up to the first command, and run it on the first node."""
    parser = argparse.ArgumentParser("sbatch", allow_abbrev=False)
    for request in REQUESTS:
        parser.add_argument(f"--{request}")
    parser.add_argument("--requeue", action="store_true")
    text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else sys.stdin.read()
    header = re.match(r"(?:#.*\n|\s*\n)*", text)
    lines = re.findall(r"^#SBATCH (.*)$", header[0] if header else "", flags=re.MULTILINE)
    request = parser.parse_args([word for line in lines for word in shlex.split(line)])
    env = {
        "SLURM_JOB_ID": os.environ["FAKE_JOB_ID"],
        "SLURM_JOB_NAME": request.job_name,
        "SLURM_NNODES": request.nodes,
        "SLURM_JOB_NODELIST": f"127.0.0.[1-{request.nodes}]" if int(request.nodes) > 1 else "127.0.0.1",
    }
    with tempfile.NamedTemporaryFile("w", suffix=".sh") as copy:
        copy.write(text)
        copy.flush()
        return subprocess.run(["bash", copy.name], env={**os.environ, **env}).returncode


def scontrol() -> int:
    """``scontrol show hostnames LIST``."""
    assert sys.argv[1:3] == ["show", "hostnames"], sys.argv
    print("\n".join(hosts(sys.argv[3])))
    return 0


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
    assert args.ntasks_per_node == args.kill_on_bad_exit == "1", args
    tasks = []
    for node, host in enumerate(hosts(os.environ["SLURM_JOB_NODELIST"])):
        env = {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURMD_NODENAME": host}
        with open(args.output.replace("%n", str(node)), "ab" if args.open_mode == "append" else "wb") as log:
            tasks.append(
                subprocess.Popen(
                    args.command,
                    env={**os.environ, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )
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
    sys.exit({"sbatch": sbatch, "scontrol": scontrol, "srun": srun}[Path(sys.argv[0]).name]())
