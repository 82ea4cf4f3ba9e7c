"""Warm ranks, seen from the parent: its one warm process, and the ranks of a job in it."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from playbook.errors import LaunchError
from playbook.launch.job import Job

PACKAGE = Path(__file__).resolve().parents[1]
AVAILABLE = sys.platform == "linux"  # pidfds, and a torch that survives fork
_one_job_at_a_time = threading.Lock()


class Fork:
    """A fork of this process that runs ``main`` and ends; it is waited for as a ``subprocess.Popen`` is."""

    def __init__(self, main: Callable[[], None]):
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                main()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)

    def poll(self) -> int | None:
        """Its exit status, once it has ended."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float = 3600) -> int:
        """Its exit status; raises ``subprocess.TimeoutExpired`` after so many seconds."""
        limit = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("fork", timeout)
            time.sleep(0.01)
        return status

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


class _Server:
    """The parent's end of a warm process, which is started, or forked from the parent."""

    def __init__(self, forked: bool = False) -> None:
        self.owner, self.asked = os.getpid(), False
        self.sources = fingerprint()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (closed in close())
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = Fork(lambda: self._become(theirs)) if forked else self._start(theirs)

    def _start(self, theirs: socket.socket) -> subprocess.Popen[bytes] | Fork:
        # A session of its own: Ctrl-C is for the parent, which then stops the ranks.
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "playbook.launch.warm_process", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            env={"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": python_path()},
            start_new_session=True,
        )

    def _become(self, theirs: socket.socket) -> None:
        """In the fork: turn into the warm process."""
        from playbook.launch import warm_process

        os.setsid()
        self.control.close()
        os.dup2(self.log.fileno(), 1)
        os.dup2(self.log.fileno(), 2)
        warm_process.serve(theirs)

    def usable(self) -> bool:
        """Whether it runs, belongs to this process and has the library as it is now."""
        alive = self.owner == os.getpid() and self.process.poll() is None
        return alive and self.sources == fingerprint()

    def close(self) -> None:
        """End it, and with it every rank."""
        self.control.close()
        if self.owner == os.getpid():
            if not self.asked:  # it has nobody to end, and may still import torch
                self.process.kill()
            try:
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.log.close()

    def last_words(self) -> str:
        """What it printed."""
        self.log.seek(0)
        return self.log.read().decode(errors="replace").strip()


_server: _Server | None = None


def start() -> _Server:
    """The warm process, started unless it is there; returns at once, while it imports torch."""
    global _server
    if _server is not None and not _server.usable():
        close()
    if _server is None:
        _server = _Server()
    return _server


def fork() -> None:
    """Fork the warm process from this one, which has one thread and has imported what ranks need."""
    global _server
    _server = _Server(forked=True)


def close() -> None:
    """End the warm process, if there is one."""
    global _server
    if _server is not None:
        _server.close()
        _server = None


@atexit.register
def _at_exit() -> None:
    """Somebody impatient may press Ctrl-C once more: this process is ending already."""
    if _server is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    close()


class WarmRanks:
    """The ranks of a job, forked from the warm process."""

    start_limit = 120.0  # the first job waits for `import torch`

    def __init__(self, job: Job):
        self.job = job
        self.exits: dict[int, int] = {}
        self._stopped = False
        self._server = start()

    def start(self, some: list[int] | None = None) -> None:
        """Have the ranks forked, or ``some`` of them, which have ended, once more."""
        self._server.asked = True
        self._send("run", some)

    def end(self, some: list[int]) -> None:
        """Kill some of the ranks: their ends are reported."""
        self._send("end", some)

    @property
    def done(self) -> bool:
        return self._stopped or len(self.exits) == self.job.ranks

    def wait(self, seconds: float) -> None:
        """Take note of the ranks that have ended; return after ``seconds``, or as soon as one ends."""
        ready, _, _ = select.select([self._server.control], [], [], seconds)
        if not ready:
            return
        packet = b""
        with contextlib.suppress(ConnectionError):  # it died before it had read all that it was sent
            packet = self._server.control.recv(65536)
        if not packet:
            words = self._server.last_words()
            close()
            self._stopped = True
            said = f"; it said: {words}" if words else ""
            raise LaunchError(f"the warm process died, from which ranks are forked: start them again{said}")
        message = json.loads(packet)
        if message["folder"] != str(self.job.folder):
            return  # the end of a rank of an interrupted job
        if "stopped" in message:
            self._stopped = True
        else:
            self.exits[message["rank"]] = message["status"]

    def stop(self) -> None:
        """Kill the ranks that still run and wait until they are gone."""
        if self.done:
            return
        ended = dict(self.exits)
        self._send("stop")
        limit = time.monotonic() + 10
        while not self._stopped and time.monotonic() < limit:
            self.wait(0.1)
        self.exits = ended  # what came since was our doing
        if not self._stopped:
            close()

    def _send(self, verb: str, some: list[int] | None = None) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):  # `wait` will say that it died
            self._server.control.send(json.dumps({verb: str(self.job.folder), "ranks": some}).encode())


@contextlib.contextmanager
def one_job() -> Iterator[None]:
    """Threads of the parent take turns: the warm process has one job at a time."""
    with _one_job_at_a_time:
        yield


def fingerprint() -> int:
    """Changes when a source file of the library is edited, added or removed."""
    stats = ((str(path), path.stat()) for path in PACKAGE.rglob("*.py"))
    return hash(frozenset((name, stat.st_mtime_ns, stat.st_size) for name, stat in stats))


def python_path() -> str:
    """PYTHONPATH with the library in front: a parent that found it some other way has children that find it."""
    return os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
