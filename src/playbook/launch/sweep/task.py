"""One configuration: ``playbook train`` in a process of its own, and what its log and its last words say."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from playbook._interrupt import deferred
from playbook._json import write_json
from playbook.launch import group
from playbook.launch.job import environment
from playbook.launch.logs import read_json_log
from playbook.launch.processes import die_with_parent
from playbook.launch.slurm import SlurmJob, sbatch_script
from playbook.launch.warm import python_path

#: Seconds that a run which is told to end may take to end its ranks, before it is told more sternly.
_PATIENCE = 20.0
_MEMORY = re.compile(r"out of memory|OutOfMemory|can't allocate memory", re.IGNORECASE)
_SAID = re.compile(r"playbook train: (.+)")


@dataclass(frozen=True)
class Task:
    """A configuration to run ``repeat`` times, at most ``timeout`` seconds each; as a file it goes to other machines.

    ``flags`` are those of ``playbook train``; ``tokens`` are those of a step. On the nodes of a Slurm job its ranks are
    started as ``playbook slurm`` has it, by ``job``; otherwise they are on this machine. ``fields`` are the columns that
    are known before it has run. One that was ``refused``, in a sentence, cannot run.
    """

    key: str
    folder: Path
    flags: Sequence[str]
    ranks: int
    tokens: int
    warmup: int
    repeat: int
    timeout: float
    job: SlurmJob | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""


def run_file(path: Path) -> None:
    """Run the task of a file, and leave its result beside it, whole or not at all."""
    given = json.loads(path.read_text(encoding="utf-8"))
    job = given.pop("job")
    task = Task(**{**given, "folder": Path(given["folder"])}, job=job and SlurmJob(**job))
    write_json(path.with_suffix(".result"), run(task))


def run(task: Task) -> dict[str, Any]:
    """Run it and return its row: the fields, status, reason, seconds of a step, bytes, host and date.

    However this is left, nothing that it started goes on.
    """
    seconds: list[float] = []
    peaks: list[int] = []
    for turn in range(task.repeat):
        name = f"{task.key}-{turn}"
        log, output = task.folder / "runs" / f"{name}.jsonl", task.folder / "logs" / name
        status, reason, words = _train(task, log, output)
        if status == "ok":
            taken, told = [step["seconds"] for step in read_json_log(log)][task.warmup :], _peaks(words)
            seconds += taken
            peaks += told
            if not taken or not told:
                status, reason = "failed", "it ended without an error, but left no whole log"
        if status != "ok":
            return {**task.fields, "status": status, "reason": reason, **where()}
    first, median, third = (
        statistics.quantiles(seconds, n=4, method="inclusive") if seconds[1:] else seconds * 3
    )
    steps = {"step_s": median, "step_q1_s": first, "step_q3_s": third, "steps": len(seconds)}
    more = {"tokens_per_s_per_gpu": task.tokens / median / task.ranks, "peak_bytes": max(peaks)}
    return {**task.fields, "status": "ok", **steps, **more, **where()}


def _peaks(words: str) -> list[int]:
    """The peak of each rank in bytes, of what ``playbook train --json`` printed; none where it is not whole."""
    for line in words.splitlines():
        if line.startswith('{"losses"'):
            with contextlib.suppress(ValueError):
                return json.loads(line)["peak_bytes"]
    return []


def where() -> dict[str, str]:
    """This machine, and now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "date": now}


def _train(task: Task, log: Path, output: Path) -> tuple[str, str, str]:
    """Run it once: its status, the sentence that says why where that is not ok, and all that was printed, on the nodes
    of a job, if it is one, and here. What an earlier try has left is removed."""
    shutil.rmtree(output, ignore_errors=True)
    log.unlink(missing_ok=True)
    for folder in (output, log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    flags = ["train", *task.flags, "--log", str(log), "--quiet", "--json"]
    command = [sys.executable, "-m", "playbook", *flags]
    if task.job is not None:
        script = output / "job.sh"
        script.write_text(sbatch_script(flags, replace(task.job, logs=str(output))), encoding="utf-8")
        command = ["bash", str(script)]
    status = _process(command, output, task.timeout)
    files = [*sorted(output.rglob("*.log")), output / "stderr", output / "stdout"]
    words = "\n".join(file.read_text(errors="replace") for file in files if file.exists())
    if status is None:
        return "timeout", f"it did not end within {task.timeout:g} s", words
    return *judge(status, words), words


def judge(status: int, words: str) -> tuple[str, str]:
    """A run's status and reason from how its process ended and what it printed."""
    if status == 0:
        return "ok", ""
    said = _SAID.findall(words)
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if _MEMORY.search(words):
        memory = [line for line in [*said, *lines] if _MEMORY.search(line)]
        return "oom", memory[0]
    if status < 0:
        return "failed", f"it was killed by {signal.Signals(-status).name}"
    reason = said[0] if said else lines[-1] if lines else f"it ended with status {status} and said nothing"
    return ("refused" if status == 2 and said else "failed"), reason


def _process(command: list[str], output: Path, timeout: float) -> int | None:
    """Run a command to its end and return its status; None when the time was up."""
    # Where there is no GPU ranks have a thread each: then one rank alone has one, too, and layouts can be compared.
    env = {**(os.environ if group.gpus() else environment(None)), "PYTHONPATH": python_path()}
    with (output / "stdout").open("wb") as out, (output / "stderr").open("wb") as err:
        # Ctrl-C comes from here alone, once; and nothing goes on should this process be killed.
        started: list[subprocess.Popen[bytes]] = []
        try:
            with deferred():  # around a fork Python ignores exceptions
                started.append(subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env,
                    start_new_session=True, preexec_fn=die_with_parent,
                ))  # fmt: skip
            return started[0].wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end(lambda: [process.pid for process in started if process.poll() is None])


def end(running: Callable[[], list[int]]) -> None:
    """Have processes that lead a group end what they have started, and themselves; kill the groups of those that do not.

    ``running`` tells those that are still there.
    """
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        for pid in running():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, sign)
        limit = time.monotonic() + _PATIENCE
        while running() and time.monotonic() < limit:
            time.sleep(0.02)
