"""``%%torchrun``: a notebook's cell as ranks, in a real IPython shell."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pytest
from IPython.core.interactiveshell import InteractiveShell
from leftovers import Clock
from traitlets.config import Config

from playbook.launch import RankError, Ranks

PROMPT = {"HistoryManager": {"enabled": False}, "InteractiveShell": {"colors": "nocolor", "xmode": "Plain"}}


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    """IPython, which makes itself at home in the process: what it has replaced is put back."""
    before = sys.modules["__main__"], sys.displayhook, sys.excepthook
    shell = InteractiveShell.instance(config=Config(PROMPT))
    shell.run_line_magic("load_ext", "playbook.launch")
    yield shell
    InteractiveShell.clear_instance()
    sys.modules["__main__"], sys.displayhook, sys.excepthook = before


@pytest.fixture
def notebook(shell, capsys) -> Callable[[str], str]:
    """Runs a cell that must succeed, and returns what it printed."""

    def run(cell: str) -> str:
        shell.run_cell(cell).raise_error()
        return capsys.readouterr().out

    return run


@pytest.fixture
def failing(shell, capsys) -> Callable[[str], tuple[BaseException, str]]:
    """Runs a cell that must fail, and returns how, and what the reader sees of it."""

    def run(cell: str) -> tuple[BaseException, str]:
        error = shell.run_cell(cell).error_in_exec
        assert error is not None
        shown = capsys.readouterr()
        return error, shown.out + shown.err

    return run


SUM = """
import torch, torch.distributed as dist
from playbook import launch
with launch.process_group() as world:
    x = torch.tensor([world.rank])
    dist.all_reduce(x)
print("I am", world.rank)
print("sum", x.item())
result = x.item() * 10 + world.rank
"""


def test_output_is_in_rank_order_and_results_are_in_the_notebook(notebook):
    printed = notebook(f"%%torchrun -n 3 --backend gloo\n{SUM}")
    assert printed == "".join(f"rank {r} | I am {r}\nrank {r} | sum 3\n" for r in range(3))
    assert notebook("print(ranks[2].value, ranks.values, len(ranks))") == "32 [30, 31, 32] 3\n"
    assert notebook("print(ranks[1].output)") == "I am 1\nsum 3\n\n"


def test_four_ranks_without_a_word_and_more_than_ten_are_aligned(notebook, shell):
    assert notebook("%%torchrun --backend gloo\nresult = 1") == ""
    assert shell.user_ns["ranks"].values == [1] * 4
    lines = notebook("%%torchrun -n 11 --backend gloo\nprint(1)").splitlines()
    assert (lines[0], lines[10]) == ("rank  0 | 1", "rank 10 | 1")


def test_ranks_see_nothing_of_the_notebook_but_what_is_passed(notebook, failing, shell):
    notebook("factor, numbers = 3, [1, 2]\ndef scaled(x):\n    return factor * x")
    error, _ = failing("%%torchrun -n 2 --backend gloo\nresult = factor")
    assert "NameError: name 'factor' is not defined" in str(error)
    notebook(
        "%%torchrun -n 2 --backend gloo --pass numbers,scaled\nnumbers.append(scaled(5))\nresult = numbers"
    )
    assert shell.user_ns["ranks"].values == [[1, 2, 15]] * 2
    assert shell.user_ns["numbers"] == [1, 2]
    assert "result" not in shell.user_ns


def test_the_results_may_have_another_name(notebook, shell):
    notebook("ranks = 'mine'")
    notebook("%%torchrun -n 2 --backend gloo --name pair\nresult = 7")
    assert isinstance(shell.user_ns["pair"], Ranks)
    assert shell.user_ns["pair"].values == [7, 7]
    assert shell.user_ns["ranks"] == "mine"


def test_a_failure_shows_the_lines_of_the_cell_and_none_of_the_launcher(failing, shell):
    shell.user_ns["ranks"] = "before"
    cell = "import os\nprint('so far')\nif os.environ['RANK'] == '1':\n    1 / 0"
    error, shown = failing(f"%%torchrun -n 2 --backend gloo\n{cell}")
    assert isinstance(error, RankError)
    assert error.rank == 1
    assert "rank 1 | so far\n" in shown  # rank 0 may have been stopped before it said anything
    assert "RankError: rank 1 failed: ZeroDivisionError: division by zero" in shown
    assert re.search(r'script.py", line 5, in <module>\n    1 / 0\n', shown)  # the magic's line is the first
    assert "playbook/launch" not in shown
    assert shell.user_ns["ranks"] == "before"


def test_a_cell_that_does_not_end_is_stopped(failing, shell, tmp_path, monkeypatch):
    monkeypatch.setattr("playbook.launch.watch.time", Clock(tmp_path, 2))
    shell.user_ns["folder"] = str(tmp_path)
    cell = "import time\nfrom leftovers import arrive\narrive(folder)\ntime.sleep(1000)"
    error, _ = failing(f"%%torchrun -n 2 --backend gloo --timeout 99.5 --pass folder\n{cell}")
    assert str(error).startswith("not finished after 99.5 s: rank 0 is at line 5 of script.py, `time.sleep(")


def test_output_streams_while_the_cell_runs(shell, tmp_path, monkeypatch):
    """The rank ends only after its first line has been seen outside."""
    shell.user_ns["gate"] = tmp_path / "seen"
    seen = []

    class Screen:
        def write(self, text: str) -> int:
            seen.append(text)
            if "first" in text:
                shell.user_ns["gate"].touch()
            return len(text)

        def flush(self) -> None:
            pass

    monkeypatch.setattr(sys, "stdout", Screen())
    cell = "import time\nprint('first')\nwhile not gate.exists():\n    time.sleep(0.01)\nprint('last')"
    shell.run_cell(f"%%torchrun -n 1 --backend gloo --stream --timeout 120 --pass gate\n{cell}").raise_error()
    assert "".join(seen) == "rank 0 | first\nrank 0 | last\n"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("-n four", "argument -n: invalid int value: 'four'"),
        ("-n 0", "ranks is 0, but must be at least 1"),
        ("-n 4 --nnodes 3", "nnodes is 3, but must divide the number of ranks, 4"),
        ("--timeout 0", "timeout is 0.0, but must be a positive number of seconds"),
        ("--timeout soon", "argument --timeout: invalid float value: 'soon'"),
        ("--backend mpi", "argument --backend: invalid choice: 'mpi' (choose from"),
        ("--colour blue", "unrecognized arguments: --colour blue"),
        ("--pass nowhere", "--pass names 'nowhere', which the notebook does not have"),
        ("--pass lock", "variable 'lock' cannot be sent to the ranks: cannot pickle '_thread.lock' object"),
        ("--name 2x", "--name is '2x', but must be the name of a variable"),
        ("-n 'x", "No closing quotation"),
    ],
)
def test_a_bad_line_is_answered_in_one_sentence(failing, notebook, tmp_path, line, sentence):
    notebook("import threading\nlock = threading.Lock()")
    error, shown = failing(f"%%torchrun {line}\nopen({str(tmp_path / 'ran')!r}, 'w')")
    assert type(error).__name__ == "UsageError"
    assert shown.startswith(f"UsageError: %%torchrun: {sentence}")
    assert shown.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_help_names_every_flag(shell):
    text = shell.find_line_magic("torchrun") or shell.find_cell_magic("torchrun").__doc__
    for flag in ("-n", "--nnodes", "--timeout", "--cold", "--backend", "--stream", "--name", "--pass"):
        assert flag in text
