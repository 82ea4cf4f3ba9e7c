"""Ranks that raise, die, hang or are interrupted: who and why is said, and nothing is left."""

from __future__ import annotations

import atexit
import linecache
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from leftovers import Clock, arrive, remaining, remaining_folders, sign_in, signed_in

from playbook import launch, parallel
from playbook._interrupt import deferred
from playbook.launch import diagnosis, warm
from playbook.launch.cold import read_report
from playbook.launch.diagnosis import Evidence, explain
from playbook.launch.job import Job

#: Seconds that those who wait for a rank that is gone would wait, if nobody told them.
LONG = 600


@pytest.fixture
def time_is_up(monkeypatch, tmp_path) -> Callable[..., None]:
    """``time_is_up(3)``: for the next launch, once three ranks have arrived in ``tmp_path`` and do no more."""
    return lambda count, **more: monkeypatch.setattr(
        "playbook.launch.watch.time", Clock(tmp_path, count, **more)
    )


@pytest.fixture
def failing(ranks, tmp_path) -> Callable[..., launch.RankError]:
    """Runs a function that calls ``arrive()`` first, and returns how it failed; checks that no process is left."""

    def run(work: Callable[[int], object], count: int = 4, **settings) -> launch.RankError:
        def rank_work() -> object:
            sign_in(tmp_path, with_child=True)
            with launch.process_group() as world:
                dist.barrier()
                arrive(tmp_path)
                return work(world.rank)

        began = time.monotonic()
        with pytest.raises(launch.RankError) as caught:
            ranks(rank_work, ranks=count, timeout=LONG, **settings)
        assert time.monotonic() - began < LONG / 2  # nobody sat it out
        assert len(signed_in(tmp_path)) == 2 * count
        assert remaining(signed_in(tmp_path)) == []
        return caught.value

    return run


def all_reduce() -> None:
    dist.all_reduce(torch.ones(1))


def raises(rank: int) -> None:
    print(f"rank {rank} was here")
    if rank == 1:
        raise ValueError("bad shape")
    all_reduce()


def killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    all_reduce()


def absent(rank: int) -> None:
    if rank == 3:
        time.sleep(1000)
    all_reduce()


