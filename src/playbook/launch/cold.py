"""Cold ranks: torchrun itself, one agent for each node, as a reader would start it in a shell."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from playbook.errors import LaunchError
from playbook.launch.job import Job
from playbook.launch.warm import python_path

# As in "  rank      : 1 (local_rank: 1)\n  exitcode  : -9 (pid: 4711)"; the log names ranks in other lines, too.
_ENDED = re.compile(r"^\s*rank\s*:\s*(\d+)[^\n]*\n\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)

# Each attempt of the ranks meets at a store of its own. In the agent's, which it would share, the addresses of the
# attempt before still stand, and ranks that are started again find "Connection refused".
_OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

_PATIENCE = 5.0  # when one torchrun has failed without a word of its ranks, another may know more


class ColdRanks:
    """The ranks of a job, started by ``torchrun``; several nodes are several agents on this machine."""

    start_limit = 180.0  # every rank imports torch

    def __init__(self, job: Job):
        self.job = job
        self.exits: dict[int, int] = {}
        self.done = False
        self._agents: list[subprocess.Popen[bytes]] = []
        self._first_failure: float | None = None

    def start(self) -> None:
        """Start an agent for each node."""
        job = self.job
        command = [sys.executable, "-P", "-m", "playbook.launch.agent", str(job.folder), *self._arguments()]
        for node in range(job.nnodes):
            with open(self._log(node), "wb") as log:
                agent = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env={**_OWN_STORE, **job.env, **self._own_gpus(node), "PYTHONPATH": python_path()},
                    cwd=job.cwd,
                    start_new_session=True,
                )
            self._agents.append(agent)

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``; the ends of ranks are known once their torchrun has ended."""
        time.sleep(min(seconds, 0.05))
        # Asked in this order: an agent that ends in between has its report read the next time.
        statuses = [agent.poll() for agent in self._agents]
        if any(statuses):
            self._read_reports(all_ended=None not in statuses)
        elif None not in statuses:
            self.exits = dict.fromkeys(range(self.job.ranks), 0)
        self.done = None not in statuses

    def stop(self) -> None:
        """Have the agents end everything that they started."""
        for agent in self._agents:
            assert agent.stdin is not None
            # A word, not only the end of the pipe: a fork of this process may hold it open.
            with contextlib.suppress(BrokenPipeError), agent.stdin:
                agent.stdin.write(b"stop")
        for agent in self._agents:
            try:
                agent.wait(10)
            except subprocess.TimeoutExpired:
                agent.kill()  # and the kernel ends torchrun, and the ranks
                agent.wait()

    def _own_gpus(self, node: int) -> dict[str, str]:
        """Local ranks count from 0 on every node, and so must GPUs: two ranks with one GPU are refused by NCCL."""
        job = self.job
        if job.nnodes == 1 or job.backend != "nccl":
            return {}
        count, named = job.ranks // job.nnodes, job.env.get("CUDA_VISIBLE_DEVICES")
        gpus = named.split(",") if named else [str(i) for i in range(job.ranks)]
        return {"CUDA_VISIBLE_DEVICES": ",".join(gpus[node * count : (node + 1) * count])}

    def _arguments(self) -> list[str]:
        job = self.job
        # Agents meet through a file, too: a port that is free now may be taken by the time that they listen.
        meeting = f"--rdzv-endpoint={job.folder / 'agents'}", f"--rdzv-id={job.folder.name}"
        ranks = f"--nnodes={job.nnodes}", f"--nproc-per-node={job.ranks // job.nnodes}"
        return [
            *ranks,
            "--rdzv-backend=c10d",
            "--rdzv-conf=store_type=file",
            *meeting,
            f"--log-dir={job.folder}",  # else it leaves an empty folder among temporary files
            "--module",
            "playbook.launch.worker",
            str(job.folder),
        ]

    def _log(self, node: int) -> Path:
        return self.job.folder / f"torchrun-{node}.log"

    def _read_reports(self, all_ended: bool) -> None:
        """How the ranks that failed first ended, from torchrun's report; without report and rank, torchrun failed."""
        logs = "".join(self._log(node).read_text(errors="replace") for node in range(self.job.nnodes))
        self.exits = read_report(logs)
        self._first_failure = self._first_failure or time.monotonic()
        patient = not all_ended and time.monotonic() < self._first_failure + _PATIENCE
        if not (self.exits or self.job.errors() or patient):
            what = "ended before the ranks did" if self.job.pids() else "could not start the ranks"
            raise LaunchError(f"torchrun {what}; it said:\n{logs.strip()}")


def read_report(log: str) -> dict[int, int]:
    """How ranks ended by themselves, the one that torchrun takes for the cause first."""
    ends = [(int(rank), int(status)) for rank, status in reversed(_ENDED.findall(log))]
    # The last entry of the report is the cause. Ranks that torchrun has then ended itself got SIGTERM.
    return dict(end for i, end in enumerate(ends) if i == 0 or end[1] != -signal.SIGTERM)
