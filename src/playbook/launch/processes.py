"""Processes that leave nothing behind: bound to their parent, killed with everything they started."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import signal
import socket
import sys
from pathlib import Path

# Asked for with this signal, a rank writes down where it is, even from within a collective that never ends.
WHERE_ARE_YOU = signal.SIGUSR1

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent dies, however that happens; ``parent`` is who should be alive.

    Linux only: elsewhere a process learns of it from the end of a pipe.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if parent is not None and os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signal.SIGKILL)


def adopt_orphans(yes: bool = True) -> None:
    """Whether from now on a process whose parent dies, below this process, becomes its child. Linux only."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def end_children() -> None:
    """Kill all children, and the orphans adopted in their place, until none is left. Linux, single-threaded only."""
    if sys.platform != "linux":
        return
    while pids := Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
        for pid in map(int, pids):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def ask(pid: int) -> bool:
    """Have a rank write down where it is; false where there is no such process.

    Its main thread is asked, where the C library can say so: a signal for the process may come to a thread of C++, which
    knows no Python stack, and is lost.
    """
    try:
        tgkill = getattr(ctypes.CDLL(None), "tgkill", None)
        if tgkill is None or tgkill(pid, pid, int(WHERE_ARE_YOU)):
            os.kill(pid, WHERE_ARE_YOU)
    except ProcessLookupError:
        return False
    return True


def stopped(pid: int) -> bool:
    """Whether a process is stopped, by a signal or a debugger. Known on Linux alone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "tT"
    except (OSError, IndexError):
        return False


def kill_group(leader: int) -> None:
    """Kill a process group at once. Nothing happens when none of it is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def free_port() -> int:
    """A TCP port of this machine that nobody listens on, below those that a kernel gives to connections meanwhile."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)  # whose numbers no seed makes the same in two processes
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
