"""Every schedule, for any number of ranks and micro-batches: valid, with the bubble and the activations of its paper."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from playbook.errors import ScheduleError
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import BY_HAND, bubble_on_paper, make
from playbook.schedules.timeline import Times, simulate
from playbook.schedules.validate import validate

STAGES, MICROBATCHES, CHUNKS = st.integers(1, 16), st.integers(1, 64), st.integers(1, 4)
TIME = st.floats(0.1, 10)


def made(name: str, stages: int, microbatches: int, vpp: int = 1) -> Schedule:
    """A schedule, where the numbers allow it."""
    try:
        return make(name, stages, microbatches, vpp)
    except ScheduleError:
        assume(False)
        raise


@given(st.sampled_from(sorted(BY_HAND)), STAGES, MICROBATCHES)
def test_by_hand(name, stages, microbatches):
    schedule = made(name, stages, microbatches)
    validate(schedule)
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule
    assert sum(len(actions) for actions in schedule.ranks) >= 2 * microbatches * schedule.depth


@given(STAGES, MICROBATCHES, CHUNKS, st.sampled_from(["interleaved", "breadth-first"]))
def test_interleaved(stages, microbatches, vpp, name):
    schedule = made(name, stages, microbatches, vpp)
    validate(schedule)
    assert schedule.chunks == vpp


@given(st.sampled_from(["naive", "afab", "1f1b", "zb-h1", "zb-h2"]), STAGES, MICROBATCHES, TIME, TIME)
def test_bubble_is_the_one_on_paper(name, stages, microbatches, f, w):
    """Zero-bubble ones where their picture holds: b between w and f + w, and enough micro-batches."""
    schedule, times = made(name, stages, microbatches), Times(f, f, min(f, w))
    line = simulate(schedule, times)
    told = bubble_on_paper(name, stages, microbatches, 1, times.f, times.b, times.w)
    took = line.span if name == "zb-h2" else line.makespan  # whose ranks go on to the next step
    assert took - line.ideal == pytest.approx(told.time, abs=1e-6)


@given(STAGES, st.integers(1, 4), CHUNKS, TIME, TIME, TIME)
def test_bubble_of_chunks(stages, rounds, vpp, f, b, w):
    schedule = made("interleaved", stages, stages * rounds, vpp)
    line = simulate(schedule, Times(f / vpp, b / vpp, w / vpp))
    told = bubble_on_paper("interleaved", stages, stages * rounds, vpp, f, b, w)
    assert line.makespan - line.ideal == pytest.approx(told.time, abs=1e-6)


@given(st.sampled_from(["dualpipe", "dualpipev"]), st.integers(1, 8), st.integers(0, 20), TIME, TIME)
def test_bubble_of_two_ways(name, half, more, f, w):
    """The published formula, exact where b = f."""
    stages = 2 * half if name == "dualpipe" else half
    schedule = made(name, stages, 2 * stages + 2 * more)
    line = simulate(schedule, Times(f, f, min(w, f)))
    told = bubble_on_paper(name, stages, schedule.microbatches, 1, f, f, min(w, f))
    assert line.makespan - line.ideal == pytest.approx(told.time, abs=1e-6)


@given(STAGES, MICROBATCHES)
def test_activations_in_flight(stages, microbatches):
    """All of them for AFAB; p − rank for 1F1B, p for ZB-H1, 2p − 1 for ZB-H2; p of two half-stages for ZB-V."""

    def peaks(name: str) -> list[int]:
        line = simulate(make(name, stages, microbatches))
        return [line.peak_in_flight(rank) for rank in range(stages)]

    assert peaks("naive") == [1] * stages
    assert peaks("afab") == [microbatches] * stages
    assert peaks("1f1b") == [min(microbatches, stages - rank) for rank in range(stages)]
    if microbatches >= stages:
        assert peaks("zb-h1") == [stages] * stages
    if microbatches >= 2 * stages - 1:
        assert peaks("zb-h2") == [2 * stages - 1] * stages
        assert peaks("zb-v") == [2 * stages] * stages
    if microbatches >= 2 * stages:
        assert max(peaks("dualpipev")) == 2 * stages + 1
