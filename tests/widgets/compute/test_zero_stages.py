"""The ZeRO widget's function: the ZeRO paper's figures, shares that make up the whole, traffic as sharding counts it."""

import contextlib
import io
import json
import math
import re
import shlex
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.zero_setting import (
    BANDWIDTH,
    DEFAULTS,
    GRAD_ACC,
    OPTIMIZER_BYTES,
    PARAMETERS,
    PRECISIONS,
    REPLICAS,
    STAGES,
    read,
    read_count,
    units_of,
)
from playbook_widgets.compute.zero_stages import COLLECTIVES, compute
from playbook_widgets.compute.zero_words import NAMES, stand_in

from playbook.cli import main
from playbook.errors import ConfigError
from playbook.figures.units import format_size
from playbook.hardware import ACCELERATORS, load
from playbook.shapes import PRESETS

KINDS = ("parameters", "gradients", "optimizer")

OTHERS = {
    "replicas": st.integers(*REPLICAS), "zero": st.sampled_from(STAGES), "grad_acc": st.integers(*GRAD_ACC),
    "precision": st.sampled_from(PRECISIONS), "optimizer_bytes": st.none() | st.integers(*OPTIMIZER_BYTES),
    "reshard": st.booleans(), "accelerator": st.sampled_from(sorted(ACCELERATORS)),
    "bandwidth": st.floats(*BANDWIDTH),
}  # fmt: skip
FREE = st.fixed_dictionaries({"parameters": st.integers(*PARAMETERS)}, optional=OTHERS)
MODEL = st.fixed_dictionaries({"model": st.sampled_from(sorted(PRESETS))}, optional=OTHERS)


def run_command(line: str) -> dict:
    """The JSON that a ``playbook …`` line prints."""
    program, *arguments = shlex.split(line)
    assert program == "playbook"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([*arguments, "--json"])
    assert status == 0, err.getvalue()
    return json.loads(out.getvalue())


# --- The ZeRO paper


def test_figure_1_of_the_zero_paper():
    """Rajbhandari et al. 2020, figure 1: 7.5B parameters, 64 replicas, k = 12; 120, 31.4, 16.6 and 1.9 GB."""
    result = compute({"parameters": "7.5B", "replicas": 64, "optimizer_bytes": 12})
    assert [f"{stage['total'] / 1e9:.1f}" for stage in result["stages"]] == ["120.0", "31.4", "16.6", "1.9"]
    assert compute({})["stages"] == compute({"parameters": 7.5e9, "replicas": 64, "grad_acc": 4})["stages"]


@pytest.mark.parametrize(
    ("replicas", "printed"),
    [(1, (120, 120, 120)), (4, (52.5, 41.3, 30)), (16, (35.6, 21.6, 7.5)), (64, (31.4, 16.6, 1.88)),
     (256, (30.4, 15.4, 0.47)), (1024, (30.1, 15.1, 0.12))],
)  # fmt: skip
def test_table_1_of_the_zero_paper(replicas, printed):
    result = compute({"parameters": "7.5B", "replicas": replicas})
    for stage, gigabytes in zip(result["stages"][1:], printed, strict=True):
        digits = len(str(gigabytes).partition(".")[2])
        assert abs(stage["total"] / 1e9 - gigabytes) <= 0.5001 * 10**-digits  # half of the last printed digit


def test_the_network_is_that_of_the_chapter():
    """Rings between nodes of eight GPUs have the rails of all eight, as far as NVLink takes them there."""
    nodes = load("h100-8")
    assert DEFAULTS["bandwidth"] * 1e9 == pytest.approx(min(nodes.intra_bandwidth, 8 * nodes.inter_bandwidth))


@pytest.mark.parametrize(
    ("zero", "grad_acc", "elements"),
    [(0, 1, 2), (1, 1, 2), (2, 1, 2), (3, 1, 3), (0, 8, 2), (1, 8, 2), (2, 8, 9), (3, 8, 24)],
)
def test_traffic_in_units_of_the_model(zero, grad_acc, elements):
    """Section 7 of the paper: 2Ψ, 2Ψ, 3Ψ with one micro-batch; with G, G + 1 in stage 2 and 3G in stage 3."""
    stage = compute({"replicas": 500, "grad_acc": grad_acc})["stages"][zero]
    assert stage["elements"] == pytest.approx(elements * 499 / 500)
    kept = compute({"replicas": 500, "grad_acc": grad_acc, "reshard": False})["stages"][zero]
    assert kept["elements"] == pytest.approx((2 * grad_acc if zero == 3 else elements) * 499 / 500)


