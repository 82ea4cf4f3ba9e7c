"""One script, started in every way there is: the same output. And warm launches, one after another."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from playbook.launch import warm

# Trains a line through points, data-parallel, and prints what a script may depend on.
SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from playbook import launch
from helper import SLOPE

with launch.process_group() as world:
    print(sys.argv[1:], __name__, os.path.basename(__file__), os.path.basename(os.getcwd()))
    print([os.environ[n] for n in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK")])
    print(world.backend, world.device, torch.get_num_threads())
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 1)
    for step in range(5):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * step + world.rank))
        loss = (model(x) - SLOPE * x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.data -= 0.1 * p.grad / world.size
        model.zero_grad()
        print(step, loss.item())
    os.system("echo from a process of its own")
result = [p.tolist() for p in model.parameters()]
print(result)
"""


@pytest.fixture
def script(tmp_path, monkeypatch) -> Path:
    """The script, in a working directory of its own, beside a module that it imports."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "helper.py").write_text("SLOPE = 2.5\n")
    path = tmp_path / "work.py"
    path.write_text(SCRIPT)
    return path


ARGUMENTS = ["--steps", "5", 'a "quoted" word']


@pytest.fixture
def printed(ranks, script) -> list[str]:
    """What each of two warm ranks prints, and has as its result."""
    warm_ranks = ranks(script, *ARGUMENTS, ranks=2)
    for r in range(2):
        assert f"\n['{r}', '{r}', '2', '2', '0']\ngloo cpu 1\n" in warm_ranks[r].output
        assert warm_ranks[r].output.count("\n") == 10
        assert warm_ranks[r].output.endswith(f"\n{warm_ranks[0].value}\n")
    assert warm_ranks.values == [warm_ranks[0].value] * 2
    return [rank.output for rank in warm_ranks]


def test_where_ranks_meet_can_be_asked_for(ranks):
    """As PyTorch's own ways can, without a time-out."""

    def work() -> bytes:
        store, rank, size = next(dist.rendezvous("env://"))
        store.set(f"from {rank}", f"{rank} of {size}")
        return store.get(f"from {1 - rank}")

    assert ranks(work, ranks=2).values == [b"1 of 2", b"0 of 2"]


TAKEN = """\
import os, socket
if os.environ["RANK"] == "0":
    taken = socket.create_server(("", int(os.environ["MASTER_PORT"])))
"""


@pytest.mark.slow
def test_cold_ranks_on_a_node_each_print_the_same(ranks, script, printed):
    """But for where they are; torchrun with both ranks on one node is below, as cold ranks in ``test_kernel.py``.

    Somebody else has the port that torchrun has found free.
    """
    script.write_text(TAKEN + script.read_text())
    cold_ranks = ranks(script, *ARGUMENTS, ranks=2, nnodes=2)
    for r, rank in enumerate(cold_ranks):
        assert rank.output == printed[r].replace(
            f"['{r}', '{r}', '2', '2', '0']", f"['{r}', '0', '2', '1', '{r}']"
        )
        assert printed[0].endswith(f"\n{rank.value}\n")


@pytest.mark.slow
def test_torchrun_in_a_shell_prints_the_same(script, printed, tmp_path):
    torchrun = shutil.which("torchrun", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert torchrun is not None
    flags = ["--standalone", "--nproc-per-node=2", "--redirects=1", "--log-dir=logs"]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": warm.python_path()}
    subprocess.run([torchrun, *flags, script, *ARGUMENTS], check=True, timeout=600, env=environment)
    (logs,) = (tmp_path / "logs").glob("*/attempt_0")
    assert [(logs / str(r) / "stdout.log").read_text() for r in range(2)] == printed


def _open_files_and_children(pid: int) -> tuple[int, str]:
    process = Path(f"/proc/{pid}")
    return len(list((process / "fd").iterdir())), (process / f"task/{pid}/children").read_text()


def test_warm_launches_in_a_row(ranks, record_property, tmp_path, monkeypatch):
    """None hangs, none leaves a process, a file or an open descriptor; how long one takes is printed."""

    def work() -> int:
        dist.init_process_group("gloo")
        x = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(x)
        return x.item()

    ranks(work, ranks=1)  # a new warm process imports PyTorch's compiler, which makes a folder for its cache
    sources = warm.start().sources
    monkeypatch.setattr(warm, "fingerprint", lambda: sources)  # somebody may be editing the library
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    server = warm.start().process.pid
    before = _open_files_and_children(server)
    seconds: dict[int, list[float]] = {n: [] for n in (2, 5)}
    for n in [*seconds] * 2:
        began = time.monotonic()
        assert ranks(work, ranks=n).values == [n * (n + 1) // 2] * n
        seconds[n].append(time.monotonic() - began)
    assert warm.start().process.pid == server
    assert _open_files_and_children(server) == before
    assert list(tmp_path.iterdir()) == []
    medians = {n: statistics.median(times) for n, times in seconds.items()}
    said = ", ".join(f"{n} ranks {t:.2f} s" for n, t in medians.items())
    record_property("measured", f"median of warm launches: {said}")
