"""Layers in FP8 as they run on a GPU, their kernels interpreted: quantised by one kernel, multiplied by another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers import LLAMA, gradients, tokens

from playbook.model import fp8
from playbook.model.fp8 import use_fp8
from playbook.model.transformer import Transformer
from playbook.precision import products
from playbook.precision.formats import load_format
from playbook.precision.recipes import FP8_RECIPES
from playbook.precision.scaling import has_kernel, load_groups, quantize
from playbook.registry import lab

SHAPE = LLAMA.replace(layers=1, hidden=144, heads=3, kv_heads=1, ffn=136)


def learn(recipe):
    model = Transformer(SHAPE)
    use_fp8(model, recipe)
    total, count = model.loss(*tokens(SHAPE, 2, 8))
    (total / count).backward()
    return float((total / count).detach()), gradients(model)


def as_on_a_gpu(x, form, groups="tensor", *, scales=None):
    form, groups = load_format(form), load_groups(groups)
    if scales is None and x.numel() and has_kernel(form, groups):
        return lab("fp8", "quantize")(x, form, groups)
    return quantize(x, form, groups, scales=scales)


@pytest.mark.parametrize("powers", ["up", ""])
def test_a_step_with_kernels_is_that_without(powers, monkeypatch):
    recipe = FP8_RECIPES["blockwise"]
    groups, weights = (dataclasses.replace(g, powers=powers) for g in (recipe.groups, recipe.weights))
    recipe = dataclasses.replace(recipe, groups=groups, weights=weights)
    loss, expected = learn(recipe)
    launched = []

    def product(a, b, dtype=torch.float32):
        found = products._on_tensor_cores(a, b, dtype)
        launched.append(found.shape)
        return found

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(fp8, "product", product)
    monkeypatch.setattr(fp8, "quantize", as_on_a_gpu)
    again, found = learn(recipe)
    assert len(launched) == 3 * 7
    assert again == pytest.approx(loss, rel=1e-6)
    for name, gradient in expected.items():
        # A sum in another order may move a number across the border between two codes.
        assert (found[name] - gradient).norm() <= 1e-2 * gradient.norm(), name
