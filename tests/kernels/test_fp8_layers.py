"""Layers in FP8 as they run on a GPU, their kernels interpreted: quantised by one kernel, multiplied by another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers import LLAMA, gradients, tokens

from playbook.kernels.jit import launches
from playbook.model import fp8
from playbook.model.fp8 import use_fp8
from playbook.model.transformer import Transformer
from playbook.precision import products, scaling
from playbook.precision.recipes import FP8_RECIPES

SHAPE = LLAMA.replace(layers=1, hidden=144, heads=3, kv_heads=1, ffn=136)


def learn(recipe):
    model = Transformer(SHAPE)
    use_fp8(model, recipe)
    total, count = model.loss(*tokens(SHAPE, 2, 8))
    (total / count).backward()
    return float((total / count).detach()), gradients(model)


def rounded_up(recipe):
    groups, weights = (dataclasses.replace(g, powers="up") for g in (recipe.groups, recipe.weights))
    return dataclasses.replace(recipe, groups=groups, weights=weights)


@pytest.mark.parametrize(
    "recipe",
    [
        rounded_up(FP8_RECIPES["blockwise"]),
        *(FP8_RECIPES[name] for name in ("tensorwise", "rowwise", "delayed")),
    ],
    ids=lambda recipe: recipe.name + recipe.groups.powers,
)
def test_a_step_with_kernels_is_that_without(recipe, monkeypatch):
    loss, expected = learn(recipe)
    launched = []

    def product(a, b, dtype=torch.float32):
        found = products._on_tensor_cores(a, b, dtype)
        launched.append(found.shape)
        return found

    for module in (scaling, products, fp8):
        monkeypatch.setattr(module, "on_fp8_gpu", lambda x: x.numel() > 0)
    monkeypatch.setattr(fp8, "product", product)
    with launches() as found_launches:
        again, found = learn(recipe)
    quantised = [one.kernel.fn.__name__ for one in found_launches].count("quantize_kernel")
    # x of four inputs along features; dy of seven both ways at once; seven weights, with their transposes where those
    # have other scales; x of four inputs again along tokens, unless codes are only turned.
    assert quantised == 4 + 7 + 7 + (4 if recipe.groups.rows else 0)
    assert len(launched) == 3 * 7
    assert again == pytest.approx(loss, rel=1e-6)
    for name, gradient in expected.items():
        # A sum in another order may move a number across the border between two codes.
        assert (found[name] - gradient).norm() <= 1e-2 * gradient.norm(), name
