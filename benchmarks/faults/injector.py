"""Faults put into a rank while it trains, each at a moment that can be repeated: what happens on clusters, on purpose.

A fault comes in a rank that starts, at the beginning of a step, some milliseconds later from another thread, or at one of
the file operations of a save. It happens so many times and no more, however often the ranks begin again.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from playbook.training.trainer import StepResult, Trainer

#: Where a fault may come: while a rank starts, before a step, soon after its beginning, or while a checkpoint is saved.
MOMENTS = ("start", "step", "soon", "save")
#: What an exception says that was put there.
WORDS = "a fault, on purpose"
#: Status of a rank that leaves.
STATUS = 3
_FILES = {"open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.scandir", "shutil.rmtree"}


@dataclass(frozen=True)
class Fault:
    """What happens to which rank, and when.

    ``moment`` is one of ``MOMENTS``, ``step`` the step at which it is near, and ``number`` says more: milliseconds after
    the beginning of the step, or which of the file operations in ``checkpoints``. ``amount`` is what the kind makes of
    it: bytes that a file may have, seconds by which a step is slower, which bit. ``folder`` has a file for each time
    that it happened. ``launcher`` is the process that a fault of the launcher hits.
    """

    kind: str
    rank: int
    moment: str
    step: int
    number: int
    amount: int
    times: int
    folder: str
    checkpoints: str
    launcher: int = 0


class Injector:
    """A fault in this rank, and what it needs to know there."""

    def __init__(self, fault: Fault):
        self.fault, self.mine = fault, int(os.environ["RANK"]) == fault.rank
        self.trainer: Trainer | None = None
        self.done, self.left, self.armed = False, fault.number, False

    def start(self) -> None:
        """This rank starts, and meets the others soon."""
        if self.mine and self.fault.moment == "start":
            self.happen()

    def watch(self, trainer: Trainer) -> Trainer:
        """Have the fault come while this trainer trains."""
        self.trainer = trainer
        if self.mine:
            self._take_over(trainer.step)
        return trainer

    def _take_over(self, step: Callable[[], StepResult]) -> None:
        assert self.trainer is not None
        trainer, fault = self.trainer, self.fault

        def with_fault() -> StepResult:
            if trainer.step_count == fault.step:
                self._arm()
            if self.done and fault.kind == "slow rank":
                time.sleep(fault.amount / 1e3)
            return step()

        trainer.step = with_fault  # type: ignore[method-assign]

    def _arm(self) -> None:
        fault = self.fault
        if fault.moment == "step":
            self.happen()
        elif fault.moment == "soon":
            threading.Timer(fault.number / 1e3, self.happen).start()
        elif fault.moment == "save" and not self.armed:
            self.armed = True
            sys.addaudithook(self._file)

    def _file(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.done or event not in _FILES or not isinstance(arguments[0], str | os.PathLike):
            return
        if os.fspath(arguments[0]).startswith(self.fault.checkpoints):
            self.left -= 1
            if self.left < 0:
                self.happen()

    def happen(self) -> None:
        """Now, if it has not happened in this process, or often enough in others."""
        if self.done:
            return
        self.done = True
        if self._claim():
            KINDS[self.fault.kind](self)

    def _claim(self) -> bool:
        for time_of in range(self.fault.times):
            with contextlib.suppress(FileExistsError):
                os.close(os.open(Path(self.fault.folder, f"happened-{time_of}"), os.O_CREAT | os.O_EXCL))
                return True
        return False


def _signal(number: int) -> Callable[[Injector], None]:
    return lambda injector: os.kill(os.getpid(), number)


def _signal_launcher(number: int) -> Callable[[Injector], None]:
    return lambda injector: os.kill(injector.fault.launcher, number)


def _raise(injector: Injector) -> None:
    raise RuntimeError(WORDS)


def _out_of_memory(injector: Injector) -> None:
    """PyTorch's own allocator fails, since this process may have no more than it has, and then some."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + (32 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))
    torch.ones(64 << 20)


def _full_disk(injector: Injector) -> None:
    """From here on files have no room beyond so many bytes; what is larger already grows no more."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (injector.fault.amount, hard))


def _flip(injector: Injector) -> None:
    """One bit of one weight, drawn from ``amount``."""
    assert injector.trainer is not None
    weights = list(injector.trainer.model.parameters())
    number, bit = divmod(injector.fault.amount, 31)
    flat = weights[number % len(weights)].data.view(-1).view(torch.int32)
    flat[number % len(flat)] ^= 1 << bit


def _hang_up(injector: Injector) -> None:
    """Every TCP connection of this process is shut down."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket, or not connected
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                with socket.socket(fileno=os.dup(int(name))) as own:
                    if own.family in (socket.AF_INET, socket.AF_INET6) and own.getpeername():
                        own.shutdown(socket.SHUT_RDWR)


#: What can happen.
KINDS: dict[str, Callable[[Injector], Any]] = {
    "SIGKILL": _signal(signal.SIGKILL),
    "SIGSTOP": _signal(signal.SIGSTOP),
    "SIGTERM": _signal(signal.SIGTERM),
    "exception": _raise,
    "sys.exit": lambda injector: sys.exit(STATUS),
    "os._exit": lambda injector: os._exit(STATUS),
    "out of memory": _out_of_memory,
    "full disk": _full_disk,
    "slow rank": lambda injector: None,  # what it does is in the steps that follow
    "flipped bit": _flip,
    "dropped connection": _hang_up,
    "dead launcher": _signal_launcher(signal.SIGKILL),
    "Ctrl-C": _signal_launcher(signal.SIGINT),
    "SIGTERM of the launcher": _signal_launcher(signal.SIGTERM),
}
