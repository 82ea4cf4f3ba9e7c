"""Every code of every format, and every cast, as PyTorch has them; those that it has not against published tables."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS, half_up, load_format, stochastic, towards_zero

TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "e5m2": torch.float8_e5m2,
    "e4m3": torch.float8_e4m3fn,
    "e8m0": torch.float8_e8m0fnu,
}
#: How PyTorch rounds: its scales have no mantissa to be even.
ROUNDING = {"e8m0": {"rounding": half_up}}
#: Whether PyTorch's casts give the largest number for what is too large, infinity too.
SATURATES = {"e4m3": True}


def bits_of(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.uint8 if x.element_size() == 1 else torch.int16).long() & (
        256 ** x.element_size() - 1
    )


@pytest.mark.parametrize("name", TORCH)
def test_every_code_is_pytorchs(name):
    form = FORMATS[name]
    kind = {1: torch.uint8, 2: torch.int16}[form.bits // 8]
    codes = torch.arange(1 << form.bits).to(kind)
    expected = codes.view(TORCH[name]).float()
    found = torch.tensor([form.decode(code) for code in range(1 << form.bits)])
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found.signbit() | found.isnan(), expected.signbit() | expected.isnan())  # −0


def samples(name: str) -> torch.Tensor:
    """Every number of a format (of one in 16 bits, every seventh), halfway between two neighbours, a little beside that,
    and random fp32 numbers."""
    form = FORMATS[name]
    numbers = torch.tensor(list(form.numbers(0.0, form.max)), dtype=torch.float64)
    middles = (numbers[1:] + numbers[:-1]) / 2
    last = torch.tensor([form.max + form.ulp(form.max) * k / 4 for k in range(9)], dtype=torch.float64)
    every = 1 + 2 * (len(numbers) // 10_000)
    near = torch.cat([numbers[::every], middles[::every], last]).float()
    near = torch.cat([near, *(near.nextafter(torch.tensor(end)) for end in (0.0, math.inf))])
    generator = torch.Generator().manual_seed(0)
    random_bits = torch.randint(-(2**31), 2**31, (20_000,), generator=generator).int().view(torch.float32)
    spread = torch.randn(20_000, generator=generator) * form.max / 4
    found = torch.cat([near, -near, random_bits, spread, torch.tensor([0.0, -0.0, math.inf, -math.inf])])
    found = found[~found.isnan()]
    # PyTorch rounds the fp32 numbers that are subnormal up to 2⁻¹²⁶, though E8M0 has 2⁻¹²⁷.
    return found.abs()[found.abs() >= 2.0**-126] if form.unsigned else found


@pytest.mark.parametrize("name", TORCH)
def test_every_cast_is_pytorchs(name):
    form, numbers = FORMATS[name], samples(name)
    expected = bits_of(numbers.to(TORCH[name]))
    how = {**ROUNDING.get(name, {}), "saturate": SATURATES.get(name, False)}
    found = torch.tensor([form.encode(x, **how) for x in numbers.tolist()])
    wrong = found != expected
    assert not wrong.any(), (numbers[wrong][:5], found[wrong][:5], expected[wrong][:5])


def test_what_is_no_number_stays_none():
    for name, form in FORMATS.items():
        if form.specials == "none":
            with pytest.raises(ConfigError, match=f"{name} has no code"):
                form.encode(math.nan)
        else:
            assert math.isnan(form.decode(form.encode(math.nan)))


def test_fp32_is_what_python_packs():
    import struct

    rng = random.Random(0)
    for _ in range(5000):
        number = rng.choice([rng.uniform(-1, 1), rng.gauss(0, 1e30), rng.gauss(0, 1e-40)])
        assert FORMATS["fp32"].encode(number) == struct.unpack("<I", struct.pack("<f", number))[0]


#: OCP Microscaling Formats specification 1.0, tables 1, 4 and 5: largest, smallest normal, smallest.
OCP = {
    "e5m2": (57344.0, 2.0**-14, 2.0**-16),
    "e4m3": (448.0, 2.0**-6, 2.0**-9),
    "e3m2": (28.0, 0.25, 0.0625),
    "e2m3": (7.5, 1.0, 0.125),
    "e2m1": (6.0, 1.0, 0.5),
    "e8m0": (2.0**127, 2.0**-127, 2.0**-127),
}


@pytest.mark.parametrize("name", OCP)
def test_ranges_are_those_of_the_ocp(name):
    form = FORMATS[name]
    assert (form.max, form.min_normal, form.min_positive) == OCP[name]


def test_fp4_has_eight_magnitudes():
    assert list(FORMATS["e2m1"].numbers(0, 10)) == [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def test_epsilon_is_the_step_above_one():
    for name, epsilon in {
        "fp32": 2**-23,
        "fp16": 2**-10,
        "bf16": 2**-7,
        "e4m3": 2**-3,
        "e5m2": 2**-2,
    }.items():
        form = FORMATS[name]
        assert form.epsilon == form.ulp(1.0) == form.decode(form.encode(1.0) + 1) - 1 == epsilon
    for name, kind in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        assert FORMATS[name].epsilon == torch.finfo(kind).eps


@given(st.sampled_from(sorted(set(FORMATS) - {"e8m0"})), st.floats(-1e6, 1e6))
def test_rounding(name, number):
    """To the nearest is at most half a unit off, towards zero less than one and never larger; codes come back."""
    form = FORMATS[name]
    nearest, cut = form.round(number, saturate=True), form.round(number, towards_zero, saturate=True)
    if abs(number) <= form.max:
        assert abs(nearest - number) <= form.ulp(number) / 2
        assert 0 <= abs(number) - abs(cut) < form.ulp(number)
    else:
        assert abs(nearest) == form.max
    assert form.round(nearest) == nearest
    assert math.copysign(1, nearest) == math.copysign(1, number)


def test_stochastic_rounding_is_right_on_average():
    form, rng, number = FORMATS["bf16"], random.Random(0), 1 + 2**-9  # a quarter of the way
    rounded = [form.round(number, stochastic(rng.random)) for _ in range(20_000)]
    assert set(rounded) == {1.0, 1 + 2**-7}
    assert sum(rounded) / len(rounded) == pytest.approx(number, abs=1e-4)
    assert form.round(number) == 1.0


def test_what_is_too_large():
    e4m3, e5m2, e2m1 = FORMATS["e4m3"], FORMATS["e5m2"], FORMATS["e2m1"]
    assert math.isnan(e4m3.round(1e9))
    assert e4m3.round(1e9, saturate=True) == e4m3.round(math.inf, saturate=True) == 448
    assert e5m2.round(1e9) == math.inf
    assert e5m2.round(1e9, saturate=True) == e5m2.round(math.inf, saturate=True) == 57344
    assert e2m1.round(-100) == -6


def test_bad_input_is_named():
    with pytest.raises(ConfigError, match="unknown format 'fp17'"):
        load_format("fp17")
    with pytest.raises(ConfigError, match="code is 256, but e4m3 has codes from 0 to 255"):
        FORMATS["e4m3"].decode(256)
    with pytest.raises(ConfigError, match=r"-1\.0 is negative, but e8m0 has no sign"):
        FORMATS["e8m0"].encode(-1.0)