# --- For any setting


@settings(max_examples=60, deadline=None)
@given(FREE | MODEL)
def test_shares_make_up_the_whole(inputs):
    result, setting = compute(inputs), read(inputs)
    replicas, units = setting.replicas, len(setting.units)
    plain = result["stages"][0]
    for stage in result["stages"]:
        for kind, each in result["bytes_per_parameter"].items():
            assert plain[kind] == each * setting.parameters
            divided = stage["zero"] >= {"optimizer": 1, "gradients": 2, "parameters": 3}[kind]
            whole = stage[kind] * (replicas if divided else 1)
            most = 2 * units * replicas * each  # a unit's experts are a vector of their own
            assert 0 <= whole - plain[kind] <= most
            assert whole % max(1, each) == 0
        assert stage["total"] == sum(stage[kind] for kind in KINDS)
        assert stage["spare"] == result["capacity"] - stage["total"] - stage["gathered"]
        assert stage["fits"] == (stage["spare"] >= 0)
    assert result["least"] == next((s["zero"] for s in result["stages"] if s["fits"]), None)
    json.dumps(result)


@settings(max_examples=60, deadline=None)
@given(FREE | MODEL)
def test_traffic_is_that_of_rings(inputs):
    """(N − 1)/N of a vector for a reduce-scatter or an all-gather, both for an all-reduce; shares are padded."""
    result, setting = compute(inputs), read(inputs)
    n, passes = setting.replicas, setting.grad_acc
    sizes = [unit.parameters + unit.experts for unit in setting.units]
    again = sum(
        size for size, unit in zip(sizes, setting.units, strict=True) if unit.again and setting.reshard
    )
    elements = [  # summed everywhere, summed in shares, gathered
        (2 * sum(sizes), 0, 0),
        (0, sum(sizes), sum(sizes)),
        (0, passes * sum(sizes), sum(sizes)),
        (0, passes * sum(sizes), passes * (sum(sizes) + again)),
    ]
    each = setting.states.gradients, setting.states.gradients, setting.states.parameters
    for stage, counts in zip(result["stages"], elements, strict=True):
        assert tuple(stage["sent"]) == ("all_reduce", "reduce_scatter", "all_gather")
        for sent, count, size in zip(stage["sent"].values(), counts, each, strict=True):
            exact = count * size * (n - 1) / n
            padding = (n > 1 and count > 0) * 2 * passes * len(sizes) * n * size
            assert exact * (1 - 1e-12) <= sent <= exact * (1 + 1e-12) + padding * (stage["zero"] > 0)
        assert stage["traffic"] == pytest.approx(sum(stage["sent"].values()))
        assert stage["seconds"] == pytest.approx(stage["traffic"] / setting.bandwidth)
    at = result["growth"]["grad_acc"].index(setting.grad_acc)
    assert [line[at] for line in result["growth"]["elements"]] == [s["elements"] for s in result["stages"]]


@settings(max_examples=40, deadline=None)
@given(FREE | MODEL)
def test_formulas_in_numbers_come_to_their_bytes(inputs):
    """As exactly as three digits of Ψ and padding let them."""
    setting = read(inputs)
    assume(setting.parameters > 500 * setting.replicas * len(setting.units))
    for stage in compute(inputs)["stages"]:
        for terms, total in (("memory_terms", "total"), ("traffic_terms", "traffic")):
            assert sum(size for *_, size in stage[terms]) == pytest.approx(stage[total])
            for kind, formula, numbers, size in stage[terms]:
                assert formula.count("N") == (kind in COLLECTIVES) * 2 + ("/ " in numbers)
                assert float(value_of(numbers)) == pytest.approx(size, rel=0.02)


