"""Saving where something goes wrong: who could not write and why, what others write meanwhile, what a copy serves for."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from playbook import launch
from playbook.errors import CheckpointError
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.training import checkpoint
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.saving import Checkpoints, Saving, checkpoints
from playbook.training.trainer import Trainer, make_trainer

#: Seconds. No test is about time: only what never ends takes so long.
LONG = 600.0
SMALL = {"layers": 1, "hidden": 16, "heads": 2, "vocab": 256, "max_seq": 16}


def trainer(layout: str = "", **settings) -> Trainer:
    config = TrainConfig(
        **{"steps": 6, "global_batch": 2, "seq": 8, "device": "cpu", **settings}, layout=Layout.parse(layout)
    )
    return make_trainer(SMALL, load_corpus(), config, Mesh(config.layout) if layout else None)


def test_in_the_background_the_first_moments_are_saved_too(tmp_path):
    """Steps whose gradients overflow make none: the copies of the first saves have no place for them."""
    made = trainer(dtype="float16", initial_loss_scale=2.0**18)
    results = made.run(Checkpoints(Saving(str(tmp_path), 1, background=True), made))
    skipped = [result.skipped for result in results]
    assert skipped[0]
    assert not skipped[-1]
    for done, path in enumerate(checkpoints(tmp_path), 1):
        checkpoint.verify(path)
        assert bool(checkpoint.read_manifest(path)["optimizer_steps"]) is not all(skipped[:done])


def test_an_update_waits_for_copies_of_what_it_changes(tmp_path, monkeypatch):
    """The copies begin when the update is about to: without waiting they would have the weights of the step after."""
    copied, update = checkpoint.copied, threading.Event()

    def late(saved: checkpoint.Snapshot, before: checkpoint.Snapshot | None) -> checkpoint.Snapshot:
        assert update.wait(LONG)
        return copied(saved, before)

    class Announced(threading.Event):
        """Whoever asks whether the copies are there, or waits for them, is about to update."""

        def is_set(self) -> bool:
            update.set()
            return super().is_set()

    monkeypatch.setattr(checkpoint, "copied", late)
    made = trainer()
    made.step()
    before = {name: p.detach().clone() for name, p in made.model.named_parameters()}
    saves = Checkpoints(Saving(str(tmp_path), 1, background=True), made)
    saves.copied = Announced()
    saves.save()
    made.step()
    update.set()
    saves.wait()
    assert any(not torch.equal(before[name], p) for name, p in made.model.named_parameters())
    (path,) = checkpoints(tmp_path)
    saved = load_file(path / "rank-00000-0.safetensors")
    assert all(torch.equal(saved[f"parameter/{name}"], p) for name, p in before.items())


def test_what_fails_in_the_background_is_said_in_the_next_step(tmp_path, monkeypatch):
    def write(*_: object) -> None:
        raise MemoryError("no room for a checksum")

    made = trainer()
    monkeypatch.setattr(checkpoint, "write", write)
    with pytest.raises(CheckpointError) as caught:
        made.run(Checkpoints(Saving(str(tmp_path), 1, background=True), made))
    assert str(caught.value) == (
        "checkpoint of step 1 cannot be written by rank 0 (MemoryError: no room for a checksum)"
    )


def one_that_may_not_write(folder: str) -> tuple[str, list[str]]:
    """The second rank has failed by the time that the first begins to write."""
    write, failed = checkpoint.write, Path(folder).with_name("failed")

    def slow(saved: checkpoint.Snapshot, path: Path, rank: int) -> None:
        if rank == 0:
            while not failed.exists():
                time.sleep(0.01)
            write(saved, path, rank)
        else:
            failed.touch()
            raise CheckpointError("rank 1 has no room")

    checkpoint.write = slow
    with launch.process_group():
        made = trainer("dp=2")
        with pytest.raises(CheckpointError) as caught:
            made.run(Checkpoints(Saving(folder, 3), made))
        return str(caught.value), [path.name for path in Path(folder).iterdir()]


def test_the_cause_is_what_failed_first_and_nothing_is_left(ranks, tmp_path):
    folder = tmp_path / "checkpoints"
    assert ranks(one_that_may_not_write, str(folder), ranks=2)[1].value[0] == "rank 1 has no room"
    assert list(folder.iterdir()) == []


def stops_while_it_writes(folder: str) -> None:
    if os.environ["RANK"] == "1":
        checkpoint.write = lambda *_: os.kill(os.getpid(), signal.SIGSTOP)
    with launch.process_group(LONG):
        made = trainer("dp=2")
        made.run(Checkpoints(Saving(folder, 6, background=True, patience=1.0), made))


def test_the_first_rank_does_not_wait_for_ever_for_one_that_does_not_write(ranks, tmp_path):
    """After the last step nobody else would notice: there is no collective any more."""
    with pytest.raises(launch.RankError) as caught:
        ranks(stops_while_it_writes, str(tmp_path), ranks=2, timeout=LONG)
    assert caught.value.sentence == (
        "rank 0 failed: TimeoutError: rank 1 has not written its part of the checkpoint of step 6 in 1 s"
    )
    assert "rank 1 was here" not in caught.value.traceback
