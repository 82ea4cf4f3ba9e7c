"""Which processes of a launch are still there."""

from __future__ import annotations

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


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter when it ends while its file is open
        return False


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
