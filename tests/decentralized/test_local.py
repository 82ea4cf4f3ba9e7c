"""Local steps: simulated nodes and real ranks have the same iterates, and special cases are what everybody knows."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest
import torch
from decentralized_problem import STEPS, D, gradient, start
from torch import Tensor

from playbook import launch
from playbook.decentralized.local import Nesterov, SlowMo
from playbook.decentralized.network import Network, Ranks
from playbook.errors import ConfigError
from playbook_book.local_steps import LocalSteps
from playbook_book.simulated import Simulated

SGD = partial(torch.optim.SGD, lr=0.05)
MOMENTUM = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
ADAMW = partial(torch.optim.AdamW, lr=0.02)
CASES: dict[str, dict[str, Any]] = {
    "synchronous": {"period": 1, "inner": SGD},
    "local": {"period": 4, "inner": MOMENTUM},
    "slowmo": {"period": 3, "inner": SGD, "outer": SlowMo(0.05)},
    "diloco": {"period": 6, "inner": ADAMW, "outer": Nesterov()},
    "fedavg": {"period": 2, "inner": SGD, "take_part": 1, "samples": "unequal"},
}


def one_start(network: Network) -> Tensor:
    return start(1).expand(len(network.nodes), D).clone()


def trained(network: Network, name: str) -> tuple[Tensor, list[int]]:
    options = copy.deepcopy(CASES[name])
    if options.get("samples"):
        options["samples"] = [float(1 + node) for node in range(network.n)]
    method = LocalSteps(network, one_start(network), **options)
    for _ in range(STEPS):
        method.step(gradient)
    return method.x, network.sent


def on_ranks() -> dict[str, tuple[Tensor, list[int]]]:
    with launch.process_group():
        return {name: trained(Ranks(), name) for name in CASES}


@pytest.mark.parametrize("n", [2, 4, 8])
def test_ranks_have_the_iterates_and_the_bytes_of_a_simulation(ranks, n):
    found = ranks(on_ranks, ranks=n)
    for name in CASES:
        x, sent = trained(Simulated(n), name)
        for rank in range(n):
            own, count = found[rank].value[name]
            assert torch.allclose(own[0], x[rank], rtol=0, atol=1e-12), name
            assert count == [sent[rank]], name


def test_with_a_period_of_one_it_is_synchronous_sgd():
    n = 4
    x = trained(Simulated(n), "synchronous")[0]
    alone = start(1)
    for step in range(STEPS):
        alone = alone - 0.05 * gradient(alone.expand(n, D), range(n), step).mean(0)
    assert torch.allclose(x, alone.expand(n, D), rtol=0, atol=1e-12)


def test_bytes_fall_with_the_period():
    assert trained(Simulated(4), "synchronous")[1][0] == 4 * trained(Simulated(4), "local")[1][0]


def test_slow_momentum_of_none_is_averaging_and_so_is_an_outer_step_of_one():
    plain = LocalSteps(Simulated(4), one_start(Simulated(4)), 3, SGD)
    slow = LocalSteps(Simulated(4), one_start(Simulated(4)), 3, SGD, SlowMo(0.05, momentum=0.0))
    outer = LocalSteps(Simulated(4), one_start(Simulated(4)), 3, SGD, Nesterov(1.0, 0.0))
    for _ in range(STEPS):
        for method in (plain, slow, outer):
            method.step(gradient)
    assert torch.allclose(plain.x, slow.x, rtol=0, atol=1e-12)
    assert torch.allclose(plain.x, outer.x, rtol=0, atol=1e-12)


def test_the_outer_step_is_pytorchs():
    """With one node and a period of one, an inner step of length 1 hands on the gradient itself."""
    method = LocalSteps(Simulated(1), start(1), 1, partial(torch.optim.SGD, lr=1.0), Nesterov(0.03, 0.9))
    theirs = start(1).clone()
    optimizer = torch.optim.SGD([theirs], lr=0.03, momentum=0.9, nesterov=True)
    for step in range(STEPS):
        method.step(gradient)
        theirs.grad = gradient(theirs, [0], step)
        optimizer.step()
    assert torch.allclose(method.x, theirs, rtol=0, atol=1e-12)


def test_those_that_take_part_count_by_their_samples():
    n = 4
    method = LocalSteps(Simulated(n), one_start(Simulated(n)), 1, SGD, samples=[1, 2, 3, 4], take_part=2)
    before, (first, second) = method.x.clone(), [i for i, takes in enumerate(method.active(0)) if takes]
    g = gradient(before, range(n), 0)
    method.step(gradient)
    share = (1 + first) / (2 + first + second)
    assert torch.allclose(method.x, before - 0.05 * (share * g[first] + (1 - share) * g[second]), atol=1e-12)
    drawn = [tuple(method.active(step)) for step in range(60)]
    assert len(set(drawn)) == 6  # all pairs, in time


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"period": 0}, "period is 0, but must be at least 1"),
        ({"samples": [1.0]}, "samples are .*, but must be 2 positive numbers"),
        ({"take_part": 3}, "take_part is 3, but must be from 1 to the 2 nodes"),
    ],
)
def test_what_does_not_fit(options, sentence):
    with pytest.raises(ConfigError, match=sentence):
        LocalSteps(Simulated(2), one_start(Simulated(2)), **{"period": 1, "inner": SGD, **options})
