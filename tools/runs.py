"""Run the chapters that have to be run, in reading order, as many at a time as the machine has room for.

jupyter-cache keeps what a run gave; ``progress.json`` in the site says how far each is, for pages that wait for theirs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import kernels
import nbformat
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn

GIB = 2**30
MEMORY = 2 * GIB  # a chapter with its ranks: 1.5 GiB measured
SECONDS = Path(__file__).with_name("seconds.json")
AT_ONCE = 3  # so many are rendered again as soon as they have been run,
TOGETHER = 15.0  # the others with those that end so many seconds later
UNKNOWN = 15.0  # seconds of a chapter that nobody has timed


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def room() -> int:
    """How many chapters may run at a time: ranks share cores, so one for two cores, but two of them on any machine."""
    return max(1, min(8, max(cores() // 2, min(cores(), 2)), free_memory() // MEMORY))


def recorded() -> dict[str, float]:
    """Seconds that each chapter ran when somebody last wrote them down."""
    return json.loads(SECONDS.read_text(encoding="utf-8"))


def free_memory() -> int:
    """Bytes that new processes may have; where the system does not tell, enough."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) * 1024
    return 64 * GIB


def in_words(seconds: float) -> str:
    """``about 3 minutes``."""
    minutes = round(seconds / 60)
    if seconds < 50:
        return f"about {max(5, 5 * round(seconds / 5))} seconds"
    return "about a minute" if minutes == 1 else f"about {minutes} minutes"


def takes(seconds: float) -> str:
    """What the head of a chapter says of its run."""
    return in_words(10 * math.ceil(seconds / 10))


class Run:
    """A chapter that waits, runs, has run, or has failed."""

    def __init__(self, page: str, path: Path, expected: float):
        self.page, self.path, self.expected = page, path, expected
        self.cells = sum(cell.cell_type == "code" for cell in nbformat.read(path, as_version=4).cells)
        self.cell, self.state = 0, "waits"
        self.start = self.seconds = 0.0
        self.traceback: str | None = None

    def left(self, pace: float) -> float:
        """Seconds that it still needs if the machine needs ``pace`` times as long as expected."""
        if self.state in ("done", "failed", "shown"):
            return 0.0
        begun = time.monotonic() - self.start if self.state == "runs" else 0.0
        return max(self.expected * pace - begun, 0.0 if self.state == "waits" else 2.0)


