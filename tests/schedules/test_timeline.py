"""The event simulation against what defines it, and the reasons for waiting against the gaps."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from counted import calls
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.commands.schedule import picture
from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule, straight
from playbook.schedules.catalogue import BY_HAND, make
from playbook.schedules.explain import CAUSES, bubble_by_cause, critical_path, idles
from playbook.schedules.timeline import Slot, Timeline, Times, simulate

TIME = st.floats(0.1, 10)


@st.composite
def lines(draw) -> Timeline:
    """Any schedule, each stage with times of its own, messages that cost something."""
    name = draw(st.sampled_from([*BY_HAND, "interleaved"]))
    stages = draw(st.sampled_from([2, 4, 6] if name == "dualpipe" else [1, 2, 4, 5]))
    microbatches = draw(st.integers(stages, 2 * stages)) * 2
    schedule = make(name, stages, microbatches, 3 if name == "interleaved" else 1)
    several = st.lists(TIME, min_size=schedule.depth, max_size=schedule.depth)
    f, b, w = draw(several), draw(several), draw(several)
    comm, transfer = (draw(st.sampled_from([0.0, 0.3, 4.0])) for _ in range(2))
    fb = draw(st.sampled_from([None, 5.0]))
    return simulate(schedule, Times(f, b, w, comm, fb, transfer, draw(st.booleans())))


def arrivals(line: Timeline) -> dict[tuple[str, int, int], float]:
    """When what each action gives is where it is needed, worked out from the slots alone."""
    schedule, times, found = line.schedule, line.times, {}
    links: dict[tuple[int, int], float] = {}
    for rank, slots in enumerate(line.ranks):
        sender = 0.0  # if it has to wait for its messages, until then
        for slot in slots:
            op, stage, microbatch = slot.action
            to = stage + 1 if op == "F" else stage - 1
            if op == "W" or not 0 <= to < schedule.depth:
                continue
            other, leaves = schedule.rank_of(to, microbatch), max(slot.end, sender)
            if other == rank:
                found[op[0], stage, microbatch] = slot.end
                continue
            if times.overlap:
                leaves = max(leaves, links.get((rank, other), 0.0))
                links[rank, other] = leaves + times.transfer
            else:
                sender = leaves + times.transfer + times.comm
            found[op[0], stage, microbatch] = leaves + times.transfer + times.comm
    return found


@settings(max_examples=60)
@given(lines())
def test_every_action_begins_as_soon_as_it_can_and_no_sooner(line):
    schedule, times, table = line.schedule, line.times, line.times.table(line.schedule.depth)
    there, sending = arrivals(line), times.comm + times.transfer
    for rank, slots in enumerate(line.ranks):
        free, i = 0.0, 0
        while i < len(slots):
            block = slots[i : i + 2] if (rank, i) in schedule.overlapped else slots[i : i + 1]
            start = free
            for action in (slot.action for slot in block):
                for need in schedule.needs(action):
                    if need.stage != action.stage:
                        start = max(start, there[need.op[0], need.stage, need.microbatch])
            length = sum(table[s.action.op][s.action.stage] for s in block)
            length = times.fb if len(block) == 2 and times.fb is not None else length
            for slot in block:
                assert slot.start == pytest.approx(start, abs=1e-9)
                assert slot.end == pytest.approx(start + length, abs=1e-9)
            hops = 0
            for op, stage, microbatch in (slot.action for slot in block):
                to = stage + 1 if op == "F" else stage - 1
                away = op != "W" and 0 <= to < schedule.depth and schedule.rank_of(to, microbatch) != rank
                hops += away and not times.overlap
            free, i = block[0].end + hops * sending, i + len(block)


def test_what_was_measured_side_by_side_counts_once():
    """Recorded passes overlap in part; simulated ones wholly, or not at all."""
    times = [(0, 2), (1, 5), (6, 7)]
    slots = tuple(Slot(Action("F", 0, m), *when, None, 0.0) for m, when in enumerate(times))
    line = Timeline(Schedule("own", 3, straight(1), (tuple(s.action for s in slots),)), (slots,), Times())
    assert (line.busy(0), line.ideal, line.makespan) == (6, 6, 7)


def test_what_is_kept_comes_as_f_begins_and_goes_as_b_and_w_end():
    schedule = Schedule("own", 1, straight(1), (tuple(Action(op, 0, 0) for op in ("F", "B", "W")),))
    assert simulate(schedule, Times(2, 1, 0.5)).in_flight(0, 3, 1) == [(0, 3), (3, 1), (3.5, 0)]
    whole = replace(schedule, ranks=((Action("F", 0, 0), Action("BW", 0, 0)),))
    assert simulate(whole, Times(2, 1, 0.5)).in_flight(0) == [(0, 1), (3.5, 0)]


@settings(max_examples=60)
@given(lines())
def test_every_moment_of_a_rank_is_work_or_has_a_reason(line):
    gaps = idles(line)
    for rank, slots in enumerate(line.ranks):
        mine = [(i.start, i.end) for i in gaps if i.rank == rank]
        pieces = sorted({*mine, *((s.start, s.end) for s in slots)})
        assert pieces[0][0] == 0
        assert pieces[-1][1] == line.makespan
        for (_, end), (start, _) in pairwise(pieces):
            assert start == pytest.approx(end, abs=1e-7)
        assert line.busy(rank) + sum(e - s for s, e in mine) == pytest.approx(line.makespan)
    assert sum(bubble_by_cause(line).values()) == pytest.approx(sum(i.end - i.start for i in gaps))
    assert all(i.cause in CAUSES and i.text.startswith(f"rank {i.rank} ") for i in gaps)


@settings(max_examples=60)
@given(lines())
def test_the_critical_path_leads_from_the_start_to_the_end(line):
    path = critical_path(line)
    assert path[0].start == pytest.approx(0, abs=1e-9)
    assert path[-1].end == line.makespan
    hop, places = line.times.comm + line.times.transfer, line.places
    for one, two in pairwise(path):
        wait = two.start - one.end
        assert wait >= -1e-7
        same = places[one.action][0] == places[two.action][0]
        if line.times.overlap and not line.times.transfer:
            assert wait == pytest.approx(0 if same else hop, abs=1e-7)


def test_two_messages_take_turns_on_a_link_and_latency_does_not():
    """Two forward passes of 1 and messages that fill the link for 3 and travel 0.5: 1 + 3.5, then 3 later."""
    ranks = (
        tuple(Action("F", 0, m) for m in (0, 1)) + tuple(Action("BW", 0, m) for m in (0, 1)),
        tuple(Action(op, 1, m) for m in (0, 1) for op in ("F", "BW")),
    )
    schedule = Schedule("two", 2, straight(2), ranks)
    line = simulate(schedule, Times(1, 0.5, 0.5, comm=0.5, transfer=3))
    assert [s.start for s in line.ranks[1]] == [4.5, 5.5, 7.5, 8.5]
    causes = [(i.start, i.end, i.cause) for i in idles(line) if i.rank == 1]
    assert causes[:3] == [(0, 1, "fill"), (1, 4.5, "communication"), (6.5, 7.5, "communication")]
    busy = simulate(schedule, Times(1, 0.5, 0.5, comm=0.5, transfer=3, overlap=False))
    assert [s.start for s in busy.ranks[0]][:2] == [0, 4.5]
    assert busy.ranks[1][0].start == 4.5
    first = idles(busy)[0]
    assert (first.rank, first.start, first.end, first.cause) == (0, 1, 4.5, "sending")


def test_a_link_that_still_carries_an_earlier_message_is_a_reason_of_its_own():
    line = simulate(make("dualpipe", 4, 8), Times(transfer=2))
    link = [i for i in idles(line) if i.cause == "link"]
    assert link
    assert "waits for earlier ones on the same link" in link[0].text


def test_reasons_are_sentences():
    line = simulate(make("1f1b", 2, 2), Times(1, 1, 1, comm=0.25))
    told = [i.text for i in idles(line)]
    assert told == [
        "rank 0 waits with BW of micro-batch 0 on stage 0 for BW of micro-batch 0 on stage 1, which rank 1 ends at 4.25",
        "rank 0 waits with BW of micro-batch 0 on stage 0 for the message of BW of micro-batch 0 on stage 1 from rank 1, "
        "which arrives at 4.5",
        "rank 0 waits with BW of micro-batch 1 on stage 0 for BW of micro-batch 1 on stage 1, which rank 1 ends at 7.25",
        "rank 0 waits with BW of micro-batch 1 on stage 0 for the message of BW of micro-batch 1 on stage 1 from rank 1, "
        "which arrives at 7.5",
        "rank 1 has nothing to do yet: it waits with F of micro-batch 0 on stage 1 for F of micro-batch 0 on stage 0, "
        "which rank 0 ends at 1",
        "rank 1 waits with F of micro-batch 0 on stage 1 for the message of F of micro-batch 0 on stage 0 from rank 0, "
        "which arrives at 1.25",
        "rank 1 has done all its work; the step ends at 9.5, with BW of micro-batch 1 on stage 0 on rank 0",
    ]


@pytest.mark.parametrize("bad", [-1, float("inf"), float("nan"), "1", True, [1, -2], None])
@pytest.mark.parametrize("field", ["f", "comm", "transfer"])
def test_a_time_is_a_finite_number_of_at_least_0(field, bad):
    with pytest.raises(ScheduleError, match=f"^{field} has .*, but a time is a finite number of at least 0"):
        Times(**{field: bad})


def test_as_many_times_as_stages():
    with pytest.raises(ScheduleError, match="b has 3 times, but the schedule has 4 stages"):
        simulate(make("1f1b", 4, 8), Times(b=(1, 2, 3)))


def test_who_waits_for_whom():
    """A hand-made schedule in which two ranks wait for each other, and one in which something is never done."""
    good = make("1f1b", 2, 2)
    crossed = (good.ranks[0], (Action("F", 1, 1), Action("F", 1, 0), *good.ranks[1][1::2]))
    first = (Action("F", 0, 0), Action("BW", 0, 0), Action("F", 0, 1), Action("BW", 0, 1))
    with pytest.raises(ScheduleError) as circle:
        simulate(replace(good, ranks=(first, crossed[1])))
    assert str(circle.value) == (
        "the schedule cannot go on: rank 0 waits with BW of micro-batch 0 on stage 0 for B of micro-batch 0 on stage 1, "
        "rank 1 waits with F of micro-batch 1 on stage 1 for F of micro-batch 1 on stage 0"
    )
    with pytest.raises(ScheduleError, match="for F of micro-batch 1 on stage 0, which no rank ever does"):
        simulate(replace(good, ranks=(good.ranks[0][:1], good.ranks[1])))
    with pytest.raises(
        ScheduleError, match="for F of micro-batch 1 on stage 0, which comes later on the same rank"
    ):
        simulate(
            replace(good, ranks=((good.ranks[0][0], Action("BW", 0, 1), Action("F", 0, 1)), good.ranks[1]))
        )


def test_an_action_takes_a_dozen_calls_however_many_there_are():
    """About 1 µs each: 32 stages with 256 micro-batches take less than a tenth of a second."""
    for stages, microbatches in ((8, 32), (32, 256)):
        schedule = make("zb-h2", stages, microbatches)
        assert calls(simulate, schedule) < 14 * sum(map(len, schedule.ranks))


def test_the_picture_is_to_scale_and_as_wide_as_it_may_be():
    line = simulate(make("1f1b", 2, 2))
    assert picture(line, 80) == ["rank 0 F0 F1 ······BW0-- ···BW1--", "rank 1 ···F0 BW0-- F1 BW1--"]
    cut = picture(simulate(make("dualpipe", 8, 100)), 60)
    assert {len(text) for text in cut} == {60}
    assert all(text.endswith("…") for text in cut)
    assert picture(simulate(make("1f1b", 2, 2), Times(0, 0, 0)), 80) == []
