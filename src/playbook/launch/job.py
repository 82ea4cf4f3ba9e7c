"""A launch on disk: a folder that the parent fills before its ranks start, and in which they leave what they did.

job.json        environment, working directory, number of ranks, time-out
target.pickle   the function and its arguments, or the path of the script
0.pid  0.out  0.stack  0.value  0.error       process, output, where it was, result, failure: of each rank
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from playbook.launch import by_value

#: Status of a rank that failed and could not leave its failure in the folder.
NOTHING_WRITTEN = os.EX_IOERR


@dataclass(frozen=True)
class Job:
    """What all ranks of one launch are told."""

    folder: Path
    ranks: int
    nnodes: int
    timeout: float
    backend: str
    env: dict[str, str]
    cwd: str
    sys_path: list[str]
    port: int

    def write(self, target: dict[str, Any]) -> None:
        """Fill the folder. Raises what pickle raises when ``target`` cannot be sent."""
        with open(self.folder / "target.pickle", "wb") as file:
            by_value.dump(target, file)
        (self.folder / "job.json").write_text(json.dumps({**asdict(self), "folder": str(self.folder)}))

    @classmethod
    def read(cls, folder: Path) -> Job:
        """The job of a folder."""
        fields = json.loads((folder / "job.json").read_text())
        return cls(**{**fields, "folder": folder})

    def target(self) -> dict[str, Any]:
        """What to run; read in a rank, after its modules can be found."""
        with open(self.folder / "target.pickle", "rb") as file:
            return by_value.load(file)

    def path(self, rank: int, kind: str) -> Path:
        """The file of one rank: ``pid``, ``out``, ``stack``, ``value`` or ``error``."""
        return self.folder / f"{rank}.{kind}"

    def torchrun_env(self, rank: int) -> dict[str, str]:
        """The variables that torchrun gives to a rank."""
        local_world = self.ranks // self.nnodes
        numbers = {
            "RANK": rank,
            "WORLD_SIZE": self.ranks,
            "LOCAL_RANK": rank % local_world,
            "LOCAL_WORLD_SIZE": local_world,
            "GROUP_RANK": rank // local_world,
            "GROUP_WORLD_SIZE": self.nnodes,
            "ROLE_RANK": rank,
            "ROLE_WORLD_SIZE": self.ranks,
            "MASTER_PORT": self.port,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        words = {
            "MASTER_ADDR": "127.0.0.1",
            "ROLE_NAME": "default",
            "TORCHELASTIC_RUN_ID": self.folder.name,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
        }
        return {**words, **{name: str(number) for name, number in numbers.items()}}

    def output(self, rank: int) -> str:
        """What a rank has printed so far."""
        path = self.path(rank, "out")
        return path.read_text(errors="replace") if path.exists() else ""

    def value(self, rank: int) -> Any:
        """What a rank returned, None if it has not."""
        path = self.path(rank, "value")
        if not path.exists():
            return None
        with open(path, "rb") as file:
            return by_value.load(file)

    def save_value(self, rank: int, value: Any) -> None:
        """Leave a result. It appears under its name only when it is whole."""
        part = self.path(rank, "part")
        with open(part, "wb") as file:
            by_value.dump(value, file)
        part.rename(self.path(rank, "value"))

    def save_error(self, rank: int, error: BaseException, skip: str) -> int:
        """Leave a failure, with the time: the first is the cause. Frames of the file ``skip`` are the launcher's own.

        Returns the status with which the rank should end.
        """
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == skip:
            frames = frames.tb_next
        text = "".join(traceback.format_exception(type(error), error, frames))
        summary = ": ".join(filter(None, [type(error).__qualname__, str(error).partition("\n")[0]]))
        part = self.path(rank, "part")
        try:
            part.write_text(json.dumps({"summary": summary, "traceback": text, "time": time.monotonic()}))
            part.rename(self.path(rank, "error"))
        except OSError as problem:
            with contextlib.suppress(OSError):
                print(f"{text}\nThis could not be written to {part}: {problem}", file=sys.stderr)
            return NOTHING_WRITTEN
        return 1

    def errors(self) -> dict[int, dict[str, Any]]:
        """The failures so far, by rank, the first one first."""
        found = {
            rank: json.loads(self.path(rank, "error").read_text())
            for rank in range(self.ranks)
            if self.path(rank, "error").exists()
        }
        return dict(sorted(found.items(), key=lambda item: item[1]["time"]))

    def save_pid(self, rank: int) -> None:
        """Say that ``rank`` is this process. The file appears whole: what is read from it gets signals."""
        part = self.path(rank, "part")
        part.write_text(str(os.getpid()))
        part.rename(self.path(rank, "pid"))

    def pids(self) -> dict[int, int]:
        """The process of each rank that has started."""
        paths = {rank: self.path(rank, "pid") for rank in range(self.ranks)}
        return {rank: int(path.read_text()) for rank, path in paths.items() if path.exists()}

    def all_started(self) -> bool:
        """Whether every rank has come as far as its own code."""
        return all(os.path.exists(self.path(rank, "pid")) for rank in range(self.ranks))


def environment(env: dict[str, str] | None, backend: str = "gloo", ranks: int = 1) -> dict[str, str]:
    """The parent's environment with ``env`` on top. Unless one of them says otherwise, a rank on CPU has one thread, and
    one on a GPU its share of the cores: an offloaded optimizer computes there."""
    threads = max(1, (os.cpu_count() or 1) // ranks) if backend == "nccl" else 1
    return {"OMP_NUM_THREADS": str(threads), **os.environ, **(env or {})}


def import_path() -> list[str]:
    """Where the parent finds modules: folders as absolute paths, and the marks of installers as they are."""
    return [os.path.abspath(entry) if os.path.isdir(entry or ".") else entry for entry in sys.path]
