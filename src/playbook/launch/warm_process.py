"""The warm process: imports torch once, then forks ranks that start in milliseconds. It ends when its parent does.

It stays single-threaded and never opens a port, so that a fork of it is as good as a new process.
Requests and reports are JSON packets on one socket:

    ← {"run": FOLDER}    → {"folder": …, "rank": 2, "status": 0}    as ``subprocess`` counts: -9 is SIGKILL
    ← {"end": FOLDER, "ranks": [2, 3]}                              kills these, as "run" can start some again
    ← {"stop": FOLDER}   → {"folder": …, "stopped": true}           when none of its processes is left
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import pkgutil
import select
import shutil
import socket
import sys
from pathlib import Path
from typing import Any, NoReturn

from playbook.launch.job import Job
from playbook.launch.processes import adopt_orphans, die_with_parent, end_children, kill_group

# Not needed by ranks, and slow to import.
_COLD = {"figures", "commands", "cli", "bench", "doctor", "__main__"}


class WarmProcess:
    """Forks ranks on request and reports their ends."""

    def __init__(self, control: socket.socket):
        self._control = control
        self._pid, self._parent = os.getpid(), os.getppid()
        self._ranks: dict[int, tuple[str, int, int]] = {}  # pidfd -> folder, rank, pid

    def serve(self) -> None:
        """Until the parent is gone, or closes the socket; then nothing is left of its jobs."""
        try:
            while os.getppid() == self._parent:
                control = self._control.fileno()
                ready, _, _ = select.select([control, *self._ranks], [], [], 1.0)
                for pidfd in self._ranks.keys() & ready:
                    self._reap(pidfd)
                if control in ready and not self._obey(self._control.recv(65536)):
                    return
        finally:
            folders = {folder for folder, _, _ in self._ranks.values()}
            for folder in folders:
                self._stop(folder)
                shutil.rmtree(folder, ignore_errors=True)

    def _obey(self, packet: bytes) -> bool:
        if not packet:
            return False
        match json.loads(packet):
            case {"run": folder, "ranks": some}:
                self._start(folder, some)
            case {"end": folder, "ranks": some}:
                for other, rank, pid in self._ranks.values():
                    if other == folder and rank in some:
                        kill_group(pid)
            case {"stop": folder}:
                self._stop(folder)
                self._report(folder=folder, stopped=True)
        return True

    def _start(self, folder: str, some: list[int] | None = None) -> None:
        job = Job.read(Path(folder))
        for rank in some or range(job.ranks):
            pid = os.fork()
            if pid == 0:
                self._become(job, rank)
            with contextlib.suppress(PermissionError, ProcessLookupError):  # the rank itself was faster
                os.setpgid(pid, pid)
            self._ranks[os.pidfd_open(pid)] = (folder, rank, pid)

    def _become(self, job: Job, rank: int) -> NoReturn:
        """In the fork: turn into ``rank``, and never return into the server's code."""
        status = 1
        try:
            os.setpgid(0, 0)
            die_with_parent(self._pid)
            self._control.close()
            for pidfd in self._ranks:
                os.close(pidfd)
            _as_if_new(job, rank)
            from playbook.launch import worker

            status = worker.execute(job, rank)
        except BaseException as error:
            status = job.save_error(rank, error, skip=__file__)
        finally:
            os._exit(status)

    def _reap(self, pidfd: int) -> None:
        """A rank has ended: end what it started, and report."""
        folder, rank, pid = self._ranks.pop(pidfd)
        kill_group(pid)  # before the rank is waited for: until then nobody else can have its number
        _, status = os.waitpid(pid, 0)
        os.close(pidfd)
        if not self._ranks:
            end_children()  # of ranks, some of which may have left their group
        self._report(folder=folder, rank=rank, status=os.waitstatus_to_exitcode(status))

    def _stop(self, folder: str) -> None:
        mine = [pidfd for pidfd, (other, _, _) in self._ranks.items() if other == folder]
        for pidfd in mine:
            kill_group(self._ranks[pidfd][2])
        for pidfd in mine:
            self._reap(pidfd)

    def _report(self, **message: Any) -> None:
        with contextlib.suppress(
            BrokenPipeError, ConnectionError
        ):  # the next look at the parent ends the server
            self._control.send(json.dumps(message).encode())


def _as_if_new(job: Job, rank: int) -> None:
    """Undo what a fork shares with the process it came from: environment, random numbers, exit handlers, threads."""
    atexit._clear()
    os.environ.clear()
    os.environ.update({**job.env, **job.torchrun_env(rank)})
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        # OpenMP takes a list: one for each nested level.
        threads = job.env["OMP_NUM_THREADS"].partition(",")[0]
        sys.modules["torch"].set_num_threads(int(threads) if threads.isdigit() else 1)
        sys.modules["torch"].default_generator.seed()


def warm_up() -> None:
    """Import what ranks are likely to need. A module that cannot be imported fails in the rank that asks for it."""
    gc.disable()  # nothing of it becomes garbage
    with contextlib.suppress(ImportError):
        importlib.import_module("numpy")
        importlib.import_module("torch.distributed")
        importlib.import_module("torch._dynamo")  # any optimizer imports it, for seconds in each rank
    for module in pkgutil.walk_packages(
        [str(Path(__file__).parents[1])], "playbook.", onerror=lambda _: None
    ):
        name = module.name.removeprefix("playbook.")
        if _COLD.isdisjoint({name, name.partition(".")[0]}):
            with contextlib.suppress(Exception):
                importlib.import_module(module.name)
    gc.freeze()  # pages that the collector does not touch stay shared with the ranks
    gc.enable()


def serve(control: socket.socket) -> None:
    """Be the warm process, until the other end of ``control`` is closed."""
    control.set_inheritable(False)
    adopt_orphans()
    WarmProcess(control).serve()


def main() -> None:
    """``python -m playbook.launch.warm_process SOCKET``."""
    warm_up()
    serve(socket.socket(fileno=int(sys.argv[1])))


if __name__ == "__main__":
    main()
