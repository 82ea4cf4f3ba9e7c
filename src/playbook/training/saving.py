"""When checkpoints are saved, how many are kept, and which one a run goes on from.

Every rank writes its own files, at once or in the background from copies; the first one gives the folder its name when
all have written. Copies are made below the next forward and backward pass, which change no weights; the update after them
waits until they are there. In the background ranks meet over the file system alone, for a thread must start no collective
beside those of training: the folder must be one that all nodes see.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from playbook.errors import CheckpointError
from playbook.training import checkpoint
from playbook.training.restore import load
from playbook.training.trainer import Trainer

_NAME = "step-"


@dataclass(frozen=True)
class Saving:
    """Save into ``folder`` after every so many steps and after the last; ``keep`` the newest so many (None: all).

    ``background`` writes while training goes on; the first rank waits ``patience`` seconds for the parts of the others.
    ``resume`` goes on from the newest checkpoint that is whole.
    """

    folder: str
    every: int
    keep: int | None = None
    background: bool = False
    resume: bool = False
    patience: float = 600.0

    def __post_init__(self) -> None:
        for field in ("every", "keep"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise CheckpointError(f"{field} is {value}, but must be at least 1")
        path = Path(self.folder)
        if path.exists() and not path.is_dir():
            raise CheckpointError(f"checkpoint is {self.folder!r}, which is a file: give a folder")
        if not self.resume and (found := checkpoints(path)):
            raise CheckpointError(
                f"checkpoint folder {self.folder!r} has checkpoints up to step {step_of(found[-1])}: say --resume to go "
                "on from there, or give another folder"
            )


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first, whole or not."""
    found = [path for path in folder.glob(f"{_NAME}*") if path.name.removeprefix(_NAME).isdigit()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """The number of steps that were done when a checkpoint was made."""
    return int(path.name.removeprefix(_NAME))


class Checkpoints:
    """A log of a run (``trainer.Log``) that saves its trainer as ``saving`` says: one on each rank.

    After each step ranks agree on whether any of them was ``asked`` to leave: then they save, and the run ends there.
    """

    def __init__(self, saving: Saving, trainer: Trainer, asked: Callable[[], bool] = lambda: False):
        """Collective: ranks agree on the name of this writer."""
        self.saving, self.trainer, self.folder, self.asked = saving, trainer, Path(saving.folder), asked
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if trainer.mesh else (0, 1)
        self.writer = str(self._of_first(f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"))
        self.thread: threading.Thread | None = None
        #: The copies that were made in the background last, and whether they are whole.
        self.last: checkpoint.Snapshot | None = None
        self.copied = threading.Event()
        self.copied.set()
        self.error: Exception | None = None
        self.given_up = threading.Event()
        #: Seconds for which each save kept training waiting: while it was made, and before the next update.
        self.exposed: list[float] = []
        if saving.background:
            for optimizer in trainer.engine.optimizers:
                optimizer.register_step_pre_hook(self._before_update)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint folder {saving.folder!r} cannot be made ({error.strerror})"
            ) from None
        if self.rank == 0:
            self._remove_unfinished()

    # ---- what a run calls

    def start(self, header: dict[str, Any]) -> None:
        """A run begins."""

    def step(self, record: dict[str, Any]) -> None:
        """Save, if it is time. Raises CheckpointError where a save has failed."""
        done = self.trainer.step_count
        self.trainer.leaving = self._any_asked() and done < self.trainer.config.steps
        if done <= record["step"] and not self.trainer.leaving:  # it went back to a checkpoint
            return
        if done % self.saving.every == 0 or done == self.trainer.config.steps or self.trainer.leaving:
            self.save()
        elif self.error:
            raise self.error

    def close(self, outcome: str) -> None:
        """A run has ended: what is being written is finished, unless ranks failed."""
        if outcome == "failed":
            self.given_up.set()
        else:
            self.wait()

    # ---- saving

    def save(self) -> None:
        """Save the trainer's state, or begin to where it is done in the background. Collective."""
        begin = time.perf_counter()
        self.wait()
        done = self.trainer.step_count
        saved = checkpoint.snapshot(self.trainer, self.last)
        if self.saving.background:
            self.copied.clear()
            go = threading.Event()  # a thread that starts with work keeps the interpreter for 5 ms
            self.thread = threading.Thread(target=self._in_background, args=(saved, done, go), daemon=True)
            self.thread.start()
            go.set()
        else:
            try:
                self._together(lambda: self._write(checkpoint.in_memory(saved), done))
                self._together(lambda: self._commit(done) if self.rank == 0 else None)
            except CheckpointError:  # no rank writes any more
                shutil.rmtree(self._partial(done), ignore_errors=True)
                raise
        self.exposed.append(time.perf_counter() - begin)

    def wait(self) -> None:
        """Until nothing is being written. Raises CheckpointError where that has failed."""
        if self.thread:
            self.thread.join()
            self.thread = None
        if self.error:
            raise self.error

    def _partial(self, done: int) -> Path:
        return self.folder / f".{_NAME}{done:08d}.{self.writer}"

    def _write(self, saved: checkpoint.Snapshot, done: int) -> None:
        folder = self._partial(done)
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint of step {done} cannot be written by rank {self.rank} into {str(self.folder)!r} "
                f"({error.strerror})"
            ) from None
        checkpoint.write(saved, folder, self.rank)

    def _commit(self, done: int) -> None:
        """Name this writer's folder. A whole one that another writer has put there stays; a damaged one goes aside."""
        own, whole = self._partial(done), self.folder / f"{_NAME}{done:08d}"
        if whole.exists():
            try:
                checkpoint.verify(whole)
            except CheckpointError:
                whole.rename(self.folder / f"damaged-{whole.name}.{self.writer}")
        if not checkpoint.commit(own, whole, self.ranks):
            shutil.rmtree(own)
        if self.saving.keep:
            for old in checkpoints(self.folder)[: -self.saving.keep]:
                self._remove(old)

    def _before_update(self, *_: Any) -> None:
        begin = time.perf_counter()
        if not self.copied.is_set():
            self.copied.wait()
            self.exposed[-1] += time.perf_counter() - begin

    def _in_background(self, saved: checkpoint.Snapshot, done: int, go: threading.Event) -> None:
        go.wait()
        try:
            try:
                self.last = checkpoint.copied(saved, self.last)
            finally:
                self.copied.set()
            self._write(self.last, done)
            if self.rank == 0 and self._all_written(done):
                self._commit(done)
        except (CheckpointError, TimeoutError) as error:
            self.error = error
        except Exception as error:  # else it would end in this thread, and nobody know
            self.error = CheckpointError(
                f"checkpoint of step {done} cannot be written by rank {self.rank} ({type(error).__name__}: {error})"
            )

    def _all_written(self, done: int) -> bool:
        end = time.monotonic() + self.saving.patience
        while missing := checkpoint.unwritten(self._partial(done), self.ranks):
            if self.given_up.wait(0.01):
                return False
            if time.monotonic() > end:
                raise TimeoutError(
                    f"rank {missing[0]} has not written its part of the checkpoint of step {done} in "
                    f"{self.saving.patience:g} s"
                )
        return True

    def _remove(self, path: Path) -> None:
        """Take the name away first: what has it is whole at all times."""
        aside = self.folder / f".old-{path.name}.{self.writer}"
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def _remove_unfinished(self) -> None:
        """What writers of this machine have left that are no more."""
        for path in self.folder.glob(f".*{_NAME}*.{socket.gethostname()}-*-*"):
            pid = path.name.rsplit("-", 2)[1]
            if pid.isdigit() and not _lives(int(pid)):
                shutil.rmtree(path, ignore_errors=True)

    # ---- agreeing

    def _any_asked(self) -> bool:
        asked = self.asked()
        if self.ranks == 1:
            return asked
        flag = torch.tensor(int(asked), device=self.trainer.device)
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        return bool(flag.item())

    def _of_first(self, value: Any) -> Any:
        values = [value]
        if self.ranks > 1:
            dist.broadcast_object_list(values)
        return values[0]

    def _together(self, act: Any) -> None:
        """Do it on every rank; where it fails on one, raise its error on all. Collective."""
        error = None
        try:
            act()
        except CheckpointError as own:
            error = str(own)
        except OSError as own:
            error = (
                f"checkpoint folder {self.saving.folder!r} cannot be written to by rank {self.rank} "
                f"({own.strerror or own})"
            )
        if found := next(filter(None, self._from_all(error)), None):
            raise CheckpointError(found) from None

    def _from_all(self, value: Any) -> list[Any]:
        values: list[Any] = [value] * self.ranks
        if self.ranks > 1:
            dist.all_gather_object(values, value)
        return values

    def resume(self) -> Path | None:
        """Go on from the newest checkpoint that is whole; None where there is none. Collective.

        What is not whole is said on stderr, and left as it is. Raises CheckpointError for one of another run, and where
        there are checkpoints, but none that is whole.
        """
        found = self._of_first([path.name for path in reversed(checkpoints(self.folder))])
        for name in found:
            path = self.folder / name
            if fault := self._fault(path):
                if self.rank == 0:
                    print(f"{fault}: looking for an older one", file=sys.stderr, flush=True)
                continue
            self._together(partial(load, self.trainer, path))
            return path
        if found:
            raise CheckpointError(
                f"checkpoint folder {self.saving.folder!r} has {len(found)}, none of them whole"
            )
        return None

    def rewind(self) -> int:
        """Go back to the newest checkpoint, and pass over the batches of the steps since; returns its step. Collective.

        Raises CheckpointError where there is none.
        """
        self.wait()
        batch = self.trainer.step_count + self.trainer.skipped
        if self.resume() is None:
            raise CheckpointError(f"checkpoint folder {self.saving.folder!r} has none yet to go back to")
        self.trainer.skipped = batch - self.trainer.step_count
        return self.trainer.step_count

    def _fault(self, path: Path) -> str | None:
        """What is wrong with a checkpoint, of whose files each rank checks some. Collective."""
        fault = None
        try:
            checkpoint.verify(path, self.rank, self.ranks)
        except CheckpointError as error:
            fault = str(error)
        except OSError as error:
            fault = f"checkpoint {str(path)!r} cannot be read ({error.strerror})"
        return next(filter(None, self._from_all(fault)), None)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