def value_of(numbers: str) -> Fraction:
    """What "4 × 2 × 7.5B × 63/64" comes to."""
    text = re.sub(r"([\d.]+)([kMBT])", lambda m: str(float(m[1]) * 1000 ** ("kMBT".index(m[2]) + 1)), numbers)
    value = Fraction(1)
    for factor in text.split(" × "):
        over, _, under = factor.partition("/")
        value *= Fraction(over.strip()) / Fraction(under.strip() or 1)
    return value


@settings(max_examples=30, deadline=None)
@given(MODEL)
def test_the_command_of_a_model_says_the_same_bytes(inputs):
    result = compute(inputs)
    stage = result["stages"][result["values"]["zero"]]
    [said] = run_command(result["command"]["text"])["stages"]
    assert [said[key] for key in ("params", "gradients", "optimizer")] == [stage[kind] for kind in KINDS]
    assert result["command"]["parameters"] == result["values"]["parameters"]


@settings(max_examples=30, deadline=None)
@given(FREE)
def test_the_command_of_a_number_has_a_model_of_nearly_that_size(inputs):
    result = compute(inputs)
    stage, wanted = result["stages"][result["values"]["zero"]], result["values"]["parameters"]
    [said] = run_command(result["command"]["text"])["stages"]
    assert result["command"]["parameters"] == pytest.approx(wanted, rel=2e-3)
    assume(wanted > 10_000 * result["values"]["replicas"])  # where padding does not matter
    assert [said[key] for key in ("params", "gradients", "optimizer")] == pytest.approx(
        [stage[kind] for kind in KINDS], rel=0.03
    )


@given(st.integers(*PARAMETERS))
def test_a_stand_in_is_off_by_half_its_width_at_most(parameters):
    shape = stand_in(parameters)
    assert abs(shape.num_parameters - parameters) <= shape.hidden / 2
    assert shape.hidden % shape.heads == 0
    assert shape.vocab > 1


# --- Details


def test_weights_that_are_kept_for_backward_fill_memory_meanwhile():
    freed, kept = compute({"zero": 3}), compute({"zero": 3, "reshard": False})
    assert [stage["gathered"] for stage in freed["stages"]] == [0, 0, 0, 0]
    assert kept["stages"][3]["gathered"] + kept["stages"][3]["parameters"] == 15_000_000_000
    assert kept["stages"][3]["total"] == freed["stages"][3]["total"]
    assert "frees nothing while a step runs (16.6 GB as before)" in kept["answer"]


def test_a_model_has_units_of_which_not_all_are_gathered_twice():
    result = compute({"model": "gpt2", "replicas": 2, "grad_acc": 1})
    units = units_of(PRESETS["gpt2"])
    again = sum(unit.parameters for unit in units if unit.again)
    assert (result["units"], sum(unit.parameters for unit in units)) == (13, PRESETS["gpt2"].num_parameters)
    assert (
        result["stages"][3]["sent"]["all_gather"] == again + PRESETS["gpt2"].num_parameters
    )  # 2 bytes of half


ANSWERS = [
    ({"zero": 0}, "from no ZeRO to ZeRO-1 frees 88.6 GB on each rank (120 GB to 31.4 GB, which now fits into 85.5 GB) "
     "and costs no traffic (29.5 GB in a step, as before): a reduce-scatter"),
    ({"zero": 1}, "from ZeRO-1 to ZeRO-2 frees 14.8 GB on each rank (31.4 GB to 16.6 GB) and costs 44.3 GB more traffic "
     "in a step (29.5 GB to 73.8 GB; 123 ms at 360 GB/s): gradients are reduced in each of 4 micro-batches"),
    ({"zero": 1, "grad_acc": 1}, "costs no traffic (29.5 GB in a step, as before): gradients are reduced once"),
    ({"zero": 2}, "from ZeRO-2 to ZeRO-3 frees 14.8 GB on each rank (16.6 GB to 1.88 GB) and costs 103 GB more"),
    ({"zero": 3, "grad_acc": 1}, "from ZeRO-2 to ZeRO-3 frees 14.8 GB on each rank (16.6 GB to 1.88 GB) and costs "
     "14.8 GB more traffic in a step (29.5 GB to 44.3 GB; 41 ms at 360 GB/s): weights are gathered for forward and "
     "backward of the micro-batch"),
    ({"zero": 2, "parameters": "405B"}, "GB, still more than 85.5 GB)"),
    ({"zero": 0, "precision": "bf16-mixed-main-grads"}, "and saves 14.8 GB of traffic in a step (59.1 GB to 44.3 GB"),
    ({"replicas": 1}, "every stage keeps the same and sends nothing"),
]  # fmt: skip


