"""Which processes of a launch are still there."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path


def sign_in(folder: Path | str, with_child: bool = False) -> None:
    """Called in a rank: leave its process id in ``folder``, and that of a process that it starts."""
    pids = [os.getpid()]
    if with_child:
        pids.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"]).pid)
    for pid in pids:
        (Path(folder) / f"{pid}.signed").touch()


def signed_in(folder: Path) -> list[int]:
    """The processes that signed in."""
    return [int(path.stem) for path in folder.glob("*.signed")]


def state(pid: int) -> str:
    """What the process does, in a letter of ``ps``; a zombie's where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends while its file is open
        return "Z"


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    return state(pid) != "Z"


def arrive(folder: Path | str) -> None:
    """Called in a rank: from here on it does what a test is about."""
    (Path(folder) / f"{os.getpid()}.arrived").touch()


class Clock:
    """Time for a launch, in the place of its ``time``: it stands until ``count`` ranks have arrived in ``folder``, then
    an hour has passed. So where ranks are when time is up does not depend on how fast they came there.

    Those that wait for another one have to ``sleep`` first (or be stopped), in three looks one after the other.
    """

    sleep = staticmethod(time.sleep)

    def __init__(self, folder: Path, count: int, sleep: bool = True):
        self.folder, self.count, self.states, self.looks = folder, count, "ST" if sleep else "RST", 0

    def monotonic(self) -> float:
        """Seconds. Asked in every look at the ranks."""
        pids = [int(path.stem) for path in self.folder.glob("*.arrived")]
        if self.looks < 3:
            there = len(pids) == self.count and all(state(pid) in self.states for pid in pids)
            self.looks = self.looks + 1 if there else 0
        return time.monotonic() + 3600 * (self.looks >= 3)


def remaining(pids: list[int], seconds: float = 0.0) -> list[int]:
    """Those of ``pids`` that still run after at most ``seconds``."""
    limit = time.monotonic() + seconds
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < limit:
        time.sleep(0.02)
    return left


def remaining_folders(temporary: Path, seconds: float = 5.0) -> list[Path]:
    """Folders of launches that are still in a folder for temporary files after at most ``seconds``."""
    limit = time.monotonic() + seconds
    while (left := list(temporary.glob("playbook-*"))) and time.monotonic() < limit:
        time.sleep(0.02)
    return left


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, whatever session they are in."""
    found = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += [int(child), *descendants(int(child))]
    return found
