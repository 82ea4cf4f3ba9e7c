"""The overlap widget's function: the library's ratios with the links of a layout, and words that hold."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.overlap import DEFAULTS, LIMITS, TECHNIQUES, compute, read
from playbook_widgets.overlap import EXAMPLES

from playbook.errors import PlaybookError
from playbook.hardware import CLUSTERS
from playbook.layout import Layout
from playbook.shapes import load
from playbook_book.overlap_ratios import (
    across_nodes,
    context,
    data_parallel,
    expert,
    group_bandwidth,
    pipeline,
    tensor,
    zero3,
)

SIZES = st.sampled_from([1, 2, 4, 8])
SETTINGS = st.fixed_dictionaries(
    {"tp": SIZES, "cp": SIZES, "dp": SIZES, "pp": SIZES, "tokens": st.sampled_from([64, 1024, 8192, 65536])},
    optional={
        "model": st.sampled_from(["llama3.2-1b", "llama3-70b", "mixtral-8x7b", "deepseek-v3"]),
        "cluster": st.sampled_from(list(CLUSTERS)),
        "reached": st.integers(1, 100),
    },
)


def rows(inputs: dict) -> dict:
    answer = compute(inputs)
    assert "error" not in answer, answer
    return {row["name"]: row for row in answer["rows"]}


@given(SETTINGS)
@settings(max_examples=60)
def test_ratios_are_the_librarys_with_the_links_of_the_layout(inputs):
    """Of dense models; the worse of both passes."""
    values = {**DEFAULTS, **inputs}
    shape, cluster = load(values["model"]), CLUSTERS[values["cluster"]]
    layout = Layout(**{axis: values[axis] for axis in ("tp", "cp", "dp", "pp")}, sp=values["tp"] > 1)
    speed = cluster.accelerator.peak("bf16") * values["reached"] / 100
    found = rows(inputs)
    seq = values["tokens"] * layout.cp
    for name, technique in (("ZeRO-3", zero3), ("TP", tensor), ("CP", context), ("PP", pipeline)):
        one = found[name]
        axis = TECHNIQUES[name][0]
        used = layout.dp * layout.cp > 1 if axis == "dp" else getattr(layout, axis) > 1
        assert (one["ratio"] is None) == (not used)
        if used:
            both = [technique(shape, layout, seq, backward=b) for b in (False, True)]
            bandwidth = group_bandwidth(cluster, layout, axis)
            ratios = [each.ratio(peak_flops=speed, bandwidth=bandwidth) for each in both]
            assert one["ratio"] == pytest.approx(max(ratios))
            assert one["phase"] == ("forward", "backward")[ratios.index(max(ratios))]
            inside = not across_nodes(cluster, layout, axis)
            assert one["link"].startswith("NVLink" if inside else "network")
    if found["DP"]["ratio"] is not None:
        one = data_parallel(shape, layout, seq)
        bandwidth = group_bandwidth(cluster, layout, "dp")
        assert found["DP"]["ratio"] == pytest.approx(one.ratio(peak_flops=speed, bandwidth=bandwidth))


def test_gradients_of_experts_take_their_own_links():
    """With ep = 8 the copies of an expert are in other nodes, one in each: a slower link than that of the rest."""
    inputs = {"model": "mixtral-8x7b", "tp": 1, "cp": 1, "dp": 16, "pp": 1, "ep": 8}
    shape, layout, cluster = load("mixtral-8x7b"), Layout(dp=16, ep=8), CLUSTERS["h100-8"]
    speed, parts = 0.5 * 989e12, []
    for experts, bandwidth in ((False, 360e9), (True, 50e9)):
        one = data_parallel(shape, layout, 8192, experts=experts)
        parts.append(one.ratio(peak_flops=speed, bandwidth=bandwidth))
    assert rows(inputs)["DP"]["ratio"] == pytest.approx(sum(parts))
    assert rows(inputs)["DP"]["link"] == "network, 360 and 50 GB/s"
    assert rows({**inputs, "dp": 8})["DP"]["link"] == "NVLink, 360 GB/s"  # no copies, nothing to send
    assert group_bandwidth(cluster, layout, "edp") == pytest.approx(50e9)


def test_rows_that_stay_in_a_node_are_free_beside_those_that_leave():
    inputs = {"model": "deepseek-v3", "tp": 1, "dp": 64, "pp": 1, "ep": 64}
    shape, layout = load("deepseek-v3"), Layout(dp=64, ep=64)
    for two_step in (False, True):
        one = expert(shape, layout, 8192, node=8, two_step=two_step)
        wanted = one.ratio(peak_flops=0.5 * 989e12, bandwidth=50e9)
        assert rows({**inputs, "two_step": two_step})["EP"]["ratio"] == pytest.approx(wanted)
    # What fits in a node goes over NVLink, all of it, in however many steps.
    inside = [rows({**inputs, "dp": 8, "ep": 8, "two_step": two}) for two in (False, True)]
    assert inside[0]["EP"] == inside[1]["EP"]
    assert inside[0]["EP"]["link"].startswith("NVLink")


def test_words_say_what_would_bring_it_to_one():
    """Whoever follows them gets a ratio of 1, or just below."""
    for name, changes in (
        ("DP", {}),
        ("ZeRO-3", {"tokens": 512}),
        ("CP", {"cp": 16, "tokens": 256, "tp": 1, "dp": 1, "pp": 1}),
        ("CP", {"cp": 2, "tokens": 65536, "dp": 1}),
    ):
        text = rows(changes)[name]["text"]
        tokens = int(re.search(r"([\d,]+) tokens on each GPU", text)[1].replace(",", ""))
        assert rows({**changes, "tokens": tokens})[name]["ratio"] == pytest.approx(1, rel=2e-2), name
    slow = {"model": "llama3.2-1b", "tp": 8, "pp": 1, "dp": 1, "reached": 90}
    most = int(re.search(r"needs tp = (\d+)", rows(slow)["TP"]["text"])[1])
    assert most < 8
    for tp, over in ((most, False), (most + 1, True)):
        # As a divisor of the heads or not: the closed form in tp.
        eight = rows(slow)["TP"]["ratio"]
        assert (eight * (tp - 1) / 7 > 1) == over
    width = rows({"model": "deepseek-v3", "tp": 1, "dp": 64, "pp": 1, "ep": 64})["EP"]["text"]
    assert Fraction(re.search(r"experts ([\d,]+) wide, not 2,048", width)[1].replace(",", "")) > 2048
    assert "keep tp within a node of 8" in rows({"model": "llama3-8b", "tp": 16, "reached": 80})["TP"]["text"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, "Exposed: DP and ZeRO-3, which more tokens on each GPU would hide."),
        ({"tokens": 32768}, "Each of them can be hidden"),
        ({"tp": 1, "dp": 1, "pp": 1}, "there is nothing to send"),
        ({"model": "llama3-8b", "tp": 16}, "TP, which no number of tokens hides."),
    ],
)
def test_the_answer(inputs, words):
    assert words in compute(inputs)["answer"]


def test_more_tokens_help_some_and_not_others():
    base = {"model": "mixtral-8x7b", "tp": 2, "cp": 2, "dp": 8, "pp": 2, "ep": 8}
    few, many = (rows({**base, "tokens": tokens}) for tokens in (2048, 16384))
    for name, (_, helped) in TECHNIQUES.items():
        assert few[name]["ratio"] / many[name]["ratio"] == pytest.approx(8 if helped else 1, rel=1e-3), name


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda e: e[0])
def test_examples_can_be(example):
    assert "error" not in compute(example[1])


@pytest.mark.parametrize(
    ("inputs", "field", "words"),
    [
        ({"model": "llama9"}, "model", "unknown model"),
        ({"cluster": "h100"}, "cluster", "unknown cluster"),
        ({"tokens": 1}, "tokens", "at least 64"),
        ({"reached": 120}, "reached", "at most 100"),
        ({"tp": 3}, "tp", "must divide heads"),
        ({"ep": 8}, "ep", "ep"),
        ({"two_step": 1}, "two_step", "true or false"),
        ({"nonsense": 1}, "nonsense", "not a setting"),
    ],
)
def test_refusals_name_their_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert error["field"] == field
    assert words in error["message"]
    with pytest.raises(PlaybookError):
        read(inputs)


def test_limits_are_those_of_the_settings():
    assert set(LIMITS) < set(DEFAULTS)
    for name, (least, most) in LIMITS.items():
        assert least <= DEFAULTS[name] <= most
