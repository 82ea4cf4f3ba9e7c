"""Four bits, held to a table of the 16 numbers, to the formulas of both formats, and to bytes of torchao 0.18."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS
from playbook.precision.four_bits import mxfp4, nvfp4
from playbook.precision.fp4 import VALUES, Noise, by_columns, by_rows, hadamard, quantize_fp4, turned
from playbook.precision.recipes import load_fp8

#: By code: the table of the OCP Microscaling formats specification 1.0, section 5.3.3.
TABLE = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
RECIPES = {"nvfp4": nvfp4(), "mxfp4": mxfp4()}


def matrix(n: int, m: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, m, generator=generator)
    return x * torch.exp(2 * torch.randn(n, 1, generator=generator))


def test_the_sixteen_numbers():
    assert VALUES.tolist() == [*TABLE, *(-number for number in TABLE)]
    scaled = torch.tensor(
        [[0.2, 0.25, 0.26, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, -0.3, -2.6, -5.0, 6.0, 0.0, -6.0]]
    )
    nearest = [0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, -0.5, -3.0, -4.0, 6.0, 0.0, -6.0]
    found = by_rows(scaled, nvfp4(), torch.tensor(6.0 * 448))  # both scales are 1
    assert found.scales.float().tolist() == [[1.0]]
    assert found.dequantized().tolist() == [nearest]


#: What torchao 0.18 makes of `judged`: codes and scales, in hexadecimal, of ``nvfp4_quantize`` with
#: ``per_tensor_amax_to_scale`` and of ``to_mx`` in float4_e2m1fn_x2 with ScaleCalculationMode.FLOOR; of nvfp4 its one
#: scale.
JUDGED = {
    "nvfp4": (
        "880078010800998810b1059021f88e81120f019be0912abc0de839ed80114907"
        "3fecffde717bd1feef3c9f5fc9dd3bc7a66f45659eb647b8ac734e7fd1ee1df7",
        "7e6761661f1f1f1b",
        "0x1.5acccc0000000p-1",
    ),
    "mxfp4": (
        "88007801080099880080018000a88980110e009ad0902abb1ef83afd81115a07"
        "4ffdffdf727cd2ffff4d9f5fd9ee4bd7b67f5676afc757c8ac734e6ec1ee1ce6",
        "87847b7b",
        "",
    ),
}


def judged() -> torch.Tensor:
    """Numbers of many sizes, with outliers, and of one size."""
    outlier = [30.0 if i % 23 == 5 else 1.0 for i in range(64)]
    first = [((37 * i * i + 11 * i) % 101 - 50) * 1.7 ** (i % 7 - 3) * outlier[i] for i in range(64)]
    return torch.tensor([first, [((53 * i * i + 7 * i) % 97 - 48) * 0.01 for i in range(64)]])


@pytest.mark.parametrize("name", RECIPES)
def test_bytes_are_those_of_torchao(name):
    found, (codes, scales, whole) = by_rows(judged(), RECIPES[name]), JUDGED[name]
    assert found.codes.numpy().tobytes().hex() == codes
    assert found.scales.view(torch.uint8).numpy().tobytes().hex() == scales
    assert (found.whole.item().hex() if found.whole is not None else "") == whole


@given(st.sampled_from(sorted(RECIPES)), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_scales_and_numbers_are_those_of_the_formulas(name, seed):
    """Number by number, in Python's own arithmetic where that is exact."""
    recipe, x = RECIPES[name], matrix(2, 64, seed)
    found = by_rows(x, recipe)
    whole = float(found.whole) if found.whole is not None else 1.0
    if name == "nvfp4":
        assert whole == pytest.approx(float(x.abs().max()) / (6 * 448), rel=1e-6)
    for row, numbers in zip(x, found.dequantized(), strict=True):
        for i in range(0, 64, recipe.block):
            block, largest = row[i : i + recipe.block], float(row[i : i + recipe.block].abs().max())
            if name == "nvfp4":
                near = max(largest / 6 / whole, 2.0**-6)
                scale = (
                    FORMATS["e4m3"].round(float(torch.tensor(near, dtype=torch.float32)), saturate=True)
                    * whole
                )
            else:
                scale = 2.0 ** (math.floor(math.log2(largest)) - 2)
            for number, got in zip(block.tolist(), numbers[i : i + recipe.block].tolist(), strict=True):
                best = min(abs(abs(number) / scale - value) for value in TABLE)
                assert abs(abs(number) / scale - abs(got) / scale) <= best + 1e-4
                assert got * number >= 0


