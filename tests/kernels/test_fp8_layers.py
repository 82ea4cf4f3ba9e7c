"""Layers in FP8 as they run on a GPU, their kernels interpreted: quantised by one kernel, multiplied by another."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers import LLAMA, gradients, tokens

from playbook.kernels.jit import launches
from playbook.model import fp8
from playbook.model.fp8 import quantize_both, use_fp8
from playbook.model.transformer import Transformer
from playbook.precision import products, scaling
from playbook.precision.products import product, product_torch
from playbook.precision.recipes import FP8_RECIPES
from playbook.precision.scaling import quantize

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

    def on_tensor_cores(a, b, dtype=torch.float32):
        found = products._on_tensor_cores(a, b, dtype)
        launched.append(found.shape)
        return found

    for module in (scaling, products, fp8):
        monkeypatch.setattr(module, "on_fp8_gpu", lambda x: x.numel() > 0)
    monkeypatch.setattr(fp8, "product", on_tensor_cores)
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


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [(144, 136, 48), (256, 384, 512), (130, 256, 129)])
@pytest.mark.parametrize("recipe", ["blockwise", "tensorwise", "rowwise"])
def test_products_on_tensor_cores_are_those_in_fp32(recipe, size, dtype):
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    torch.manual_seed(0)
    (m, n, k), asked = size, FP8_RECIPES[recipe]
    x, w, dy = (torch.randn(*rows, device="cuda") for rows in ((m, k), (n, k), (m, n)))
    straight, turned = quantize_both(dy, asked.gradients, asked.groups)
    copy = quantize(w, "e4m3", asked.weights)
    of_turned = copy.t() if asked.turns else quantize(w.t(), "e4m3", asked.weights)
    taken, again = (quantize(t, "e4m3", asked.groups) for t in (x, x.t()))
    for a, b in ((taken, copy), (straight, of_turned), (turned, again)):
        found, wanted = product(a, b, dtype), product_torch(a, b, dtype)
        assert found.dtype == dtype
        assert (found - wanted).norm() <= 1e-2 * wanted.norm()