@pytest.mark.parametrize(("inputs", "words"), ANSWERS, ids=lambda x: str(x)[:40])
def test_what_the_next_stage_buys_and_costs(inputs, words):
    assert words in compute(inputs)["answer"]


@settings(max_examples=40, deadline=None)
@given(FREE | MODEL)
def test_every_answer_is_one_sentence_with_the_numbers_of_its_stages(inputs):
    result = compute(inputs)
    said, first = result["answer"], min(result["values"]["zero"], 2)
    assert "\n" not in said
    assert said.endswith(".")
    if result["values"]["replicas"] == 1:
        return
    before, after = result["stages"][first], result["stages"][first + 1]
    assert said.startswith(f"Going from {NAMES[first]} to {NAMES[first + 1]} frees ")
    assert format_size(before["total"]) in said
    assert format_size(after["traffic"]) in said


@pytest.mark.parametrize(
    ("text", "count"),
    [("7.5B", 7_500_000_000), ("350 M", 350_000_000), ("1e9", 10**9), ("1T", 10**12), (10**6, 10**6),
     ("8 030 261 248", 8_030_261_248), ("8,030,261,248", 8_030_261_248), (7.5e9, 7_500_000_000), ("70g", 70 * 10**9)],
)  # fmt: skip
def test_a_number_of_parameters_as_people_write_it(text, count):
    assert read_count(text) == count


REFUSED = [
    ({"parameters": "many"}, "parameters", "parameters must be a number such as 7.5B or 350M, got 'many'"),
    ({"parameters": "2T"}, "parameters", "parameters must be from 1M to 1T, got 2T"),
    ({"parameters": 0}, "parameters", "parameters must be from 1M to 1T, got 0"),
    ({"parameters": True}, "parameters", "parameters must be a number such as 7.5B or 350M, got True"),
    (
        {"parameters": "7B", "model": "tiny"},
        "parameters",
        "parameters are those of the model 'tiny': give one",
    ),
    ({"model": "lama3-8b"}, "model", "unknown model 'lama3-8b'; did you mean llama3-8b"),
    ({"replicas": 0}, "replicas", "replicas must be at least 1, got 0"),
    ({"replicas": "5000"}, "replicas", "replicas must be at most 4096, got 5000"),
    ({"zero": 4}, "zero", "zero must be at most 3, got 4"),
    ({"grad_acc": "x"}, "grad_acc", "grad_acc must be an integer, got 'x'"),
    ({"optimizer_bytes": -1}, "optimizer_bytes", "optimizer_bytes must be at least 0, got -1"),
    ({"precision": "bf17"}, "precision", "unknown precision 'bf17'"),
    ({"reshard": 2}, "reshard", "reshard must be true or false, got 2"),
    ({"accelerator": "h101"}, "accelerator", "unknown accelerator 'h101'; did you mean h100"),
    ({"bandwidth": "fast"}, "bandwidth", "bandwidth must be a number above 0, got 'fast'"),
    ({"bandwidth": 1e6}, "bandwidth", "bandwidth must be from 0.01 to 10000 GB/s, got 1000000.0"),
    ({"nonsense": 1}, "nonsense", "nonsense is not a setting of the ZeRO widget"),
]


@pytest.mark.parametrize(("inputs", "field", "words"), REFUSED, ids=lambda x: str(x)[:30])
def test_refusals_name_the_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert (error["field"], error["message"][: len(words)]) == (field, words)
    with pytest.raises(ConfigError, match=re.escape(words)):
        read(inputs)


@given(
    st.dictionaries(
        st.sampled_from(sorted(DEFAULTS)), st.none() | st.text(max_size=5) | st.floats() | st.integers()
    )
)
def test_any_input_is_answered_or_refused_in_one_sentence(inputs):
    result = compute(inputs)
    if "error" in result:
        assert result["error"]["field"] in DEFAULTS
        assert "\n" not in result["error"]["message"]
    else:
        assert not any(math.isnan(stage["seconds"]) for stage in result["stages"])
