"""What blocks keep, in CPU memory: the same numbers, and as many bytes as the planner takes from the device."""

from __future__ import annotations

import pytest
import torch
from helpers import BLOCKS, DEEPSEEK, tokens

from playbook.layout import Layout
from playbook.model import offload
from playbook.model.transformer import Transformer
from playbook.planning.memory import predict
from playbook_book.instruments.measured import SavedActivations

SHAPES = {**BLOCKS, "deepseek": DEEPSEEK}


@pytest.fixture
def copied(monkeypatch) -> list[offload.Copied]:
    """All that goes to CPU memory."""
    made: list[offload.Copied] = []

    class Noted(offload.Copied):
        def __init__(self, tensor: torch.Tensor):
            super().__init__(tensor)
            made.append(self)

    monkeypatch.setattr(offload, "Copied", Noted)
    return made


@pytest.mark.parametrize("autocast", [False, True], ids=["fp32", "autocast"])
@pytest.mark.parametrize("recompute", ["none", "core_attn", "full", "mlp:1"])
@pytest.mark.parametrize("block", SHAPES)
def test_numbers_are_the_same_and_the_bytes_are_elsewhere(block, recompute, autocast, copied):
    shape = SHAPES[block]
    said, colon, number = recompute.partition(":")
    away = "offload" if said == "none" else f"{said}+offload{colon}{number}"
    found, kept = [], []
    for mode in (recompute, away):
        model = Transformer(shape, recompute=mode)
        x, y = tokens(shape, 2, 9)
        with (
            torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast),
            SavedActivations(model, (x, y)) as saved,
        ):
            loss = model.loss(x, y)[0]
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters())])
        kept.append(saved.bytes)
        told = predict(
            shape,
            Layout(micro_batch=2, recompute=mode),
            seq=9,
            recipe="autocast" if autocast else "fp32",
            device="cpu",
        )
        assert told.stages[0].activations == saved.bytes
    assert all(map(torch.equal, *found))
    assert copied
    if not autocast:  # which has copies of weights, too
        assert sum(len(each.bytes) for each in copied) == kept[0] - kept[1]


def test_each_piece_comes_back_once_however_many_read_it(copied):
    shape = SHAPES["llama"]
    model = Transformer(shape, recompute="offload")
    loss = model.loss(*tokens(shape, 1, 9))[0]
    assert max(each.asked for each in copied) > 2  # what queries, keys and values are made of
    loss.backward()
    assert all(each.asked == 0 and not len(each.back) for each in copied)
