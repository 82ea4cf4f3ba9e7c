"""A function or a script as ranks: values, output, environment, and the code that travels to them."""

from __future__ import annotations

import dataclasses
import enum
import gc
import os
import shutil
import signal
import sys
import tempfile
import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from playbook import launch
from playbook.launch import warm
from playbook.launch.cold import ColdRanks
from playbook.launch.job import Job

SCALE = 10


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 2

    def norm(self) -> int:
        return scaled(self.x + self.y)


def scaled(x: int) -> int:
    return SCALE * x


def test_values_come_back_in_rank_order(ranks):
    def work(base: int, *, step: int) -> int:
        return base + step * int(os.environ["RANK"])

    result = ranks(work, 100, step=5, ranks=3)
    assert result.values == [100, 105, 110]
    assert [r.rank for r in result] == [0, 1, 2]
    assert result[2].value == 110
    assert result[1:].values == [105, 110]


def test_tensors_arrays_and_own_classes_come_back(ranks):
    def work() -> tuple:
        rank = int(os.environ["RANK"])
        return torch.full((3,), rank, dtype=torch.bfloat16), np.arange(rank + 1), Point(rank)

    tensor, array, point = ranks(work, ranks=2)[1].value
    assert torch.equal(tensor, torch.ones(3, dtype=torch.bfloat16))
    assert array.tolist() == [0, 1]
    assert point == Point(1)
    assert isinstance(point, Point)


