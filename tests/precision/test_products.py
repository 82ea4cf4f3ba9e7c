"""Products of quantised matrices: what is lost is bounded by the roundings; sums are those of fp32."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS
from playbook.precision.products import _on_tensor_cores, by_groups, product
from playbook.precision.recipes import FP8_RECIPES, GROUPS, load_fp8
from playbook.precision.scaling import quantize, scales_of

sizes = st.integers(1, 200)


def matrix(n, m, seed, decades=2):
    generator = torch.Generator().manual_seed(seed)
    spread = torch.randint(-decades, decades + 1, (n, m), generator=generator)
    return torch.randn(n, m, generator=generator) * 10.0**spread


def lost(x: torch.Tensor, form: str, groups) -> tuple[torch.Tensor, torch.Tensor]:
    """x (n, m) quantised, and the most that each number of it can be off: half a unit in the last place of it or of the
    smallest code, or what a scale that is rounded down cuts of it."""
    found, kind = quantize(x, form, groups), FORMATS[form]
    rounded = torch.maximum(
        x.abs().double() * kind.epsilon / 2, found.spread().double() * kind.min_positive / 2
    )
    cut = x.abs().double() - kind.max * found.spread().double()
    return found, torch.maximum(rounded, cut) * (1 + 1e-6)


@given(sizes, sizes, sizes, st.sampled_from(sorted(FP8_RECIPES)), st.booleans(), st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_the_error_of_a_product_is_within_its_bound(m, n, k, name, gradient, seed):
    """|Σ âb̂ − Σ ab| ≤ Σ |a|·δb + δa·|b| + δa·δb, and what fp32 rounds of the sum."""
    recipe = FP8_RECIPES[name]
    x, y = matrix(m, k, seed), matrix(n, k, seed + 1)
    a, da = lost(x, recipe.gradients if gradient else recipe.forward, recipe.groups)
    b, db = lost(y, recipe.forward, recipe.weights)
    exact = x.double() @ y.double().t()
    bound = x.abs().double() @ db.t() + da @ y.abs().double().t() + da @ db.t()
    sums = (x.abs().double() + da) @ (y.abs().double() + db).t() * (k + 8) * 2.0**-24
    assert ((product(a, b).double() - exact).abs() <= bound + sums).all()


@given(sizes, sizes, sizes, st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_group_by_group_and_at_once_are_the_same_but_for_the_order_of_sums(m, n, k, seed):
    x, y = matrix(m, k, seed, 1), matrix(n, k, seed + 1, 1)
    a, b = quantize(x, "e4m3", "tile"), quantize(y, "e4m3", "block")
    sums = a.dequantized().abs() @ b.dequantized().abs().t() * (k + 8) * 2.0**-23
    assert ((product(a, b) - by_groups(a, b)).abs() <= sums).all()


def test_sums_of_codes_are_exact_in_whole_numbers():
    """Small codes are multiples of 2^−9, so that a sum of products is a whole number of 2^−18: it equals Python's own."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-8, 9, (5, 96), generator=generator).float() / 8 for _ in range(2))
    found = product(
        quantize(a, "e4m3", scales=torch.ones(1, 1)), quantize(b, "e4m3", scales=torch.ones(1, 1))
    )
    for i in range(5):
        for j in range(5):
            pairs = zip(a[i].tolist(), b[j].tolist(), strict=True)
            assert Fraction(found[i, j].item()) == sum(Fraction(p) * Fraction(q) for p, q in pairs)


def test_the_transpose_of_a_quantised_matrix_is_that_of_its_transpose_where_groups_are_square():
    x = matrix(200, 300, 0)
    for groups in ("tensor", "block"):
        turned, other = quantize(x, "e4m3", groups).t(), quantize(x.t(), "e4m3", groups)
        assert torch.equal(turned.dequantized(), other.dequantized())
    turned, other = quantize(x, "e4m3", "tile").t(), quantize(x.t(), "e4m3", "tile")
    assert not torch.equal(turned.dequantized(), other.dequantized())


@given(st.floats(2.0**-100, 2.0**100), st.sampled_from(["e4m3", "e5m2"]))
def test_scales_that_are_powers_of_two_are_the_next_larger_ones(largest, name):
    form = FORMATS[name]
    scale = scales_of(torch.tensor([[largest]]), form, powers="up").item()
    assert largest <= scale * form.max * (1 + 2**-22)
    assert largest > scale * form.max / 2 * (1 - 2**-22)


def test_quantised_once_more_powers_of_two_change_nothing():
    """Rows travel in the form in which they are taken: what arrives is taken with the same codes."""
    for name in ("blockwise", "mxfp8"):
        groups = FP8_RECIPES[name].groups
        once = quantize(matrix(40, 300, 3, 4), "e4m3", groups)
        again = quantize(once.dequantized(), "e4m3", groups)
        assert torch.equal(once.dequantized(), again.dequantized())


def test_an_unknown_recipe_is_named():
    with pytest.raises(ConfigError, match="unknown FP8 recipe 'fp4'"):
        load_fp8("fp4")
    assert {recipe.groups.name for recipe in FP8_RECIPES.values()} <= set(GROUPS)


@pytest.mark.parametrize(
    ("groups", "dtype"),
    [("tensor", torch.float32), ("row", torch.bfloat16), ("row", torch.float32), ("row", torch.float16)],
)
def test_products_on_tensor_cores_are_pytorch_s_where_scales_hold_for_all_of_k(groups, dtype):
    """Which PyTorch has on a CPU, too."""
    a, b = quantize(matrix(32, 64, 0, 0), "e4m3", groups), quantize(matrix(48, 64, 1, 0), "e4m3", groups)
    found = _on_tensor_cores(a, b, dtype)
    assert found.dtype == dtype
    error = (found.float() - product(a, b)).norm() / product(a, b).norm()
    assert error < {torch.float32: 1e-5, torch.float16: 4e-4, torch.bfloat16: 3e-3}[dtype]
