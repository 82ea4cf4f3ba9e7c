"""What a rank does from its start to its end, whether it was forked from the warm process or started by torchrun."""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import itertools
import os
import sys
import threading
import types
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

from playbook.launch.job import Job
from playbook.launch.processes import WHERE_ARE_YOU, die_with_parent


def execute(job: Job, rank: int) -> int:
    """Run the job's target as ``rank``, leave its value or failure in the job's folder, return the exit status."""
    _redirect(job, rank)
    _settings(job)
    try:
        value = _run(job)
        try:
            job.save_value(rank, value)
        except Exception as error:
            error.add_note(f"The result of rank {rank} could not be sent back.")
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        status = 0
    except BaseException as error:
        status = job.save_error(rank, error, skip=__file__)
    with contextlib.suppress(OSError):  # the disk is full
        sys.stdout.flush()
        sys.stderr.flush()
    return status


def _redirect(job: Job, rank: int) -> None:
    """Standard output and error into one file, line by line, from C as well; no standard input."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    out, nothing = os.open(job.path(rank, "out"), flags, 0o600), os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, nothing), (1, out), (2, out)):
        os.dup2(source, target)
    for number, name in ((1, "stdout"), (2, "stderr")):
        text = os.fdopen(number, "w", buffering=1, encoding="utf-8", closefd=False)
        setattr(sys, name, text)
    faulthandler.enable(2)
    stack = os.open(job.path(rank, "stack"), flags, 0o600)
    faulthandler.register(WHERE_ARE_YOU, file=stack, all_threads=False)
    job.save_pid(rank)


def _settings(job: Job) -> None:
    from playbook.launch import group

    # A little more than the launch allows, so that its watcher is the first to see, and to say, who is missing.
    group.launched(job.backend, job.timeout + 5)
    os.chdir(job.cwd)
    sys.path[:] = job.sys_path
    if job.backend == "gloo" and "torch" in sys.modules:
        _meet_through_a_file(job)


def _meet_through_a_file(job: Job) -> None:
    """Let ``init_process_group("gloo")``, which asks torchrun's environment, find the other ranks through a file.

    A TCP store would need a server, and a port: what torchrun has chosen may be taken by the time that ranks listen.
    PyTorch has a way for "env" already, and would refuse to register another.
    """
    import torch.distributed as dist

    meetings = itertools.count()  # a group that is initialised again must not read the keys of the last

    def by_file(url: str, timeout: timedelta = dist.constants.default_pg_timeout, **_: Any) -> Iterator[Any]:
        store = dist.FileStore(str(job.folder / f"store-{next(meetings)}"), job.ranks)
        store.set_timeout(timeout)
        yield store, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers["env"] = by_file


def _run(job: Job) -> Any:
    """The function's value, or the variable ``result`` of the script."""
    # A module of the rank's own: a class of the notebook's must not be taken for one of the launcher's.
    sys.modules["__main__"] = types.ModuleType("__main__")
    target = job.target()
    if "function" in target:
        sys.argv = [""]
        return target["function"](*target["args"], **target["kwargs"])
    script = target["script"]
    sys.argv = [script, *target["args"]]
    sys.path.insert(0, str(Path(script).parent))
    return _run_script(script, target["names"]).get("result")


def _run_script(script: str, names: dict[str, Any]) -> dict[str, Any]:
    """The script's namespace after it ran as ``__main__``; ending with status 0 is a way to end."""
    main = sys.modules["__main__"]
    main.__dict__.update(names, __file__=script, __builtins__=__builtins__)
    with open(script, "rb") as file:
        code = compile(file.read(), script, "exec")
    try:
        exec(code, main.__dict__)
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    return main.__dict__


def main() -> None:
    """A rank that torchrun started: ``python -m playbook.launch.worker FOLDER``."""
    die_with_parent()
    job = Job.read(Path(sys.argv[1]))
    with contextlib.suppress(ImportError):  # the time-out is for the rank's own work
        import torch.distributed  # noqa: F401
    # Like a warm rank: at the end of the interpreter, a process group that was not destroyed may abort.
    os._exit(execute(job, int(os.environ["RANK"])))


if __name__ == "__main__":
    main()
