"""Compressed SGD: why biased compressors need error feedback, and that all of it is the same on real ranks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from decentralized_problem import STEPS, D, gradient, start
from torch import Tensor

from playbook import launch
from playbook.decentralized.compressors import Compressor, TopK
from playbook.decentralized.feedback import CompressedSGD, MemSGD
from playbook.decentralized.network import Network, Ranks
from playbook.errors import ConfigError
from playbook_book.compressors import FP8, QSGD, Identity, RandK, Sign
from playbook_book.error_feedback import EF21, DoubleSqueeze, Neolithic
from playbook_book.simulated import Simulated

METHODS = (CompressedSGD, MemSGD, DoubleSqueeze, EF21)  # with one message of each node a step
CASES: list[tuple[type[CompressedSGD], Compressor]] = [
    (CompressedSGD, Identity()), (CompressedSGD, QSGD(4)), (MemSGD, TopK(0.3)), (MemSGD, Sign()),
    (DoubleSqueeze, TopK(0.3)), (DoubleSqueeze, QSGD(1)), (EF21, RandK(0.3, scaled=False)), (EF21, FP8(4)),
    (Neolithic, TopK(0.3)),
]  # fmt: skip


def one_start(network: Network) -> Tensor:
    return start(1).float().expand(len(network.nodes), D).clone()


def trained(network: Network, case: tuple[type[CompressedSGD], Compressor]) -> tuple[Tensor, list[int]]:
    kind, compressor = case
    method = kind(network, compressor, one_start(network), lr=0.05)
    for _ in range(STEPS):
        method.step(gradient)
    return method.x, network.sent


def on_ranks() -> list[tuple[Tensor, list[int]]]:
    with launch.process_group():
        return [trained(Ranks(), case) for case in CASES]


@pytest.mark.parametrize("n", [2, 5])
def test_ranks_have_the_iterates_and_the_bytes_of_a_simulation(ranks, n):
    found = ranks(on_ranks, ranks=n)
    for i, case in enumerate(CASES):
        x, sent = trained(Simulated(n), case)
        assert torch.equal(x, x[:1].expand_as(x))
        for rank in range(n):
            own, count = found[rank].value[i]
            assert torch.allclose(own[0], x[rank], rtol=0, atol=1e-6), case
            assert count == [sent[rank]], case


@pytest.mark.parametrize("kind", METHODS)
def test_without_compression_all_are_sgd(kind):
    n = 4
    x, _ = trained(Simulated(n), (kind, Identity()))
    alone = start(1).float()
    for step in range(STEPS):
        alone = alone - 0.05 * gradient(alone.expand(n, D), range(n), step).mean(0)
    assert torch.allclose(x, alone.expand(n, D), atol=1e-6)


#: Beznosikov et al. 2020, example 1: f_i(x) = ⟨a_i, x⟩² + ‖x‖²/4, whose sum has its minimum at 0.
A = torch.tensor([[-3.0, 2.0, 2.0], [2.0, -3.0, 2.0], [2.0, 2.0, -3.0]])


def uphill(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
    """The largest coordinate of each node's gradient points away from the minimum, where all of x are equal."""
    a = A[list(nodes)]
    return 2 * (a * x).sum(1, keepdim=True) * a + x / 2


@pytest.mark.parametrize("kind", METHODS)
def test_the_largest_coordinate_alone_diverges_and_feedback_repairs_it(kind):
    method = kind(Simulated(3), TopK(1 / 3), torch.ones(3, 3), lr=0.02)
    for step in range(400):
        method.step(uphill)
        if kind is CompressedSGD and step < 50:  # 2·⟨a, x⟩·a + x/2 has −5.5 at the place of −3
            assert method.x[0].tolist() == pytest.approx([(1 + 0.02 * 5.5 / 3) ** (step + 1)] * 3, rel=1e-3)
    distance = method.x[0].norm().item()
    if kind is CompressedSGD:
        assert distance > 1e6
    else:
        assert distance < 1e-3


def test_double_squeeze_is_its_algorithm():
    """Tang et al. 2019, algorithm 1, in NumPy: the largest coordinate alone, up and down, and a memory at each end."""

    def largest(v: np.ndarray) -> np.ndarray:
        return np.where(np.arange(3) == np.abs(v).argmax(-1, keepdims=True), v, 0)

    x, left, left_at_server = np.tile([1.0, 0.5, -0.7], (3, 1)), np.zeros((3, 3)), np.zeros(3)
    method = DoubleSqueeze(Simulated(3), TopK(1 / 3), torch.tensor(x), lr=0.05)
    for step in range(6):
        wanted = uphill(torch.tensor(x).float(), range(3), step).numpy() + left
        left = wanted - largest(wanted)
        mean = largest(wanted).mean(0) + left_at_server
        left_at_server = mean - largest(mean)
        x = x - 0.05 * largest(mean)
        method.step(uphill)
        assert method.x.numpy() == pytest.approx(x, abs=1e-6)


def test_many_messages_repair_it_too():
    method = Neolithic(Simulated(3), TopK(1 / 3), torch.ones(3, 3), lr=0.02, rounds=3)
    for _ in range(400):
        method.step(uphill)
    assert method.x[0].norm().item() < 1e-3
    with pytest.raises(ConfigError, match="must be contractive"):
        Neolithic(Simulated(3), QSGD(), torch.ones(3, 3), lr=0.01)


def test_what_is_left_is_what_was_not_sent():
    """In sum nothing is lost: x has moved by all gradients but what the memories have."""
    n, total = 3, torch.zeros(D)
    method = MemSGD(Simulated(n), TopK(0.2), one_start(Simulated(n)), lr=0.05)
    begin = method.x[0].clone()

    def noted(x: Tensor, nodes: Sequence[int], step: int) -> Tensor:
        g = gradient(x, nodes, step)
        total.add_(g.mean(0))
        return g

    for _ in range(STEPS):
        method.step(noted)
    assert torch.allclose(begin - method.x[0], 0.05 * total - method.left.mean(0), atol=1e-5)


def test_bytes_are_those_of_packed_messages():
    n, compressor = 4, TopK(0.3)
    size = compressor.size(D)
    assert trained(Simulated(n), (MemSGD, compressor))[1] == [(n - 1) * size * STEPS] * n
    assert trained(Simulated(n), (DoubleSqueeze, compressor))[1] == [
        (n - 1) * size * STEPS,
        *[size * STEPS] * (n - 1),
    ]
