"""``%%torchrun`` in a real Jupyter kernel: results, interrupts, and a kernel that dies."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager, start_new_kernel
from leftovers import remaining, remaining_folders, signed_in

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
HANG = "from leftovers import sign_in\nimport time\nsign_in(folder, with_child=True)\nprint('on it')\ntime.sleep(1000)"


class Notebook:
    """A kernel, and cells run in it."""

    def __init__(self, manager: KernelManager, client: Any):
        self.manager, self._client = manager, client

    def run(self, cell: str, seconds: float = 60) -> tuple[dict[str, Any], str]:
        """The kernel's reply and everything that it printed."""
        printed: list[str] = []
        reply = self._client.execute_interactive(
            cell, timeout=seconds, output_hook=lambda message: printed.append(_text(message))
        )
        return reply["content"], "".join(printed)

    def start(self, cell: str) -> None:
        """Run a cell without waiting for it."""
        self._client.execute(cell, stop_on_error=False)  # or a cell that comes too early would not be run

    def reply(self) -> dict[str, Any]:
        """The reply to the cell that was started."""
        return self._client.get_shell_msg(timeout=120)["content"]

    def evaluate(self, expression: str) -> str:
        """The value of an expression, as text."""
        reply = self._client.execute_interactive(
            "", user_expressions={"it": expression}, timeout=60, output_hook=lambda message: None
        )
        return reply["content"]["user_expressions"]["it"]["data"]["text/plain"]


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content.get("text") or content.get("data", {}).get("text/plain", "")


@pytest.fixture
def notebook(tmp_path) -> Iterator[Notebook]:
    """A kernel whose temporary files are in ``tmp_path / "temporary"``."""
    (tmp_path / "temporary").mkdir()
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TMPDIR": str(tmp_path / "temporary"),
    }
    manager, client = start_new_kernel(kernel_name="python3", env=env, startup_timeout=60)
    notebook = Notebook(manager, client)
    notebook.run("%load_ext playbook.launch")
    yield notebook
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def hanging(notebook: Notebook, folder: Path, ranks: int, flags: str = "") -> list[int]:
    """Starts a cell that does not end; its processes: ranks, and one that each has started."""
    folder.mkdir()
    flags = f"-n {ranks} --backend gloo --pass folder {flags}"
    notebook.start(f"folder = {str(folder)!r}\nget_ipython().run_cell_magic('torchrun', {flags!r}, {HANG!r})")
    limit = time.monotonic() + 300
    while len(signed_in(folder)) < 2 * ranks:
        assert time.monotonic() < limit
        time.sleep(0.02)
    return signed_in(folder)


def launchers(pids: list[int]) -> str:
    """The command lines of the parents of processes."""
    parents = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] for pid in pids]
    return " ".join(Path(f"/proc/{parent}/cmdline").read_text() for parent in parents)


@pytest.mark.slow
def test_cells_of_a_kernel_give_results_are_interrupted_and_end_with_it(notebook, tmp_path):
    cell = "import os\nresult = 10 * int(os.environ['RANK'])\nprint('rank', os.environ['RANK'])"
    reply, printed = notebook.run(f"%%torchrun -n 3 --backend gloo\n{cell}")
    assert reply["status"] == "ok"
    assert printed == "".join(f"rank {r} | rank {r}\n" for r in range(3))
    assert notebook.evaluate("ranks[2].value") == "20"
    reply, _ = notebook.run("%%torchrun -n 2 --backend gloo\nimport os\n1 / int(os.environ['RANK'])")
    assert (reply["status"], reply["ename"]) == ("error", "RankError")
    assert reply["evalue"].startswith("rank 0 failed: ZeroDivisionError: division by zero")
    assert not any("playbook/launch" in line for line in reply["traceback"])

    pids = hanging(notebook, tmp_path / "interrupted", 2)
    assert "torch.distributed.run" not in launchers(pids)
    for _ in range(3):  # impatient
        notebook.manager.interrupt_kernel()
    reply = notebook.reply()
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert remaining(pids) == []
    assert remaining_folders(tmp_path / "temporary", seconds=0) == []
    reply, printed = notebook.run("%%torchrun -n 2 --backend gloo\nprint('fine')")
    assert reply["status"] == "ok", reply
    assert printed == "rank 0 | fine\nrank 1 | fine\n"

    # Of warm ranks, which end with the process that they are forked from, it is in ``test_failures.py``, and so is what
    # cold ranks leave when they are stopped.
    notebook.run("import os\nfrom playbook.launch import warm")
    kernel, server = eval(notebook.evaluate("(os.getpid(), warm.start().process.pid)"))
    ranks = hanging(notebook, tmp_path / "killed", 1, "--cold")
    assert "torch.distributed.run" in launchers(ranks)
    pids = [server, *ranks]
    assert remaining(pids) == pids
    os.kill(kernel, signal.SIGKILL)
    assert remaining(pids, seconds=60) == []
    assert remaining_folders(tmp_path / "temporary", seconds=60) == []
