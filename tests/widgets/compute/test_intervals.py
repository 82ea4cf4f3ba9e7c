"""Goodput: the closed forms against runs that fail at random moments, and the intervals against each other."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from playbook_widgets.compute.intervals import Goodput, best_interval, cluster_mtbf, daly, goodput, young

from playbook.errors import ConfigError

TIMES = st.floats(1e-2, 1e7)


def simulated(interval: float, save: float, restart: float, mtbf: float, segments: int) -> Goodput:
    """The same shares, of a run whose failures are drawn one by one."""
    chance, lost, starting = random.Random(7), 0.0, 0.0
    for _ in range(segments):
        while (until := chance.expovariate(1 / mtbf)) < interval + save:
            lost += until
            while (again := chance.expovariate(1 / mtbf)) < restart:
                starting += again
            starting += restart
    whole = segments * (interval + save) + lost + starting
    return Goodput(segments * interval / whole, segments * save / whole, lost / whole, starting / whole)


@pytest.mark.parametrize(
    "case", [(600, 30, 300, 11_000), (100, 100, 0, 1_000), (2_000, 10, 900, 1_500), (60, 1, 600, 600)]
)
def test_shares_are_those_of_runs_that_fail_at_random(case):
    told, drawn = goodput(*case), simulated(*case, segments=30_000)
    for part in ("useful", "saving", "lost", "restarting"):
        assert getattr(told, part) == pytest.approx(getattr(drawn, part), rel=0.03, abs=0.002), part


@given(TIMES, TIMES, st.one_of(st.just(0.0), TIMES), TIMES)
def test_shares_add_up_to_one(interval, save, restart, mtbf):
    told = goodput(interval, save, restart, mtbf)
    parts = (told.useful, told.saving, told.lost, told.restarting)
    assert all(0 <= part <= 1 for part in parts)
    assert math.fsum(parts) == pytest.approx(1, abs=1e-6)


@given(st.floats(1e-6, 3), st.floats(1, 1e6), st.floats(0, 2))
def test_no_other_interval_is_better_than_the_best(save_over_mtbf, mtbf, restart_over_mtbf):
    save, restart = save_over_mtbf * mtbf, restart_over_mtbf * mtbf
    best = best_interval(save, mtbf)
    most = goodput(best, save, restart, mtbf).useful
    for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2):
        assert goodput(factor * best, save, restart, mtbf).useful <= most * (1 + 1e-9)


def test_daly_is_closer_to_the_best_than_young_and_both_are_right_for_short_saves():
    for save in (1e-4, 1e-3, 1e-2, 0.1, 0.5):
        best = best_interval(save, 1.0)
        assert abs(daly(save, 1.0) - best) < abs(young(save, 1.0) - best)
    assert young(1e-6, 1.0) == pytest.approx(best_interval(1e-6, 1.0), rel=1e-3)
    assert daly(1e-2, 1.0) == pytest.approx(best_interval(1e-2, 1.0), rel=1e-3)
    assert daly(3.0, 1.0) == 1.0


def test_young_for_rare_failures_loses_as_much_by_saving_as_by_failing():
    save, mtbf = 1.0, 1e8
    told = goodput(young(save, mtbf), save, 0, mtbf)
    assert told.saving == pytest.approx(told.lost, rel=1e-3)
    assert 1 - told.useful == pytest.approx(math.sqrt(2 * save / mtbf), rel=1e-3)


def test_a_cluster_fails_as_often_as_all_its_devices_together():
    assert cluster_mtbf(50_000, 16_384) == pytest.approx(50_000 / 16_384)


def test_where_hardly_anything_ends_without_a_failure_nothing_is_useful():
    assert goodput(1e6, 1.0, 0.0, 1.0) == Goodput(0.0, 0.0, 1.0, 0.0)
    assert goodput(1.0, 1.0, 1e6, 1.0) == Goodput(0.0, 0.0, 0.0, 1.0)


def test_starting_again_takes_the_same_share_whatever_the_interval():
    shares = {round(goodput(interval, 10, 600, 3600).restarting, 12) for interval in (1, 60, 3600)}
    assert shares == {round(1 - math.exp(-600 / 3600), 12)}


@pytest.mark.parametrize(
    "call",
    [
        lambda: young(0, 1),
        lambda: daly(1, -1),
        lambda: best_interval(math.inf, 1),
        lambda: goodput(0, 1, 1, 1),
        lambda: goodput(1, 1, -1, 1),
        lambda: cluster_mtbf(1, 0),
    ],
)
def test_times_that_cannot_be_are_refused(call):
    with pytest.raises(ConfigError, match="must be a number above 0"):
        call()
