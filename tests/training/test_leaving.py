"""A run that is asked to leave saves where it is, and another goes on as if nothing had happened, also on more ranks."""

from __future__ import annotations

import json
import os
import shlex
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from playbook.cli import main
from playbook.commands.training import Outcome, Run, train_here, train_on_ranks, train_rank
from playbook.layout import Layout
from playbook.shapes import load
from playbook.training import checkpoint
from playbook.training.config import TrainConfig
from playbook.training.saving import Saving, checkpoints

SMALL = '{"layers":2,"hidden":16,"heads":2,"vocab":256,"max_seq":64,"dropout":0.0}'
STEPS, LAST = 9, 4
FLAGS = shlex.split(
    f"--steps {STEPS} --global-batch 4 --seq 16 --device cpu --quiet --model {shlex.quote(SMALL)}"
)


@dataclass
class Asks:
    """A log that sends a signal to a process after a step."""

    pid: int
    signal: int
    at: int = LAST
    times: int = 1

    def start(self, header: dict[str, Any]) -> None:
        """A run begins."""

    def step(self, record: dict[str, Any]) -> None:
        if record["step"] == self.at:
            for _ in range(self.times):
                os.kill(self.pid, self.signal)

    def close(self, outcome: str) -> None:
        """Nothing is open."""


def run(folder: Path, layout: str = "", asks: Asks | None = None, **saving: Any) -> Run:
    config = TrainConfig(steps=STEPS, global_batch=4, seq=16, device="cpu", layout=Layout.parse(layout))
    log = str(folder / f"{len(list(folder.glob('*.jsonl')))}.jsonl")
    watch = (lambda: asks) if asks else None
    return Run(load(SMALL), config, logs=(log,), saving=Saving(str(folder / "c"), 100, **saving), watch=watch)


def numbers(outcome: Outcome) -> list[tuple[int, float, float]]:
    return [(r.step, r.loss, r.grad_norm) for r in outcome.results]


@pytest.fixture
def handlers() -> Any:
    """Handlers of before, which must be there again."""
    signals = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in signals]
    yield
    assert [signal.getsignal(number) for number in signals] == before


@pytest.mark.parametrize(("number", "background"), [(signal.SIGTERM, False), (signal.SIGUSR1, True)])
def test_in_one_process(tmp_path, handlers, number, background):
    (tmp_path / "quiet").mkdir()
    quiet = train_here(run(tmp_path / "quiet"))
    assert not quiet.left
    left = train_here(run(tmp_path, "", Asks(os.getpid(), number), background=background))
    assert left.left
    assert left.results[-1].step == LAST
    assert json.loads((tmp_path / "0.jsonl").read_text().splitlines()[-1]) == {"event": "left"}
    (found,) = checkpoints(tmp_path / "c")
    checkpoint.verify(found)
    again = train_here(run(tmp_path, resume=True))
    assert numbers(left) + numbers(again) == numbers(quiet)


def test_on_ranks_the_launcher_is_asked(tmp_path, handlers):
    (tmp_path / "quiet").mkdir()
    quiet = train_on_ranks(run(tmp_path / "quiet", "dp=2,tp=2,zero=1"))
    left = train_on_ranks(run(tmp_path, "dp=2,tp=2,zero=1", Asks(os.getpid(), signal.SIGTERM)), 3)
    assert left.left
    again = train_on_ranks(run(tmp_path, "dp=2,tp=2,zero=1", resume=True))
    # The signal may have reached the ranks a step later than it was sent.
    assert numbers(left) + numbers(again) == numbers(quiet)


def test_the_last_step_is_not_left(tmp_path):
    outcome = train_here(run(tmp_path, "", Asks(os.getpid(), signal.SIGTERM, STEPS - 1)))
    assert not outcome.left
    assert len(outcome.results) == STEPS


def test_the_command_says_so(tmp_path, capsys, monkeypatch):
    import playbook.commands.train as command

    monkeypatch.setattr(command, "_LossWatch", lambda: Asks(os.getpid(), signal.SIGTERM))
    flags = [*FLAGS, "--log", str(tmp_path / "log.jsonl"), "--checkpoint", str(tmp_path / "c"), "--json"]
    assert main(["train", *flags]) == 75
    printed = capsys.readouterr()
    assert json.loads(printed.out)["left"] is True
    assert f"saved and left, as asked, after {LAST + 1} steps" in printed.err
    assert f"{STEPS - LAST - 1} steps remain: the same command with --resume goes on" in printed.err


def test_one_rank_is_asked_and_more_ranks_go_on(ranks, tmp_path, monkeypatch):
    """Ranks as torchrun's are: nobody launched them that could be asked."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quiet").mkdir()
    quiet = train_here(run(tmp_path / "quiet"))

    def leave() -> tuple[bool, list[tuple[int, float, float]]]:
        asks = Asks(
            os.getpid(), signal.SIGTERM, times=3
        )  # on the first rank alone; torchrun may say it again
        outcome = train_rank(run(Path("."), "dp=2,zero=1", asks))
        return outcome.left, numbers(outcome)

    left, before = ranks(leave, ranks=2, timeout=300)[0].value
    assert left
    assert before[-1][0] == LAST
    more = "--layout dp=2,zero=1 --elastic --checkpoint c --resume --json"
    first, *others = ranks(main, ["train", *FLAGS, *more.split()], ranks=4)
    assert [rank.value for rank in (first, *others)] == [0] * 4
    after = json.loads(next(line for line in first.output.splitlines() if line.startswith("{")))
    assert after["first_step"] == LAST + 1
    assert not any("{" in rank.output for rank in others)
    assert len(list((tmp_path / "runs").iterdir())) == 1
    found = [loss for _, loss, _ in before] + after["losses"]
    assert found == pytest.approx([loss for _, loss, _ in numbers(quiet)], abs=1e-6)


def test_replicas_of_other_numbers_of_ranks(capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert main(["train", "--layout", "dp=2,tp=2", "--elastic"]) == 2
    assert (
        "3 ranks were launched, but each replica of the layout has 2: launch a multiple"
        in capsys.readouterr().err
    )
