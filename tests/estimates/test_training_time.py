"""Time and cost of a run by hand, and against what is published of some."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS
from playbook.planning.flops import step_flops
from playbook.shapes import load
from playbook_book.published_runs import RUNS, Run
from playbook_book.scaling_laws import FLOPS_WITH_RECOMPUTATION, flops_coefficient
from playbook_book.training_time import Duration, hfu, mfu, training_time, utilisation

A100 = ACCELERATORS["a100-80"].peak()


def test_a_run_by_hand():
    # 6 · 7e9 · 2e12 = 8.4e22 FLOPs; 1000 GPUs · 300e12 · 0.4 = 1.2e17 FLOP/s: 700,000 s.
    run = training_time(7e9, 2e12, gpus=1000, peak_flops=300e12, utilisation=0.4)
    assert run.seconds == pytest.approx(700_000)
    assert run.days == pytest.approx(8.1019, abs=1e-4)
    assert run.gpu_hours == pytest.approx(194_444.4, abs=0.1)
    assert run.cost(2.0) == pytest.approx(388_888.9, abs=0.1)


@given(
    st.floats(1e6, 1e12),
    st.floats(1e6, 1e14),
    st.integers(1, 100_000),
    st.floats(1e12, 1e16),
    st.floats(0.01, 1.0),
    st.sampled_from([6, 8]),
)
def test_utilisation_is_time_solved_for_it(parameters, tokens, gpus, peak, share, coefficient):
    run = training_time(parameters, tokens, gpus, peak, share, coefficient)
    found = utilisation(parameters, tokens, run.gpu_hours, peak, coefficient)
    assert found == pytest.approx(share, rel=1e-12)


def test_exact_coefficients_make_it_the_mfu_and_hfu_of_a_step():
    shape, seconds, gpus, seq = load("llama3-8b"), 3.0, 16, 4096
    batch = 512
    for recompute, of_step in (("none", mfu), ("full", hfu)):
        step = step_flops(shape, batch, seq, recompute)
        found = utilisation(
            shape.num_parameters,
            batch * seq,
            gpus * seconds / 3600,
            A100,
            flops_coefficient(shape, seq, recompute),
        )
        assert found == pytest.approx(of_step(step, seconds, A100, gpus), rel=1e-12)


def test_megatrons_two_estimates_come_out_of_eight():
    # Narayanan et al. 2021, section 5.1: GPT-3 on 1,024 A100s at 140 TFLOP/s each takes 34 days, a model of 1T
    # parameters and 450B tokens on 3,072 at 163 TFLOP/s 84: the 1.008T of their table.
    gpt3 = training_time(175e9, 300e9, 1024, A100, 140e12 / A100, FLOPS_WITH_RECOMPUTATION)
    assert gpt3.days == pytest.approx(34, abs=0.1)
    trillion = training_time(1.008e12, 450e9, 3072, A100, 163e12 / A100, FLOPS_WITH_RECOMPUTATION)
    assert trillion.days == pytest.approx(84, abs=0.2)


def test_the_published_hours_of_llama_65b_do_not_give_a_utilisation_of_0_3():
    # Of 8TP/NFU with 2,048 A100s and 21 days; 0.3 is what the peak with structured sparsity gives.
    hours = 2048 * 21 * 24
    assert RUNS["llama1-65b"].gpu_hours == pytest.approx(hours, rel=0.01)
    assert utilisation(65e9, 1.4e12, hours, A100, 8) == pytest.approx(0.63, abs=0.005)
    assert utilisation(65e9, 1.4e12, hours, A100) == pytest.approx(0.47, abs=0.005)
    assert utilisation(65e9, 1.4e12, hours, 2 * A100, 8) == pytest.approx(0.31, abs=0.005)


def test_llama_65b_trained_at_380_tokens_a_second_and_gpu():
    # Touvron et al. 2023, section 2.4.
    run = RUNS["llama1-65b"]
    assert run.tokens / (run.gpu_hours * 3600) == pytest.approx(380, rel=0.005)


def test_deepseek_v3_cost_what_its_report_says():
    # arXiv 2412.19437, table 1: 2.788M GPU-hours at $2.
    assert Duration(2.788e6 * 3600 / 2048, 2048).cost(2.0) == pytest.approx(5.576e6)
    assert RUNS["deepseek-v3"].gpu_hours / 14.8 == pytest.approx(180e3, rel=0.001)  # per trillion tokens


@pytest.mark.parametrize(
    ("name", "megawatt_hours"),
    [("llama1-7b", 36), ("llama1-13b", 59), ("llama1-33b", 233), ("llama1-65b", 449)],
)
def test_hours_of_llama_are_those_of_its_published_energy(name, megawatt_hours):
    # Touvron et al. 2023, table 15: 400 W a GPU, and 1.1 of it with the building.
    assert RUNS[name].gpu_hours * 400 * 1.1 / 1e6 == pytest.approx(megawatt_hours, abs=1.0)


def test_llama_2_took_the_hours_in_its_total_but_for_the_34b_model():
    # Touvron et al. 2023, arXiv 2307.09288, table 2: 3,311,616 in all, 1,038,336 for 34B.
    known = sum(run.gpu_hours for name, run in RUNS.items() if name.startswith("llama2"))
    assert known == 3_311_616 - 1_038_336


def test_published_runs_are_consistent():
    assert RUNS["llama3.1-405b"].compute == pytest.approx(3.8e25, rel=0.01)  # arXiv 2407.21783, section 1
    assert RUNS["gpt3-175b"].compute == pytest.approx(3.14e23, rel=0.01)  # arXiv 2005.14165, table D.1
    assert RUNS["chinchilla-70b"].ratio == 20
    assert RUNS["deepseek-v3"].parameters == 37e9  # those that a token meets
    assert RUNS["gopher-280b"].ratio == pytest.approx(1.07, abs=0.005)
    known = {name: run.mfu for name, run in RUNS.items() if run.mfu is not None}
    assert all(0.3 < known[name] < 0.55 for name in known if name.startswith(("llama1", "llama2")))
    assert known["llama3.1-405b"] == pytest.approx(0.346, abs=0.002)
    assert RUNS["gpt3-175b"].mfu is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parameters": 0}, "parameters must be a number above 0, got 0"),
        ({"tokens": -1}, "tokens must be a number above 0, got -1"),
        ({"gpus": 0}, "gpus must be at least 1, got 0"),
        ({"gpus": 2.5}, "gpus must be an integer, got 2.5"),
        ({"peak_flops": 0.0}, "peak_flops must be a number above 0, got 0.0"),
        ({"utilisation": 40}, "utilisation must be at most 1, the whole peak, got 40"),
        ({"utilisation": 0}, "utilisation must be a number above 0, got 0"),
        ({"coefficient": 0}, "coefficient must be a number above 0, got 0"),
    ],
)
def test_bad_input_is_one_sentence(changes, sentence):
    good = {"parameters": 1e9, "tokens": 1e9, "gpus": 8, "peak_flops": 1e15, "utilisation": 0.4}
    with pytest.raises(ConfigError) as caught:
        training_time(**{**good, **changes})
    assert str(caught.value) == sentence


def test_more_bad_input():
    with pytest.raises(ConfigError, match="gpu_hours must be a number above 0, got 0"):
        utilisation(1e9, 1e9, 0, 1e15)
    with pytest.raises(ConfigError, match="price must be a number above 0, got -2"):
        Duration(10.0, 1).cost(-2)
    with pytest.raises(ConfigError, match=r"seconds must be a number above 0, got 0\.0"):
        Duration(0, 1)
    with pytest.raises(ConfigError, match="parameters must be a number, got None"):
        Run("x", None, 1e9, "nowhere")
    with pytest.raises(ConfigError, match=r"tokens must be a number above 0, got 0\.0"):
        Run("x", 1e9, 0, "nowhere")
    with pytest.raises(ConfigError, match="unknown gpu 'h1000'; did you mean h100"):
        Run("x", 1e9, 1e9, "nowhere", 10.0, "h1000")
