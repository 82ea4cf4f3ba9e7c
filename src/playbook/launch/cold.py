"""Cold ranks: torchrun itself, one agent for each node, as a reader would start it in a shell."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from playbook.errors import LaunchError
from playbook.launch.job import Job
from playbook.launch.processes import die_with_parent, kill_group, living_in
from playbook.launch.warm import python_path


class ColdRanks:
    """The ranks of a job, started by ``torchrun``; several nodes are several agents on this machine."""

    settle = 5.0  # torchrun ends the other ranks by itself, and then tells how the first one ended
    start_limit = 180.0  # every rank imports torch

    def __init__(self, job: Job):
        self.job = job
        self.exits: dict[int, int] = {}
        self._agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start an agent for each node."""
        job = self.job
        for node in range(job.nnodes):
            with open(self._log(node), "wb") as log:
                self._agents.append(
                    subprocess.Popen(
                        [sys.executable, "-P", "-m", "playbook.launch.cold", *self._arguments()],
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        env={**job.env, "PYTHONPATH": python_path()},
                        cwd=job.cwd,
                        start_new_session=True,
                    )
                )

    @property
    def done(self) -> bool:
        return all(agent.poll() is not None for agent in self._agents)

    def wait(self, seconds: float) -> None:
        """Return after ``seconds``; the ends of ranks are known once torchrun has ended."""
        time.sleep(min(seconds, 0.05))
        if self.done:
            self._read_reports()

    def stop(self) -> None:
        """Kill the agents, then their ranks, each with all that it started."""
        for agent in self._agents:
            kill_group(agent.pid)
            agent.wait()
        # An agent gives each rank a session of its own. Ranks that have not yet written down who they are die with the
        # agent; a number that is written down stays taken as long as anything of its group runs.
        groups = set(self.job.pids().values())
        for group in groups:
            kill_group(group)
        limit = time.monotonic() + 10
        while living_in(groups) and time.monotonic() < limit:
            time.sleep(0.01)

    def _arguments(self) -> list[str]:
        job = self.job
        meeting = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{job.port}",
            f"--rdzv-id={job.folder.name}",
        ]
        return [
            f"--nnodes={job.nnodes}",
            f"--nproc-per-node={job.ranks // job.nnodes}",
            *meeting,
            "--module",
            "playbook.launch.worker",
            str(job.folder),
        ]

    def _log(self, node: int) -> Path:
        return self.job.folder / f"torchrun-{node}.log"

    def _read_reports(self) -> None:
        """How the ranks that failed first ended, from torchrun's report; without report and rank, torchrun failed."""
        if all(agent.returncode == 0 for agent in self._agents):
            self.exits = dict.fromkeys(range(self.job.ranks), 0)
            return
        logs = "".join(self._log(node).read_text(errors="replace") for node in range(self.job.nnodes))
        found = re.findall(r"rank\s*:\s*(\d+).*?exitcode\s*:\s*(-?\d+)", logs, flags=re.DOTALL)
        # Its last entry is what it takes for the cause, among all that had ended when it looked. Those that it has then
        # ended itself got SIGTERM.
        for rank, status in reversed(found):
            if not self.exits or int(status) != -signal.SIGTERM:
                self.exits.setdefault(int(rank), int(status))
        if not found and not self.job.errors():
            raise LaunchError(f"torchrun could not start the ranks; it said:\n{logs.strip()}")


def _agent() -> None:
    """Become torchrun, bound to the process that asked for it."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, "-m", "torch.distributed.run", *sys.argv[1:]])


if __name__ == "__main__":
    _agent()
