"""Mixtures of experts on one device: routing, what is dropped, the losses that keep the load even, biases."""

import copy
import dataclasses
import math

import pytest
import torch
from helpers import DEEPSEEK, MIXTRAL, gradients, relative_error, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import mixtures

from playbook.model.linear import DeferredGradients, defer_weights
from playbook.model.moe import MoE, Router, routers
from playbook.model.transformer import Transformer, init_parameters
from playbook.shapes import ModelShape
from playbook.shapes import MoE as Sizes
from playbook_book.bench.experts import looped


def layer_of(sizes: dict | Sizes, hidden: int = 12, bias: bool = False, seed: int = 0) -> MoE:
    """A layer whose router decides: weights of deviation 1."""
    moe = Sizes(**sizes) if isinstance(sizes, dict) else sizes
    shape = ModelShape(
        layers=1, hidden=hidden, heads=1, vocab=2, moe=moe, gated=True, activation="silu", bias=bias
    )
    layer = MoE(shape, moe)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for p in layer.parameters():
            p.normal_(0, 0.5, generator=generator)
        layer.router.weight.normal_(0, 1, generator=generator)
        layer.router.bias.zero_()
        layer.router.load.zero_()
    return layer


def inputs(b=2, s=9, hidden=12, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(b, s, hidden, generator=generator)


@given(mixtures(), st.booleans(), st.integers(1, 13), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_grouped_products_are_a_loop_over_experts(sizes, bias, hidden, seed):
    """Outputs and all gradients, odd sizes, with experts that nobody chooses."""
    layer, x = layer_of(sizes, hidden, bias, seed), inputs(2, 5, hidden, seed).requires_grad_()
    twin, y = copy.deepcopy(layer), x.detach().clone().requires_grad_()
    out, expected = layer(x), looped(twin, y)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-4)
    weigh = torch.randn(out.shape, generator=torch.Generator().manual_seed(seed))
    (out * weigh).sum().backward()
    (expected * weigh).sum().backward()
    for p in (*twin.parameters(), y):  # an expert that nobody chose has no gradient in the loop
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
    ours, theirs = {**gradients(layer), "x": x.grad}, {**gradients(twin), "x": y.grad}
    assert relative_error(ours, theirs) < 1e-3  # of a top-1 router, normalized, it is 0 and noise


def test_weights_are_those_of_the_chosen_alone():
    x = inputs()
    for normalized, scale in ((True, 1.0), (True, 2.5), (False, 1.0)):
        layer = layer_of({"experts": 6, "top_k": 3, "ffn": 4, "normalized": normalized, "scale": scale})
        _, routing = layer.router(x)
        probabilities = (x.flatten(0, 1) @ layer.router.weight.t()).softmax(-1)
        best = probabilities.sort(-1, descending=True).values[:, :3]
        expected = best / best.sum(-1, keepdim=True) * scale if normalized else best
        torch.testing.assert_close(routing.weights.sort(-1, descending=True).values, expected)
        assert int(routing.counts.sum()) == 2 * 9 * 3


def test_a_token_stays_in_its_groups():
    layer = layer_of({"experts": 12, "top_k": 4, "ffn": 4, "groups": 4, "top_groups": 2})
    _, routing = layer.router(inputs(4, 30))
    groups = routing.chosen // 3
    assert all(len(set(row.tolist())) <= 2 for row in groups)
    assert len(set(groups.flatten().tolist())) == 4
    free = layer_of({"experts": 12, "top_k": 4, "ffn": 4})
    free.load_state_dict(layer.state_dict())
    _, elsewhere = free.router(inputs(4, 30))
    assert any(len(set(row.tolist())) > 2 for row in elsewhere.chosen // 3)


@pytest.mark.parametrize("capacity", [0.5, 1.0, 1.3, 8.0])
@pytest.mark.parametrize("top_k", [1, 4])
def test_an_expert_keeps_the_best_of_a_sample(capacity, top_k):
    sizes = Sizes(experts=6, top_k=top_k, ffn=4, capacity=capacity, scores="sigmoid")
    layer, x = layer_of(sizes), inputs(3, 11)
    _, routing = layer.router(x)
    _, all_of_them = layer_of(dataclasses.replace(sizes, capacity=None)).router(x)
    room = math.ceil(capacity * 11 * top_k / 6)
    scores = torch.sigmoid(x @ layer.router.weight.t()).detach()
    for sample in range(3):
        rows = slice(sample * 11, (sample + 1) * 11)
        for expert in range(6):
            wanted = (all_of_them.chosen[rows] == expert).any(-1).nonzero().flatten().tolist()
            wanted.sort(key=lambda token: -float(scores[sample, token, expert]))
            kept = (routing.chosen[rows] == expert).any(-1).nonzero().flatten().tolist()
            assert set(kept) == set(wanted[:room])
    assert torch.equal(routing.counts, routing.chosen.flatten().bincount(minlength=7)[:6])
    # What is dropped adds nothing, and what is kept is what the loop over experts gives.
    torch.testing.assert_close(layer(x), looped(layer, x), atol=1e-5, rtol=1e-4)
    layer(x).sum().backward()
    assert all(p.grad is not None for p in layer.parameters())


def test_all_tokens_dropped_leave_the_shared_expert():
    layer = layer_of({"experts": 2, "top_k": 1, "ffn": 4, "shared_experts": 1})
    x = inputs()
    routed = layer(x) - layer.shared(x)
    with torch.no_grad():
        for p in layer.experts.parameters():
            p.zero_()
    assert float(routed.detach().abs().max()) > 0.1
    torch.testing.assert_close(layer(x), layer.shared(x))


@pytest.mark.parametrize("over", ["sample", "micro_batch", "global_batch"])
@pytest.mark.parametrize("scores", ["softmax", "sigmoid"])
def test_the_losses_are_tied_to_what_leaves(over, scores):
    """Backward through the output alone gives the gradient of the output and of both losses, scaled as said."""
    sizes = Sizes(experts=5, top_k=2, ffn=4, balance_loss=0.3, z_loss=0.1, balance_over=over, scores=scores)
    layer, x = layer_of(sizes), inputs()
    layer.router.loss_scale = 0.25
    layer(x).sum().backward()
    found = layer.router.weight.grad.clone()
    layer.zero_grad()

    without = layer_of(dataclasses.replace(sizes, balance_loss=0.0, z_loss=0.0))
    without(x).sum().backward()
    weight = layer.router.weight.detach().clone().requires_grad_()
    logits = x @ weight.t()
    values = logits.softmax(-1) if scores == "softmax" else logits.sigmoid()
    shares = values / values.sum(-1, keepdim=True)
    chosen = torch.nn.functional.one_hot(values.topk(2, -1).indices, 5).sum(2).float()  # (b, s, E)
    if over == "sample":
        f, p = chosen.mean(1) * 5 / 2, shares.sum(1)
    else:
        f, p = chosen.mean((0, 1)) * 5 / 2, shares.sum((0, 1))
    loss = 0.3 * (f * p).sum() + 0.1 * logits.logsumexp(-1).square().sum()
    (0.25 * loss).backward()
    torch.testing.assert_close(found, without.router.weight.grad + weight.grad, atol=1e-5, rtol=1e-4)


def test_an_even_load_costs_alpha_a_token():
    """The normalisation of the loss: 1 where every expert is as likely, and as often chosen, as any other."""
    router = Router(4, Sizes(experts=4, top_k=1, ffn=2, balance_loss=1.0))
    logits = torch.full((1, 4, 4), -30.0) + 60 * torch.eye(4)  # token i to expert i
    chosen = torch.arange(4).view(1, 4, 1)
    assert float(router.losses(logits, logits.softmax(-1), chosen)) == pytest.approx(4.0)  # four tokens
    pairs = torch.cat([chosen, (chosen + 1) % 4], -1)  # of two choices each, too
    assert float(router.losses(logits, logits.softmax(-1), pairs)) == pytest.approx(4.0)
    crowd = torch.zeros(1, 4, 1, dtype=torch.int64)
    logits[..., 0] = 90.0
    assert float(router.losses(logits, logits.softmax(-1), crowd)) == pytest.approx(16.0)  # E times as much


def test_of_a_global_batch_all_that_came_before_counts():
    sizes = Sizes(experts=3, top_k=1, ffn=4, balance_loss=1.0, balance_over="global_batch")
    layer = layer_of(sizes)
    layer(inputs(seed=1))
    layer(inputs(seed=2))
    counted = layer.router.load.clone()
    assert int(counted.sum()) == 2 * 18
    chosen = torch.zeros(1, 1, 1, dtype=torch.int64)
    torch.testing.assert_close(layer.router._frequencies(chosen)[0], counted * 3 / 36)


def test_biases_move_against_the_load_and_only_the_choice_sees_them():
    sizes = Sizes(experts=4, top_k=1, ffn=4, bias_rate=0.01, scores="sigmoid", normalized=False)
    layer, x = layer_of(sizes), inputs(4, 50)
    before = layer.router(x)[1]
    for _ in range(60):
        layer(x)
        load = layer.router.load.clone()
        bias = layer.router.bias.clone()
        layer.router.update_bias(load)
        torch.testing.assert_close(layer.router.bias, bias + 0.01 * (load.mean() - load).sign())
        assert not layer.router.load.any()
    after = layer.router(x)[1]
    assert after.counts.max() < 1.15 * 50 < before.counts.max()
    values = torch.sigmoid(x.flatten(0, 1) @ layer.router.weight.t())
    torch.testing.assert_close(after.weights, values.gather(1, after.chosen))  # without the bias


def test_without_gradients_nothing_is_counted():
    layer = layer_of({"experts": 4, "top_k": 1, "ffn": 4})
    with torch.no_grad():
        layer(inputs())
    layer.eval()
    layer(inputs())
    assert not layer.router.load.any()
    layer.train()
    layer(inputs())
    assert int(layer.router.load.sum()) == 18


@pytest.mark.parametrize("shape", [MIXTRAL, DEEPSEEK], ids=["mixtral", "deepseek"])
@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_routes_and_counts_alike(shape, recompute):
    moe = dataclasses.replace(shape.moe, balance_loss=0.1, z_loss=0.01, bias_rate=0.01)
    shape, (x, y) = shape.replace(moe=moe), tokens(shape, 3, 11)
    found = []
    for mode in ("none", recompute):
        model = Transformer(shape, recompute=mode)
        model.loss(x, y)[0].backward()
        found.append((gradients(model), [router.load.clone() for router in routers(model).values()]))
    assert relative_error(found[1][0], found[0][0]) < 1e-5
    assert all(torch.equal(a, b) for a, b in zip(found[0][1], found[1][1], strict=True))
    assert int(found[0][1][0].sum()) == 3 * 11 * moe.top_k


def test_weight_gradients_of_experts_wait_and_add_up_in_place():
    x, y = tokens(DEEPSEEK, 2, 9)
    expected = Transformer(DEEPSEEK)
    for _ in range(2):
        expected.loss(x, y)[0].backward()
    for in_place in (False, True):
        model, deferred = Transformer(DEEPSEEK), DeferredGradients(in_place)
        defer_weights(model, deferred)
        with deferred.collect() as first:
            model.loss(x, y)[0].backward()
        assert model.blocks[1].mlp.experts.up.weight.grad is None
        assert any(type(factors.layer).__name__ == "Group" for factors in first)
        deferred.compute(first)
        with deferred.collect() as second:
            model.loss(x, y)[0].backward()
        deferred.compute(second)
        assert relative_error(gradients(model), gradients(expected)) < 1e-5


def test_weights_depend_on_seed_and_name_alone():
    model = Transformer(DEEPSEEK, seed=3)
    experts = model.blocks[2].mlp.experts
    assert float(experts.up.weight.detach().std()) == pytest.approx(0.02, rel=0.1)
    assert float(experts.down.weight.detach().std()) == pytest.approx(0.02 / math.sqrt(6), rel=0.1)
    again = Transformer(DEEPSEEK, seed=4)
    init_parameters(again, 3)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), again.parameters(), strict=True))
    half = Transformer(DEEPSEEK, dtype=torch.bfloat16)
    assert {t.dtype for router in routers(half).values() for t in (router.bias, router.load)} == {
        torch.float32
    }
    assert not any(router.bias.any() for router in routers(model).values())
