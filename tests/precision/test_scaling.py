"""Scales bring groups into range; what is lost is bounded, by the format and by how much a group's numbers differ."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS
from playbook.precision.scaling import GROUPS, amax, load_groups, quantize, spread

FORMS = ("e4m3", "e5m2", "e2m1", "e2m3")
matrices = st.builds(
    lambda n, m, decades, seed: torch.randn(n, m, generator=torch.Generator().manual_seed(seed))
    * 10.0 ** torch.randint(-decades, decades + 1, (n, m), generator=torch.Generator().manual_seed(seed + 1)),
    st.integers(1, 300), st.integers(1, 300), st.integers(0, 4), st.integers(0, 10**6),
)  # fmt: skip


@given(matrices, st.sampled_from(FORMS), st.sampled_from(sorted(GROUPS)))
@settings(max_examples=120, deadline=None)
def test_what_is_lost_is_half_a_unit_in_the_last_place(x, name, groups):
    """Of a number 2^−(M+1) of itself or, where it is small, half the smallest code times the scale; and with scales that
    are powers of two, the largest may be cut: by less than the spacing of the two largest exponents."""
    form = FORMATS[name]
    found = quantize(x, name, groups)
    scale = found.spread()
    lost = (found.dequantized() - x).abs()
    bound = torch.maximum(x.abs() * form.epsilon / 2, scale * form.min_positive / 2) * (1 + 1e-5)
    cut = (x.abs() - form.max * scale).clamp(min=0)
    assert (lost <= torch.maximum(bound, cut * (1 + 1e-5))).all()
    if not GROUPS[groups].powers:
        assert (cut <= 1e-5 * x.abs()).all()
    else:
        assert torch.equal(scale, torch.exp2(scale.log2().round()))
        assert (x.abs() < 2 * form.max * scale).all()


@pytest.mark.parametrize("groups", sorted(GROUPS))
def test_each_group_has_the_scale_of_its_largest(groups):
    x = torch.randn(200, 170, generator=torch.Generator().manual_seed(0))
    size = load_groups(groups).size(x.shape)
    found = amax(x, size)
    for i in range(found.shape[0]):
        for j in range(found.shape[1]):
            part = x[i * size[0] : (i + 1) * size[0], j * size[1] : (j + 1) * size[1]]
            assert found[i, j] == part.abs().max()
    assert spread(found, size, x.shape).shape == x.shape


def test_an_outlier_costs_its_group_alone():
    """One number of 10⁶ among ones: with a scale for all, the rest is gone in e4m3; with tiles, the rest of its tile."""
    x = torch.ones(4, 512)
    x[1, 200] = 1e6
    gone = {
        groups: int((quantize(x, "e4m3", groups).dequantized() == 0).sum())
        for groups in ("tensor", "row", "tile")
    }
    assert gone == {"tensor": 4 * 512 - 1, "row": 511, "tile": 127}


def test_zeros_stay_zeros():
    for groups in GROUPS:
        found = quantize(torch.zeros(3, 5), "e4m3", groups)
        assert torch.equal(found.dequantized(), torch.zeros(3, 5))
        assert torch.equal(found.scales, torch.ones_like(found.scales))


@pytest.mark.parametrize("groups", sorted(GROUPS))
def test_numbers_whose_scale_would_be_zero_are_lost_and_do_not_become_nan(groups):
    """The smallest number of fp32 over the largest of a format is none any more, and beside it may be zeros."""
    found = quantize(torch.tensor([[1e-45, 0.0, 0.0]]), "e4m3", groups)
    assert torch.equal(found.dequantized(), torch.zeros(1, 3))


def test_given_scales_are_taken_and_what_is_too_large_for_them_is_cut():
    found = quantize(torch.tensor([[1.0, 2.0, 1000.0]]), "e4m3", scales=torch.tensor([[1.0]]))
    assert found.dequantized().tolist() == [[1.0, 2.0, 448.0]]


def test_unknown_groups_are_named():
    with pytest.raises(ConfigError, match="unknown groups 'tiles'"):
        quantize(torch.ones(1, 1), "e4m3", "tiles")
