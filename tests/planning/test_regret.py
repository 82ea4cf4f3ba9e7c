"""Which of layouts that are about as fast is the first choice, where a calibration may be somewhat wrong."""

from dataclasses import replace

import pytest

from playbook.planning.calibration import load_calibration
from playbook.planning.jobs import problem_of, run_of
from playbook.planning.regret import DOUBTS, EQUAL, choice, doubted, expected_regrets
from playbook.planning.search import CLOSE, search


def run(layout, **more):
    job = {
        "model": "llama3-8b",
        "cluster": "h100-8",
        "gpus": 64,
        "seq": 4096,
        "global_batch": 512,
        "layout": layout,
    }
    return run_of({**job, **more})


def test_each_doubt_is_one_number_of_the_calibration():
    known = run("dp=64,zero=3,micro_batch=2").calibration
    cases = list(doubted(known))
    assert cases[0] == known
    assert len(cases) > len(DOUBTS)
    for case in cases[1:]:
        changed = [name for name in vars(known) if getattr(case, name) != getattr(known, name)]
        assert len(changed) == 1
        assert changed[0] in DOUBTS
    assert not [case for case in cases if case.hidden_dp > 1]  # a share


def test_the_fastest_in_every_case_has_no_regret_and_others_what_they_lose():
    runs = [run("dp=64,zero=1,micro_batch=2"), run("dp=8,tp=8,sp,zero=1,micro_batch=2")]
    regrets = expected_regrets(runs)
    seconds = [
        [replace(one, calibration=case).seconds for one in runs] for case in doubted(runs[0].calibration)
    ]
    expected = [sum(row[i] / min(row) - 1 for row in seconds) / len(seconds) for i in range(2)]
    assert regrets == pytest.approx(expected)
    assert regrets[0] == 0 < regrets[1]
    assert choice(runs, regrets) == 0
    assert expected_regrets([]) == []


def test_of_equal_ones_the_one_with_fewer_axes_is_chosen():
    runs = [
        run("dp=8,tp=8,sp,micro_batch=2"),
        run("dp=64,micro_batch=2"),
        run("dp=16,tp=2,pp=2,sp,micro_batch=2"),
    ]
    assert choice(runs, [0.0, EQUAL / 2, 0.0]) == 1
    assert choice(runs, [0.0, 2 * EQUAL, 0.0]) == 0
    wide = [run("dp=4,tp=16,sp,micro_batch=2", seq=8192), run("dp=8,tp=8,sp,micro_batch=2", seq=8192)]
    assert choice(wide, [0.0, 0.0]) == 1  # inside a node


def test_a_search_puts_it_first_and_the_others_in_the_order_of_their_steps():
    problem = problem_of(
        {"model": "llama3-8b", "cluster": "h100-8", "gpus": 16, "global_batch": 256, "seq": 8192}
    )
    found = search(problem, top=CLOSE + 2).found
    assert found[0].regret <= min(one.regret for one in found[1:CLOSE]) + EQUAL
    assert [one.step.seconds for one in found[1:]] == sorted(one.step.seconds for one in found[1:])
    assert search(problem, top=1).best.layout == found[0].layout


def test_intervals_are_those_of_the_calibration():
    step = run("dp=64,zero=3,micro_batch=2").step()
    least, most = load_calibration("h100", run("dp=64").cluster.accelerator).interval
    assert step.interval == pytest.approx((least * step.seconds, most * step.seconds))
    assert step.to_json()["step_interval_s"] == step.interval
