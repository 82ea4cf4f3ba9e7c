"""Copies of weights in FP8 have the bytes that are predicted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import shapes

from playbook.model.fp8 import FP8, use_fp8
from playbook.model.linear import linear_layers
from playbook.model.transformer import Transformer
from playbook.planning.job import Job
from playbook.planning.parameters import copies_of_blocks
from playbook.planning.recipes import RECIPES
from playbook.planning.terms import maker, symbols
from playbook.precision.recipes import FP8_RECIPES


def held(model: Transformer) -> int:
    """The bytes of all copies, what several of them share once."""
    storages = {}
    for layer in linear_layers(model):
        if isinstance(layer.products, FP8):
            for tensor in layer.products.copies(layer.weight):
                storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(storages.values())


@given(shapes(), st.sampled_from(list(FP8_RECIPES)))
@settings(max_examples=60, deadline=None)
def test_predicted_copies_are_those_that_are_made(shape, name):
    model = Transformer(shape)
    use_fp8(model, name)
    make = maker(symbols(Job(shape, seq=8, recipe=RECIPES["fp32"].with_fp8(name), device="cpu")))
    parts = copies_of_blocks(shape, shape.blocks(), FP8_RECIPES[name], make)
    assert sum(part.value for part in parts) == held(model)
