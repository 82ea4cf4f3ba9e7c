"""Every schedule, for any number of ranks and micro-batches: valid, with the bubble and the activations of its paper."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from playbook.errors import ScheduleError
from playbook.layout.stages import on_ranks
from playbook.schedules.actions import Schedule
from playbook.schedules.catalogue import BY_HAND, make
from playbook.schedules.explain import bubble_on_paper
from playbook.schedules.interleaved import rounds
from playbook.schedules.kept import kept
from playbook.schedules.timeline import Times, simulate
from playbook.schedules.validate import schedule_of, validate

STAGES, MICROBATCHES, CHUNKS = st.integers(1, 16), st.integers(1, 64), st.integers(1, 4)
TIME = st.floats(0.1, 10)


def made(name: str, stages: int, microbatches: int, vpp: int = 1, run: int | None = None) -> Schedule:
    """A schedule, where the numbers allow it."""
    try:
        return make(name, stages, microbatches, vpp, run=run)
    except ScheduleError:
        assume(False)
        raise


@pytest.mark.parametrize("name", BY_HAND)
@settings(max_examples=20)
@given(STAGES, st.integers(0, 63))
def test_by_hand(name, stages, more):
    """All numbers that the schedule takes, up to 16 ranks and 64 micro-batches."""
    two = 2 if name == "dualpipe" else 1
    stages = -(-stages // two) * two
    least = {"zb-h1": stages, "zb-h2": 2 * stages - 1, "zb-v": 2 * stages - 1}.get(name, 1)
    least = 2 * stages if name in ("dualpipe", "dualpipev") else least
    schedule = make(name, stages, least + more % (65 - least) // two * two)
    validate(schedule)
    assert schedule_of(json.loads(json.dumps(schedule.to_json()))) == schedule
    assert schedule.placement == on_ranks(name, stages)


@pytest.mark.parametrize("name", BY_HAND)
def test_refused_is_only_what_cannot_fill_the_pipeline(name):
    least = {"zb-h1": 4, "zb-h2": 7, "zb-v": 7, "dualpipe": 8, "dualpipev": 8}.get(name, 1)
    for microbatches in range(1, 17):
        if microbatches < least or (name == "dualpipe" and microbatches % 2):
            with pytest.raises(ScheduleError, match=f"^microbatches is {microbatches}, but "):
                make(name, 4, microbatches)
        else:
            validate(make(name, 4, microbatches))


@settings(max_examples=60)
@given(STAGES, MICROBATCHES, CHUNKS, st.data())
def test_interleaved(stages, microbatches, vpp, data):
    """Any run from the shortest to the longest, whether it divides the micro-batches or not: the bubble of the paper."""
    run = data.draw(st.integers(min(stages, microbatches), microbatches))
    schedule = make("interleaved", stages, microbatches, vpp, run=run)
    validate(schedule)
    turns = rounds(stages, microbatches, run)
    assert (schedule.chunks, sum(turns), turns[0]) == (vpp, microbatches, max(turns))
    line = simulate(schedule)
    if microbatches >= stages:
        told = bubble_on_paper("interleaved", stages, microbatches, vpp, vpp, vpp, vpp)
        assert line.makespan - line.ideal == pytest.approx(told.time)
    if vpp > 1:
        ahead = [2 * (stages - 1 - r) + (vpp - 1) * turns[0] + 1 for r in range(stages)]
        peaks = [line.peak_in_flight(r) for r in range(stages)]
        assert peaks == [min(microbatches * vpp, a) for a in ahead]


@pytest.mark.parametrize(
    ("numbers", "turns"),
    [
        ((4, 12, 8), [8, 4]),  # what is left over fills the pipeline: a turn of its own
        ((4, 12, 9), [12]),  # three would not, and go with the others
        ((4, 11, 4), [6, 5]),
        ((4, 8, 4), [4, 4]),
    ],
)
def test_turns_of_an_interleaved_schedule(numbers, turns):
    assert rounds(*numbers) == turns


@settings(max_examples=30)
@given(STAGES, MICROBATCHES)
def test_one_chunk_is_1f1b_and_all_at_once_is_breadth_first(stages, microbatches):
    assert make("interleaved", stages, microbatches, 1).ranks == make("1f1b", stages, microbatches).ranks
    longest = make("interleaved", stages, microbatches, 2, run=microbatches)
    assert make("breadth-first", stages, microbatches, 2) == longest
    first = [a.stage for a in longest.ranks[0] if a.op == "F"]
    assert first == [0] * microbatches + [stages] * microbatches


def test_depth_first_is_the_order_of_its_paper():
    """Narayanan et al. 2021, figure 4: two chunks on four ranks, eight micro-batches, the last rank."""
    order = " ".join(f"{a.op[0]}{a.stage}.{a.microbatch}" for a in make("interleaved", 4, 8, 2).ranks[3])
    assert order.startswith("F3.0 F3.1 F3.2 F3.3 F7.0 B7.0 F7.1 B7.1 F7.2 B7.2 F7.3 B7.3 F3.4 B3.0 F3.5 B3.1")


@pytest.mark.parametrize("name", ["naive", "afab", "1f1b", "zb-h1", "zb-h2"])
@settings(max_examples=25)
@given(STAGES, MICROBATCHES, TIME, TIME, TIME)
def test_bubble_is_the_one_on_paper(name, stages, microbatches, f, b, w):
    """Zero-bubble ones where their picture holds: w no more than f and b, and enough micro-batches."""
    times = Times(f, b, min(f, b, w))
    schedule = made(name, stages, microbatches)
    line = simulate(schedule, times)
    told = bubble_on_paper(name, stages, microbatches, 1, times.f, times.b, times.w)
    took = line.span if told.of == "span" else line.makespan
    assert took - line.ideal == pytest.approx(told.time, abs=1e-6)


def test_bubble_over_work():
    """(p − 1)/m, and (p − 1)/(v·m) where interleaved."""
    assert simulate(make("1f1b", 4, 8)).bubble_ratio == pytest.approx(3 / 8)
    assert simulate(make("interleaved", 4, 8, 2)).bubble_ratio == pytest.approx(3 / 16)


@pytest.mark.parametrize("name", ["dualpipe", "dualpipev"])
@settings(max_examples=25)
@given(st.integers(1, 8), st.integers(0, 20), TIME, TIME, st.floats(0.6, 1))
def test_bubble_of_two_ways(name, half, more, f, w, share):
    """The published formula, exact where b = f; two passes side by side may take less than one after the other."""
    stages = 2 * half if name == "dualpipe" else half
    schedule = make(name, stages, 2 * stages + 2 * more)
    w = min(w, f)
    both = share * (2 * f + w)
    line = simulate(schedule, Times(f, f, w))
    told = bubble_on_paper(name, stages, schedule.microbatches, 1, f, f, w)
    assert line.makespan - line.ideal == pytest.approx(told.time, abs=1e-6)
    assert simulate(schedule, Times(f, f, w, fb=both)).makespan <= line.makespan + 1e-9


def test_how_much_runs_side_by_side():
    """Two in each turn of the main phase, one in each of the next; where the ways meet, the first of all cannot."""
    for name, stages, ranks, ways in (("dualpipe", 8, 4, 2), ("dualpipev", 4, 4, 1)):
        schedule = make(name, stages, 20)
        for rank in range(stages):
            near = min(rank, stages - 1 - rank) if ways == 2 else rank
            inner = ranks - near - 1
            blocks = 2 * (20 // ways - 2 * ranks + near + 1) + inner - (inner == 0)
            places = [i for r, i in schedule.overlapped if r == rank]
            assert len(places) == blocks
            for i in places:
                one, two = schedule.ranks[rank][i : i + 2]
                assert (one.op, two.op) == ("F", "BW")
                assert (one.stage, one.microbatch) != (two.stage, two.microbatch)


@settings(max_examples=25)
@given(STAGES, MICROBATCHES)
def test_activations_in_flight(stages, microbatches):
    """All of them for AFAB; p − rank for 1F1B, p for ZB-H1, 2p − 1 for ZB-H2; p of two half-stages for ZB-V."""

    def peaks(name: str) -> list[float]:
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
        if stages % 2 == 0 and microbatches % 2 == 0:
            assert peaks("dualpipe") == [stages + 1] * stages


@settings(max_examples=30)
@given(st.integers(1, 8), st.sampled_from(["1f1b", "zb-h1", "zb-h2", "zb-v", "dualpipe"]), st.floats(0, 1))
def test_what_is_kept_does_not_depend_on_time(stages, name, rest):
    """By the order of actions, and by the clock; ZB-H1 keeps p − r wholes and r rests, ZB-H2 about twice that."""
    schedule = made(name, stages, 2 * stages + 2)
    line = simulate(schedule, Times(comm=0.3))
    full, part = [1.0] * schedule.depth, [rest] * schedule.depth
    for rank in range(stages):
        most = max(kept(schedule, rank, full, part))
        assert line.peak_in_flight(rank, full, part) == pytest.approx(most)
        assert line.in_flight(rank, 1, rest)[-1][1] == pytest.approx(0)
        if name == "zb-h1":
            assert most == pytest.approx(stages - rank + rest * rank)
        if name == "zb-h2":
            assert most == pytest.approx(2 * (stages - rank) - 1 + rest * 2 * rank)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"vpp": 2}, "vpp is 2, but 1f1b has a fixed number of chunks"),
        ({"run": 3}, "run is 3, but only interleaved has one"),
        ({"stages": 0}, "stages must be at least 1, got 0"),
        ({"microbatches": True}, "microbatches must be an integer, got True"),
        ({"name": "1f2b"}, "unknown schedule '1f2b'; did you mean 1f1b"),
        (
            {"name": "interleaved", "vpp": 2, "run": 3},
            "run is 3, but 4 ranks with 8 micro-batches must run from 4",
        ),
        ({"name": "breadth-first", "run": 4}, "run is 4, but breadth-first runs all 8"),
        ({"name": "dualpipe", "stages": 3}, "stages is 3, but DualPipe meets in the middle"),
        ({"name": "zb-0.1p"}, "limit is 0.4, but must be at least 1"),
    ],
)
def test_one_sentence_for_every_mistake(change, sentence):
    with pytest.raises(ScheduleError) as refused:
        make(**{"name": "1f1b", "stages": 4, "microbatches": 8} | change)
    assert str(refused.value).startswith(sentence)
