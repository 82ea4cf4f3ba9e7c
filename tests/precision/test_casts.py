"""Rounding of tensors is the rounding of numbers, and PyTorch's where it has the format."""

from __future__ import annotations

import math

import pytest
import torch

from playbook.precision.casts import DTYPES, round_to
from playbook.precision.formats import FORMATS

SIGNED = [name for name, form in FORMATS.items() if not form.unsigned]


def numbers(name: str, count: int = 3000) -> torch.Tensor:
    """Random numbers inside a format's range and beyond, small ones, ties, and what is special."""
    form, generator = FORMATS[name], torch.Generator().manual_seed(0)
    spread = torch.randn(count, generator=generator) * torch.logspace(-8, 0.5, count) * min(form.max, 1e37)
    small = torch.randn(count, generator=generator) * form.min_normal
    ties = torch.arange(1, 200) * form.min_positive / 2
    return torch.cat([spread, small, ties, torch.tensor([0.0, -0.0, 1e38, -1e38])]).float()


@pytest.mark.parametrize("saturate", [True, False])
@pytest.mark.parametrize("name", SIGNED)
def test_rounding_is_that_of_numbers(name, saturate):
    x = numbers(name)
    expected = torch.tensor(
        [FORMATS[name].round(v, saturate=saturate) for v in x.tolist()], dtype=torch.float64
    )
    found = round_to(x, name, saturate=saturate)
    assert found.dtype == x.dtype
    torch.testing.assert_close(found.double(), expected.float().double(), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())


@pytest.mark.parametrize("name", DTYPES)
def test_rounding_is_pytorchs(name):
    x = numbers(name)
    found = round_to(x, name, saturate=name == "e4m3")
    assert torch.equal(found, x.to(DTYPES[name]).float())


@pytest.mark.parametrize("name", SIGNED)
def test_stochastic_rounding_gives_neighbours_and_the_mean(name):
    form, generator = FORMATS[name], torch.Generator().manual_seed(0)
    number = torch.tensor(1 + 0.3 * form.epsilon, dtype=torch.float64)
    found = round_to(number.expand(100_000), name, generator=generator)
    assert set(found.tolist()) == {1.0, 1 + form.epsilon}
    assert abs(found.mean().item() - number.item()) < 5 * 0.5 * form.epsilon / math.sqrt(100_000)


def test_what_a_format_has_stays_under_stochastic_rounding():
    x = torch.tensor(list(FORMATS["e2m1"].numbers(0, 6)))
    assert torch.equal(round_to(-x, "e2m1", generator=torch.Generator().manual_seed(0)), -x)
