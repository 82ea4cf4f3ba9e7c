"""Answers that students have handed in, graded: of each notebook every exercise, right or not, and its hint.

A notebook is run as one program, in a process of its own and in an empty folder, with the rights of who grades: what
people that you do not trust have written belongs into a container. A cell that takes too long ends that process; another
one goes on with the cells after it.
"""

from __future__ import annotations

import csv
import io
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from playbook.errors import ConfigError
from playbook_book.assignments.student import ASKED

LIMIT = 60.0  # seconds of computing for a cell
CLOCK = 5  # times as long may pass by the clock: the machine may be busy, and a cell may wait for ever
START = 600.0  # seconds in which Python should start, however busy the machine


@dataclass(frozen=True)
class Result:
    """Of one exercise in one file: whether the answer is right, and the hint if it is not."""

    exercise: str
    right: bool
    hint: str


def grade_folder(folder: Path, limit: float = LIMIT) -> Iterator[tuple[Path, list[Result]]]:
    """The results of every notebook in ``folder`` and below, one after another. ConfigError where there is none."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    files = [file for file in sorted(folder.rglob("*.ipynb")) if ".ipynb_checkpoints" not in file.parts]
    if not files:
        raise ConfigError(f"there is no notebook (*.ipynb) in {folder}")
    for file in files:
        try:
            yield file.relative_to(folder), graded(file, limit=limit)
        except ConfigError as error:
            yield file.relative_to(folder), [Result("", False, str(error))]


def graded(file: Path, names: Sequence[str] = (), limit: float = LIMIT) -> list[Result]:
    """The result of each exercise in ``names``, by default those of the pack that the notebook was made from.

    ``limit`` is in seconds of computing for each cell. Raises ConfigError for what is no notebook.
    """
    try:
        notebook = json.loads(file.read_text(encoding="utf-8"))
        cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        asked = list(names) or notebook["metadata"].get("playbook", {}).get("exercises")
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{file.name} is no notebook that can be read ({type(error).__name__})") from error
    asked = asked or list(dict.fromkeys(name for cell in cells for name in ASKED.findall(cell)))
    found = {name: Result(name, False, "no cell checks it") for name in asked}
    for result in run(cells, limit):
        if result.exercise in found and not found[result.exercise].right:
            found[result.exercise] = result
    return list(found.values())


def run(cells: Sequence[str], limit: float) -> Iterator[Result]:
    """What the checks in ``cells`` say, in their order."""
    skip: set[int] = set()
    while True:
        at = -1
        with _Student(cells, skip, limit) as student:
            while event := student.next(START if at < 0 else limit * CLOCK):
                at = event.get("cell", at)
                if "exercise" in event:
                    yield Result(event["exercise"], event["right"], event["hint"])
                elif "end" in event:
                    return
            why = student.why(limit)
        if at < 0:
            raise ConfigError(f"no notebook can be graded here: {why}")
        yield from (Result(name, False, why) for name in ASKED.findall(cells[at]))
        # What was answered until now is graded; what is no answer is what later cells may need.
        skip |= {i for i in range(at) if ASKED.search(cells[i])} | {at}


class _Student:
    """A process that runs cells, and what it says."""

    def __init__(self, cells: Sequence[str], skip: set[int], limit: float):
        self.folder = tempfile.TemporaryDirectory(prefix="playbook-", ignore_cleanup_errors=True)
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        here = Path(self.folder.name)
        ours, theirs = os.pipe()
        job = {"cells": list(cells), "skip": sorted(skip), "limit": limit, "out": theirs}
        (here / "job.json").write_text(json.dumps(job), encoding="utf-8")
        (here / "work").mkdir()
        one = {"OMP_NUM_THREADS": "1", "MPLBACKEND": "Agg", "XDG_STATE_HOME": self.folder.name}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "playbook_book.assignments.student", str(here / "job.json")],
            pass_fds=[theirs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            cwd=here / "work",
            env={**os.environ, **one, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        os.close(theirs)
        self.late = False
        self.said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self.reader = threading.Thread(target=self._read, args=(ours,), daemon=True)
        self.reader.start()

    def _read(self, ours: int) -> None:
        with os.fdopen(ours, encoding="utf-8") as lines, suppress(ValueError):  # a student may have found it
            for line in lines:
                self.said.put(json.loads(line))
        self.said.put({})

    def next(self, seconds: float) -> dict[str, Any]:
        """The next event; nothing when there are no more, or none within so many seconds."""
        try:
            return self.said.get(timeout=seconds)
        except queue.Empty:
            self.late = True
            return {}

    def why(self, limit: float) -> str:
        """End the process, and say why a cell of it has no verdict."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if self.late else 10)
        self._kill()
        if self.late or self.process.returncode == -signal.SIGPROF:
            return f"no answer within {limit:g} seconds: is there a loop without an end?"
        self.errors.seek(0)
        *_, last = ["", *self.errors.read().decode(errors="replace").strip().splitlines()]
        return f"its process ended with status {self.process.returncode}" + (
            f" ({last[:200]})" if last else ""
        )

    def _kill(self) -> None:
        with suppress(ProcessLookupError):  # it has ended by itself
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def __enter__(self) -> _Student:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill()
        self.reader.join()
        self.errors.close()
        self.folder.cleanup()


def table(rows: Sequence[tuple[Path, Sequence[Result]]]) -> str:
    """The results as CSV: file, exercise, result (right or wrong), hint."""
    out = io.StringIO()
    write = csv.writer(out, lineterminator="\n").writerow
    write(["file", "exercise", "result", "hint"])
    for file, results in rows:
        for one in results:
            write([_text(str(file)), _text(one.exercise), "right" if one.right else "wrong", _text(one.hint)])
    return out.getvalue()


def _text(cell: str) -> str:
    """A cell that no spreadsheet takes for a formula: a student may have written it."""
    return f"'{cell}" if cell.startswith(("=", "+", "-", "@")) else cell
