"""Layers in FP8: what is quantised, when, with whose scale."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers import DEEPSEEK, GPT, LLAMA, MIXTRAL, gradients, tokens

from playbook.errors import ConfigError
from playbook.model import fp8
from playbook.model.fp8 import FP8, AmaxHistory, use_fp8
from playbook.model.linear import TORCH, DeferredGradients, defer_weights, linear_layers
from playbook.model.transformer import Transformer
from playbook.precision.recipes import FP8_RECIPES, Groups
from playbook.precision.scaling import quantize

SHAPES = {"gpt": GPT, "llama": LLAMA, "mixtral": MIXTRAL, "deepseek": DEEPSEEK}
#: Groups of 8, so that small layers have several.
TILES = dataclasses.replace(
    FP8_RECIPES["blockwise"], groups=Groups("tile", 1, 8, "up"), weights=Groups("block", 8, 8, "up")
)


def learn(model, batch):
    model.zero_grad()
    total, count = model.loss(*batch)
    (total / count).backward()
    return float(total.detach()), gradients(model)


def vector(found):
    return torch.cat([g.flatten() for g in found.values()])


@pytest.mark.parametrize("name", FP8_RECIPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_step_is_near_that_of_fp32(shape, name):
    batch = tokens(SHAPES[shape], 2, 16)
    exact, of_exact = learn(Transformer(SHAPES[shape]), batch)
    model = Transformer(SHAPES[shape])
    use_fp8(model, name)
    loss, found = learn(model, batch)
    assert loss != exact
    assert loss == pytest.approx(exact, rel=2e-3)
    assert found.keys() == of_exact.keys()
    assert (vector(found) - vector(of_exact)).norm() < 0.2 * vector(of_exact).norm()


def test_gradients_are_products_of_what_was_quantised():
    """Of one layer, written out: each operand in groups along the dimension that is summed over."""
    model = Transformer(GPT)
    use_fp8(model, TILES)
    layer, generator = model.blocks[0].mlp.up, torch.Generator().manual_seed(0)
    x, dy = torch.randn(2, 5, 24, generator=generator), torch.randn(2, 5, 96, generator=generator)
    x.requires_grad_()
    y = layer(x)
    y.backward(dy)

    def near(t, groups=TILES.groups):
        return quantize(t, "e4m3", groups).dequantized()

    rows, of_rows, w = x.detach().flatten(0, 1), dy.flatten(0, 1), near(layer.weight.detach(), TILES.weights)
    kept = near(rows)
    assert torch.allclose(y.flatten(0, 1), kept @ w.t() + layer.bias, atol=1e-5)
    assert torch.allclose(x.grad.flatten(0, 1), near(of_rows) @ w, atol=1e-5)
    assert torch.allclose(layer.weight.grad, near(of_rows.t()) @ near(kept.t()).t(), atol=1e-5)
    assert torch.allclose(layer.bias.grad, of_rows.sum(0), atol=1e-5)


@pytest.mark.parametrize("name", ["tensorwise", "blockwise"])
def test_what_several_layers_read_is_quantised_once(name, monkeypatch):
    counted = []
    monkeypatch.setattr(fp8, "quantize", lambda x, *a, **k: counted.append(x.shape) or quantize(x, *a, **k))
    model = Transformer(LLAMA.replace(layers=1))
    use_fp8(model, name)
    model.loss(*tokens(LLAMA, 2, 8))
    assert len(counted) == 4 + 7  # the inputs of q/k/v, out, gate/up, down; and seven weights
    model.loss(*tokens(LLAMA, 2, 8))
    assert len(counted) == 4 + 7 + 4  # weights stay for the step


def test_a_weight_is_quantised_anew_when_it_has_changed():
    model = Transformer(GPT)
    use_fp8(model, "blockwise")
    batch = tokens(GPT, 2, 8)
    before = learn(model, batch)[0]
    with torch.no_grad():
        model.blocks[0].mlp.up.weight.mul_(2)
    assert learn(model, batch)[0] != before


@pytest.mark.parametrize("name", FP8_RECIPES)
def test_recomputed_and_deferred_gradients_are_the_same(name):
    batch = tokens(LLAMA, 2, 8)
    found = {}
    for mode in ("none", "full", "deferred"):
        model = Transformer(LLAMA, recompute="full" if mode == "full" else "none")
        use_fp8(model, name)
        waiting = DeferredGradients()
        defer_weights(model, waiting)
        if mode == "deferred":
            with waiting.collect() as kept:
                learn(model, batch)
            waiting.compute(kept)
            found[mode] = gradients(model)
        else:
            found[mode] = learn(model, batch)[1]
    for mode in ("full", "deferred"):
        for parameter, gradient in found["none"].items():
            assert torch.equal(found[mode][parameter], gradient), (mode, parameter)


def test_blocks_that_are_left_out_stay_as_they_were():
    model = Transformer(LLAMA)
    use_fp8(model, "blockwise", leave=(0,))
    assert all(layer.products is TORCH for layer in linear_layers(model.blocks[0]))
    assert all(isinstance(layer.products, FP8) for layer in linear_layers(model.blocks[1]))
    assert model.head.products is TORCH


def test_a_history_knows_the_steps_before_and_forgets_old_ones():
    history = AmaxHistory(2, 1, torch.device("cpu"))
    known = []
    for largest in (4.0, 8.0, 1.0, 1.0, 1.0):
        known.append(float(history.largest(0, torch.tensor(largest))))
        history.largest(0, torch.tensor(largest / 2))  # another micro-batch
        history.end_step()
    assert known == [4, 4, 8, 8, 1]  # in the first step, what is there


def test_delayed_scales_cut_what_has_grown():
    """A weight that is doubled after the first step is twice its scale's largest code: it is cut."""
    model = Transformer(GPT)
    history = use_fp8(model, "delayed")
    layer, x = model.blocks[0].mlp.up.requires_grad_(False), torch.eye(24)
    layer(x)
    history.end_step()
    with torch.no_grad():
        layer.weight.mul_(2)
        layer.bias.zero_()
    assert layer(x).abs().max() == pytest.approx(float(layer.weight.abs().max()) / 2, rel=1e-5)
    history.end_step()
    assert layer(x).abs().max() == pytest.approx(float(layer.weight.abs().max()), rel=1e-5)