@pytest.mark.parametrize("cold", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_rank_that_failed_first_is_named_not_those_that_missed_it(failing, cold):
    error = failing(raises, 2 if cold else 4, cold=cold)
    sentence, _, traceback = str(error).partition("\n\n")
    assert sentence == "rank 1 failed: ValueError: bad shape"
    assert error.rank == 1
    assert 'raise ValueError("bad shape")' in traceback
    line = raises.__code__.co_firstlineno + 3
    assert f'test_failures.py", line {line}, in raises' in traceback
    assert "/playbook/launch/worker.py" not in traceback
    assert error.ranks[1].output == "rank 1 was here\n"


@pytest.mark.parametrize(
    ("count", "nnodes"), [(4, 1), pytest.param(2, 2, marks=pytest.mark.slow)], ids=["warm", "a node each"]
)
def test_a_killed_rank_is_named_with_its_signal(failing, count, nnodes):
    """Also when its node is not the first."""
    assert str(failing(killed, count, nnodes=nnodes)) == "rank 1 was killed by SIGKILL"


@pytest.mark.slow
def test_a_rank_that_leaves_torchrun_without_a_word_is_named_and_torchrun_leaves_nothing(
    ranks, time_is_up, tmp_path
):
    (tmp_path / "left").mkdir()

    def work() -> None:
        if os.environ["RANK"] == "1":
            sign_in(tmp_path / "left")
            os._exit(0)
        sign_in(tmp_path, with_child=True)
        while not (ended := signed_in(tmp_path / "left")) or Path(f"/proc/{ended[0]}").exists():
            time.sleep(0.01)
        arrive(tmp_path)
        time.sleep(1000)

    time_is_up(1)
    with pytest.raises(
        launch.RankError,
        match=r"rank 0 is at line .+ and rank 1 has ended without a result",
    ):
        ranks(work, ranks=2, cold=True, timeout=LONG, env={"TMPDIR": str(tmp_path)})
    assert len(signed_in(tmp_path)) == 2
    assert remaining(signed_in(tmp_path)) == []
    assert list(tmp_path.glob("torchelastic*")) == []


TORCHRUN_REPORT = """
E1121 07:54:04.375000 17399 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -6) local_rank: 0 (pid: 17410) of binary: python
Failures:
[1]:
  time      : 2026-11-21_07:54:04
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 17411)  (SIGKILL)
[2]:
  time      : 2026-11-21_07:54:04
  rank      : 12 (local_rank: 2)
  exitcode  : -15 (pid: 17412)  (SIGTERM)
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_07:54:04
  rank      : 0 (local_rank: 0)
  exitcode  : {cause} (pid: 17410)
"""  # noqa: E501 (as torch 2.13 writes it)


def test_the_report_of_torchrun_is_read_with_its_cause_first_and_without_those_that_it_ended():
    assert list(read_report(TORCHRUN_REPORT.format(cause=-6)).items()) == [(0, -6), (1, -9)]
    assert read_report(TORCHRUN_REPORT.format(cause=-15)) == {0: -15, 1: -9}
    assert read_report("no report") == {}


def test_the_axis_of_a_collective_is_that_of_the_file_that_calls_it():
    """As Python writes the stack of a rank of a pipeline that waits in a tensor-parallel region."""
    library = Path(parallel.__file__).parent
    stack = (
        'File "/x/torch/distributed/distributed_c10d.py", line 3252 in all_reduce\n'
        f'File "{library}/mesh.py", line 1 in all_gather\n'
        f'File "{library}/regions.py", line 65 in forward\n'
        f'File "{library}/pipeline.py", line 9 in forward\n'
    )
    assert all((library / f"{file}.py").exists() for files in diagnosis._AXES.values() for file in files)
    place = diagnosis.locate(stack)
    assert place is not None
    assert place.call == "all_reduce along tp"
    mine = diagnosis.locate(
        'File "/x/torch/distributed/c.py", line 2 in barrier\nFile "/home/me.py", line 1 in f\n'
    )
    assert mine is not None
    assert mine.call == "barrier"


def test_code_of_a_notebook_is_a_cell_and_not_the_file_of_its_kernel(monkeypatch):
    source = "import time\ntime.sleep(9)\n"
    for file, said in (("/tmp/ipykernel_12/2018642642.py", "a cell"), ("/home/me/train.py", "train.py")):
        lines = source.splitlines(keepends=True)
        monkeypatch.setitem(linecache.cache, file, (len(source), None, lines, file))
        place = diagnosis.locate(f'File "{file}", line 2 in f\n')
        assert place is not None
        assert place.text == f"line 2 of {said}, `time.sleep(9)`"


def test_what_the_watchdog_of_nccl_says_is_said_in_words():
    """As of torch 2.7, but for the name of the group, which `Mesh` gives."""
    said = (
        "terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "  what():  [PG ID 2 PG GUID 7(dp,cp) Rank 3] Process group watchdog thread terminated with exception: [Rank 3] "
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=60000) ran for 60090 milliseconds before timing out.\n"
        "Exception raised from checkTimeout at ProcessGroupNCCL.cpp:632 (most recent call first):\n"
    )
    words = ": it was in ALLREDUCE along dp,cp for 60.09 s, for which another rank did not arrive"
    assert diagnosis._reason(said) == words
    assert diagnosis._reason(said.replace("dp,cp", "default_pg")) == words.replace(" along dp,cp", "")


def test_a_rank_that_never_arrives_is_named_with_its_line(failing, time_is_up):
    time_is_up(4)
    error = failing(absent)
    assert error.sentence.startswith(
        "not finished after 600 s: rank 3 did not arrive at all_reduce, where ranks 0, 1 and 2 wait: rank 3 is at line "
    )
    assert error.sentence.endswith("of test_failures.py, `time.sleep(1000)`")
    assert "rank 3 was here" in error.traceback


def test_a_rank_that_ended_before_the_collective_is_named(ranks, time_is_up, tmp_path):
    def work() -> None:
        dist.init_process_group("gloo")
        dist.barrier()
        if dist.get_rank() == 0:
            return
        arrive(tmp_path)
        dist.recv(torch.ones(1), src=(dist.get_rank() + 1) % 3 or 1)

    time_is_up(2)
    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=3, timeout=LONG)
    assert "rank 0 did not arrive at recv, where ranks 1 and 2 wait: it has ended" in str(caught.value)


def test_a_collective_that_times_out_by_itself_says_who_was_missing(ranks):
    def work() -> None:
        with launch.process_group() as world:
            dist.barrier()
            dist.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5))
            if world.rank == 1:
                time.sleep(1000)
            dist.barrier()

    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=3, timeout=LONG)
    assert re.match(
        r"rank 1 did not arrive at barrier, where ranks? .+ waits?: rank 1 is at line \d+ of test_failures.py, "
        r"`time.sleep\(1000\)`; rank [02] waited in vain: RuntimeError: .*Timed out",
        str(caught.value),
    )


