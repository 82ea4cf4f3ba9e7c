"""``run``: a function or a script as real ranks, and what each of them gave."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from playbook._interrupt import deferred
from playbook.errors import LaunchError
from playbook.launch import by_value, group, warm
from playbook.launch.cold import ColdRanks
from playbook.launch.job import Job, environment, import_path
from playbook.launch.processes import free_port
from playbook.launch.ranks import RankError, Ranks
from playbook.launch.watch import Watcher, watch

ECHOES = ("none", "grouped", "stream")
_BACKENDS = ("gloo", "nccl")
_UNSENDABLE = (pickle.PicklingError, TypeError, AttributeError)


def run(
    script_or_function: Callable[..., Any] | str | os.PathLike[str],
    *args: Any,
    ranks: int = 4,
    timeout: float = 60.0,
    cold: bool = False,
    nnodes: int = 1,
    env: dict[str, str] | None = None,
    echo: str = "none",
    backend: str | None = None,
    names: dict[str, Any] | None = None,
    watcher: Watcher = watch,
    **kwargs: Any,
) -> Ranks:
    """Run a function, the path of a script or its source text as ``ranks`` processes with torchrun's environment.

    ``run(work, 3, ranks=4)[2].value`` is what ``work(3)`` returned in rank 2; a script's value is its variable
    ``result``. The function may be defined anywhere, in a notebook cell too: code that ranks cannot import is sent to
    them with the globals that it reads, and what they change of these stays theirs. ``args`` of a script are its command
    line, ``names`` variables that it finds.

    On CPU the ranks are forked from a warm process that has imported torch already. torchrun itself starts them when
    ``cold``, when ``nnodes`` is more than one (all on this machine, whose GPUs they divide among them) and when each rank
    has a GPU of its own; ``backend="gloo"`` keeps them on CPU. ``timeout`` counts seconds from when all have started.
    ``echo`` prints their output: ``grouped`` by rank at the end, or as a ``stream``. A ``watcher`` in the place of
    ``watch`` may replace ranks that fail.

    Raises ``LaunchError`` for what cannot be started, ``RankError`` for the rank that failed first or never arrived.
    However it ends, no process is left.
    """
    _check(ranks, timeout, nnodes, echo, backend)
    _check_alone()
    chosen = _backend(backend, ranks)
    cold = cold or nnodes > 1 or chosen == "nccl" or not warm.AVAILABLE
    turn = nullcontext() if cold else warm.one_job()
    with turn, deferred() as interrupted, _temporary_folder() as folder:
        target = _target(script_or_function, args, kwargs, names or {}, folder)
        variables = environment(env, chosen, ranks)
        job = Job(folder, ranks, nnodes, timeout, chosen, variables, os.getcwd(), import_path(), free_port())
        _write(job, target)
        processes = ColdRanks(job) if cold else warm.WarmRanks(job)
        return _watch(partial(watcher, processes, echo == "stream", interrupted), echo)


def prepare() -> None:
    """Begin to import torch, in the warm process, for ranks that this process will launch. It returns at once, and does
    nothing where torchrun would start them."""
    if warm.AVAILABLE and group.gpus() == 0:
        warm.start()


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    try:
        folder = Path(tempfile.mkdtemp(prefix="playbook-"))
    except OSError as error:
        raise LaunchError(f"ranks need a folder for temporary files: {error}") from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _watch(watched: Callable[[], Ranks], echo: str) -> Ranks:
    """Watch, and print the grouped output even if a rank fails: it often says why."""
    try:
        result = watched()
    except RankError as error:
        if echo == "grouped":
            print(error.ranks.grouped, end="", file=sys.stdout, flush=True)
        raise
    if echo == "grouped":
        print(result.grouped, end="", file=sys.stdout, flush=True)
    return result


def _check(ranks: int, timeout: float, nnodes: int, echo: str, backend: str | None) -> None:
    if ranks < 1:
        raise LaunchError(f"ranks is {ranks}, but must be at least 1")
    if not timeout > 0:
        raise LaunchError(f"timeout is {timeout}, but must be a positive number of seconds")
    if nnodes < 1 or ranks % nnodes:
        raise LaunchError(f"nnodes is {nnodes}, but must divide the number of ranks, {ranks}")
    if echo not in ECHOES:
        raise LaunchError(f"echo is {echo!r}, but must be one of {', '.join(ECHOES)}")
    if backend not in (None, *_BACKENDS):
        raise LaunchError(f"backend is {backend!r}, but must be one of {', '.join(_BACKENDS)}")


def _backend(asked: str | None, ranks: int) -> str:
    """The backend for all ranks: they are on this machine, on however many nodes they think they are."""
    if asked == "nccl" and group.gpus() < ranks:
        raise LaunchError(
            f"backend is 'nccl', but {ranks} ranks need a GPU each and this machine has {group.gpus()}: make it gloo"
        )
    return asked or group.backend(ranks)


def _check_alone() -> None:
    """Among several ranks each would launch its own: a program that meets itself again would never end."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE", "1")
    if "TORCHELASTIC_RUN_ID" in os.environ and size != "1":
        raise LaunchError(f"this is rank {rank} of {size} already, and ranks launch no ranks: start it once")


def _target(what: Any, args: Any, kwargs: Any, names: dict[str, Any], folder: Path) -> dict[str, Any]:
    """What the ranks are to do; source text becomes a file, so that tracebacks and ``inspect`` find its lines."""
    if callable(what):
        if names:
            raise LaunchError("names are variables of a script: give a function arguments")
        return {"function": what, "args": args, "kwargs": kwargs}
    if kwargs:
        raise LaunchError(f"a script takes no keyword arguments, but got {', '.join(kwargs)}")
    text = str(what)
    path = Path(text)
    if isinstance(what, str) and ("\n" in text or not (text.endswith(".py") or os.path.isfile(text))):
        path = folder / "script.py"
        path.write_text(text, encoding="utf-8")
    if not os.path.isfile(path):
        raise LaunchError(f"there is no script {text!r}")
    return {"script": str(path.resolve()), "args": [str(arg) for arg in args], "names": names}


def _write(job: Job, target: dict[str, Any]) -> None:
    try:
        job.write(target)
    except _UNSENDABLE as error:
        raise LaunchError(f"{_unsendable(target)} cannot be sent to the ranks: {error}") from error
    except OSError as error:
        raise LaunchError(f"what ranks are to do cannot be written to {job.folder}: {error}") from error


def _unsendable(target: dict[str, Any]) -> str:
    """What it is that pickle refused."""
    if "function" in target:
        return f"{getattr(target['function'], '__qualname__', target['function'])} and what it refers to"
    for name, value in target["names"].items():
        try:
            by_value.dump(value, io.BytesIO())
        except _UNSENDABLE:
            return f"variable {name!r}"
    return target["script"]
