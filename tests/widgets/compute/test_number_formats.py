"""The widget of number formats: every row against `Format`, bits that are set and set back, errors, words, refusals."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.number_formats import compute
from playbook_widgets.compute.number_setting import DEFAULTS, LIMITS, ROUNDINGS, read
from playbook_widgets.compute.number_text import read_number, shown, signed, typed
from playbook_widgets.number_formats import EXAMPLES

from playbook.errors import ConfigError
from playbook.precision.formats import FORMATS, stochastic

EIGHT_OR_LESS = [name for name, form in FORMATS.items() if form.bits <= 8]


def row(name: str, number: str, **inputs: Any) -> dict[str, Any]:
    return next(one for one in compute({"number": number, **inputs})["rows"] if one["name"] == name)


@st.composite
def inputs(draw):
    """Settings of all kinds; numbers near those of a format, at their middles, and anywhere."""
    form = draw(st.sampled_from(sorted(FORMATS.values(), key=lambda form: form.name)))
    some = form.decode(draw(st.integers(0, form.largest_code)))
    number = draw(
        st.one_of(
            st.just(some + draw(st.sampled_from([0, 0.25, 0.5, 0.75])) * form.ulp(some)),
            st.floats(-1e6, 1e6).filter(lambda x: not x or abs(x) > 1e-200),
            st.floats(-100, 100).map(lambda power: 2**power),
            st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]),
        )
    )
    return {
        "number": typed(-number if draw(st.booleans()) else number),
        "rounding": draw(st.sampled_from(sorted(ROUNDINGS))),
        "saturate": draw(st.booleans()),
        "scale": draw(st.integers(*LIMITS["scale"])),
        "draw": draw(st.integers(0, 20)),
    }


@given(inputs())
@settings(max_examples=120, deadline=None)
def test_a_row_is_what_the_format_makes_of_the_number(asked):
    found = compute(asked)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    number, factor = read_number(asked["number"])[0], 2.0 ** asked["scale"]
    rule = ROUNDINGS[asked["rounding"]] or stochastic(lambda: found["u"])
    for one, (name, form) in zip(found["rows"], FORMATS.items(), strict=True):
        assert one["name"] == name
        try:
            code = form.encode(number * factor, rule, saturate=asked["saturate"])
        except ConfigError:
            assert (one["bits"], one["flips"], one["errors"], one["python"]) == ("", [], [], "")
            continue
        assert one["bits"] == f"{code:0{form.bits}b}"
        value = form.round(number * factor, rule, saturate=asked["saturate"]) / factor
        assert one["value"] == shown(value)
        if not one["errors"]:
            assert not (math.isfinite(value) and math.isfinite(number))
            continue
        absolute, relative, ulps = one["errors"]
        error = Fraction(value) - Fraction(number)
        assert absolute == signed(float(error))
        assert (
            ulps
            == f"{signed(float(error * Fraction(factor) / Fraction(form.ulp(min(abs(number * factor), form.max)))))} ulp"
        )
        if number:
            share = read_number(relative.removesuffix("\u202f%"))[0] / (100 if relative.endswith("%") else 1)
            assert share == pytest.approx(float(error / abs(Fraction(number))), rel=0.006)


@given(inputs())
@settings(max_examples=30, deadline=None)
def test_setting_a_bit_and_setting_it_back_changes_nothing(asked):
    """Each bit of each row: what it would make of the number has that bit alone changed, and leads back."""
    for one in compute(asked)["rows"]:
        form = FORMATS[one["name"]]
        for at, typed_there in enumerate(one["flips"]):
            code, bit = int(one["bits"], 2), 1 << (form.bits - 1 - at)
            there = read({**asked, "number": typed_there})
            assert there.code(form) == code ^ bit
            assert read({**asked, "number": there.text(form, code)}).code(form) == code


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize("name", EIGHT_OR_LESS)
def test_every_code_comes_back(name, saturate):
    """As what the widget types for it: NaN's codes too, and infinity's where nothing becomes infinite."""
    form = FORMATS[name]
    setting = read({"saturate": saturate, "scale": 3})
    for code in range(1 << form.bits):
        text = setting.text(form, code)
        found = row(name, text, saturate=saturate, scale=3)
        assert int(found["bits"], 2) == code
        number = form.decode(code)
        assert (":" in text) == (
            (math.isnan(number) and code != form.nan) or (math.isinf(number) and saturate)
        ), text
        if math.isfinite(number):
            assert set(found["errors"]) <= {"0", "0 ulp"}


@given(inputs(), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=80, deadline=None)
def test_the_python_gives_the_same(asked, name):
    found = row(name, **asked)
    *lines, result = found["python"].split("\n")
    if not found["bits"]:
        assert found["python"] == ""
        return
    names: dict[str, Any] = {}
    exec("\n".join(lines), names)
    bits, value = eval(result, names)
    assert (bits, shown(value)) == (found["bits"], found["value"])


def test_the_python_of_a_code_is_the_code():
    assert "code = 0xff\n" in row("e4m3", "e4m3:0xff")["python"]
    assert 'code = form.encode(float("nan"))\n' in row("e5m2", "e4m3:0xff")["python"]
    assert "form.encode(-2**-25 * 2**16, towards_zero, saturate=True)" in row(
        "fp16", "-2^-25", scale=16, rounding="towards_zero", saturate=True
    )["python"]  # fmt: skip


@given(inputs(), st.sampled_from(sorted(FORMATS)))
@settings(max_examples=80, deadline=None)
def test_the_formula_is_the_value(asked, name):
    found = row(name, **asked)
    if not found["formula"]:
        assert found["value"] in ("none", "NaN", "∞", "−∞")
        return
    text = found["formula"].replace("−", "-").replace("×", "*")
    lowered = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
    text = re.sub(r"2([⁰¹²³⁴-⁹⁻]+)", lambda power: f"2.0**({power[1].translate(lowered)})", text)
    assert shown(eval(text)) == found["value"], text


# --- What it says


WORDS = [
    ("fp16", {"number": "65504"}, "exact"),
    ("fp16", {"number": "65519"}, "rounded"),
    ("fp16", {"number": "65520"}, "overflow: infinity"),
    ("fp16", {"number": "65520", "saturate": True}, "overflow: saturated"),
    ("fp16", {"number": "65504", "saturate": True}, "exact"),
    ("fp16", {"number": "3e-8"}, "subnormal, rounded"),
    ("fp16", {"number": "2^-24"}, "subnormal, exact"),
    ("fp16", {"number": "2^-25"}, "underflow: 0"),
    ("fp16", {"number": "-2^-25"}, "underflow: −0"),
    ("fp16", {"number": "2^-25", "rounding": "half_up"}, "subnormal, rounded"),
    ("fp16", {"number": "2^-25", "scale": 16}, "exact"),
    ("fp32", {"number": "2^-25"}, "exact"),
    ("e4m3", {"number": "448"}, "exact"),
    ("e4m3", {"number": "464"}, "rounded"),
    ("e4m3", {"number": "465"}, "overflow: NaN"),
    ("e4m3", {"number": "465", "rounding": "towards_zero"}, "rounded"),
    ("e4m3", {"number": "480", "rounding": "towards_zero"}, "overflow: saturated"),
    ("e4m3", {"number": "inf"}, "infinity: NaN"),
    ("e4m3", {"number": "inf", "saturate": True}, "infinity: saturated"),
    ("e5m2", {"number": "-inf"}, "infinity"),
    ("e2m1", {"number": "7"}, "overflow: saturated"),
    ("e2m1", {"number": "6.9"}, "rounded"),
    ("e2m1", {"number": "inf"}, "infinity: saturated"),
    ("e2m1", {"number": "nan"}, "no NaN"),
    ("bf16", {"number": "nan"}, "not a number"),
    ("bf16", {"number": "-0"}, "zero"),
    ("e8m0", {"number": "0"}, "no zero"),
    ("e8m0", {"number": "-1"}, "no sign"),
    ("e8m0", {"number": "2^-130"}, "underflow: 2⁻¹²⁷"),
    ("e8m0", {"number": "2^127"}, "exact"),
    ("e8m0", {"number": "2^128"}, "overflow: NaN"),
    ("fp32", {"number": "2^128"}, "overflow: infinity"),
]


@pytest.mark.parametrize(("name", "asked", "word"), WORDS, ids=str)
def test_a_word_on_it(name, asked, word):
    assert row(name, **asked)["word"] == word


SAID = [
    ("bf16", {"number": "0.1"},
     "0.1 is between 0.099609375 and 0.10009765625, 0.8 of the way up. The nearer one is 0.10009765625."),
    ("bf16", {"number": "1+2^-9"}, "1.001953125 is between 1 and 1.0078125, 0.25 of the way up. The nearer one is 1."),
    ("bf16", {"number": "-1.1"}, "In magnitude, 1.1 is between 1.09375 and 1.1015625, 0.8 of the way up."),
    ("bf16", {"number": "1+2^-8"}, "Halfway between them, rounding to even takes 1, whose last bit is 0."),
    ("bf16", {"number": "1+2^-8", "rounding": "half_up"}, "Halfway between them, the larger one is taken, 1.0078125."),
    ("e8m0", {"number": "1.5"}, "Halfway between them, the larger one is taken, 2."),
    ("bf16", {"number": "0.1", "rounding": "towards_zero"}, "Rounding towards zero takes the smaller one, 0.099609375."),
    ("e4m3", {"number": "0.1", "rounding": "stochastic"},
     "That is the probability of going up; u = 0.844 is not less, so the smaller one is taken, 0.09375."),
    ("e4m3", {"number": "0.101", "rounding": "stochastic"},
     "0.928 of the way up. That is the probability of going up; u = 0.844 is less, so the larger one is taken, "
     "0.1015625."),
    ("fp16", {"number": "2^-25"},
     "2⁻²⁵ is between 0 and 2⁻²⁴, 0.5 of the way up. Halfway between them, rounding to even takes 0, whose last bit is "
     "0. It underflows."),
    ("fp16", {"number": "2^-25", "scale": 16},
     "With the scale, 2⁻²⁵ × 2¹⁶ = 0.001953125 is stored. 0.001953125 is representable in FP16: nothing is rounded."),
    ("fp16", {"number": "3e-8"}, "It is subnormal: below 2⁻¹⁴ all numbers are 2⁻²⁴ apart, and smaller ones have larger"),
    ("fp16", {"number": "70000"},
     "70000 is beyond 65504, the largest number of FP16: it overflows, and becomes infinity."),
    ("fp16", {"number": "-70000"}, "In magnitude, 70000 is beyond 65504, the largest number of FP16: it overflows"),
    ("e4m3", {"number": "449"}, "449 is larger than 448, the largest number, but is rounded to it."),
    ("e4m3", {"number": "500"},
     "500 is beyond 448, the largest number of FP8 E4M3: it overflows. FP8 E4M3 has no infinity, so it becomes NaN."),
    ("e4m3", {"number": "500", "saturate": True}, "it overflows. With saturation, it becomes the largest number."),
    ("e2m1", {"number": "8"}, "it overflows. FP4 E2M1 has neither infinity nor NaN: it becomes the largest number."),
    ("e4m3", {"number": "inf"}, "FP8 E4M3 has no infinity, so it becomes NaN."),
    ("e4m3", {"number": "inf", "saturate": True}, "With saturation, infinity becomes the largest number."),
    ("e2m1", {"number": "inf"}, "FP4 E2M1 has neither infinity nor NaN: infinity becomes the largest number."),
    ("e5m2", {"number": "inf"}, "All bits of the exponent are 1, and the mantissa is 0: this is infinity."),
    ("bf16", {"number": "nan"}, "All bits of the exponent are 1, and the mantissa is not 0: this is NaN, not a number."),
    ("e4m3", {"number": "nan"}, "All bits but the sign are 1: this is NaN, not a number."),
    ("e8m0", {"number": "nan"}, "All bits are 1: this is NaN, not a number."),
    ("e2m1", {"number": "nan"}, "FP4 E2M1 has no code for NaN."),
    ("e8m0", {"number": "-1"}, "E8M0 has no sign: scales are positive."),
    ("e8m0", {"number": "0"}, "E8M0 has no zero: its codes are powers of two. The smallest, 2⁻¹²⁷, is taken."),
    ("e8m0", {"number": "2^-130"}, "2⁻¹³⁰ is less than 2⁻¹²⁷, the smallest number, and underflows to it."),
    ("fp16", {"number": "0"}, "All bits are 0."),
    ("fp16", {"number": "-0"}, "The sign alone is set: −0. It is equal to 0 in comparisons, but 1/−0 is −∞."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "asked", "said"), SAID, ids=str)
def test_a_sentence_says_why(name, asked, said):
    assert said in row(name, **asked)["answer"]


def test_stochastic_rounding_goes_up_as_often_as_it_should():
    """Drawn again and again: 1 + 2⁻⁹ is a quarter of the way from 1 to the next number of BF16."""
    draws = [row("bf16", "1+2^-9", rounding="stochastic", draw=draw)["value"] for draw in range(200)]
    assert set(draws) == {"1", "1.0078125"}
    assert draws.count("1.0078125") / len(draws) == pytest.approx(1 / 4, abs=0.06)
    again = [row("bf16", "1+2^-9", rounding="stochastic", draw=draw)["value"] for draw in range(20)]
    assert draws[:20] == again


# --- Examples, and what is refused


@pytest.mark.parametrize(("name", "asked", "note"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_is_one_that_python_takes(name, asked, note):
    assert "error" not in compute(asked)
    assert note.endswith(".")


def test_what_the_notes_of_examples_say():
    asked = {name: inputs for name, inputs, _ in EXAMPLES}
    found = {name: row(inputs.get("format", "bf16"), **inputs) for name, inputs in asked.items()}
    values = {name: found[name]["value"] for name in found}
    assert values["1 + 2⁻⁹"] == "1"
    assert (values["65504"], values["70000"]) == (shown(FORMATS["fp16"].max), "∞")
    assert values["3 × 10⁻⁸"] == "2⁻²⁴" == shown(FORMATS["fp16"].min_positive)
    assert (values["2⁻²⁵"], values["2⁻²⁵, scaled"]) == ("0", "2⁻²⁵")
    assert (values["448"], values["449"], values["465"], values["∞"]) == ("448", "448", "NaN", "NaN")
    assert FORMATS["e4m3"].nan == FORMATS["e4m3"].encode(448) + 1
    assert all(
        compute(asked[name])["rows"][k]["word"] == "rounded" for name in ("0.1", "1/3") for k in range(6)
    )
    assert [row(name, "70000")["word"] for name in ("bf16", "tf32")] == ["rounded", "rounded"]


REFUSED = [
    ({"number": "much"}, "number", "number must be a number such as 0.1, 1/3, 2^-25, 1 + 2^-9, -0, inf or nan, or"),
    ({"number": "e4m3:256"}, "number", "number must be a code of e4m3, from 0 to 0xff, got '256'"),
    ({"number": "e5m3:2"}, "number", "number is a code, but of an unknown format 'e5m3'"),
    ({"rounding": "up"}, "rounding", "unknown rounding 'up'"),
    ({"saturate": 1}, "saturate", "saturate must be true or false, got 1"),
    ({"scale": 25}, "scale", "scale must be at most 24, got 25"),
    ({"scale": "two"}, "scale", "scale must be an integer, got 'two'"),
    ({"draw": -1}, "draw", "draw must be at least 0, got -1"),
    ({"format": "fp17"}, "format", "unknown format 'fp17'"),
    ({"bits": 8}, "bits", "bits is not a setting of the widget of number formats"),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "field", "words"), REFUSED, ids=str)
def test_what_cannot_be_names_its_control(asked, field, words):
    error = compute(asked)["error"]
    assert error["field"] == field
    assert error["message"].startswith(words)
    with pytest.raises(ConfigError):
        read(asked)


def test_what_is_not_set_is_the_default():
    assert compute({}) == compute(DEFAULTS) == compute({"number": None, "scale": "0"})
