"""A sweep's tasks as jobs of a Slurm cluster, or as processes of this machine: ``playbook sweep --task FILE``.

Which jobs there are is in ``jobs.json``: when whoever collects results is killed, jobs go on, and the next call finds
them. A job of Slurm is that command in the batch shell, which starts each run as ``playbook slurm`` has it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from playbook._checks import typed_int, unknown
from playbook._interrupt import deferred
from playbook._json import write_json
from playbook._tables import read_file
from playbook.errors import ConfigError, LaunchError
from playbook.launch import slurm
from playbook.launch.sweep.task import Task, end, where
from playbook.launch.warm import python_path

#: What ``--slurm`` may say, as fields of SlurmJob.
SETTINGS = ("partition", "time", "account", "gpus_per_node", "cpus_per_gpu", "setup", "container")
#: Seconds between two looks at the jobs of this machine, and where some are of Slurm.
LOOK, LOOK_AT_SLURM = 0.2, 5.0
_STATUS = {"TIMEOUT": "timeout", "OUT_OF_MEMORY": "oom"}


def parse_slurm(text: str) -> slurm.SlurmJob:
    """``"partition=gpu,time=02:00:00,gpus_per_node=8"`` as what a job asks for. Raises LaunchError for others."""
    given: dict[str, Any] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = map(str.strip, part.partition("="))
        if name not in SETTINGS or not equals:
            raise LaunchError(unknown("setting of slurm", part, [f"{setting}=…" for setting in SETTINGS]))
        if name in given:
            raise LaunchError(f"slurm has {name} twice: give it once")
        number = isinstance(getattr(slurm.SlurmJob, name), int)
        given[name] = typed_int(name, value, LaunchError) if number else value
    if "setup" in given:
        given["setup"] = (given["setup"],)
    return slurm.SlurmJob(**given)


class Jobs:
    """The jobs of a sweep's folder, those of earlier calls among them, as ``sent``: by the key of its task the number of
    a process, or what Slurm calls its job.

    Raises ConfigError where ``jobs.json`` is of jobs that only another version of this library knows.
    """

    def __init__(self, folder: Path):
        self.folder, self.path = folder / "jobs", folder / "jobs.json"
        self.folder.mkdir(exist_ok=True)
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._silent: set[str] = set()
        known = read_file(self.path, "jobs", ConfigError) if self.path.exists() else {}
        if known and not isinstance(known, dict):
            raise ConfigError(f"{self.path} is of an earlier version: remove it once its jobs have ended")
        there = {path.stem for path in self.folder.glob("*.json")}
        self.sent: dict[str, int | str] = {key: known[key] for key in known if key in there}

    def rows(self, tasks: Sequence[Task], at_once: int) -> Iterator[dict[str, Any]]:
        """Submit tasks, and yield the rows of jobs as they end; each is forgotten when the next row is asked for. However
        this is left, jobs on this machine end; those of a cluster go on.

        Raises LaunchError in Slurm's words, or where there is no Slurm.
        """
        waiting = [task for task in tasks if task.key not in self.sent]
        try:
            while waiting or self.sent:
                while waiting and len(self.sent) < at_once:
                    self._submit(waiting.pop(0))
                for key, row in self._ended():
                    yield row
                    self._set(key)
                cluster = any(isinstance(one, str) for one in self.sent.values())
                time.sleep(LOOK_AT_SLURM if cluster else LOOK * bool(self.sent))
        finally:
            own = {key: one for key, one in self.sent.items() if isinstance(one, int)}
            end(lambda: [pid for key, pid in own.items() if self._runs(key)])
            for key in own:
                self._set(key)

    def _submit(self, task: Task) -> None:
        """Start a task; the id of its job is on disk when this returns."""
        file, log = self._file(task.key, "json"), self._file(task.key, "log")
        write_json(file, {**asdict(task), "folder": str(task.folder)})
        self._file(task.key, "result").unlink(missing_ok=True)
        command = [sys.executable, "-m", "playbook", "sweep", "--task", str(file)]
        env = {**os.environ, "PYTHONPATH": python_path()}
        with deferred(), log.open("wb") as out:
            if task.job is None:
                self._children[task.key] = child = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
                )
                self._set(task.key, child.pid)
            else:
                script = self._file(task.key, "sh")
                script.write_text(slurm.batch_script(command, task.job), encoding="utf-8")
                self._set(task.key, slurm.submit(script, log, env))

    def _ended(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The jobs that have ended. One without a result is looked at twice: files of other machines come late, and Slurm
        may start it again."""
        running = {key: "RUNNING" if self._runs(key) else "" for key in self.sent}
        numbers = {one: key for key, one in self.sent.items() if isinstance(one, str)}
        if numbers:
            found = slurm.states(list(numbers))
            running |= {key: found.get(one, "RUNNING") for one, key in numbers.items()}
        written = {path.stem for path in self.folder.glob("*.result")}  # a listing knows new files first
        before, self._silent = self._silent, set()
        for key, state in running.items():
            if key in written:
                yield key, json.loads(self._file(key, "result").read_text(encoding="utf-8"))
            elif not state or state in slurm.ENDED:
                self._silent.add(key)
                if key in before:
                    yield key, self._lost(key, state)

    def _file(self, key: str, kind: str) -> Path:
        return self.folder / f"{key}.{kind}"

    def _runs(self, key: str) -> bool:
        """Whether the process of a job is there, and no other one has its number by now."""
        if key in self._children:
            return self._children[key].poll() is None
        try:
            words = Path(f"/proc/{self.sent[key]}/cmdline").read_bytes()
        except OSError:
            return False
        return str(self._file(key, "json")).encode() in words.split(b"\0")

    def _lost(self, key: str, state: str) -> dict[str, Any]:
        """What is known of a job that ended without a result: Slurm's word for it, and its own last one."""
        fields = json.loads(self._file(key, "json").read_text(encoding="utf-8"))["fields"]
        lines = self._file(key, "log").read_text(errors="replace").splitlines()
        last = next((line.strip() for line in reversed(lines) if re.search(r"\w", line)), "it said nothing")
        reason = f"the job ended without a result{f' ({state.lower()})' * bool(state)}: {last}"
        return {**fields, "status": _STATUS.get(state, "failed"), "reason": reason, **where()}

    def _set(self, key: str, job: int | str | None = None) -> None:
        self.sent.pop(key, None)
        if job is not None:
            self.sent[key] = job
        write_json(self.path, self.sent)