@pytest.mark.parametrize("name", FP8_RECIPES)
def test_an_overflow_is_not_cut(name):
    """Whoever scales the loss must see it in the norm; of the step that is then not made nothing is remembered."""
    model = Transformer(GPT)
    history, layer = use_fp8(model, name), model.blocks[0].mlp.up
    gradients = []
    for largest in (1.0, float("inf"), 1.0):
        x, dy = torch.ones(3, 24, requires_grad=True), torch.ones(3, 96)
        dy[1, 5] = largest
        layer.weight.grad = None
        layer(x).backward(dy)
        history.end_step() if largest == 1 else history.forget_step()
        gradients.append((x.grad, layer.weight.grad))
    first, overflown, after = gradients
    assert not any(g.isfinite().all() for g in overflown)
    assert all(torch.equal(a, b) for a, b in zip(first, after, strict=True))


@pytest.mark.parametrize("name", FP8_RECIPES)
def test_experts_without_a_token(name):
    model = Transformer(MIXTRAL)
    use_fp8(model, name)
    one = torch.zeros(1, 1, dtype=torch.long)
    _, found = learn(model, (one, one))
    rows = found["blocks.0.mlp.experts.up.weight"].flatten(1).abs().amax(1)
    assert 0 < (rows > 0).sum() == MIXTRAL.moe.top_k < len(rows)


def test_an_unknown_recipe_is_refused():
    with pytest.raises(ConfigError, match="unknown FP8 recipe 'fp9'"):
        use_fp8(Transformer(GPT), "fp9")
    with pytest.raises(ConfigError, match="leave has block 2, but the model has blocks 0 to 1"):
        use_fp8(Transformer(GPT), "blockwise", leave=(2,))
