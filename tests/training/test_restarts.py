"""Ranks that are killed at any moment, also while they save: after restarts the losses are those of a quiet run."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from leftovers import remaining, sign_in, signed_in

from playbook import launch
from playbook.commands.training import Run, train_on_ranks
from playbook.layout import Layout
from playbook.shapes import load
from playbook.training import checkpoint
from playbook.training.config import TrainConfig
from playbook.training.saving import Saving

SMALL = '{"layers":2,"hidden":16,"heads":2,"vocab":256,"max_seq":64,"dropout":0.0}'
STEPS = 8


@dataclass
class Killer:
    """A log that kills rank 0 once for each of its ``moments``: in or after a step, or on the way to a checkpoint."""

    folder: Path
    moments: tuple[tuple[int, str], ...]

    def start(self, header: dict[str, Any]) -> None:
        sign_in(self.folder)
        for name in ("write", "commit"):
            setattr(checkpoint, name, self._before(name, getattr(checkpoint, name)))

    def _before(self, name: str, act: Any) -> Any:
        def wrapped(*args: Any) -> Any:
            folder = args[1] if name == "write" else args[0]
            step = int(folder.name.split(".")[1].removeprefix("step-"))
            self._kill(step, f"before {name}")
            done = act(*args)
            self._kill(step, f"after {name}")
            return done

        return wrapped

    def step(self, record: dict[str, Any]) -> None:
        self._kill(record["step"], "step")
        self._kill(record["step"], "soon", 0.005)

    def _kill(self, step: int, where: str, after: float = 0.0) -> None:
        marker = self.folder / f"{step} {where}"
        if (step, where) not in self.moments or marker.exists():
            return
        marker.touch()
        if after:
            threading.Thread(target=lambda: (time.sleep(after), os.kill(os.getpid(), signal.SIGKILL))).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)

    def close(self, outcome: str) -> None:
        """Nothing is open."""


def run(layout: str, folder: Path, moments: tuple[tuple[int, str], ...] = (), **saving: Any) -> Run:
    config = TrainConfig(steps=STEPS, global_batch=4, seq=16, device="cpu", layout=Layout.parse(layout))
    own = Saving(str(folder / "c"), 2, **saving)
    return Run(load(SMALL), config, saving=own, watch=lambda: Killer(folder, moments))


@pytest.mark.parametrize(("layout", "background"), [("dp=2,zero=3", False), ("tp=2", True)])
def test_killed_at_any_moment_the_losses_are_those_of_a_quiet_run(layout, background, tmp_path, capsys):
    quiet = train_on_ranks(run(layout, tmp_path / "quiet"))
    chance = random.Random(layout)
    saves = [
        (step, where) for step in (2, 4, 6, 8) for where in ("before write", "after write", "before commit")
    ]
    steps = [(step, where) for step in range(1, STEPS) for where in ("step", "soon")]
    moments = (*chance.sample(saves, 2), *chance.sample(steps, 2), (STEPS, "after commit"))
    folder = tmp_path / "killed"
    outcome = train_on_ranks(run(layout, folder, moments, background=background, keep=2), len(moments))
    assert [(r.step, r.loss, r.grad_norm) for r in outcome.results] == [
        (r.step, r.loss, r.grad_norm) for r in quiet.results
    ]
    killed = [moment for moment in moments if (folder / " ".join(map(str, moment))).exists()]
    assert set(killed) == set(moments)
    assert (
        capsys.readouterr().err.count("all ranks begin again from the newest checkpoint") >= len(killed) - 2
    )  # "soon"
    for path in (folder / "c").glob("step-*"):
        checkpoint.verify(path)
    assert not remaining(signed_in(folder), 10)


def test_no_restart_is_left(tmp_path, capsys):
    moments = ((3, "step"), (5, "step"))
    with pytest.raises(launch.RankError, match="rank 0"):
        train_on_ranks(run("dp=2", tmp_path, moments), 1)
    again = run("dp=2", tmp_path, resume=True)
    outcome = train_on_ranks(replace(again, watch=None))
    assert outcome.first_step == 4
    assert len(outcome.results) == STEPS - 4
