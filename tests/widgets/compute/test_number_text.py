"""Numbers as they are typed: what Python makes of the same text, and back; what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook_widgets.compute.number_text import FARTHEST, read_number, shown, signed, typed

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS

TYPED = {
    "0.1": 0.1,
    " 1/3 ": 1 / 3,
    "2^-25": 2.0**-25,
    "2**-25": 2.0**-25,
    "1+2^-9": 1 + 2**-9,
    "1 + 2⁻⁹": 1 + 2**-9,
    "−2^-25": -(2.0**-25),
    "-(1/3 - 1)*3": 2.0,
    "3e-8": 3e-8,
    "3 × 10⁻⁸": 3e-8,
    "65_504": 65504.0,
    "0x10": 16.0,
    "+5": 5.0,
    "2^0.0": 1.0,
    "inf": math.inf,
    "-INF": -math.inf,
    "−∞": -math.inf,
    "infinity": math.inf,
    "e4m3:0x7e": 448.0,
    "E4M3 : 0b01111110": 448.0,
    "fp16:1": 2.0**-24,
    "fp16:0x8000": -0.0,
}


@pytest.mark.parametrize("text", TYPED)
def test_a_number_is_what_its_text_says(text):
    number, code = read_number(text)
    assert (number, math.copysign(1, number)) == (TYPED[text], math.copysign(1, TYPED[text]))
    assert (code is not None) == (":" in text)


def test_zero_has_a_sign_and_nan_is_none():
    assert [math.copysign(1, read_number(text)[0]) for text in ("0", "-0", "−0.0", "-0/5", "+0")] == [
        1,
        -1,
        -1,
        -1,
        1,
    ]
    assert all(math.isnan(read_number(text)[0]) for text in ("nan", "NaN", "-nan", "e4m3:0xff"))
    assert read_number("bf16:0x7fc1")[1] == (FORMATS["bf16"], 0x7FC1)


def test_a_sum_of_products_is_rounded_once():
    """To the nearest double, however it would be rounded on the way."""
    assert read_number("2^60 + 1 - 2^60")[0] == 1
    assert read_number("1/3 + 1/3 + 1/3")[0] == 1


@given(st.floats(min_value=-(2.0 ** (FARTHEST - 1)), max_value=2.0 ** (FARTHEST - 1)))
def test_a_number_that_is_written_reads_as_itself(number):
    if number and abs(number) < 2.0 ** (1 - FARTHEST):
        number = math.copysign(2.0 ** (1 - FARTHEST), number)
    again, code = read_number(typed(number))
    assert (again, math.copysign(1, again), code) == (number, math.copysign(1, number), None)
    near, _ = read_number(shown(number))
    assert near == pytest.approx(number, rel=1e-11, abs=0)


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (448.0, "448"),
        (-0.0, "−0"),
        (2.0**-24, "2⁻²⁴"),
        (-(2.0**16), "−2¹⁶"),
        (512.0, "512"),
        (0.10009765625, "0.10009765625"),
        (2.99999989271e-8, "2.99999989271 × 10⁻⁸"),
        (1e30, "1 × 10³⁰"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
    ],
)
def test_a_number_as_the_page_has_it(number, text):
    assert shown(number) == text


def test_an_error_has_a_sign_and_three_digits():
    assert [signed(x) for x in (0.0, 1.4901e-9, -0.0625, -4464.0, 69972.4, 123.456, 2.0**-30)] == [
        "0", "+1.49 × 10⁻⁹", "−0.0625", "−4464", "+69972.4", "+123", "+2⁻³⁰",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "", "-", "abc", "0.1.2", "1/0", "2^", "2^^3", "2^(1/2)", "9**9**9", "2^5000", "1e400", "(", "[1]", "True",
        "1 if 1 else 2", "__import__('os')", "0.1, 0.2", "x:1:2", "1" * 65, "(" * 60 + "1",
        "1j", "'a'", "a\0",
    ],
)  # fmt: skip
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ConfigError, match=r"^number must be a number such as 0\.1, 1/3, 2\^-25"):
        read_number(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("2^-991", "number must be 0 or from 2^-990 to 2^990 in magnitude, got '2^-991'"),
        ("-2^1000", "number must be 0 or from 2^-990 to 2^990 in magnitude"),
        ("e4m3:0x100", "number must be a code of e4m3, from 0 to 0xff, got '0x100'"),
        ("e2m1:f", "number must be a code of e2m1, from 0 to 0xf, got 'f'"),
        ("fp17:1", "number is a code, but of an unknown format 'fp17'"),
    ],
)
def test_what_is_beyond_a_double_or_a_format_is_refused(text, words):
    with pytest.raises(ConfigError) as refused:
        read_number(text)
    assert str(refused.value).startswith(words)
