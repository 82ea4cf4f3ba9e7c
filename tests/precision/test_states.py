"""Optimizer states in few bits: how near, with which scale, and what a cut into shards changes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS
from playbook.precision.products import narrow

NARROW = ("e4m3", "fp16")


def wide(kept: dict[str, torch.Tensor]) -> torch.Tensor:
    return kept["m"].float() * kept.get("m_scale", torch.ones(()))


@st.composite
def tensors(draw):
    """Numbers over many powers of ten, some of them 0."""
    n, center, spread = draw(st.integers(1, 60)), draw(st.integers(-12, 6)), draw(st.integers(0, 8))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    x = torch.randn(n, generator=generator) * 10.0 ** (
        center + spread * torch.rand(n, generator=generator) - spread
    )
    return x * (torch.rand(n, generator=generator) > 0.1)


@given(tensors(), st.sampled_from(NARROW))
@settings(max_examples=200, deadline=None)
def test_numbers_are_off_by_half_a_unit_in_the_last_place_at_most(x, name):
    form, kept = FORMATS[name], narrow("m", x, name)
    scale = kept["m_scale"].item()
    assert torch.frexp(kept["m_scale"]).mantissa == 0.5  # a power of two
    assert kept["m"].element_size() == form.bits // 8
    units = torch.tensor([form.ulp(abs(value) / scale) * scale for value in x.tolist()])
    assert ((wide(kept) - x).abs() <= units / 2).all()


@given(tensors(), st.sampled_from((*NARROW, "bf16", "fp32")))
@settings(max_examples=100, deadline=None)
def test_brought_to_fp32_and_back_they_are_the_same(x, name):
    once = wide(narrow("m", x, name))
    assert torch.equal(wide(narrow("m", once, name)), once)


@given(tensors(), st.sampled_from(NARROW), st.integers(1, 59))
@settings(max_examples=100, deadline=None)
def test_where_a_tensor_is_cut_matters_to_its_smallest_numbers_alone(x, name, cut):
    """In shards with scales of their own, numbers in the normal range of the whole tensor's scale are rounded alike."""
    kept = narrow("m", x, name)
    parts = torch.cat([wide(narrow("m", part, name)) for part in (x[:cut], x[cut:])])
    normal = x.abs() >= FORMATS[name].min_normal * kept["m_scale"]
    assert torch.equal(parts[normal], wide(kept)[normal])
    smallest = FORMATS[name].min_positive * kept["m_scale"]
    assert ((parts - wide(kept)).abs()[~normal] <= smallest).all()


def test_a_format_with_the_range_of_fp32_has_no_scale():
    kept = narrow("m", torch.tensor([1e-38, 3.0]), "bf16")
    assert list(kept) == ["m"]
    assert kept["m"].dtype == torch.bfloat16


@pytest.mark.parametrize("name", NARROW)
def test_nothing_and_zeros_and_what_is_no_number(name):
    assert wide(narrow("m", torch.zeros(0), name)).shape == (0,)
    assert torch.equal(wide(narrow("m", torch.zeros(3, 2), name)), torch.zeros(3, 2))
    assert wide(narrow("m", torch.tensor([1.0, float("nan")]), name)).isnan().any()


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="unknown format 'fp9'"):
        narrow("m", torch.ones(1), "fp9")
