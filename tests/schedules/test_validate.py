"""What is wrong with a schedule is one sentence that names it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from counted import calls
from playbook_widgets.compute.recognise import recognise

from playbook.errors import ScheduleError
from playbook.schedules.actions import Action, Schedule
from playbook.schedules.catalogue import BY_HAND, make
from playbook.schedules.validate import check, schedule_of, validate

GOOD = make("zb-h1", 2, 3)
FIRST, SECOND = GOOD.ranks


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"ranks": (FIRST[1:], SECOND)}, "F of micro-batch 0 on stage 0 is missing: rank 0 must do it"),
        ({"ranks": (FIRST[:-1], SECOND)}, "W of micro-batch 2 on stage 0 is missing"),
        (
            {"ranks": ((*FIRST, FIRST[0]), SECOND)},
            "F of micro-batch 0 on stage 0 on rank 0 comes twice: F of it has been done before",
        ),
        (
            {"ranks": ((*FIRST, Action("BW", 0, 0)), SECOND)},
            "BW of micro-batch 0 on stage 0 on rank 0 comes twice",
        ),
        ({"ranks": (SECOND, FIRST)}, "F of micro-batch 0 on stage 1 is on rank 0, but stage 1 is on rank 1"),
        (
            {"ranks": ((Action("X", 0, 0), *FIRST), SECOND)},
            "op is 'X' on rank 0, but must be one of F, B, W, BW",
        ),
        (
            {"ranks": ((Action("F", 0, 3), *FIRST), SECOND)},
            "microbatch is 3 in F of micro-batch 3 on stage 0",
        ),
        ({"ranks": ((Action("F", -1, 0), *FIRST), SECOND)}, "stage is -1 in F of micro-batch 0 on stage -1"),
        ({"ranks": (FIRST[::-1], SECOND)}, "the schedule cannot go on: rank 0 waits with W of micro-batch 2"),
        ({"placement": ((0, 2),)}, "placement is [[0, 2]], but every direction must give a rank from 0 to 1"),
        ({"placement": ((0, 1), (1,))}, "placement is [[0, 1], [1]], but every direction must give"),
        ({"directions": (0,)}, "directions has 1 entries, but there are 3 micro-batches"),
        ({"directions": (0, 0, 1)}, "directions has a 1, but placement has 1, counted from 0"),
        ({"overlapped": frozenset({(0, 8)})}, "overlapped has [0, 8], but must be a rank and the place"),
        ({"ranks": ()}, "the schedule has no ranks or no stages"),
    ],
)
def test_what_is_wrong(change, sentence):
    with pytest.raises(ScheduleError) as refused:
        validate(replace(GOOD, **change))
    assert str(refused.value).startswith(sentence)


def bidirectional(first: str, second: str) -> Schedule:
    """Two ranks and three micro-batches, of which the last takes the other way; an action is stage and micro-batch."""
    order = [
        [Action(op, int(s), int(m)) for op, s, m in (a.split(".") for a in text.split())]
        for text in (first, second)
    ]
    return Schedule("own", 3, ((0, 1), (1, 0)), tuple(map(tuple, order)), (0, 0, 1))


UNEVEN = bidirectional("F.0.0 F.1.2 BW.1.2 F.0.1 BW.0.0 BW.0.1", "F.0.2 F.1.0 BW.1.0 F.1.1 BW.1.1 BW.0.2")
CROSSED = bidirectional("F.0.0 F.0.1 BW.0.0 BW.0.1 F.1.2 BW.1.2", "F.0.2 F.1.0 BW.1.0 F.1.1 BW.1.1 BW.0.2")
#: Both do W of stage 0 first of all.
CROSSED_LAST = bidirectional(
    "F.0.0 F.0.1 F.1.2 B.1.2 B.0.0 B.0.1 W.0.0 W.1.2 W.0.1",
    "F.0.2 F.1.0 F.1.1 B.1.0 B.1.1 B.0.2 W.0.2 W.1.0 W.1.1",
)


@pytest.mark.parametrize(
    ("schedule", "zero", "sentence"),
    [
        (CROSSED_LAST, 0, "ranks 0 and 1 have the same stages, but finish stages [1, 0] and [0, 1]"),
        (CROSSED, 0, "ranks 0 and 1 have the same stages, but finish stages [0, 1] and [1, 0]"),
        (UNEVEN, 2, "ranks 0 and 1 have the same stages, but do W of stages [1, 0, 0] and [1, 1, 0]"),
        (replace(GOOD, placement=((0, 1), (0, 1))), 0, "placement is [[0, 1], [0, 1]], but in training"),
        (
            replace(make("zb-h1", 3, 3), placement=((0, 1, 2), (2, 1, 0))),
            0,
            "placement is [[0, 1, 2], [2, 1,",
        ),
        (replace(GOOD, ranks=(*GOOD.ranks, ())), 0, "rank 2 has no stage"),
    ],
)
def test_what_can_be_timed_and_not_trained_with(schedule, zero, sentence):
    """Replicas of a stage would add up gradients of one with those of another."""
    validate(schedule)
    with pytest.raises(ScheduleError) as refused:
        check(schedule, each_pass=zero >= 2)
    assert str(refused.value).startswith(sentence)


def test_what_both_ways_may_differ_in():
    check(UNEVEN)
    check(make("dualpipe", 4, 8), each_pass=True)


def test_memory():
    schedule = make("zb-h1", 4, 8)
    validate(schedule, 4)
    validate(schedule, (4, 3.5, 3, 2.5), 0.5)
    with pytest.raises(
        ScheduleError, match=r"rank 2 keeps the activations of 3 micro-batches with F of .*limit is 2.9"
    ):
        validate(schedule, (4, 4, 2.9, 4), 0.5)
    with pytest.raises(
        ScheduleError, match="limit has 2 numbers, but must be one, or one for each of 4 ranks"
    ):
        validate(schedule, (4, 4))


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ([], "the whole is no object"),
        ({}, "no 'ranks'"),
        ({"ranks": [[{"op": "F", "stage": 0}]]}, "no 'microbatch'"),
        (
            {"ranks": [[{"op": "F", "stage": 0.5, "microbatch": 0}]]},
            "stage is 0.5, but must be a whole number",
        ),
        ({"ranks": [[{"op": "F", "stage": 10**9, "microbatch": 0}]]}, "but only 1 actions"),
        ({"ranks": [[]], "placement": [[1e999]]}, "cannot convert float infinity to integer"),
        ({"ranks": [[]], "overlapped": [[float("inf"), 0]]}, "cannot convert float infinity to integer"),
        ({"ranks": 3}, "not iterable"),
    ],
)
def test_what_cannot_be_read(data, sentence):
    with pytest.raises(ScheduleError, match=sentence):
        schedule_of(data)


def test_a_schedule_of_ones_own_needs_only_its_ranks():
    given = make("1f1b", 3, 4).to_json()
    assert replace(schedule_of({"ranks": given["ranks"]}), name="1f1b") == make("1f1b", 3, 4)


def test_reading_twice_as_many_ranks_takes_twice_as_long():
    half, whole = (calls(schedule_of, make("1f1b", ranks, 1).to_json()) for ranks in (200, 400))
    assert whole < 2.1 * half


@pytest.mark.parametrize("name", BY_HAND)
def test_known_schedules_are_recognised(name):
    assert recognise(replace(make(name, 4, 12), name="mine")) == name


def test_recognised_whatever_ranks_and_micro_batches_are_called():
    known = make("1f1b", 3, 4)
    other = tuple(
        tuple(
            part
            for op, stage, m in known.ranks[rank]
            for part in (
                [Action("B", stage, 3 - m), Action("W", stage, 3 - m)]
                if op == "BW"
                else [Action(op, stage, 3 - m)]
            )
        )
        for rank in (2, 0, 1)
    )
    schedule = Schedule("mine", 4, ((1, 2, 0),), other)
    validate(schedule)
    assert recognise(schedule) == "1f1b"
    assert recognise(make("interleaved", 4, 16, 2)) == "interleaved"
    assert recognise(make("interleaved", 4, 16, 2, run=6)) == "interleaved with runs of 6"
    assert recognise(make("breadth-first", 4, 16, 2)) == "breadth-first"
    assert recognise(make("naive", 1, 1)) == "1f1b or afab or naive or zb-h1 or zb-h2"
    swapped = (*known.ranks[0][:2][::-1], *known.ranks[0][2:])
    assert recognise(replace(known, ranks=(swapped, *known.ranks[1:]))) is None
    assert recognise(make("zb-2p", 4, 8)) is None
