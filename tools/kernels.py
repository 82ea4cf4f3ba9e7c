"""Run a chapter in a kernel that has imported torch already: forked, as ranks are, from a process that did it once.

Python's own fork server imports this module, and forks ``run``; that forks a kernel, and this first the warm process of
its ranks. Each has one thread when it is forked. On systems other than Linux kernels start in the usual way.

A cell with the tag ``timed`` runs while no other does: its figure is of times, which a neighbour on the same cores
would change.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import nbformat

try:
    import fcntl
except ImportError:  # Windows: nobody waits
    fcntl = None  # type: ignore[assignment]

CELL_TIMEOUT = 240  # seconds
TIMED = "timed"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
TOOLS = str(Path(__file__).parent)


def context() -> Any:
    """Where ``Process(target=run, …)`` starts quickly: a fork server, which begins to import now."""
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(["kernels_warm", "kernels", "render"])
    before = dict(os.environ)
    # Until Python 3.13 the server does not take sys.path over.
    os.environ["PYTHONPATH"] = f"{TOOLS}{os.pathsep}{before.get('PYTHONPATH', '')}"
    # Kernels that are killed leave tqdm's semaphores to Python's tracker, which would say so in the end.
    os.environ["PYTHONWARNINGS"] = "ignore::UserWarning:multiprocessing.resource_tracker"
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return server


class Turn:
    """Leave of all that compute to do so: beside each other, or alone."""

    def __init__(self, folder: Path):
        self.door, self.room = [(folder / name).open("a") for name in ("door.lock", "room.lock")]
        self.waited = 0.0  # seconds

    def take(self, alone: bool = False) -> None:
        """Wait for one's turn, and give the last one back; who wants to be alone waits for all who came before."""
        if fcntl is None:
            return
        start = time.monotonic()
        fcntl.flock(self.room, fcntl.LOCK_UN)
        fcntl.flock(self.door, fcntl.LOCK_EX)  # nobody passes one who waits at the door
        fcntl.flock(self.room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(self.door, fcntl.LOCK_UN)
        self.waited += time.monotonic() - start


def run(path: Path, log: Path, threads: int, parent: Connection) -> None:
    """Execute the notebook at ``path`` in its folder; torch computes on so many ``threads``.

    ``parent`` is sent ``("cell", n)`` before the n-th code cell of all runs, and in the end ``("done", notebook as JSON,
    seconds, traceback of a cell that failed or None)``. What kernels print goes to ``log``, beside which are the locks
    of turns.
    """
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.setsid()  # Ctrl-C is for the build, which then terminates this
    with tempfile.TemporaryDirectory(prefix="playbook-kernel-", ignore_cleanup_errors=True) as folder:
        execute(path, log, threads, parent, folder)


def execute(path: Path, log: Path, threads: int, parent: Connection, folder: str) -> None:
    """``run``, in a kernel whose sockets are in ``folder``."""
    from nbclient import NotebookClient
    from nbclient.exceptions import CellControlSignal, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    number = {id(cell): n for n, cell in enumerate(code, 1)}
    os.chdir(path.parent)
    start, trace = time.monotonic(), None
    manager = forked_kernel(threads, folder) if sys.platform == "linux" else None

    def leave(*what: Any) -> None:
        """Without waiting for a kernel in the middle of a cell to shut itself down."""
        if manager:
            os.killpg(manager.provisioner.process.pid, signal.SIGKILL)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, leave)
    turn = Turn(log.parent)  # after the kernel: locks belong to files, and forks share them

    def begin(cell: nbformat.NotebookNode, cell_index: int) -> None:
        parent.send(("cell", number[id(cell)]))
        turn.take(alone=TIMED in cell.metadata.get("tags", ()))

    client = NotebookClient(
        notebook,
        km=manager,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,  # jupyter-cache knows a notebook by its cells and all that they carry
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_execute=begin,
    )
    try:
        client.execute()
    except (
        CellControlSignal,
        DeadKernelError,
    ) as error:  # a cell failed, took too long, or killed its kernel
        trace = COLOURS.sub("", str(error))
    parent.send(("done", nbformat.writes(notebook), time.monotonic() - start - turn.waited, trace))


def forked_kernel(threads: int, folder: str) -> Any:
    """A kernel manager whose kernel is a fork of this process; its sockets are in ``folder``."""
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_client.provisioning import KernelProvisionerBase

    from playbook.launch import warm

    class Provisioner(KernelProvisionerBase):  # type: ignore[misc]
        """What a manager asks of the process behind it."""

        process: warm.Fork | None = None

        @property
        def has_process(self) -> bool:
            return self.process is not None

        async def poll(self) -> int | None:
            return self.process.poll()

        async def wait(self) -> int | None:
            while (status := self.process.poll()) is None:
                await asyncio.sleep(0.05)
            return status

        async def send_signal(self, signum: int) -> None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signum)

        async def kill(self, restart: bool = False) -> None:
            await self.send_signal(signal.SIGKILL)

        async def terminate(self, restart: bool = False) -> None:
            await self.send_signal(signal.SIGTERM)

        async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
            raise NotImplementedError("the kernel runs")

        async def cleanup(self, restart: bool = False) -> None:
            """Nothing is left."""

    manager = AsyncKernelManager(kernel_name="python3", connection_file=f"{folder}/kernel.json")
    manager.transport, manager.ip = "ipc", f"{folder}/socket"  # two kernels may find the same port free
    manager.write_connection_file()
    builder = os.getpid()
    process = warm.Fork(lambda: be_kernel(manager.connection_file, builder, threads))
    manager.provisioner = Provisioner(kernel_id="forked", kernel_spec=manager.kernel_spec, parent=manager)
    manager.provisioner.process = process
    return manager


def be_kernel(connection_file: str, builder: int, threads: int) -> None:
    """In the fork: be a kernel such as ``python -m ipykernel_launcher`` would be."""
    from ipykernel.kernelapp import IPKernelApp

    from playbook.launch import warm
    from playbook.launch.processes import die_with_parent

    os.setsid()
    die_with_parent(builder)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.path[:] = [path for path in sys.path if path != TOOLS]
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].set_num_threads(threads)
    warm.fork()
    sys.argv[:] = ["ipykernel_launcher.py", "-f", connection_file, "--HistoryManager.hist_file=:memory:"]
    try:
        IPKernelApp.launch_instance(sys.argv[1:])
    finally:
        atexit._run_exitfuncs()  # a fork ends without them
