"""Schedules fitted to measured times: the published bubble rates, and the optimum by brute force."""

from __future__ import annotations

import itertools
import random
import sys

import pytest
from playbook_widgets.compute.published_pipelines import BOTH_WAYS, MEASURED, Measured

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule, straight
from playbook.schedules.catalogue import make
from playbook.schedules.solver.exact import solve
from playbook.schedules.solver.heuristic import ordered, span_of, zero_bubble
from playbook.schedules.timeline import Times, simulate
from playbook.schedules.validate import validate


def rate(row: Measured, name: str) -> float:
    chunks = row.chunks if name == "interleaved" else 1
    times = row.times(chunks)
    if name in ("zb-1p", "zb-2p"):
        limit = row.stages * int(name[3])
        tries = None if row.stages == 8 else 0
        schedule = zero_bubble(row.stages, row.microbatches, limit, times, rest=row.rest, tries=tries)
        validate(schedule, limit, row.rest)
    else:
        schedule = make(name, row.stages, row.microbatches, chunks)
    return simulate(schedule, times).bubble_fraction_span


@pytest.mark.parametrize("rest", [32 / 74, 0.83, 1.0])
def test_more_memory_is_never_worse(rest):
    """Memory that a schedule does not need may stay empty."""
    row, rates = MEASURED[3], []
    for limit in (1, 1.5, 2, 2.5, 3, 4):
        schedule = zero_bubble(
            row.stages, row.microbatches, limit * row.stages, row.times(), rest=rest, tries=20
        )
        validate(schedule, limit * row.stages, rest)
        rates.append(simulate(schedule, row.times()).bubble_fraction_span)
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.003


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: f"{row.model}-{row.stages}x{row.microbatches}")
def test_published_bubble_rates(row):
    """Qi et al. 2023, table 5, from the times of its table 9: all four decimals where the schedule is theirs."""
    for name in ("1f1b", "zb-h1", "zb-h2", "zb-1p"):
        assert rate(row, name) == pytest.approx(row.rates[name], abs=0.0001), name
    assert rate(row, "interleaved") == pytest.approx(row.rates["interleaved"], abs=0.004)
    assert rate(row, "zb-2p") <= row.rates["zb-2p"] + 0.0006


def test_the_tables_have_every_row():
    assert [(r.stages, r.microbatches) for r in MEASURED] == [(8, 24), (8, 32), (8, 64)] * 2 + [
        (16, 48), (16, 64), (16, 128), (32, 96), (32, 128), (32, 256)
    ]  # fmt: skip
    assert [row.copies_of_weights for row in BOTH_WAYS] == [1, 1, 2, 2]


def shapes(draw: random.Random) -> tuple[tuple[tuple[int, int], ...], int]:
    microbatches, stages = draw.randint(1, 14), draw.randint(1, 6)
    ahead = sorted((draw.randint(1, microbatches) for _ in range(stages)), reverse=True)
    return tuple((a, draw.randint(0, microbatches - a)) for a in ahead), microbatches


def times(draw: random.Random, stages: int) -> Times:
    f, b, w = ([draw.uniform(0.2, 3) for _ in range(stages)] for _ in "fbw")
    transfer = draw.choice((0.0, 0.0, 0.8, 2.5))
    return Times(f, b, w, draw.choice((0.0, 0.3)), None, transfer, draw.random() < 0.7)


def test_the_quick_measure_is_the_simulation():
    draw = random.Random(1)
    for _ in range(150):
        shape, microbatches = shapes(draw)
        stages = len(shape)
        ranks = tuple(ordered(r, microbatches, *one) for r, one in enumerate(shape))
        given = times(draw, stages)
        line = simulate(Schedule("x", microbatches, straight(stages), ranks), given)
        assert span_of(shape, microbatches, given) == pytest.approx(line.span)


def test_any_limit_of_memory_rank_by_rank():
    """More memory, shorter span; with no more than 1F1B keeps, no worse than that; the same every time."""
    spans = []
    for limit in (1, 2, 3, 4, 6, 8):
        schedule = zero_bubble(4, 12, limit, Times(2, 2, 1), rest=0.5)
        validate(schedule, limit, 0.5)
        spans.append(simulate(schedule, Times(2, 2, 1)).span)
        assert schedule == zero_bubble(4, 12, limit, Times(2, 2, 1), rest=0.5)
    assert spans == sorted(spans, reverse=True)
    assert spans[-1] == 61  # proven by the solver
    uneven = zero_bubble(4, 12, (4, 3, 2, 1))
    validate(uneven, (4, 3, 2, 1))
    assert simulate(uneven).span <= simulate(make("1f1b", 4, 12)).span
    assert make("zb-1.5p", 4, 12).name == "zb-1.5p"
    validate(make("zb-1.5p", 4, 12), 6)
    validate(zero_bubble(3, 8, 2.5, Times(0, 1, 1), rest=0), 2.5, 0)


