"""Live recovery where more goes wrong than one death, what it refuses, and what the command says."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import time
import zlib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from playbook.cli import main
from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.recovery import healing
from playbook.recovery import lighthouse as lights
from playbook.recovery.domains import Domains, Quorum, check
from playbook.recovery.lighthouse import Lighthouse, ReplicasLost
from playbook.recovery.run import Live, train
from playbook.shapes import ModelShape, MoE
from playbook.training.config import TrainConfig

DENSE = ModelShape(layers=2, hidden=16, heads=2, ffn=24, vocab=257, max_seq=16)


def config_of(layout: str, steps: int = 8) -> TrainConfig:
    return TrainConfig(steps=steps, global_batch=12, seq=8, device="cpu", layout=Layout.parse(layout))


def trouble(act: Any, step: int, replicas: tuple[int, ...], trainer: Any) -> None:
    """In the first processes of these replicas: something happens in the middle of a step."""
    manager, reduce = trainer.manager, trainer.manager.all_reduce
    if manager.replica in replicas and manager.generation == 0:
        done = []

        def reduces(tensor: Any, *op: Any) -> Any:
            if manager.step == step and not done:
                done.append(True)
                act(manager)
            return reduce(tensor, *op)

        manager.all_reduce = reduces


def signal_of(number: int, manager: Any) -> None:
    os.kill(os.getpid(), number)


class Broken:
    """A group whose connections are gone; its peers notice, since the one that was there is."""

    def allreduce(self, *_: Any) -> None:
        raise RuntimeError("Connection reset by peer")


def hang_up(manager: Any) -> None:
    manager.group = Broken()


def raise_here(manager: Any) -> None:
    raise ValueError("a fault, on purpose")


def test_without_a_replica_that_has_the_weights_the_run_ends_with_a_sentence():
    run = Live(
        DENSE, config_of("dp=2"), watch=partial(trouble, partial(signal_of, signal.SIGKILL), 3, (0, 1))
    )
    begin = time.monotonic()
    with pytest.raises(ReplicasLost) as error:
        train(run, say=lambda text: None)
    assert re.fullmatch(
        r"all 2 replicas with the weights of step 3 are lost, the last by rank \d was killed by signal 9: live recovery "
        "needs one of them; start again, with more replicas or from a checkpoint",
        str(error.value),
    )
    assert time.monotonic() < begin + 30  # and waits for nobody


def test_a_connection_that_breaks_costs_a_step_and_no_replica():
    outcome = train(Live(DENSE, config_of("dp=3"), watch=partial(trouble, hang_up, 3, (1,))))
    assert outcome.history.members == [(0, 1, 2)] * 8
    assert (outcome.history.discarded, outcome.history.events, outcome.lost_tokens) == (1, [], 0)
    assert [len(pids) for pids in outcome.pids.values()] == [1, 1, 1]


def test_a_replica_that_stops_is_replaced_after_the_time_out():
    stop = partial(trouble, partial(signal_of, signal.SIGSTOP), 3, (2,))
    said: list[str] = []
    outcome = train(Live(DENSE, config_of("dp=3", 200), patience=3.0, watch=stop), say=said.append)
    assert "nothing was heard of rank 2 for 3 s" in said[0]
    assert [len(outcome.pids[rank]) for rank in range(3)] == [1, 1, 2]
    assert len(outcome.results) == 200


def test_a_replica_that_fails_is_replaced_and_its_error_is_named():
    said: list[str] = []
    train(Live(DENSE, config_of("dp=2", 60), watch=partial(trouble, raise_here, 3, (1,))), say=said.append)
    assert "step 3: replica 1 of 2 is lost (rank 1 failed: ValueError: a fault, on purpose)" in said[0]


def remember(folder: str, trainer: Any) -> None:
    """In a rank: a sum of all bits of its state before each step; replica 1 is killed in the fourth."""
    manager, begin = trainer.manager, trainer.manager.begin

    def begins(trainer: Any) -> None:
        begin(trainer)
        quorum, late = manager.quorum, time.monotonic() + 60
        if len(quorum.members) < 2 and trainer.step_count > quorum.step:
            while not manager.store.check([f"next/{quorum.number}"]) and time.monotonic() < late:
                time.sleep(0.01)
        if manager.replica == 1 and manager.generation == 0 and manager.step == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if not manager.lost:
            sums = [zlib.crc32(tensor.numpy().tobytes()) for tensor in healing._tensors(trainer)]
            scale = trainer.loss_scale and (trainer.loss_scale.value, trainer.loss_scale.good_steps)
            Path(folder, f"{manager.step}-{manager.inside}-{manager.replica}").write_text(str((sums, scale)))

    manager.begin = begins


@pytest.mark.parametrize(
    ("layout", "shape", "more"),
    [
        ("dp=4,zero=1,replicate=2", DENSE, {"weights": "bfloat16", "dtype": "bfloat16", "moments": "fp8"}),
        ("dp=2", DENSE, {"dtype": "float16", "initial_loss_scale": 1e6, "offload": True}),
        ("dp=4,zero=3,replicate=2", DENSE, {"fp8": "delayed"}),
        ("dp=4,zero=2,replicate=2", DENSE, {"optimizer": "muon"}),
        ("dp=2", DENSE.replace(moe=MoE(4, 2, 20, bias_rate=0.01), dropout=0.1), {}),
        ("dp=4,zero=3,replicate=2", DENSE.replace(train="lora:2"), {}),
    ],
)
def test_all_that_the_next_step_depends_on_comes_over_bit_for_bit(layout, shape, more, tmp_path):
    config = dataclasses.replace(config_of(layout, 10), **more)
    outcome = train(Live(shape, config, watch=partial(remember, str(tmp_path))), say=lambda text: None)
    assert outcome.history.members[-1] == (0, 1)
    assert len(outcome.history.quorums) == 3
    compared = 0
    for path in tmp_path.glob("*-0"):
        other = path.with_name(path.name[:-2] + "-1")
        if outcome.history.members[int(path.name.split("-")[0])] == (0, 1):
            assert path.read_text() == other.read_text(), path.name
            compared += 1
    both = outcome.history.members.count((0, 1))
    assert both >= 6
    assert compared == both * Domains(config.layout).inside.world_size


class Ended:
    """A lighthouse over two replicas that are there, with the store that ranks would write to."""

    def __init__(self) -> None:
        self.it = Lighthouse(Domains(Layout.parse("dp=2")), steps=9, batch=96, patience=60.0)
        for replica in (0, 1):
            self.it.store.add(f"ready/{replica}/0", 1)
        list(self.it.look())

    def verdict(self, quorum: int, step: int) -> str:
        return self.it.store.get(f"verdict/{quorum}/{step}").decode()


def test_a_vote_that_was_complete_before_a_death_counts():
    """The last voter has moved the register and dies before it says so; or the death comes first."""
    ended = Ended()
    store = ended.it.store
    store.set("record/0/0", json.dumps({"step": 0}))
    store.compare_set("register/0", "0", "1!")
    ended.it.lost(1, "a fault")
    assert ended.verdict(0, 0) == "leave"
    assert [record["step"] for record in ended.it.look()] == [0]
    assert ended.it.quorum == Quorum(1, 1, (0,), {})
    ended.it.replaced(1)
    store.add("ready/1/1", 1)
    list(ended.it.look())
    assert store.check(["next/1"])
    store.compare_set("register/1", "1", "2!")
    store.set("record/1/1", json.dumps({"step": 1}))
    list(ended.it.look())
    assert ended.it.quorum == Quorum(2, 2, (0, 1), {1: 0})
    ended.it.lost(1, "a fault")  # before it was healed
    assert ended.verdict(2, 2) == "discard"
    assert store.compare_set("register/2", "2", "3").decode() == "2!"  # a vote that comes too late


def test_the_one_that_heals_cannot_stand_in_for_its_source():
    ended = Ended()
    ended.it.lost(1, "a fault")
    ended.it.replaced(1)
    ended.it.store.add("ready/1/1", 1)
    list(ended.it.look())
    list(ended.it.look())
    with pytest.raises(
        ReplicasLost, match="all 2 replicas with the weights of step 0 are lost, the last by another"
    ):
        ended.it.lost(0, "another")


def test_a_replica_that_never_makes_a_step_is_given_up(monkeypatch):
    monkeypatch.setattr(lights, "IN_A_ROW", 2)
    ended = Ended()
    for _ in range(2):
        ended.it.lost(1, "a fault")
        ended.it.replaced(1)
    with pytest.raises(ReplicasLost, match="replica 1 was lost 3 times before it had made a step: a fault"):
        ended.it.lost(1, "a fault")


@pytest.mark.parametrize(
    ("shape", "layout", "error", "sentence"),
    [
        (
            DENSE,
            "dp=4,zero=3",
            LayoutError,
            "replicate is 1, but with zero=3 and live recovery a lost shard must be on",
        ),
        (DENSE, "tp=2", LayoutError, "dp is 1, but live recovery needs another replica: make it 2 or more"),
        (
            DENSE.replace(moe=MoE(4, 2, 20, balance_loss=0.1, balance_over="global_batch")),
            "dp=2",
            ConfigError,
            "balance_over is 'global_batch', but with live recovery forward passes of replicas do not wait",
        ),
    ],
)
def test_what_cannot_be_recovered_is_refused(shape, layout, error, sentence):
    with pytest.raises(error) as found:
        check(shape, config_of(layout))
    assert str(found.value).startswith(sentence)


def test_ranks_of_replicas_are_those_of_the_whole_layout():
    domains = Domains(Layout.parse("dp=4,tp=2,pp=2,zero=1,replicate=2"))
    assert [domains.ranks(replica) for replica in (0, 1)] == [
        [0, 1, 2, 3, 8, 9, 10, 11],
        [4, 5, 6, 7, 12, 13, 14, 15],
    ]
    for replica in (0, 1):
        for inside, rank in enumerate(domains.ranks(replica)):
            assert domains.place(rank) == (replica, inside)
            at, own = domains.layout.coordinates(rank), domains.inside.coordinates(inside)
            assert {**at, "dp": at["dp"] - 2 * replica} == own


def test_the_command_tells_who_took_part(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    model = '{"layers": 2, "hidden": 16, "heads": 2, "ffn": 24, "vocab": 256, "max_seq": 16}'
    flags = [
        "--global-batch",
        "4",
        "--seq",
        "8",
        "--device",
        "cpu",
        "--quiet",
        "--json",
        "--log",
        "log.jsonl",
    ]
    command = ["train", "--model", model, "--layout", "dp=2", "--live-recovery", "--steps", "4", *flags]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["replicas"] == [[0, 1]] * 4
    assert (found["lost_tokens"], found["discarded_steps"], found["recoveries"]) == (0, 0, [])
    events = [json.loads(line)["event"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert events == ["start", *["step"] * 4, "finished"]
    assert main([*command, "--checkpoint", "c"]) == 2
    said = capsys.readouterr().err
    assert (
        "checkpoint is 'c', but with live recovery no group has the ranks of all replicas: leave one out"
        in said
    )
