"""Start ranks and watch them to their end: show what they print, notice the first failure, keep the time, leave none."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from playbook.launch.diagnosis import Evidence, explain
from playbook.launch.job import Job
from playbook.launch.processes import ask, stopped
from playbook.launch.ranks import Rank, RankError, Ranks, prefix

_LOOK = 0.05  # seconds between two looks at the ranks
_ANSWER = 2.0  # the most that they may take to say where they are
_SETTLE = 15.0  # the most that the system, and torchrun, may take to tell how a rank ended


class Processes(Protocol):
    """The processes of a job's ranks, warm or cold."""

    job: Job
    exits: dict[int, int]  # of the ranks that are known to have ended, in that order
    start_limit: float

    @property
    def done(self) -> bool: ...  # how every rank ended is known
    def start(self) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def stop(self) -> None: ...


#: Given processes, whether to show what they print, and what says that they are to end.
Watcher: TypeAlias = Callable[[Any, bool, Callable[[], bool]], Ranks]


def watch(processes: Processes, stream: bool, interrupted: Callable[[], bool]) -> Ranks:
    """The ranks once all have ended. However this function is left, no rank is left behind.

    Raises ``RankError`` for the rank that failed first, or for the ranks that were not there in time, and
    ``KeyboardInterrupt`` soon after ``interrupted`` is true.
    """
    job, printed = processes.job, Stream(processes.job)
    try:
        processes.start()
        failed, late = _until_failure(processes, printed if stream else None, interrupted)
        evidence = _gather(processes, late, interrupted) if failed or late else None
    finally:
        processes.stop()
    if stream:
        printed.show(last=True)
    ranks, unreadable = results(job)
    error = unreadable if evidence is None else explain(job, evidence)
    if error is None:
        return ranks
    error.ranks = ranks
    raise error


def results(job: Job) -> tuple[Ranks, RankError | None]:
    """What every rank left, and the failure of the first whose value cannot be read here, which counts as None."""
    found, failure = [], None
    for rank in range(job.ranks):
        value = None
        try:
            value = job.value(rank)
        except Exception as error:
            sentence = (
                f"rank {rank} failed: what it returned cannot be read: {type(error).__qualname__}: {error}"
            )
            failure = failure or RankError(sentence, traceback.format_exc(), rank)
        found.append(Rank(rank, value, job.output(rank)))
    return Ranks(found), failure


def _until_failure(
    processes: Processes, printed: Stream | None, interrupted: Callable[[], bool]
) -> tuple[bool, float]:
    """Wait until all have ended, one has failed, or the time is up; whether one has failed, the seconds that are up."""
    job = processes.job
    started, seconds, start = False, max(processes.start_limit, job.timeout), time.monotonic()
    while True:
        processes.wait(_LOOK)
        if interrupted():
            raise KeyboardInterrupt
        if printed:
            printed.show()
        if (failed := _failed(processes)) or processes.done:
            return failed, 0.0
        # The time-out is for the ranks' own work, not for starting them.
        if not started and job.all_started():
            started, seconds, start = True, job.timeout, time.monotonic()
        if time.monotonic() > start + seconds:
            return False, seconds


def _failed(processes: Processes) -> bool:
    job = processes.job
    if any(job.path(rank, "error").exists() for rank in range(job.ranks)):
        return True
    return any(
        status != 0 or not job.path(rank, "value").exists() for rank, status in processes.exits.items()
    )


def _gather(processes: Processes, late: float, interrupted: Callable[[], bool]) -> Evidence:
    """Ask the ranks that still run where they are; those that do not answer are dying, and how they end is the cause.

    Peers often notice the end of a rank, and fail of it, before the system has told how it ended.
    """
    job = processes.job
    asked = _ask(processes, late > 0)
    gone = {rank for rank, alive in asked.items() if not alive}
    limit = time.monotonic() + (_ANSWER if late else _SETTLE)
    stacks: dict[int, str] = {}
    while True:
        before, stacks = stacks, {rank: job.path(rank, "stack").read_text() for rank in asked}
        # An answer is whole when nothing has been added to it since the last look.
        silent = {rank for rank, text in stacks.items() if not text or text != before.get(rank)}
        silent -= {rank for rank, pid in job.pids().items() if stopped(pid)}  # these say nothing any more
        if silent <= processes.exits.keys() | job.errors().keys():
            break
        if processes.done or interrupted() or time.monotonic() > limit:
            break
        time.sleep(_LOOK)
        processes.wait(0)
    answers = {rank: text for rank, text in stacks.items() if text}
    return Evidence(job.errors(), dict(processes.exits), answers, gone, late)


def _ask(processes: Processes, late: bool) -> dict[int, bool]:
    """Have the ranks that still run write down where they are; those that have returned, too, where time is up.

    One that is gone without a word, which is false here, is waited for as if it had been asked: how it ended will be
    known.
    """
    job, asked = processes.job, dict[int, bool]()
    for rank, pid in job.pids().items():
        returned = job.path(rank, "value").exists()
        if rank in processes.exits or job.path(rank, "error").exists() or (returned and not late):
            continue
        if (alive := ask(pid)) or not returned:
            asked[rank] = alive
    return asked


class Stream:
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