def all_orders(microbatches: int, limit: float, rest: float) -> list[tuple[tuple[str, int], ...]]:
    found = []

    def go(f: int, b: int, w: int, so_far: tuple[tuple[str, int], ...], kept: float) -> None:
        if w == microbatches:
            found.append(so_far)
        if f < microbatches and kept + 1 <= limit + 1e-9:
            go(f + 1, b, w, (*so_far, ("F", f)), kept + 1)
        if b < f:
            go(f, b + 1, w, (*so_far, ("B", b)), kept - 1 + rest)
        if w < b:
            go(f, b, w + 1, (*so_far, ("W", w)), kept - rest)

    go(0, 0, 0, (), 0.0)
    return found


def shortest(
    stages: int, microbatches: int, limit: float, rest: float, given: Times, makespan: bool
) -> float:
    best = float("inf")
    for orders in itertools.product(all_orders(microbatches, limit, rest), repeat=stages):
        ranks = tuple(tuple(Action(op, r, m) for op, m in order) for r, order in enumerate(orders))
        try:
            line = simulate(Schedule("x", microbatches, straight(stages), ranks), given)
        except ScheduleError:
            continue
        best = min(best, line.makespan if makespan else line.span)
    return best


def test_the_solver_finds_what_trying_all_orders_finds():
    pytest.importorskip("scipy")
    draw, better = random.Random(7), 0
    for i in range(18):
        stages, microbatches = ((2, 3), (2, 3), (3, 2))[i % 3]
        limit, rest, given = draw.choice((1, 2, 2.5, 3)), draw.choice((1.0, 0.4)), times(draw, stages)
        makespan = draw.random() < 0.4
        found = solve(stages, microbatches, limit, given, rest=rest, makespan=makespan)
        validate(found.schedule, limit, rest)
        best = shortest(stages, microbatches, limit, rest, given, makespan)
        assert found.time == pytest.approx(best, rel=1e-5)
        assert found.bound == pytest.approx(best, rel=1e-5)
        assert found.optimal
        assert found.better == (found.time < found.heuristic)
        better += found.better
    assert better


def test_the_solver_stops_at_its_time_limit_with_the_best_so_far():
    pytest.importorskip("scipy")
    given = MEASURED[1].times()
    found = solve(8, 32, 10, given, rest=0.4, time_limit=0.5)
    assert found.stopped.startswith("stopped at its time limit of 0.5 s: the ")
    assert not found.optimal
    assert found.bound < found.time <= found.heuristic
    assert simulate(found.schedule, given).span == pytest.approx(found.time)
    validate(found.schedule, 10, 0.4)


def test_what_is_too_large_for_the_solver_is_said_at_once():
    pytest.importorskip("scipy")
    found = solve(16, 64, 16, Times(1, 1.3, 0.7, 0.1), time_limit=0.2)
    assert found.stopped.startswith("96768 pairs of actions are more than the solver takes on")
    assert (found.optimal, found.better, found.time) == (False, False, found.heuristic)


def test_the_heuristic_is_enough_where_nothing_is_left_to_win():
    pytest.importorskip("scipy")
    found = solve(4, 8, 8)
    assert (found.optimal, found.better, found.time, found.bound) == (True, False, 24, 24)


def test_without_scipy_the_solver_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(
        ScheduleError, match="needs scipy, which is not installed: pip install scipy, or take"
    ):
        make("exact", 2, 2)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"limit": 0.5}, "limit is 0.5, but must be at least 1"),
        ({"limit": float("nan")}, "limit is nan, but must be at least 1"),
        ({"limit": 4, "rest": 1.5}, "rest is 1.5, but must be from 0 to 1"),
        ({"limit": (4, 4)}, "limit has 2 numbers, but must be one, or one for each of 4 ranks"),
        ({"limit": 4, "time_limit": 0.0}, "time_limit is 0, but must be a finite number of seconds above 0"),
    ],
)
def test_refusals(flags, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        solve(4, 8, **flags)