def test_blocks_lie_along_what_a_product_sums_over():
    x = matrix(32, 48, 1)
    recipe = nvfp4()
    assert torch.equal(
        by_columns(x, recipe).dequantized(), by_rows(x.t().contiguous(), recipe).dequantized().t()
    )
    square = quantize_fp4(x, recipe.weights, (16, 16))
    turned_over = quantize_fp4(x.t().contiguous(), recipe.weights, (16, 16))
    assert torch.equal(square.dequantized(), turned_over.dequantized().t())
    assert (square.codes.nbytes, square.scales.nbytes) == (32 * 24, 2 * 3)


def test_rounding_at_random_is_right_on_average():
    """To the nearest, each number between two codes is always wrong the same way."""
    x = torch.full((1, 16), 2.3)
    x[0, 0] = 6.0
    whole = torch.tensor(6.0 * 448)
    nearest = by_rows(x, nvfp4(), whole).dequantized()
    assert nearest[0, 1:].tolist() == [2.0] * 15
    draws = Noise.of(0, "test", torch.arange(4000)).uniform(16)
    many = by_rows(x.expand(4000, 16), nvfp4(), whole, draws).dequantized()[:, 1:]
    assert set(many.unique().tolist()) == {2.0, 3.0}
    assert float(many.mean()) == pytest.approx(2.3, abs=4 * math.sqrt(0.3 * 0.7 / many.numel()))


def test_noise_belongs_to_its_place():
    rows, columns = torch.arange(200), 64
    all_of_it = Noise.of(1, "dW", rows, rows * 7).uniform(columns)
    some = torch.tensor([5, 199, 0])
    assert torch.equal(Noise.of(1, "dW", some, some * 7).uniform(16, 32), all_of_it[some][:, 32:48])
    assert not torch.equal(Noise.of(1, "dx", rows, rows * 7).uniform(columns), all_of_it)
    assert float(all_of_it.mean()) == pytest.approx(0.5, abs=0.01)
    assert float(all_of_it.var()) == pytest.approx(1 / 12, abs=0.002)
    assert torch.corrcoef(all_of_it.t()).fill_diagonal_(0).abs().max() < 0.35  # 200 numbers a column
    assert torch.corrcoef(all_of_it).fill_diagonal_(0).abs().max() < 0.65  # 64 a row, 20,000 pairs


def test_hadamard_is_orthogonal_and_spreads_an_outlier():
    """The matrix is that of Sylvester's construction, times signs."""
    made = hadamard(torch.eye(16), 16) * 4
    sylvester = torch.ones(1, 1)
    for _ in range(4):
        sylvester = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), sylvester)
    signs = made[0]
    assert signs.abs().tolist() == [1.0] * 16
    assert not torch.equal(signs, torch.ones(16))
    assert torch.equal(made, sylvester * signs)
    x, dy = matrix(32, 8, 2), matrix(32, 6, 3)
    assert torch.allclose(hadamard(dy, 16).t() @ hadamard(x, 16), dy.t() @ x, atol=1e-4)
    x[3] *= 1000
    assert hadamard(x, 16)[:16].abs().max() < 0.3 * x.abs().max()
    assert turned(x[:20], nvfp4()).shape == (32, 8)  # a last block is filled up


def test_names_and_options():
    assert load_fp8("nvfp4,hadamard=off,wide=0.5").name == "nvfp4,hadamard=off,wide=0.5"
    assert load_fp8("nvfp4,hadamard=on") == load_fp8("nvfp4")
    assert load_fp8(load_fp8("mxfp4,square=false").name).weights.rows == 1
    assert [load_fp8("nvfp4").wide_blocks(n) for n in (2, 8, 62)] == [(0, 1), (0, 1), (0, 10)]
    assert load_fp8("nvfp4,wide=0").wide_blocks(1) == ()
    paper = load_fp8("nvfp4,wide=0.13,first=2")  # NVIDIA 2025, arXiv 2509.25149: of 62 blocks
    assert (paper.wide_blocks(62), paper.name) == ((2, 8), "nvfp4,wide=0.13,first=2")
    assert load_fp8("nvfp4,wide=0,first=1").wide_blocks(2) == (1, 0)
    for text, sentence in {
        "nvfp4,hadamar=off": "unknown option of nvfp4 'hadamar'",
        "nvfp4,square=1": "square is '1', but must be on or off",
        "mxfp4,wide=1": "wide is '1', but must be a part of the blocks",
        "mxfp4,first=0.5": "first is '0.5', but must be a number of blocks",
        "nvfp5": "unknown FP8 recipe 'nvfp5'; did you mean nvfp4",
    }.items():
        with pytest.raises(ConfigError, match=sentence):
            load_fp8(text)
    with pytest.raises(ConfigError, match="layers is 1, but nvfp4 keeps 1 in higher precision"):
        load_fp8("nvfp4").wide_blocks(1)