def test_a_group_that_is_made_later_gives_up_as_soon_as_the_first(ranks):
    """PyTorch's default is half an hour, whatever the first one was made with."""

    def work() -> list[timedelta]:
        with launch.process_group(timeout=77):
            groups = dist.group.WORLD, dist.new_group([0, 1])
            return [group._get_backend(torch.device("cpu")).options._timeout for group in groups]

    assert ranks(work, ranks=2).values == [[timedelta(seconds=77)] * 2] * 2


def test_a_rank_that_returned_without_a_word_is_named_not_those_whose_connections_it_closed(ranks):
    def work() -> None:
        dist.init_process_group("gloo")
        dist.barrier()  # all are connected: the first whose connections are closed waits in all_reduce
        if dist.get_rank() != 2:
            all_reduce()

    with pytest.raises(
        launch.RankError,
        match=r"rank 2 did not arrive at all_reduce, where rank [01] waits: it has ended; rank",
    ):
        ranks(work, ranks=3, timeout=LONG)


def test_a_time_out_of_the_users_own_is_no_collective_that_hangs(ranks):
    def work() -> None:
        with launch.process_group() as world:
            if world.rank == 1:
                raise TimeoutError("GET playbook timed out")
            all_reduce()

    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=3, timeout=LONG)
    assert caught.value.sentence == "rank 1 failed: TimeoutError: GET playbook timed out"


def test_a_stopped_rank_is_named(ranks, time_is_up, tmp_path):
    def work() -> None:
        with launch.process_group() as world:
            dist.barrier()
            arrive(tmp_path)
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            all_reduce()

    time_is_up(3)
    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=3, timeout=LONG)
    assert caught.value.sentence == (
        "not finished after 600 s: rank 1 did not arrive at all_reduce, where ranks 0 and 2 wait: rank 1 did not say "
        "where it is: it is stopped, or blocks signals"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads of a process cannot be told apart")
def test_a_rank_is_asked_in_the_thread_that_runs_python(ranks, time_is_up, tmp_path):
    """Any other may get a signal for the process: threads of C++ do while they are made, and have nothing to say."""

    def work() -> None:
        with launch.process_group():
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
            arrive(tmp_path)
            while signal.SIGUSR1 not in signal.sigpending():
                time.sleep(0.01)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
            time.sleep(1000)

    time_is_up(2, sleep=False)
    with pytest.raises(launch.RankError, match=r"rank 0 is at line .+ and rank 1 is at line"):
        ranks(work, ranks=2, timeout=LONG)


def in_an_exit_handler(folder: Path) -> None:
    atexit.register(time.sleep, 1000)
    atexit.register(arrive, folder)  # the last one is called first


def in_a_thread(folder: Path) -> None:
    threading.Thread(target=time.sleep, args=(1000,)).start()
    arrive(folder)


@pytest.mark.parametrize("work", [in_an_exit_handler, in_a_thread])
def test_a_rank_that_has_returned_but_does_not_end(ranks, time_is_up, tmp_path, work):
    time_is_up(1)
    with pytest.raises(launch.RankError) as caught:
        ranks(work, tmp_path, ranks=1, timeout=LONG)
    assert caught.value.sentence == (
        "not finished after 600 s: rank 0 has returned but does not end: an exit handler or a thread goes on"
    )


def test_a_warm_process_that_tells_of_no_end(tmp_path):
    job = Job(tmp_path, 2, 1, 3, "gloo", {}, str(tmp_path), [], 0)
    for rank in range(2):
        job.save_pid(rank)
        job.save_value(rank, 1)
    assert explain(job, Evidence({}, {}, {}, set(), 3)).sentence == (
        "not finished after 3 s: all ranks have returned, but the process that started them does not say that they ended"
    )


FRAMES = """Traceback (most recent call last):
  File "/home/me/train.py", line 9, in work
    dist.all_reduce(loss)
  File "/lib/torch/distributed/distributed_c10d.py", line 3252, in all_reduce
"""
STACK = """Current thread (most recent call first):
  File "/lib/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 9 in work
"""


@pytest.mark.parametrize("late", [True, False])
def test_a_connection_that_is_closed_by_who_waited_too_long_is_not_the_cause(tmp_path, late):
    """Rank 1 is stopped; rank 0 has waited too long, which rank 2 has noticed first: rank 0 may not have said so yet."""
    job = Job(tmp_path, 3, 1, 3, "gloo", {}, str(tmp_path), [], 0)
    for rank in range(3):
        job.save_pid(rank)
    hung_up = {"summary": "RuntimeError: Connection closed by peer [127.0.0.1]:32401", "traceback": FRAMES}
    waited = {"summary": "RuntimeError: Timed out waiting 6000ms for recv operation", "traceback": FRAMES}
    errors = {2: hung_up} if late else {2: hung_up, 0: waited}
    said = explain(job, Evidence(errors, {}, {0: STACK} if late else {}, set(), 0)).sentence
    assert said.startswith(
        "rank 1 did not arrive at all_reduce, where ranks 0 and 2 wait: rank 1 did not say where it is: it is stopped"
    )
    assert f"rank {2 if late else 0} waited in vain" in said


def test_sizes_that_ranks_do_not_agree_on(ranks):
    def work() -> None:
        with launch.process_group() as world:
            dist.broadcast(torch.ones(10, dtype=torch.float32 if world.rank else torch.float64), 0)

    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=2)
    assert caught.value.sentence == (
        "rank 1 was killed by SIGABRT: a message of 80 bytes came where it waited for 40: ranks sent tensors of "
        "different shapes or dtypes, or called different collectives"
    )
    assert "in broadcast" in caught.value.traceback


