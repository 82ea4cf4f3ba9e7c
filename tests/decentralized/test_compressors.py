"""Compressors: as many bytes as they say, unbiased or contractive with the constants that they claim."""

from __future__ import annotations

import statistics
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from playbook.decentralized.compressors import Compressor, TopK, pack, unpack
from playbook.errors import ConfigError
from playbook_book.compressors import FP8, QSGD, Identity, MultiStep, Natural, RandK, Sign, compress

ALL: list[Compressor] = [
    Identity(), QSGD(1), QSGD(4), QSGD(127), Natural(), Sign(), TopK(0.1), TopK(1.0), RandK(0.2),
    RandK(0.2, scaled=False), FP8(), FP8(16), MultiStep(TopK(0.1), 3), MultiStep(Sign(), 2),
]  # fmt: skip
UNBIASED = [one for one in ALL if one.unbiased]
CONTRACTIVE = [one for one in ALL if not one.unbiased]

vectors = st.tuples(
    st.integers(1, 300),
    st.integers(0, 10**6),
    st.sampled_from(["normal", "heavy", "one", "zero", "tiny", "huge"]),
)


def vector(d: int, seed: int, kind: str) -> Tensor:
    x = torch.randn(d, generator=torch.Generator().manual_seed(seed))
    if kind == "heavy":
        x = x**5
    if kind == "one":
        x = torch.zeros(d).index_fill(0, torch.tensor([seed % d]), -3.0)
    return {"zero": x * 0, "tiny": x * 1e-30, "huge": x * 1e15}.get(kind, x)


@pytest.mark.parametrize("one", ALL, ids=str)
@given(vectors)
@settings(max_examples=25)
def test_what_is_sent_has_the_size_that_is_said_and_arrives_as_a_vector(one, drawn):
    x = vector(*drawn)
    packed = one.encode(x, torch.Generator().manual_seed(1))
    assert packed.dtype == torch.uint8
    assert packed.shape == (one.size(len(x)),)
    there = one.decode(packed, len(x))
    assert there.shape == x.shape
    assert there.dtype == torch.float32
    assert torch.isfinite(there).all()
    if drawn[2] == "zero":
        assert not there.any()


@pytest.mark.parametrize("one", UNBIASED, ids=str)
@pytest.mark.parametrize("d", [1, 7, 64])
def test_unbiased_ones_are_right_on_average_and_their_variance_is_within_its_bound(one, d):
    x = vector(d, 3, "normal")
    chance = torch.Generator().manual_seed(d)
    count = 1000
    there = torch.stack([compress(one, x, chance) for _ in range(count)]).double()
    square = (there - x).square().sum(1).mean().item()
    bound = one.constant(d) * x.square().sum().item()
    assert square <= bound * 1.1 + 1e-9
    # Of the mean of so many, three standard deviations.
    assert (there.mean(0) - x).norm().item() <= 3 * (square / count) ** 0.5 + 1e-6


@pytest.mark.parametrize("one", CONTRACTIVE, ids=str)
@given(vectors)
@settings(max_examples=25)
def test_contractive_ones_are_never_further_than_they_may(one, drawn):
    x = vector(*drawn).double()
    chance = torch.Generator().manual_seed(5)
    count = 200 if isinstance(one, RandK) else 1  # on average over its draws
    errors = [(compress(one, x.float(), chance).double() - x).square().sum().item() for _ in range(count)]
    square, mean = x.square().sum().item(), sum(errors) / count
    slack = 6 * statistics.pstdev(errors) / count**0.5 + 1e-5 * square
    assert mean <= (1 - one.constant(len(x))) * square + slack


def test_the_bound_of_top_k_is_reached_where_all_values_are_equally_large():
    x = torch.ones(100)
    assert (compress(TopK(0.1), x, torch.Generator()) - x).square().sum() == 90
    assert TopK(0.1).constant(100) == pytest.approx(0.1)


def test_random_quantisation_with_five_levels():
    """0.6 between the levels 0.5 and 0.75: the lower one in six of ten cases."""
    x = torch.tensor([0.6, 0.8])  # of length 1
    chance = torch.Generator().manual_seed(0)
    found = Counter(round(compress(QSGD(4), x, chance)[0].item(), 6) for _ in range(5000))
    assert set(found) == {0.5, 0.75}
    assert found[0.5] / 5000 == pytest.approx(0.6, abs=0.02)


def test_normal_values_keep_two_thirds_of_their_energy_in_one_bit():
    x = vector(100_000, 0, "normal")
    left = (compress(Sign(), x, torch.Generator()) - x).square().sum() / x.square().sum()
    assert left.item() == pytest.approx(1 - 2 / torch.pi, abs=0.01)


def test_bytes():
    assert [one.size(1000) for one in (Identity(), QSGD(4), QSGD(127), Natural(), Sign(), FP8())] == [
        4000, 504, 1004, 1125, 129, 1032,
    ]  # fmt: skip
    assert TopK(0.01).size(1000) == 40 + 13  # ten values, ten indices of ten bits
    assert RandK(0.01).size(1000) == 48


@given(st.integers(1, 40), st.data())
def test_bits_are_packed_end_to_end(bits, data):
    codes = data.draw(st.lists(st.integers(0, 2**bits - 1), max_size=50))
    packed = pack(torch.tensor(codes, dtype=torch.int64), bits)
    assert len(packed) == -(-len(codes) * bits // 8)
    assert unpack(packed, bits, len(codes)).tolist() == codes


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: QSGD(0), "levels is 0, but must be at least 1"),
        (lambda: TopK(0), "share is 0, but must be above 0 and at most 1"),
        (lambda: RandK(1.5), "share is 1.5"),
        (lambda: FP8(0), "block is 0"),
    ],
)
def test_what_is_none(make, sentence):
    with pytest.raises(ConfigError, match=sentence):
        make()