class Runs:
    """The runs of ``chapters`` (page → notebook, in reading order), made by a thread of its own; ``stop`` ends them."""

    def __init__(self, chapters: dict[str, Path], build: Path):
        self.cache, self.failed, self.log = build / ".jupyter_cache", build / "failed", build / "kernels.log"
        self.progress = build / "html" / "progress.json"
        expected = recorded()
        self.runs = [Run(page, path, expected.get(page, UNKNOWN)) for page, path in chapters.items()]
        self.at_a_time = 1
        self.threads = max(1, cores() // room())
        self._ended: queue.SimpleQueue[Run | None] = queue.SimpleQueue()  # None: the thread has failed
        self._processes: dict[Connection, tuple[Run, Any]] = {}
        self._stopping = threading.Event()
        self._writing = threading.Lock()  # both threads leave word in one file
        self._thread = threading.Thread(target=self._work, daemon=True)
        if self.runs:
            build.mkdir(parents=True, exist_ok=True)
            self.context = kernels.context()
            self._thread.start()

    @property
    def pages(self) -> set[str]:
        """The pages whose chapters are run."""
        return {run.page for run in self.runs}

    def failed_runs(self) -> list[Run]:
        """Those of which a cell failed."""
        return [run for run in self.runs if run.traceback]

    def ended(self) -> Iterator[list[Run]]:
        """The runs that have ended since they were last asked for, until none is left.

        The first ones come at once; later ones some together, since each rendering takes a core's time from chapters.
        """
        left = len(self.runs)
        while left:
            found = [self._ended.get()]
            patience = time.monotonic() + (TOGETHER if len(self.runs) - left >= AT_ONCE else 0)
            while len(found) < left:
                try:
                    found.append(self._ended.get(timeout=max(0, patience - time.monotonic())))
                except queue.Empty:
                    break
            if None in found:
                raise RuntimeError("chapters can no longer be run: the reason stands above")
            left -= len(found)
            yield [run for run in found if run]

    def shown(self, runs: list[Run]) -> None:
        """The pages of these have been rendered again."""
        for run in runs:
            run.state = "shown"
        self.write_progress()

    def stop(self) -> None:
        """End the runs that still run; what has been run is kept."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _work(self) -> None:
        waiting = iter(self.runs)
        next_run = next(waiting)
        try:
            while not self._stopping.is_set() and (next_run or self._processes):
                while next_run and len(self._processes) < self.at_a_time:
                    self._start(next_run)
                    next_run = next(waiting, None)
                for connection in wait(list(self._processes), timeout=0.5):
                    self._hear(connection)
                self.write_progress()
        except Exception:
            self._ended.put(None)
            raise
        finally:
            for _, process in self._processes.values():
                process.terminate()
            patience = time.monotonic() + 3
            for _, process in self._processes.values():
                process.join(max(0, patience - time.monotonic()))
                process.kill()

    def _start(self, run: Run) -> None:
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=kernels.run, args=(run.path, self.log, self.threads, theirs))
        run.start, run.state = time.monotonic(), "runs"
        process.start()
        theirs.close()
        self._processes[ours] = run, process

    def _hear(self, connection: Connection) -> None:
        run, process = self._processes[connection]
        try:
            match connection.recv():
                case ("cell", number):
                    run.cell = number
                    return
                case ("done", notebook, seconds, traceback):
                    run.seconds, run.traceback = seconds, traceback
                    self._keep(run, nbformat.reads(notebook, as_version=4))
        except EOFError:
            run.traceback = f"the process of its kernel died; the end of {self.log} may say of what"
        run.state = "failed" if run.traceback else "done"
        process.join()
        del self._processes[connection]
        self._say(run)
        self._ended.put(run)

    def _keep(self, run: Run, notebook: nbformat.NotebookNode) -> None:
        if run.traceback:
            file = self.failed / f"{run.page}.ipynb"
            file.parent.mkdir(parents=True, exist_ok=True)
            nbformat.write(notebook, file)
            return
        bundle = CacheBundleIn(notebook, str(run.path), data={"execution_seconds": run.seconds})
        get_cache(self.cache).cache_notebook_bundle(bundle, check_validity=False, overwrite=True)

    def _say(self, run: Run) -> None:
        ended = sum(other.state not in ("waits", "runs") for other in self.runs)
        left = self.time_left(self.runs)
        rest = f"   {in_words(left)} left" if left else ""
        word = "FAILED" if run.traceback else f"{run.seconds:5.1f} s"
        print(f"   {ended:2d} of {len(self.runs)}  {run.page:45s} {word}{rest}", flush=True)

    def time_left(self, runs: list[Run]) -> float:
        """Seconds until all of ``runs``, which come first, have been run."""
        over = [run for run in self.runs if run.state in ("done", "shown")]
        pace = (20 + sum(run.seconds for run in over)) / (20 + sum(run.expected for run in over))
        left = [run.left(pace) for run in runs]
        return max(sum(left) / max(self.at_a_time, 1), max(left, default=0.0))

    def write_progress(self) -> None:
        """Leave word for the pages: state, cell, cells and seconds left of each chapter."""
        if not self.progress.parent.is_dir():
            return
        pages = {
            run.page: {
                "state": run.state,
                "cell": run.cell,
                "cells": run.cells,
                "before": sum(other.state == "waits" for other in self.runs[:number]),
                "left": in_words(self.time_left(self.runs[: number + 1])),
            }
            for number, run in enumerate(self.runs)
        }
        with self._writing:
            new = self.progress.with_suffix(".new")
            new.write_text(json.dumps(pages), encoding="utf-8")
            new.replace(self.progress)
