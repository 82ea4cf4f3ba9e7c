"""The tape of a step: which block runs when, and whose activations are alive."""

import pytest
import torch
from helpers import GPT, LLAMA, tokens

from playbook.instruments.measure import SavedActivations
from playbook.layout import RECOMPUTE
from playbook.model.transformer import Transformer
from playbook_book.instruments.block_tape import BlockTape, held_activations
from playbook_book.segments import in_segments

THREE = LLAMA.replace(layers=3)


def passes(model):
    x, y = tokens(model.shape, 2, 8)
    with BlockTape(model) as tape:
        model.loss(x, y)[0].backward()
    return tape.passes


def test_without_recomputation_blocks_run_forward_and_back():
    tape = passes(Transformer(THREE))
    assert [(p.kind, p.block) for p in tape] == [
        *(("forward", i) for i in (0, 1, 2)),
        *(("backward", i) for i in (2, 1, 0)),
    ]


def test_full_recomputation_runs_each_block_again_just_before_its_backward():
    tape = passes(Transformer(THREE, recompute="full"))
    assert [(p.kind, p.block) for p in tape] == [
        ("forward", 0), ("forward", 1), ("forward", 2),
        ("again", 2), ("backward", 2), ("again", 1), ("backward", 1), ("again", 0), ("backward", 0),
    ]  # fmt: skip
    assert all(p.start <= p.end for p in tape)


@pytest.mark.parametrize("preserve_rng", [True, False])
def test_fingerprints_tell_whether_dropout_was_replayed(preserve_rng):
    model = Transformer(GPT.replace(dropout=0.3))
    model.blocks = in_segments(model.blocks, 1, preserve_rng=preserve_rng)
    torch.manual_seed(0)
    prints = {(p.kind, p.block): p.fingerprint for p in passes(model)}
    same = [prints["forward", i] == prints["again", i] for i in range(2)]
    assert same == [preserve_rng] * 2


def test_hooks_are_gone_after_the_tape():
    model = Transformer(THREE)
    passes(model)
    assert not any(block._forward_hooks or block._forward_pre_hooks for block in model.blocks)


@pytest.mark.parametrize("mode", RECOMPUTE)
def test_what_is_kept_is_what_autograd_saves(mode):
    model = Transformer(THREE, attention="reference", recompute=mode)
    x, y = tokens(THREE, 2, 16)
    with SavedActivations(model, (x, y)) as saved:
        model.loss(x, y)
    held = held_activations(model, lambda: model.loss(x, y)[0])
    at_turn = sum(row[held.turn] for row in [*held.kept, held.other, held.again])
    # What crosses from block to block belongs to the block in which it was born.
    assert at_turn == pytest.approx(saved.bytes, rel=0.02)
    assert len(held.kept) == 3
    assert (max(held.again) > 0) == (mode != "none")
    assert all(row[-1] == 0 for row in [*held.kept, held.other, held.again])


def test_the_peak_falls_from_mode_to_mode():
    x, y = tokens(THREE, 2, 32)
    peaks = []
    for mode in RECOMPUTE:
        model = Transformer(THREE, attention="reference", recompute=mode)
        peaks.append(held_activations(model, lambda model=model: model.loss(x, y)[0]).peak)
    assert peaks[0] > peaks[1] > peaks[2]
