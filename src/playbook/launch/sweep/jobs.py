"""A sweep through submitit: each configuration a job of a Slurm cluster, or a process of this machine.

Job ids are kept in ``jobs.json``: when whoever collects results is killed, jobs go on, and the next call finds them.
submitit writes and sends the batch script of a job (https://github.com/facebookincubator/submitit); what the job does
then, on its nodes, is what ``playbook slurm`` has it do.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from playbook._checks import typed_int, unknown
from playbook.errors import LaunchError
from playbook.launch.slurm import SlurmJob
from playbook.launch.sweep.runs import Task, run

#: What ``--slurm`` may say, and in which fields of SlurmJob numbers stand.
SETTINGS = ("partition", "time", "account", "gpus_per_node", "cpus_per_gpu", "setup", "container")
_NUMBERS = ("gpus_per_node", "cpus_per_gpu")
#: Seconds between two looks at the jobs.
_LOOK = {"local": 0.2, "slurm": 5.0}


def parse_slurm(text: str) -> SlurmJob:
    """``"partition=gpu,time=02:00:00,gpus_per_node=8"`` as what a job asks for. Raises LaunchError for others."""
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if name not in SETTINGS or not equals:
            raise LaunchError(unknown("setting of slurm", part, [f"{setting}=…" for setting in SETTINGS]))
        if name in given:
            raise LaunchError(f"slurm has {name} twice: give it once")
        given[name] = typed_int(name, value, LaunchError) if name in _NUMBERS else value
    if "setup" in given:
        given["setup"] = (given["setup"],)
    return SlurmJob(**given)


def sized(job: SlurmJob, ranks: int) -> SlurmJob:
    """The same request for so many ranks. Raises LaunchError where nodes cannot hold them evenly."""
    each = min(ranks, job.gpus_per_node)
    if ranks % each:
        raise LaunchError(
            f"{ranks} ranks are no whole number of nodes with gpus_per_node={job.gpus_per_node}"
        )
    return replace(job, nodes=ranks // each, gpus_per_node=each)


def minutes(text: str) -> int:
    """A time as Slurm reads it (minutes, minutes:seconds, hours:minutes:seconds, days-hours…), in whole minutes."""
    days, dash, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    if dash:  # days-hours:minutes:seconds
        hours, mins, seconds = (*parts, 0, 0)[:3]
    elif len(parts) == 3:
        hours, mins, seconds = parts
    else:
        hours, mins, seconds = 0, *(*parts, 0)[:2]
    return int(days or 0) * 1440 + hours * 60 + mins + math.ceil(seconds / 60)


def executor(folder: Path, task: Task) -> Any:
    """The submitit executor for one task: of Slurm, with the request of its job, or of this machine.

    Raises LaunchError where submitit or Slurm is missing.
    """
    submitit = _submitit()
    if task.job is None:
        from playbook.launch import group

        found = submitit.LocalExecutor(folder, max_num_timeout=0)
        limit = math.ceil(task.repeat * (task.timeout + 60) / 60)
        found.update_parameters(timeout_min=limit, gpus_per_node=group.gpus())
        return found
    try:
        found = submitit.SlurmExecutor(folder, max_num_timeout=0)
    except RuntimeError:
        raise LaunchError(
            "srun is not on the path: Slurm jobs are submitted on a node of the cluster"
        ) from None
    job = task.job
    found.update_parameters(
        job_name=job.job_name,
        nodes=job.nodes,
        ntasks_per_node=1,
        gpus_per_node=job.gpus_per_node,
        cpus_per_task=job.gpus_per_node * job.cpus_per_gpu,
        time=minutes(job.time),
        use_srun=False,  # the job itself starts a task on each node
        setup=list(job.setup) or None,
        **{name: value for name in ("partition", "account") if (value := getattr(job, name))},
    )
    return found


def _submitit() -> Any:
    try:
        import submitit
    except ImportError:
        raise LaunchError("submitit is not installed: pip install submitit") from None
    return submitit


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted: its id there, and of which executor."""

    key: str
    id: str
    kind: str


