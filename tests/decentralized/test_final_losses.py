"""A Transformer on the book's text, the same tokens for all methods: final losses beside all-reduce, and bytes.

All begin with the same steps of whole gradients, as with ``start=128``; bytes are those of the steps after. From the very
first step on none of them keeps up in so short a run.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from playbook import launch
from playbook.layout import Layout
from playbook.layout.options import ParallelOptions
from playbook.parallel.mesh import Mesh
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import Trainer, make_trainer

SHAPE = '{"layers":1,"hidden":32,"heads":4,"vocab":256,"max_seq":64,"dropout":0.0}'
#: Steps with whole gradients, and of the whole run.
START, STEPS = 128, 200
METHODS = [
    "all-reduce", "local:H=9", "slowmo:H=9,momentum=0.3", "diloco:H=9,lr=0.9,momentum=0.3", "gossip:one-peer-exp",
    "powersgd:r=2", "topk:0.1",
]  # fmt: skip


def trainer_of(how: str, n: int) -> Trainer:
    layout = Layout(dp=n)
    config = TrainConfig(
        steps=STEPS, global_batch=128, seq=16, lr=1e-2, device="cpu", layout=layout,
        parallel=ParallelOptions(data_parallel=how),
    )  # fmt: skip
    return make_trainer(SHAPE, load_corpus(), config, Mesh(layout))


def held_out(trainer: Trainer) -> float:
    """The mean loss over windows that no step has drawn, of the model that this rank has."""
    batches = [trainer.batches.batch(STEPS + i) for i in range(4)]
    with torch.no_grad():
        return sum(trainer.model.loss(x, y)[0].item() / y.numel() for x, y in batches) / len(batches)


def finals() -> tuple[float, dict[str, tuple[float, float]]]:
    """The loss after ``START`` steps, and of each method the one at the end and bytes that this rank sent in a step."""
    found: dict[str, tuple[float, float]] = {}
    with launch.process_group() as world:
        common = trainer_of("all-reduce", world.size)
        while common.step_count < START:
            common.step()
        state: dict[str, Any] = common.engine.state_dict()
        for how in METHODS:
            trainer = trainer_of(how, world.size)
            trainer.engine.load_state_dict(state)
            trainer.step_count = START
            trainer.run()
            (one,) = trainer.engine.sets
            whole = 2 * (world.size - 1) / world.size * 4 * load(SHAPE).num_parameters
            sent = one.network.sent[0] / (STEPS - START) if hasattr(one, "network") else whole
            found[how] = held_out(trainer), sent
        return held_out(common), found


@pytest.mark.parametrize("n", [4])
def test_final_losses_are_those_of_all_reduce_with_an_eighth_of_the_bytes(ranks, n, record_property):
    told = ranks(finals, ranks=n, timeout=500).values
    start, found = told[0]
    whole_loss, whole = found["all-reduce"]
    text = ", ".join(f"{how} {loss:.3f} ({whole / sent:.1f}×)" for how, (loss, sent) in found.items())
    record_property("measured", f"{n} workers, loss after {START} steps {start:.3f}, after {STEPS}: {text}")
    for _, others in told:  # one model
        assert all(math.isclose(others[how][0], found[how][0], rel_tol=1e-5) for how in METHODS)
    assert start - whole_loss > 0.1  # there was something to learn
    for how, (loss, _) in found.items():
        assert loss < whole_loss + 0.05, how
    assert sum(whole / sent >= 8 for _, sent in found.values()) >= 3
