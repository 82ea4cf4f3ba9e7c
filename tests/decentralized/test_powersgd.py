"""PowerSGD: simulated nodes and real ranks, exact where the rank suffices, and nothing is lost where it does not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from playbook import launch
from playbook.decentralized.network import Network, Ranks
from playbook.decentralized.powersgd import PowerSGD, factors
from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook.shapes import load
from playbook_book.simulated import Simulated

SHAPES = [(12, 10), (10,), (9, 2, 7), (2, 3), ()]
D, STEPS = 120 + 10 + 126 + 6 + 1, 6


def gradient(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
    """Towards a point of each node's own, with noise."""
    rows = []
    for row, node in zip(x, nodes, strict=True):
        chance = torch.Generator().manual_seed(100 * step + node)
        there = torch.randn(D, generator=torch.Generator().manual_seed(node), dtype=x.dtype)
        rows.append(row - there + 0.1 * torch.randn(D, generator=chance, dtype=x.dtype))
    return torch.stack(rows)


def start(rows: int) -> Tensor:
    return torch.ones(rows, D, dtype=torch.float64)


def trained(network: Network, **options: float) -> tuple[PowerSGD, list[int]]:
    method = PowerSGD(
        network, SHAPES, start(len(network.nodes)), lr=0.1, **{"rank": 2, "momentum": 0.9, **options}
    )
    for _ in range(STEPS):
        method.step(gradient)
    return method, network.sent


def on_ranks() -> tuple[Tensor, list[int]]:
    with launch.process_group():
        method, sent = trained(Ranks())
        return method.x, sent


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ranks_have_the_iterates_and_the_bytes_of_a_simulation(ranks, n):
    found = ranks(on_ranks, ranks=n)
    method, sent = trained(Simulated(n))
    for rank in range(n):
        x, count = found[rank].value
        assert torch.allclose(x[0], method.x[rank], rtol=0, atol=1e-9)
        assert count == [sent[rank]]


def test_bytes_are_those_of_factors_and_vectors():
    n = 4
    first = 2 * 12 + 2 * 9 + 10 + 6 + 1  # P of both matrices, and what is sent whole
    second = 2 * 10 + 2 * 14
    assert trained(Simulated(n))[1] == [STEPS * (round(1.5 * 8 * first) + round(1.5 * 8 * second))] * n


@pytest.mark.parametrize("rank", [1, 2, 4, 9])
def test_factors_are_the_numbers_that_a_step_sends(rank):
    """Counted by the network, as a ring all-reduce between two: of n = 2 each sends as many numbers as there are."""
    assert trained(Simulated(2), rank=rank)[1][0] == STEPS * 8 * sum(factors(SHAPES, rank))


def test_factors_of_a_large_model_do_not_grow_with_its_parameters():
    """Matrix by matrix of Llama 3.2 1B (16 layers; h 2048, keys of 8 heads of 64, MLP 8192): a 363rd of the numbers.

    In proportion, the factors of a small model would be 46 times as many: 4.06 bits a parameter at h = 48.
    """
    h, kv, ffn, vocab, r = 2048, 512, 8192, 128_256, 4
    layer = 2 * r * (h + h) + 2 * r * (kv + h) + 3 * r * (ffn + h)  # q and out; k and v; gate, up and down
    wanted = 16 * (layer + 2 * h) + h + r * (vocab + h)  # norms are sent whole; the head is the embedding
    shape = load("llama3.2-1b")
    model = Transformer(shape, device="meta")
    assert sum(factors([p.shape for p in model.parameters()], r)) == wanted
    assert 32 * wanted / shape.num_parameters == pytest.approx(0.0882, abs=5e-5)
    small = load("tiny").replace(layers=2, hidden=48, ffn=128, heads=4, kv_heads=2)
    sent = sum(factors([p.shape for p in Transformer(small, device="meta").parameters()], r))
    assert 32 * sent / small.num_parameters == pytest.approx(4.06, abs=0.005)


def test_with_momentum_of_none_and_full_rank_it_is_sgd():
    n = 3
    method, _ = trained(Simulated(n), rank=10, momentum=0.0)
    alone = start(1)
    for step in range(STEPS):
        alone = alone - 0.1 * gradient(alone.expand(n, D), range(n), step).mean(0)
    assert torch.allclose(method.x, alone.expand(n, D), rtol=0, atol=1e-12)
    assert not method.left.any()


def test_a_gradient_of_its_rank_is_found_exactly():
    chance = torch.Generator().manual_seed(0)
    low = (
        torch.randn(12, 2, generator=chance, dtype=torch.float64)
        @ torch.randn(2, 10, generator=chance).double()
    )
    method = PowerSGD(Simulated(2), [(12, 10)], torch.zeros(2, 120, dtype=torch.float64), lr=1.0, rank=2)
    method.step(lambda x, nodes, step: low.reshape(1, -1).expand(2, -1))
    assert torch.allclose(method.x, -low.reshape(1, -1).expand(2, -1), atol=1e-12)


def test_what_was_not_sent_is_sent_later():
    n, total = 3, torch.zeros(D, dtype=torch.float64)
    method = PowerSGD(Simulated(n), SHAPES, start(n), lr=0.1, rank=1)

    def noted(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
        g = gradient(x, nodes, step)
        total.add_(g.mean(0))
        return g

    for _ in range(STEPS):
        method.step(noted)
    assert method.left.any()
    assert torch.allclose(start(1)[0] - method.x[0], 0.1 * (total - method.left.mean(0)), atol=1e-12)


def test_what_does_not_fit():
    with pytest.raises(ConfigError, match="rank is 0"):
        trained(Simulated(2), rank=0)
    with pytest.raises(ConfigError, match="shapes have 120 elements together, but x has 263 columns"):
        PowerSGD(Simulated(2), [(12, 10)], start(2), lr=0.1)
