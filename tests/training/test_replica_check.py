"""Replicas that have drifted apart: no false alarm, and the odd rank is named."""

from __future__ import annotations

import pytest
import torch

from playbook import launch
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.shapes import ModelShape, MoE
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.replica_check import ReplicaCheck, ReplicaError, check_replicas
from playbook.training.trainer import Trainer, make_trainer

DENSE = ModelShape(layers=4, hidden=16, heads=4, kv_heads=2, vocab=259, max_seq=64, tied=True)
EXPERTS = DENSE.replace(moe=MoE(4, 2, 20))
#: Layout, rank whose first weight is changed in one bit, and who is named; "" where nobody has the same.
CASES = {
    "dp=4": (1, "rank 1 are not those of ranks 0, 2, 3"),
    "dp=4,zero=2": (3, "rank 3 are not those of ranks 0, 1, 2"),
    "dp=2,tp=2": (2, "ranks? [02] are not those of ranks? [02]"),
    "cp=2,dp=2,zero=1": (0, "rank 0 are not those of ranks 1, 2, 3"),
    "pp=2,dp=2,grad_acc=2": (3, "ranks? [23] are not those of ranks? [23]"),
    "pp=4,grad_acc=4": (0, "ranks? [03] are not those of ranks? [03]"),  # both ends have the tied table
    "dp=4,zero=3": (1, ""),
    "dp=4,ep=2": (1, "rank 1 are not those of ranks 0, 2, 3"),
}


def drifted(layout: str, odd: int) -> list[str]:
    """What is said after two steps, and after a bit has been flipped."""
    parsed = Layout.parse(layout)
    config = TrainConfig(steps=9, global_batch=8, seq=16, device="cpu", layout=parsed)
    trainer = make_trainer(EXPERTS if parsed.ep > 1 else DENSE, load_corpus(), config, Mesh(parsed))
    trainer.step()
    trainer.step()
    said = [_said(trainer)]
    if trainer.mesh and trainer.mesh.rank == odd:
        weight = next(p for p in trainer.model.parameters() if p.numel())
        bits = weight.data.view(-1).view(torch.int32)
        bits[0] ^= 1
    return [*said, _said(trainer)]


def _said(trainer: Trainer) -> str:
    try:
        check_replicas(trainer)
    except ReplicaError as error:
        return str(error)
    return ""


def work(cases: dict[str, tuple[int, str]]) -> dict[str, list[str]]:
    with launch.process_group():
        return {layout: drifted(layout, odd) for layout, (odd, _) in cases.items()}


def test_one_bit_is_found_and_its_rank_named(ranks):
    import re

    for result in ranks(work, CASES, ranks=4):
        for layout, (_, expected) in CASES.items():
            before, after = result.value[layout]
            assert before == "", layout
            assert re.fullmatch(f"after step 1 weights of {expected}, though.*" if expected else "", after), (
                layout,
                after,
            )


def test_alone_there_is_nothing_to_compare():
    config = TrainConfig(steps=1, global_batch=2, seq=16, device="cpu")
    trainer = make_trainer(DENSE, load_corpus(), config)
    trainer.run(ReplicaCheck(1, trainer))
    with pytest.raises(ConfigError, match="check_replicas is 0"):
        ReplicaCheck(0, trainer)