def test_code_travels_with_what_it_refers_to(ranks):
    """Globals, closures, recursion, methods, `super()` and a class that no rank could import."""
    offset = 7

    class Base:
        def value(self) -> int:
            return offset

    class Derived(Base):
        @property
        def twice(self) -> int:
            return 2 * super().value()

    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    assert ranks(lambda: (scaled(3), Derived().twice, factorial(5), Point(1).norm()), ranks=1).values == [
        (30, 14, 120, 30)
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    x: int
    names: list[str] = dataclasses.field(default_factory=list)
    _: dataclasses.KW_ONLY
    y: float = 2.0


@pytest.mark.parametrize("cls", [Point, Slotted])
def test_dataclasses_that_travel_stay_dataclasses(ranks, cls):
    def work(original: object) -> tuple:
        new = cls(3)
        changed = dataclasses.replace(new, x=4)
        names = [field.name for field in dataclasses.fields(cls)]
        return original, new, changed, names, dataclasses.asdict(new), cls(3) == new

    expected = (
        cls(2, y=5),
        cls(3),
        cls(4),
        [f.name for f in dataclasses.fields(cls)],
        dataclasses.asdict(cls(3)),
    )
    assert ranks(work, cls(2, y=5), ranks=1)[0].value == (*expected, True)


def test_globals_are_shared_by_the_functions_of_a_module_and_stay_in_the_rank(ranks):
    def set_scale(value: int) -> int:
        global SCALE
        SCALE = value
        return scaled(1)

    assert ranks(set_scale, 5, ranks=2).values == [5, 5]
    assert SCALE == 10


def test_every_rank_has_the_environment_of_torchrun(ranks):
    def work() -> dict[str, str]:
        return dict(os.environ)

    for rank, env in enumerate(ranks(work, ranks=3, env={"COLOUR": "blue"}).values):
        assert env["RANK"] == env["LOCAL_RANK"] == str(rank)
        assert env["WORLD_SIZE"] == env["LOCAL_WORLD_SIZE"] == "3"
        assert (env["GROUP_RANK"], env["OMP_NUM_THREADS"], env["COLOUR"]) == ("0", "1", "blue")
        assert env["MASTER_ADDR"] == "127.0.0.1"
        assert int(env["MASTER_PORT"]) > 1023


def test_threads_of_a_rank(ranks, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert ranks(torch.get_num_threads, ranks=2).values == [1, 1]
    assert ranks(torch.get_num_threads, ranks=1, env={"OMP_NUM_THREADS": "2"}).values == [2]


def test_a_rank_collects_garbage(ranks):
    """The process that it is forked from has not, while it imported."""
    assert ranks(gc.isenabled, ranks=1).values == [True]


def test_a_rank_that_trains_has_nothing_left_to_import(ranks):
    def work() -> list[str]:
        before = set(sys.modules)
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        return sorted(name for name in set(sys.modules) - before if name.startswith("torch._dynamo"))

    assert ranks(work, ranks=2).values == [[], []]


def test_init_process_group_finds_its_peers_again_and_again(ranks):
    def work() -> list[float]:
        sums = []
        for _ in range(3):
            dist.init_process_group("gloo")
            x = torch.tensor([1.0 + dist.get_rank()])
            dist.all_reduce(x)
            dist.destroy_process_group()
            sums.append(x.item())
        return sums

    assert ranks(work, ranks=3).values == [[6.0] * 3] * 3


def test_ranks_draw_different_random_numbers_as_new_processes_do(ranks):
    """Equal seeds would hide a model whose initial weights nobody has made equal."""

    def work() -> tuple[float, float, float]:
        import random

        return random.random(), float(np.random.rand()), torch.rand(1).item()

    for numbers in zip(*ranks(work, ranks=2).values, *ranks(work, ranks=2).values, strict=True):
        assert len(set(numbers)) == 4


def test_output_is_kept_by_rank_and_printed_on_request(ranks, capfd):
    def work() -> None:
        rank = os.environ["RANK"]
        print(f"hello from {rank}\nand again")
        os.system("echo from a process")

    result = ranks(work, ranks=2)
    assert capfd.readouterr().out == ""
    assert result[1].output == "hello from 1\nand again\nfrom a process\n"
    grouped = "".join(
        f"rank {r} | hello from {r}\nrank {r} | and again\nrank {r} | from a process\n" for r in range(2)
    )
    assert f"{result}\n" == grouped
    ranks(work, ranks=2, echo="grouped")
    assert capfd.readouterr().out == grouped


def test_output_streams_while_ranks_run_in_whole_lines(ranks, tmp_path, capfd):
    """Rank 0 ends only after its output has been seen outside."""
    gate = tmp_path / "seen"

    def work() -> None:
        import time

        if os.environ["RANK"] == "0":
            print("half a ", end="", flush=True)
            print("line")
            while not gate.exists():
                time.sleep(0.01)
        print("end", end="")

    class Watcher:
        def write(self, text: str) -> int:
            seen.append(text)
            if "half a line" in text:
                gate.touch()
            return len(text)

        def flush(self) -> None:
            pass

    import contextlib

    seen: list[str] = []
    with contextlib.redirect_stdout(Watcher()):  # type: ignore[type-var]
        ranks(work, ranks=2, echo="stream")
    lines = "".join(seen).splitlines()
    assert sorted(lines) == ["rank 0 | end", "rank 0 | half a line", "rank 1 | end"]
    assert lines.index("rank 0 | half a line") < lines.index("rank 0 | end")


def test_a_script_by_path_and_as_text(ranks, tmp_path):
    source = "import os, sys\nresult = (int(os.environ['RANK']), sys.argv[1:], __name__, value)\n"
    script = tmp_path / "work.py"
    script.write_text(source)
    expected = [(r, ["a", "1"], "__main__", 3) for r in range(2)]
    for what in (script, str(script), source):
        assert ranks(what, "a", 1, ranks=2, names={"value": 3}).values == expected
    assert ranks("print('no result')", ranks=1).values == [None]
    longer_than_a_file_name = "result = 1;" * 1000
    assert ranks(longer_than_a_file_name, ranks=1).values == [1]


def test_a_script_may_import_its_neighbours_and_end_with_exit(ranks, tmp_path):
    (tmp_path / "neighbour.py").write_text("VALUE = 1\n")
    script = tmp_path / "work.py"
    script.write_text(
        "import neighbour, sys, atexit\nresult = neighbour.VALUE\natexit.register(print, 'bye')\nsys.exit()\n"
    )
    (rank,) = ranks(script, ranks=1)
    assert (rank.value, rank.output) == (1, "bye\n")
    (tmp_path / "neighbour.py").write_text("VALUE = 22\n")
    assert ranks(script, ranks=1).values == [22]


def test_alone_a_script_is_a_world_of_one():
    with launch.process_group() as world:
        assert (world.rank, world.size, world.backend) == (0, 1, launch.backend(1))
    assert not dist.is_initialized()
    with pytest.raises(KeyError), launch.process_group():
        raise KeyError("a cell that fails")
    assert not dist.is_initialized()  # and the next cell may begin anew


def test_backend_needs_a_gpu_for_each_rank(monkeypatch, capfd):
    from playbook.launch import group

    monkeypatch.setattr(group, "_said", set())
    for gpus, ranks, expected in (
        (0, 4, "gloo"),
        (1, 1, "nccl"),
        (2, 4, "gloo"),
        (2, 3, "gloo"),
        (8, 8, "nccl"),
    ):
        monkeypatch.setattr(group, "gpus", lambda gpus=gpus: gpus)
        assert launch.backend(ranks) == expected
    assert capfd.readouterr().err == "4 ranks, but 2 GPUs: running on CPU with gloo\n"


def test_a_chapter_settles_on_gpus_for_all_its_runs_or_on_cpu_for_all(monkeypatch, capfd):
    from playbook.launch import group

    monkeypatch.setattr(group, "_said", set())
    monkeypatch.setattr(group, "_on_cpu", False)
    for gpus, device, backends in (
        (0, "cpu", ["gloo"] * 3),
        (2, "cpu", ["gloo"] * 3),
        (4, "cuda", ["nccl"] * 3),
    ):
        monkeypatch.setattr(group, "gpus", lambda gpus=gpus: gpus)
        assert launch.settle(4) == device
        assert [launch.backend(ranks) for ranks in (1, 2, 4)] == backends
    assert capfd.readouterr().err == "4 ranks, but 2 GPUs: running on CPU with gloo\n"


def test_ranks_of_several_nodes_here_are_given_a_gpu_each_or_none(monkeypatch, capfd):
    """Local ranks begin at 0 on every node. With one GPU for two nodes of one rank each, both would take the same."""
    from playbook.launch import group

    asked: list[Job] = []

    def cold(job: Job) -> None:
        asked.append(job)
        raise InterruptedError

    monkeypatch.setattr(group, "_said", set())
    monkeypatch.setattr(group, "gpus", lambda: 1)
    monkeypatch.setattr(sys.modules["playbook.launch.run"], "ColdRanks", cold)
    with pytest.raises(InterruptedError):
        launch.run(os.getenv, "LOCAL_RANK", ranks=2, nnodes=2)
    assert [(job.backend, job.nnodes) for job in asked] == [("gloo", 2)]
    assert capfd.readouterr().err == "2 ranks, but 1 GPU: running on CPU with gloo\n"
    with pytest.raises(
        launch.LaunchError, match="2 ranks need a GPU each and this machine has 1: make it gloo"
    ):
        launch.run(print, ranks=2, nnodes=2, backend="nccl")


@pytest.mark.parametrize(
    ("visible", "nnodes", "backend", "expected"),
    [
        (None, 2, "nccl", ["0,1", "2,3"]),
        ("4,5,6,7", 2, "nccl", ["4,5", "6,7"]),
        ("GPU-a,GPU-b,GPU-c,GPU-d,GPU-e", 4, "nccl", ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]),
        ("4,5,6,7", 1, "nccl", [None]),
        (None, 2, "gloo", [None, None]),
    ],
)
def test_nodes_share_out_the_gpus_of_this_machine(visible, nnodes, backend, expected, tmp_path):
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    cold = ColdRanks(Job(tmp_path, 4, nnodes, 60.0, backend, env, str(tmp_path), [], 1))
    assert [cold._own_gpus(node).get("CUDA_VISIBLE_DEVICES") for node in range(nnodes)] == expected


@pytest.mark.parametrize(("gpus", "expected"), [(0, "gloo"), (1, "gloo"), (2, "nccl"), (3, "nccl")])
def test_under_plain_torchrun_all_ranks_of_a_node_choose_the_same_backend(monkeypatch, gpus, expected):
    """Each process for itself: nobody tells them."""
    from playbook.launch import group

    monkeypatch.setattr(group, "gpus", lambda: gpus)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert [group._backend_of_node(local_rank) for local_rank in (0, 1)] == [expected, expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"ranks": 0}, "ranks is 0"),
        ({"timeout": 0}, "timeout is 0"),
        ({"ranks": 4, "nnodes": 3}, "must divide"),
        ({"echo": "loud"}, "echo is 'loud'"),
        ({"backend": "mpi"}, "backend is 'mpi'"),
        ({"names": {"a": 1}}, "names are variables of a script"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(arguments, message):
    with pytest.raises(launch.LaunchError, match=message):
        launch.run(print, **{"backend": "gloo", **arguments})


def test_what_cannot_be_started_is_refused(ranks):
    with pytest.raises(launch.LaunchError, match=r"no script '/nowhere.py'"):
        ranks("/nowhere.py")
    with pytest.raises(launch.LaunchError, match="no keyword arguments"):
        ranks("print(1)", colour="blue")
    with pytest.raises(launch.LaunchError, match="cannot be sent to the ranks"):
        ranks(lambda lock: None, threading.Lock())


def test_a_choice_of_ones_own_comes_back_as_itself(ranks):
    class Way(enum.Enum):
        RING, TREE = "ring", "tree"

    found = ranks(lambda ways: [*reversed(ways)], [Way.RING, Way.TREE], ranks=2).values
    assert found == [[Way.TREE, Way.RING]] * 2


def test_a_folder_that_cannot_be_written_is_named(ranks, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(launch.LaunchError, match=r"a folder for temporary files: .*No such file .*gone"):
        ranks(int)


def test_a_warm_process_of_which_nothing_was_asked_is_not_waited_for():
    """It may be importing torch, for a command that was refused meanwhile."""
    process = warm._Server()
    process.close()
    assert process.process.returncode == -signal.SIGKILL


@pytest.mark.parametrize(("name", "text"), [("WORLD_SIZE", "x"), ("LOCAL_RANK", "")])
def test_an_environment_that_torchrun_would_not_make(monkeypatch, name, text):
    for known, number in (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), (name, text)):
        monkeypatch.setenv(known, number)
    with pytest.raises(
        launch.LaunchError, match=f"{name} is '{text}', but must be a whole number where RANK"
    ):
        launch.init()


def test_ranks_launch_no_ranks_but_the_only_one_may(ranks):
    def work() -> list[int]:
        if os.environ["WORLD_SIZE"] == "1":
            warm.fork()  # which is faster than to start one
        return launch.run(lambda: 7, ranks=2, backend="gloo").values

    with pytest.raises(
        launch.RankError, match=r"LaunchError: this is rank \d of 2 already, and ranks launch no ranks"
    ):
        ranks(work, ranks=2)
    assert ranks(work, ranks=1, timeout=60).values == [[7, 7]]


def test_ranks_see_edits_of_the_library(ranks, tmp_path, monkeypatch):
    """The warm process is replaced when a source file changes; here one of a copy, because others use the library."""
    copy = tmp_path / "src" / "playbook"
    shutil.copytree(warm.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(warm, "PACKAGE", copy)

    def look() -> tuple[int, object]:
        from playbook import seeding

        return os.getppid(), vars(seeding).get("EDITED")

    monkeypatch.setattr(warm, "_server", None)  # others need that of before
    first = warm.start().process.pid
    assert warm.start().process.pid == first
    with open(copy / "seeding.py", "a") as file:
        file.write("EDITED = True\n")
    server, edited = ranks(look, ranks=1)[0].value
    warm.close()
    assert server != first
    assert edited is True
