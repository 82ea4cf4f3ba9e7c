"""Whose activations are alive when, over a step."""

import pytest
from helpers import LLAMA, tokens

from playbook.layout import RECOMPUTE
from playbook.model.transformer import Transformer
from playbook_book.instruments.block_tape import held_activations
from playbook_book.instruments.measured import SavedActivations

THREE = LLAMA.replace(layers=3)


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