def test_ranks_that_wait_for_each_other_in_different_calls(ranks, time_is_up, tmp_path):
    def work() -> None:
        with launch.process_group() as world:
            dist.barrier()
            arrive(tmp_path)
            if world.rank == 0:
                dist.recv(torch.ones(1), src=1)
            else:
                dist.recv(torch.ones(1), src=0)

    time_is_up(2)
    with pytest.raises(
        launch.RankError, match=r"all wait: rank 0 in recv at line .+, rank 1 in recv at line"
    ):
        ranks(work, ranks=2, timeout=LONG)


def test_a_rank_that_does_not_join_the_process_group(ranks, time_is_up, tmp_path):
    def work() -> None:
        arrive(tmp_path)
        if os.environ["RANK"] == "0":
            time.sleep(1000)
        dist.init_process_group("gloo")

    time_is_up(3)
    with pytest.raises(
        launch.RankError, match="rank 0 did not arrive at init_process_group, where ranks 1 and 2 wait"
    ):
        ranks(work, ranks=3, timeout=LONG)


def test_one_rank_that_is_busy_for_ever(ranks, time_is_up, tmp_path):
    def work() -> None:
        arrive(tmp_path)
        while True:
            pass

    time_is_up(1, sleep=False)
    with pytest.raises(
        launch.RankError, match=r"not finished after 600 s: rank 0 is at line .+ of test_failures.py"
    ):
        ranks(work, ranks=1, timeout=LONG)


@pytest.mark.parametrize(
    ("work", "sentence"),
    [
        (lambda: os._exit(3), "rank 0 ended with status 3 and without a result"),
        (lambda: os._exit(0), "rank 0 ended with status 0 and without a result"),
        (lambda: os.kill(os.getpid(), 35), "rank 0 was killed by signal 35"),  # no name in Python
        (lambda: sys.exit("no data"), "rank 0 failed: SystemExit: no data"),
        (lambda: threading.Lock(), "rank 0 failed: TypeError: cannot pickle '_thread.lock' object"),
    ],
)
def test_other_ways_to_end_without_a_result(ranks, work, sentence):
    with pytest.raises(launch.RankError, match=re.escape(sentence)):
        ranks(work, ranks=1)


class Unreadable:
    def __getstate__(self) -> dict[str, int]:
        return {"size": 1}

    def __setstate__(self, state: dict[str, int]) -> None:
        raise RuntimeError("no such version")


def test_a_value_that_cannot_be_read_names_its_rank(ranks):
    def work() -> object:
        print("done")
        return Unreadable() if os.environ["RANK"] == "1" else 7

    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=2)
    error = caught.value
    assert error.sentence == "rank 1 failed: what it returned cannot be read: RuntimeError: no such version"
    assert [(rank.value, rank.output) for rank in error.ranks] == [(7, "done\n"), (None, "done\n")]


def test_a_rank_that_cannot_write_down_how_it_failed(ranks):
    def work(limit: str) -> None:
        resource.setrlimit(getattr(resource, limit), (3, 3))
        raise ValueError("bad shape")

    for limit in ("RLIMIT_FSIZE", "RLIMIT_NOFILE"):
        with pytest.raises(launch.RankError) as caught:
            ranks(work, limit, ranks=1)
        assert caught.value.sentence == (
            "rank 0 failed and could not write down why: the disk is full, or it may write no files"
        )
    assert "ValueError: bad shape" in caught.value.traceback  # printed, into a file that was open


