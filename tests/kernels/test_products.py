"""A model whose linear layers multiply by this library's kernels has the gradients of one that multiplies by torch's."""

from __future__ import annotations

import copy

import pytest
import torch
from helpers import gradients, relative_error

from playbook.kernels.jit import launches
from playbook.kernels.products import TritonProducts, use_products
from playbook.model.linear import DeferredGradients, Linear, defer_weights
from playbook.model.transformer import Transformer, init_parameters
from playbook.shapes import ModelShape, MoE

DENSE = ModelShape(layers=1, hidden=24, heads=3, ffn=40, vocab=33, bias=True)
MIXTURE = ModelShape(
    layers=1, hidden=16, heads=2, kv_heads=1, ffn=24, vocab=33, gated=True, activation="silu", norm="rmsnorm",
    positions="rotary", bias=False, moe=MoE(experts=5, top_k=2, ffn=12),
)  # fmt: skip


def loss_of(model: Transformer) -> torch.Tensor:
    tokens = torch.randint(0, 33, (2, 8), generator=torch.Generator().manual_seed(1))
    total, count = model.loss(tokens[:, :-1], tokens[:, 1:])
    return total / count


@pytest.mark.parametrize(("shape", "deferred"), [(DENSE, True), (MIXTURE, False), (MIXTURE, True)])
def test_a_models_gradients_are_the_same(shape, deferred):
    ours = Transformer(shape)
    init_parameters(ours, seed=0)
    theirs = copy.deepcopy(ours)
    use_products(ours, TritonProducts())
    waiting = DeferredGradients(in_place=True)
    if deferred:
        defer_weights(ours, waiting)
    loss_of(theirs).backward()
    passes = 1 + deferred  # the second adds to what the first one left
    for _ in range(passes):
        with launches() as found, waiting.collect() as factors:
            loss = loss_of(ours)
            loss.backward()
            waiting.compute(factors)
    torch.testing.assert_close(loss, loss_of(theirs))
    mean = {name: g / passes for name, g in gradients(ours).items()}
    assert relative_error(mean, gradients(theirs)) < 1e-5
    added = [launch for launch in found if launch.arguments.get("ADD") is True]
    assert bool(added) == deferred
    names = {launch.kernel.fn.__name__ for launch in found}
    grouped = {"grouped_kernel", "gradient_kernel"} if shape.moe else set()
    assert names == {"matmul_kernel"} | grouped


def test_a_layer_in_half_precision_keeps_its_weight_in_fp32():
    layer = Linear(20, 12)
    twin = copy.deepcopy(layer)
    use_products(layer, TritonProducts())
    x = torch.randn(2, 3, 20)
    with torch.autocast("cpu", torch.float16):
        y, z = layer(x), twin(x)
    assert (y.dtype, y.shape) == (torch.float16, (2, 3, 12))
    torch.testing.assert_close(y, z, rtol=2e-3, atol=2e-3)
    y.float().sum().backward()
    z.float().sum().backward()
    assert layer.weight.grad.dtype == torch.float32
    torch.testing.assert_close(layer.weight.grad, twin.weight.grad, rtol=2e-3, atol=2e-3)
