"""Stragglers: the rank that has more to do is named, though all ranks take equally long."""

from __future__ import annotations

import pytest
import torch

from playbook import launch
from playbook.errors import ConfigError
from playbook.instruments.stragglers import RankWatch, stragglers
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Trainer, make_trainer

SHAPE = {"layers": 2, "hidden": 32, "heads": 2, "vocab": 256, "max_seq": 64}


def work(layout: str, slow: int) -> tuple[list[str], list[float]]:
    """Three steps, of which the second is watched; one rank has a hundred times as much to do in each block."""
    with launch.process_group() as world:
        config = TrainConfig(steps=3, global_batch=4, seq=32, device="cpu", layout=Layout.parse(layout))
        trainer = make_trainer(SHAPE, load_corpus(), config, Mesh(config.layout))
        if world.rank == slow:
            for block in trainer.model.blocks:
                block.register_forward_pre_hook(busy)
        watch = RankWatch(2, trainer)
        return watch.said, [result.loss for result in trainer.run(watch)]


def busy(*_: object) -> None:
    x = torch.randn(384, 384)
    for _ in range(100):
        x = x @ x / x.norm()


@pytest.mark.parametrize(("layout", "slow"), [("dp=4", 2), ("tp=2,dp=2", 1)])
def test_who_has_more_to_do_is_named(ranks, layout, slow):
    found = ranks(work, layout, slow, ranks=4)
    for rank in found:
        said, losses = rank.value
        assert [line for line in said if f"rank {slow} is a straggler" in line], said
        assert all(line.startswith("step 1: ") for line in said)
        assert len(losses) == 3


def test_what_is_far():
    assert stragglers([1.0, 1.1, 1.7]) == [
        "rank 2 is a straggler: it computed for 1,700 ms, 1.6 times as long as the others (1,050 ms)"
    ]
    assert stragglers([1.0]) == stragglers([1.0, 1.4]) == []


def in_a_pipeline() -> None:
    with launch.process_group():
        config = TrainConfig(steps=3, global_batch=4, seq=32, device="cpu", layout=Layout.parse("pp=2"))
        RankWatch(2, make_trainer(SHAPE, load_corpus(), config, Mesh(config.layout)))


def test_a_pipeline_is_refused(ranks):
    with pytest.raises(launch.RankError, match="passes of a pipeline are not recorded"):
        ranks(in_a_pipeline, ranks=2)


def test_alone_nobody_is_slower():
    config = TrainConfig(steps=2, global_batch=2, seq=16, device="cpu")
    trainer: Trainer = make_trainer(SHAPE, load_corpus(), config)
    watch = RankWatch(1, trainer)
    assert len(trainer.run(watch)) == 2
    assert watch.said == []
    with pytest.raises(ConfigError, match="watch_ranks is 0"):
        RankWatch(0, trainer)
