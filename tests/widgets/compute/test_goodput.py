"""The goodput widget's function: the library's shares and intervals, and words that hold."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.goodput import DEFAULTS, LIMITS, PARTS, compute, read, span
from playbook_widgets.compute.intervals import best_interval, daly, goodput, young
from playbook_widgets.goodput import EXAMPLES

from playbook.errors import PlaybookError

SETTINGS = st.fixed_dictionaries(
    {}, optional={name: st.integers(least, most) for name, (least, most) in LIMITS.items()}
)


@given(SETTINGS)
@settings(max_examples=200)
def test_shares_and_intervals_are_the_librarys(inputs):
    values, answer = {**DEFAULTS, **inputs}, compute(inputs)
    save, mtbf = values["save"], 3600 * values["mtbf"] / values["gpus"]
    told = goodput(values["every"], save, values["restart"], mtbf)
    assert [part["share"] for part in answer["parts"]] == [getattr(told, name) for name in PARTS]
    assert answer["chosen"] == [values["every"], told.useful]
    found = {mark["name"]: mark["interval"] for mark in answer["marks"]}
    assert found == {
        "exact": best_interval(save, mtbf),
        "Daly": daly(save, mtbf),
        "Young": young(save, mtbf),
    }
    best = max(mark["useful"] for mark in answer["marks"])
    assert best >= max(useful for _, useful in answer["curve"]) - 1e-9
    assert f"{told.useful:.1%} of the time is useful" in answer["answer"]
    assert ("No other interval" in answer["answer"]) == (best - told.useful < 0.001)


def test_words_of_the_examples_hold():
    answers = {name: compute(inputs) for name, inputs, _ in EXAMPLES}
    assert answers["131,072 GPUs"]["marks"][0]["useful"] < 0.5
    assert "every 23.2 min" in answers["131,072 GPUs"]["machine"]
    llama = {part["name"]: part["share"] for part in answers["Llama 3 405B"]["parts"]}
    assert llama["useful"] > 0.9
    assert max(llama, key=lambda name: llama[name] * (name != "useful")) == "restarting"
    node = {part["name"]: part["share"] for part in answers["One node"]["parts"]}
    assert node["saving"] > 10 * (node["lost"] + node["restarting"])


@pytest.mark.parametrize(
    ("inputs", "field"),
    [({"gpus": 0}, "gpus"), ({"save": "ten"}, "save"), ({"every": 10**7}, "every"), ({"mean": 1}, "mean")],
)
def test_refusals_name_the_control(inputs, field):
    assert compute(inputs)["error"]["field"] == field
    with pytest.raises(PlaybookError):
        read(inputs)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.5, "0.5 s"), (59, "59 s"), (60, "1 min"), (90, "1.5 min"), (3600, "1 h"), (11_000, "3.06 h"),
        (100_000, "27.8 h"), (172_800, "2 days"), (86400 * 260.4, "260 days"), (86400 * 3653, "10 years"),
    ],
)  # fmt: skip
def test_times_are_said_in_fitting_units(seconds, text):
    assert span(seconds) == text


def test_times_have_three_digits_at_most():
    for seconds in (1.23456 * 10**power for power in range(-2, 11)):
        assert len(re.sub(r"[^\d]", "", span(seconds)).strip("0")) <= 3 or seconds > 3e9
