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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from playbook.launch.job import environment
from playbook.launch.processes import die_with_parent
from playbook.launch.slurm import SlurmJob, sbatch_script
from playbook.launch.warm import python_path

#: Seconds that a run which is told to end may take to end its ranks, before it is told more sternly.
_PATIENCE = 20.0
_MEMORY = re.compile(r"out of memory|OutOfMemory|can't allocate memory", re.IGNORECASE)
_SAID = re.compile(r"playbook train: (.+)")


@dataclass(frozen=True)
class Task:
    """A configuration to run ``repeat`` times, at most ``timeout`` seconds each; it can be sent to another machine.

    ``flags`` are those of ``playbook train``; ``tokens`` are those of a step. On the nodes of a Slurm job its ranks are
    started as ``playbook slurm`` has it, by ``job``; otherwise they are on this machine.
    """

    key: str
    folder: Path
    flags: tuple[str, ...]
    ranks: int
    tokens: int
    warmup: int
    repeat: int
    timeout: float
    job: SlurmJob | None = None


def run(task: Task) -> dict[str, Any]:
    """Run it and return the measured columns: status, reason, seconds of a step, bytes, host and date.

    However this is left, nothing that it started goes on.
    """
    from playbook.launch.logs import read_json_log  # which needs torch

    seconds: list[float] = []
    peaks: list[int] = []
    for turn in range(task.repeat):
        paths = _Paths(task, turn)
        status, reason = _train(task, paths)
        if status == "ok":
            taken = [step["seconds"] for step in read_json_log(paths.log)][task.warmup :]
            told = paths.summary()
            if not taken or told is None:
                status, reason = "failed", "it ended without an error, but left no whole log"
            else:
                seconds += taken
                peaks += told["peak_bytes"]
        if status != "ok":
            return {"status": status, "reason": reason, **where()}
    return {"status": "ok", **_statistics(task, seconds), "peak_bytes": max(peaks), **where()}


def _statistics(task: Task, seconds: list[float]) -> dict[str, Any]:
    first, median, third = (
        statistics.quantiles(seconds, n=4, method="inclusive") if seconds[1:] else seconds * 3
    )
    return {
        "step_s": median,
        "step_q1_s": first,
        "step_q3_s": third,
        "steps": len(seconds),
        "tokens_per_s_per_gpu": task.tokens / median / task.ranks,
    }


def where() -> dict[str, str]:
    """This machine, and now."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"host": socket.gethostname(), "date": now}


class _Paths:
    """The files of one run. What an earlier try has left is removed."""

    def __init__(self, task: Task, turn: int):
        name = f"{task.key}-{turn}"
        self.log = task.folder / "runs" / f"{name}.jsonl"
        self.output = task.folder / "logs" / name
        shutil.rmtree(self.output, ignore_errors=True)
        self.log.unlink(missing_ok=True)
        self.output.mkdir(parents=True)
        self.log.parent.mkdir(exist_ok=True)

    def words(self) -> str:
        """All that was printed, on the nodes of a job, if it was one, and here."""
        files = [*sorted(self.output.rglob("*.log")), self.output / "stderr", self.output / "stdout"]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def summary(self) -> dict[str, Any] | None:
        """What ``playbook train --json`` printed."""
        for line in self.words().splitlines():
            if line.startswith('{"losses"'):
                with contextlib.suppress(ValueError):
                    return json.loads(line)
        return None


def _train(task: Task, paths: _Paths) -> tuple[str, str]:
    """Run it once; its status, and the sentence that says why where that is not ok."""
    flags = ["train", *task.flags, "--log", str(paths.log), "--quiet", "--json"]
    if task.job is None:
        command = [sys.executable, "-m", "playbook", *flags]
    else:
        script = paths.output / "job.sh"
        script.write_text(sbatch_script(flags, replace(task.job, logs=str(paths.output))), encoding="utf-8")
        command = ["bash", str(script)]
    status = _process(command, paths.output, task.timeout)
    if status is None:
        return "timeout", f"it did not end within {task.timeout:g} s"
    return judge(status, paths.words())


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
    env = {**(environment(None) if _on_cpu() else os.environ), "PYTHONPATH": python_path()}
    with (output / "stdout").open("wb") as out, (output / "stderr").open("wb") as err:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=env,
            start_new_session=True,  # Ctrl-C comes from here alone, once
            preexec_fn=die_with_parent,  # should this process be killed
        )
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Have it end its ranks and itself, and what is in its group; kill it where it does not."""
    for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)


def _on_cpu() -> bool:
    """Whether ranks have a thread each: then one rank alone has one, too, and layouts can be compared."""
    from playbook.launch import group

    return group.gpus() == 0
