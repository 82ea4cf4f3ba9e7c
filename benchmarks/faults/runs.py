"""Commands of ``playbook train`` with faults in them, one after another, and what processes and folders they leave."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from playbook.launch.processes import adopt_orphans, die_with_parent

#: Seconds that a process may take to be gone on a busy machine.
GRACE = 60.0
ROOT = Path(__file__).resolve().parents[2]
# Nothing that is imported becomes garbage, and ranks are forked from what has been imported once.
_DRIVER = (
    "import gc; gc.disable(); from benchmarks.faults.faulty import main; "
    "from playbook.launch import warm, warm_process; warm_process.warm_up(); warm.fork(); main()"
)


class Hang(Exception):
    """A run that did not end in time."""


class Runs:
    """Runs one after another, in processes that are all descendants of this one: whatever is left can be found."""

    def __init__(self, root: Path, limit: float, grace: float = GRACE):
        self.root, self.limit, self.grace = Path(tempfile.mkdtemp(dir=root)), limit, grace
        self.before = {pid for pid, _ in descendants()}
        self.driver: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        adopt_orphans()
        (self.root / "tmp").mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self.end_driver()
        # Whoever asked for the campaign may start others, and not wait for their orphans.
        adopt_orphans(False)

    # ---- running

    def train(self, arguments: list[str], fault: dict[str, Any] | None, name: str) -> tuple[int, str]:
        """Run a command; its status, and what it said on stderr. Raises Hang."""
        out, err = self.root / f"{name}.out", self.root / f"{name}.err"
        status = self._ask({"arguments": arguments, "fault": fault, "out": str(out), "err": str(err)})
        return status, err.read_text(errors="replace")

    def _ask(self, request: dict[str, Any]) -> int:
        if self.driver is None:
            path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
            self.driver = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={
                    "OMP_NUM_THREADS": "1",
                    **os.environ,
                    "PYTHONPATH": path,
                    "TMPDIR": str(self.root / "tmp"),
                },
                preexec_fn=die_with_parent,
            )
        driver = self.driver
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps(request) + "\n")
        driver.stdin.flush()
        if not select.select([driver.stdout], [], [], self.limit)[0]:
            raise Hang
        if answer := driver.stdout.readline():
            return int(answer)
        self.driver = None
        return driver.wait()

    def end_driver(self) -> None:
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
            self.driver = None
        self.leftovers()

    def leftovers(self) -> list[str]:
        """What runs beside the driver and its warm process though it had time to end; it is killed then."""
        end = time.monotonic() + self.grace
        while True:
            left = self._strangers()
            if not left or time.monotonic() > end:
                break
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return list(left.values())

    def _strangers(self) -> dict[int, str]:
        own = {self.driver.pid} if self.driver else set[int]()
        left = dict[int, str]()
        for pid, parent in descendants():
            command = command_of(pid)
            if parent == os.getpid() and pid not in own and not command:
                _reap(pid)
            elif (
                command and pid not in own | self.before and not (parent in own and "warm_process" in command)
            ):
                left[pid] = command
        return left

    def remove_folders(self) -> list[str]:
        """The folders of launches among temporary files, which are no more then."""
        found = [path for path in (self.root / "tmp").iterdir() if path.name.startswith("playbook")]
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in found]


def descendants() -> list[tuple[int, int]]:
    """Every process below this one, with its parent."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found, new = list[tuple[int, int]](), {os.getpid()}
    while new:
        some = [(pid, parent) for pid, parent in parents.items() if parent in new]
        found, new = found + some, {pid for pid, _ in some}
    return found


def command_of(pid: int) -> str:
    """The command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