def test_a_crash_in_c_shows_where_python_was(ranks):
    def work() -> None:
        import ctypes

        ctypes.string_at(0)

    with pytest.raises(launch.RankError) as caught:
        ranks(work, ranks=1)
    assert caught.value.sentence == "rank 0 was killed by SIGSEGV"
    assert "in work" in caught.value.traceback


def test_a_syntax_error_of_a_script_has_its_line(ranks):
    with pytest.raises(launch.RankError, match=r"rank \d failed: SyntaxError: .*") as caught:
        ranks("x = 1\nprint(x\n", ranks=2)
    assert 'script.py", line 2' in str(caught.value)


def test_an_interrupted_call_leaves_nothing_and_the_next_one_works(ranks, tmp_path, handle_interrupts):
    def hang() -> None:
        sign_in(tmp_path, with_child=True)
        time.sleep(1000)

    def interrupt() -> None:
        while len(signed_in(tmp_path)) < 4:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Thread(target=interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        ranks(hang, ranks=2)
    timer.join()
    assert remaining(signed_in(tmp_path)) == []
    assert ranks(lambda: os.environ["RANK"], ranks=2).values == ["0", "1"]


def test_interrupts_are_obeyed_once_and_at_the_end(handle_interrupts):
    steps = []

    def work() -> None:
        with deferred() as interrupted:
            steps.append(interrupted())
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
            steps.append(interrupted())

    with pytest.raises(KeyboardInterrupt):
        work()
    assert steps == [False, True]
    handle_interrupts(lambda *_: steps.append("handler"))
    work()
    assert steps == [False, True, False, True, "handler"]


def test_who_is_interrupted_ends_even_if_the_handler_says_nothing(handle_interrupts):
    handle_interrupts(lambda *_: None)

    def work() -> None:
        with deferred() as interrupted:
            os.kill(os.getpid(), signal.SIGINT)
            while not interrupted():
                time.sleep(0.001)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()


PARENT = """
import sys, time
from leftovers import sign_in
from playbook import launch
from playbook.launch import warm

def hang():
    sign_in(FOLDER, with_child=True)
    time.sleep(1000)

FOLDER = sys.argv[1]
launch.run(lambda: None, ranks=1, backend="gloo")
print(warm._server.process.pid, flush=True)
launch.run(hang, ranks=2, backend="gloo")
"""


def test_a_parent_that_dies_takes_everything_along(tmp_path):
    """The same of a notebook's kernel and cold ranks is in ``test_kernel.py``."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    while len(signed_in(tmp_path)) < 4 and parent.poll() is None:
        time.sleep(0.02)
    pids = [*signed_in(tmp_path), server]
    assert len(pids) == 5
    assert remaining(pids) == pids
    parent.kill()
    parent.wait(60)
    assert remaining(pids, seconds=60) == []
    assert remaining_folders(tmp_path, seconds=60) == []


IMPORTS = """
import time
from playbook.launch import warm
print(warm.start().process.pid, flush=True)
time.sleep(1000)
"""


def test_a_parent_that_dies_while_its_warm_process_imports_torch():
    parent = subprocess.Popen([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    parent.kill()
    parent.wait(60)
    assert remaining([server], seconds=60) == []


def test_a_warm_process_that_dies_with_a_request_unread(tmp_path, monkeypatch):
    server = warm._Server(forked=True)
    monkeypatch.setattr(warm, "_server", server)
    waiting = warm.WarmRanks(Job(tmp_path, 1, 1, LONG, "gloo", {}, str(tmp_path), [], 0))
    os.kill(server.process.pid, signal.SIGSTOP)
    waiting.start()
    server.process.kill()
    with pytest.raises(launch.LaunchError, match=r"the warm process died.*: start them again"):
        waiting.wait(60)
    assert warm._server is None


def test_ranks_die_with_the_warm_process_and_the_next_call_has_a_new_one(ranks, tmp_path):
    def hang() -> None:
        sign_in(tmp_path)
        if os.environ["RANK"] == "0":
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(1000)

    with pytest.raises(launch.LaunchError, match="the warm process died"):
        ranks(hang, ranks=2)
    assert remaining(signed_in(tmp_path), seconds=60) == []
    assert ranks(lambda: 1, ranks=2).values == [1, 1]
