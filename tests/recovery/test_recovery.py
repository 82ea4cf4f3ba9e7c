"""Replicas that are killed while the others go on: the same losses, norms and gradients as one device has of the samples
that took part, wherever a process dies; and what a new one gets, to the byte."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from playbook.layout import Layout
from playbook.planning.job import Job
from playbook.recovery.domains import Domains
from playbook.recovery.run import Live, Outcome, train
from playbook.shapes import ModelShape, MoE
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.healing import healed

TOLERANCE = 1e-5
DENSE = ModelShape(layers=2, hidden=24, heads=4, kv_heads=2, ffn=36, vocab=257, max_seq=32)
EXPERTS = DENSE.replace(moe=MoE(4, 2, 20, bias_rate=0.01))
SEQ = 9
#: Steps between two kills: of these the dead replica misses two, and takes part in the others.
APART = 5
#: Where a process dies, of itself or, while it gets its state, of its source.
MOMENTS = ("forward", "backward", "reduced", "committed", "healing")


@dataclasses.dataclass(frozen=True)
class Kill:
    """Of a rank, by its number inside a replica, in a ``step``; the one that heals dies of itself the first time."""

    moment: str
    replica: int
    inside: int
    step: int


def watch(kills: tuple[Kill, ...], folder: str, trainer: Any) -> None:
    """In a rank: keep gradients of each step, die where it is told, and let the others wait for who comes back."""
    manager, engine = trainer.manager, trainer.engine
    for group in (group for optimizer in engine.optimizers for group in optimizer.param_groups):
        group["eps"] = 1e-5  # else a first step moves a weight by the sign of what is rounding
    begin, commit, carry, vote = manager.begin, manager.commit, manager._carry, engine._vote
    mine = [k for k in kills if (k.replica, k.inside) == (manager.replica, manager.inside)]

    def die(moment: str, step: int) -> None:
        for i, kill in enumerate(mine):
            later = moment in ("healing", "source") and kill.step < step <= kill.step + APART
            if kill.moment == moment and (kill.step == step or later) and once(folder, f"{kill.replica}-{i}"):
                os.kill(os.getpid(), signal.SIGKILL)

    def begins(trainer: Any) -> None:
        begin(trainer)
        quorum, late = manager.quorum, time.monotonic() + 60
        if len(quorum.members) < manager.domains.replicas and trainer.step_count > quorum.step:
            while not manager.store.check([f"next/{quorum.number}"]) and time.monotonic() < late:
                time.sleep(0.01)
        die("forward", manager.step)

    def commits(record: Any) -> bool:
        die("reduced", manager.step)
        done = commit(record)
        die("committed", manager.step)
        return done

    def carries(verb: str, peer: int, piece: Any) -> None:
        if piece.numel() > 8 and verb == "recv":
            die("healing", manager.quorum.step)
        if piece.numel() > 8 and verb == "send":
            die("source", manager.quorum.step)
        carry(verb, peer, piece)

    def votes(skipped: bool) -> None:
        found = [g.reshape(-1) for _, g in sorted(engine.gradients_whole().items()) if g is not None]
        if manager.inside == 0 and not manager.lost:
            np.save(Path(folder, f"{manager.step}-{manager.replica}.npy"), torch.cat(found).numpy())
        vote(skipped)

    def in_backward(module: Any, inputs: Any, output: Any) -> None:
        if torch.is_grad_enabled() and output.requires_grad:
            output.register_hook(lambda gradient: die("backward", manager.step))

    for block in trainer.model.blocks:
        block.register_forward_hook(in_backward)
    manager.begin, manager.commit, manager._carry, engine._vote = begins, commits, carries, votes


def once(folder: str, name: str) -> bool:
    try:
        os.close(os.open(Path(folder, f"killed-{name}"), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


class Present:
    """Batches of the samples of those replicas alone that took part in a step."""

    def __init__(self, batches: Any, members: list[tuple[int, ...]], replicas: int):
        self.batches, self.members, self.replicas = batches, members, replicas

    def batch(self, step: int, *_: int) -> list[Any]:
        parts = [self.batches.batch(step, r, self.replicas) for r in self.members[step]]
        *tensors, lengths = (
            zip(*parts, strict=True) if len(parts[0]) > 2 else (*zip(*parts, strict=True), None)
        )
        return [*map(torch.cat, tensors), *([[row for rows in lengths for row in rows]] if lengths else [])]


def config_of(layout: str, steps: int, **more: Any) -> TrainConfig:
    sizes = {"steps": steps, "global_batch": 12, "seq": SEQ, "device": "cpu", "lr": 1e-3}
    return TrainConfig(
        layout=Layout.parse(layout).replace(bucket=8000, first_bucket=3000), **{**sizes, **more}
    )


def check_parity(run: Live, outcome: Outcome, folder: Path) -> None:
    """Against one device, with its own optimizer and its own division."""
    domains, members = Domains(run.config.layout), outcome.history.members
    alone = dataclasses.replace(run.config, layout=Layout(), micro_batch=run.config.global_batch)
    reference = make_trainer(run.shape, load_corpus(), alone)
    for group in reference.optimizer.param_groups:
        group["eps"] = 1e-5
    reference.batches = Present(reference.batches, members, domains.replicas)  # type: ignore[assignment]
    assert [result.step for result in outcome.results] == list(range(run.config.steps))
    for result, some in zip(outcome.results, members, strict=True):
        rows = alone.global_batch // domains.replicas * len(some)
        reference.config = dataclasses.replace(alone, layout=Layout(), global_batch=rows, micro_batch=rows)
        wanted = reference.step()
        assert result.loss == pytest.approx(wanted.loss, rel=TOLERANCE), result.step
        assert result.grad_norm == pytest.approx(wanted.grad_norm, rel=TOLERANCE), result.step
        assert result.lr == wanted.lr
        parts = [
            g.reshape(-1) for _, g in sorted(reference.engine.gradients_whole().items()) if g is not None
        ]
        expected = torch.cat(parts).numpy()
        every = [np.load(folder / f"{result.step}-{replica}.npy") for replica in some]
        assert all((own == every[0]).all() for own in every), "replicas differ"
        assert np.linalg.norm(every[0] - expected) <= TOLERANCE * np.linalg.norm(expected), result.step


def kills_of(layout: str, moments: tuple[str, ...]) -> tuple[Kill, ...]:
    """One after another, of each replica in turn and of each rank inside."""
    domains = Domains(Layout.parse(layout))
    found = []
    for i, moment in enumerate(moments):
        replica, inside, step = i % domains.replicas, (i + 1) % domains.inside.world_size, 1 + APART * i
        if moment in ("healing", "source"):
            found.append(Kill("forward", replica, inside, step))
        if moment == "source":  # the first that has the weights
            replica, inside = min(set(range(domains.replicas)) - {replica}), 0
        found.append(Kill(moment, replica, inside, step))
    return tuple(found)


CASES: dict[str, tuple[ModelShape, tuple[str, ...], dict[str, Any]]] = {
    "dp=2": (DENSE, MOMENTS, {}),
    "dp=4,zero=3,replicate=2": (DENSE, MOMENTS, {}),
    "dp=4,zero=1,replicate=2,tp=1,grad_acc=3,micro_batch=1": (DENSE, ("backward", "committed"), {}),
    "dp=2,tp=2,sp,zero=1,replicate=2": (DENSE, MOMENTS[1:4], {}),
    "dp=2,cp=2,zero=2,replicate=2": (DENSE.replace(tied=True), MOMENTS[:3], {"seq": 12}),
    "dp=2,pp=2,zero=3,replicate=2,grad_acc=3,micro_batch=2": (DENSE, MOMENTS[1:], {}),
    "dp=4,ep=2,zero=1,replicate=2": (EXPERTS, ("backward", "healing"), {}),
    "dp=3": (DENSE, ("source", "reduced", "healing"), {"documents": "packed"}),
}


@pytest.mark.parametrize("layout", CASES)
def test_steps_are_those_of_the_replicas_that_took_part(layout, tmp_path):
    shape, moments, more = CASES[layout]
    kills = kills_of(layout, moments)
    run = Live(
        shape, config_of(layout, APART * len(moments) + 3, **more), watch=partial(watch, kills, str(tmp_path))
    )
    said: list[str] = []
    outcome = train(run, say=said.append)
    assert len(list(tmp_path.glob("killed-*"))) == len(kills)
    check_parity(run, outcome, tmp_path)
    check_history(run, outcome, kills, said)


def check_history(run: Live, outcome: Outcome, kills: tuple[Kill, ...], said: list[str]) -> None:
    """Who was there, what was lost, what came back with how many bytes; survivors are the processes that they were."""
    domains, history = Domains(run.config.layout), outcome.history
    lost = [event for event in history.events if event.kind == "lost"]
    assert len(lost) <= len(kills)  # who dies a second time while it heals was lost already
    if run.config.documents == "joined":
        tokens = run.config.global_batch // domains.replicas * run.config.seq
        assert outcome.lost_tokens == tokens * sum(domains.replicas - len(some) for some in history.members)
        assert [r.tokens for r in outcome.results] == [tokens * len(some) for some in history.members]
    assert history.discarded == len(kills)  # each the step in flight, after a vote the next one
    for rank, pids in outcome.pids.items():
        died = sum(kill.replica == domains.place(rank)[0] for kill in kills)
        assert len(pids) == 1 + died, (rank, pids)
    job = Job(run.shape, run.config.layout, seq=SEQ, recipe="fp32")
    for event in (event for event in history.events if event.kind == "back"):
        assert event.bytes == sum(healed(job, rank) for rank in domains.ranks(event.replica)), event
        assert any(f"{event.bytes:,} bytes from replica {event.why}" in text for text in said)