class Jobs:
    """The jobs of a sweep's folder, those of earlier calls among them."""

    def __init__(self, folder: Path):
        self.folder, self.path = folder / "jobs", folder / "jobs.json"
        self.submitted: dict[str, Submitted] = {}
        self._handles: dict[str, Any] = {}
        if self.path.exists():
            names = {field.name for field in fields(Submitted)}
            for row in json.loads(self.path.read_text(encoding="utf-8")):
                job = Submitted(**{name: row[name] for name in names})
                self.submitted[job.key] = job
        if self.submitted:
            _submitit()

    def submit(self, task: Task) -> None:
        """Submit a task; its id is on disk when this returns."""
        kind = "local" if task.job is None else "slurm"
        try:
            handle = executor(self.folder, task).submit(run, task)
        except LaunchError:
            raise
        except Exception as error:  # sbatch's own words
            raise LaunchError(f"the job of {task.key} was not accepted: {_last(str(error))}") from error
        self._handles[task.key] = handle
        self._set(task.key, Submitted(task.key, handle.job_id, kind))

    def ended(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The jobs that have ended since, with what they measured. The caller says `forget` once that is written down."""
        for key in list(self.submitted):
            handle = self._handle(key)
            if handle.paths.result_pickle.exists():
                yield key, _result(handle)
            elif not self._runs(key):
                # It may have written its result after the first look.
                yield key, _result(handle) if handle.paths.result_pickle.exists() else _lost(handle)

    def forget(self, key: str) -> None:
        self._handles.pop(key, None)
        self._set(key, None)

    def wait(self) -> None:
        """A pause between two looks, shorter where a look costs nothing."""
        time.sleep(max((_LOOK[job.kind] for job in self.submitted.values()), default=0.0))

    def cancel_local(self) -> None:
        """End the jobs on this machine and forget them; those of a cluster go on."""
        own = [key for key, job in self.submitted.items() if job.kind == "local"]
        for key in own:
            with contextlib.suppress(ProcessLookupError):
                if self._runs(key):
                    os.kill(int(self.submitted[key].id), signal.SIGINT)
        limit = time.monotonic() + 30
        while any(map(self._runs, own)) and time.monotonic() < limit:
            time.sleep(0.05)
        for key in own:
            self.forget(key)

    def _handle(self, key: str) -> Any:
        if key not in self._handles:
            submitit, job = _submitit(), self.submitted[key]
            kind = submitit.SlurmJob if job.kind == "slurm" else submitit.local.local.LocalJob
            self._handles[key] = kind(self.folder, job.id)
        return self._handles[key]

    def _runs(self, key: str) -> bool:
        handle, job = self._handle(key), self.submitted[key]
        if job.kind == "slurm":
            return not handle.done()
        process = handle._process
        return process.poll() is None if process is not None else _is_controller(int(job.id))

    def _set(self, key: str, job: Submitted | None) -> None:
        self.submitted.pop(key, None)
        if job:
            self.submitted[key] = job
        part = self.path.with_suffix(".part")
        with part.open("w", encoding="utf-8") as file:
            json.dump([vars(job) for job in self.submitted.values()], file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.path)


def _is_controller(pid: int) -> bool:
    """Whether this process is one that submitit keeps for a job: another may have its number by now."""
    try:
        return b"submitit" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _result(handle: Any) -> dict[str, Any]:
    try:
        return handle.result()
    except Exception as error:  # what `run` raised there, as submitit tells it
        return {"status": "failed", "reason": _last(str(error))}


def _lost(handle: Any) -> dict[str, Any]:
    """What is known of a job that ended without a result: Slurm's word for it, and its own last one."""
    status = {"TIMEOUT": "timeout", "OUT_OF_MEMORY": "oom"}.get(handle.state.upper(), "failed")
    last = _last(handle.stderr() or "") or "it said nothing"
    return {"status": status, "reason": f"the job ended without a result ({handle.state.lower()}): {last}"}


def _last(text: str) -> str:
    """The last line of a text that says something: neither a rule nor where the logs are."""
    lines: Sequence[str] = [line.strip() for line in text.splitlines()]
    useful = [
        line for line in lines if re.search(r"\w", line) and not line.startswith(("You can check", "- /"))
    ]
    return useful[-1] if useful else ""
