"""Start ranks and watch them to their end: show what they print, notice the first failure, keep the time, leave none."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Protocol

from playbook.launch.diagnosis import Evidence, explain
from playbook.launch.job import Job
from playbook.launch.processes import WHERE_ARE_YOU
from playbook.launch.ranks import Rank, Ranks, prefix

_LOOK = 0.05  # seconds between two looks at the ranks


class Processes(Protocol):
    """The processes of a job's ranks, warm or cold."""

    job: Job
    exits: dict[int, int]  # of the ranks that are known to have ended, in that order
    settle: float
    start_limit: float

    @property
    def done(self) -> bool: ...  # how every rank ended is known
    def start(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def stop(self) -> None: ...


def watch(processes: Processes, stream: bool, interrupted: Callable[[], bool]) -> Ranks:
    """The ranks once all have ended. However this function is left, no rank is left behind.

    Raises ``RankError`` for the rank that failed first, or for the ranks that were not there in time, and
    ``KeyboardInterrupt`` soon after ``interrupted`` is true.
    """
    job, printed = processes.job, _Stream(processes.job)
    try:
        processes.start()
        failed, late = _until_failure(processes, printed if stream else None, interrupted)
        evidence = _gather(processes, late) if failed or late else None
    finally:
        processes.stop()
    if stream:
        printed.show(last=True)
    if evidence is None:
        return Ranks(Rank(rank, job.value(rank), job.output(rank)) for rank in range(job.ranks))
    error = explain(job, evidence)
    error.ranks = Ranks(Rank(rank, job.value(rank), job.output(rank)) for rank in range(job.ranks))
    raise error


def _until_failure(
    processes: Processes, printed: _Stream | None, interrupted: Callable[[], bool]
) -> tuple[bool, bool]:
    """Wait until all have ended, one has failed, or the time is up; whether one has failed, whether the time is up."""
    job = processes.job
    started, limit = False, time.monotonic() + processes.start_limit
    while True:
        processes.wait(_LOOK)
        if interrupted():
            raise KeyboardInterrupt
        if printed:
            printed.show()
        if _failed(processes):
            return True, False
        if processes.done:
            return False, False
        if (
            not started and job.all_started()
        ):  # the time-out is for the ranks' own work, not for starting them
            started, limit = True, time.monotonic() + job.timeout
        if time.monotonic() > limit:
            return False, True


def _failed(processes: Processes) -> bool:
    job = processes.job
    if any(job.path(rank, "error").exists() for rank in range(job.ranks)):
        return True
    return any(
        status != 0 or not job.path(rank, "value").exists() for rank, status in processes.exits.items()
    )


def _gather(processes: Processes, late: bool) -> Evidence:
    """Where the ranks are that still run; then, for a moment, how others end: peers often notice before we do."""
    job = processes.job
    stacks = _where(processes)
    limit = time.monotonic() + processes.settle
    while not late and not processes.done and time.monotonic() < limit:
        processes.wait(_LOOK)
    return Evidence(job.errors(), dict(processes.exits), stacks, late)


def _where(processes: Processes) -> dict[int, str]:
    """The Python stack of each rank that still runs, the innermost frame first."""
    job = processes.job
    asked = []
    for rank, pid in job.pids().items():
        if rank not in processes.exits and not job.path(rank, "error").exists() and not _ended(job, rank):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, WHERE_ARE_YOU)
                asked.append(job.path(rank, "stack"))
    limit = time.monotonic() + 0.5
    while time.monotonic() < limit and not all(path.stat().st_size for path in asked):
        time.sleep(0.005)
    time.sleep(0.02 if asked else 0)  # the rest of what has begun to appear
    return {int(path.stem): text for path in asked if (text := path.read_text())}


def _ended(job: Job, rank: int) -> bool:
    """Whether a rank has left its value: its process is ending, if it has not yet."""
    return job.path(rank, "value").exists()


class _Stream:
    """Shows what ranks print, while they print it, in whole lines."""

    def __init__(self, job: Job):
        self._job = job
        self._shown = [0] * job.ranks

    def show(self, last: bool = False) -> None:
        """Print the new lines of every rank; ``last`` also one that was not finished."""
        for rank in range(self._job.ranks):
            path = self._job.path(rank, "out")
            if not path.exists() or path.stat().st_size == self._shown[rank]:
                continue
            with open(path, "rb") as file:
                file.seek(self._shown[rank])
                new = file.read()
            whole = new if last else new[: new.rfind(b"\n") + 1]
            self._shown[rank] += len(whole)
            for line in whole.decode(errors="replace").splitlines():
                print(f"{prefix(rank, self._job.ranks)}{line}", file=sys.stdout, flush=True)
