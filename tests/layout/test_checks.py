"""One check of a layout: every technique refuses what it cannot do, and whoever plans or trains asks the same one."""

from contextlib import nullcontext

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_shapes import shapes

from playbook.errors import LayoutError, PlaybookError, ScheduleError
from playbook.layout import SCHEDULES, Layout
from playbook.layout.fields import KINDS
from playbook.layout.stages import check_microbatches, depth, on_ranks, placement, split, stages_of
from playbook.planning.memory import predict
from playbook.schedules.catalogue import make
from playbook.schedules.validate import schedule_of
from playbook.shapes import load
from playbook.training.config import TrainConfig

small = st.sampled_from([1, 1, 2, 3, 4])


@st.composite
def cases(draw):
    """Layouts that fit and such that do not, with tokens."""
    own = draw(st.sampled_from([None, None, None, ("1f1b", 2, 8), ("zb-h1", 3, 9), ("dualpipe", 4, 8)]))
    sizes = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)
    layout = Layout(
        dp=draw(st.integers(1, 2)), tp=draw(small), cp=draw(small), pp=draw(small),
        vpp=draw(st.sampled_from([1, 1, 1, 2, 3])), sp=draw(st.booleans()), zero=draw(st.integers(0, 3)),
        schedule=draw(st.sampled_from(SCHEDULES)), grad_acc=draw(st.sampled_from([1, 2, 8, 9])),
        context=draw(st.sampled_from(["ring", "gather", "ulysses"])),
        tensor_overlap=draw(st.sampled_from(["none", "async", "chunked"])),
        own_schedule=own and make(*own), stage_layers=draw(st.none() | st.none() | sizes),
    )  # fmt: skip
    return draw(shapes()), layout, draw(st.integers(1, 24))


def refusal(call):
    """The sentence with which a layout is refused, if it is."""
    try:
        call()
    except LayoutError as error:
        return str(error)
    return None


@given(cases())
@settings(max_examples=400)
def test_what_is_planned_is_what_the_layout_allows(case):
    shape, layout, seq = case
    said = refusal(lambda: layout.check(shape, seq=seq))
    assert refusal(lambda: predict(shape, layout, seq=seq)) == said


@given(cases())
@settings(max_examples=200)
def test_what_trains_is_what_the_layout_allows(case):
    """Of what a config lets through, which is checked when it is written down."""
    shape, layout, seq = case
    try:
        config = TrainConfig(layout=layout, seq=seq, global_batch=layout.global_batch)
    except PlaybookError:
        return
    said = refusal(lambda: layout.check(shape, seq=seq))
    assert refusal(lambda: config.layout.check(shape, seq=config.seq)) == said


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("tp=2", {"tensor_overlap": "chunked"}, "tensor_overlap is 'chunked', which takes gathers of tokens apart"),
        ("cp=8", {"context": "ulysses"}, "cp is 8, but with context='ulysses' it must divide the"),
        ("pp=3,schedule=dualpipe", {}, "pp is 3, but schedule dualpipe meets in the middle: it must be even"),
        ("pp=2,schedule=zb-h2", {}, "grad_acc is 1, but schedule zb-h2 with pp=2 needs at least 3 micro-batches"),
        ("pp=2", {"stage_layers": (3, 2)}, "stage_layers is 3,2, but must be 2 numbers"),
        ("", {"stage_layers": (4,)}, "stage_layers is given, but pp is 1: there is no pipeline"),
        ("pp=3", {"stage_layers": (2, 0, 2)}, "stage_layers is 2,0,2, but rank 1 of the pipeline then has neither"),
        ("pp=3", {"own_schedule": make("1f1b", 2, 2)}, "pp is 3, but schedule '1f1b' has 2 ranks: make them equal"),
        ("pp=2", {"own_schedule": make("1f1b", 2, 2)}, "grad_acc is 1, but schedule '1f1b' has 2 micro-batches"),
    ],
)  # fmt: skip
def test_what_a_technique_refuses_is_said_in_one_sentence(text, options, sentence):
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text).replace(**options).check(load("tiny"), seq=64)
    assert sentence in str(caught.value)


def test_no_pipeline_is_as_long_as_that():
    with pytest.raises(LayoutError, match="pp must be at most 512, several times"):
        Layout(pp=600).check(load("tiny").replace(layers=600))


def test_dropout_is_not_drawn_over_several_ranks():
    shape = load("tiny").replace(dropout=0.1)
    Layout(tp=2, dp=2).check(shape, seq=64)
    with pytest.raises(LayoutError, match=r"cp is 2, but tiny has dropout=0\.1"):
        Layout(cp=2).check(shape)


def test_a_schedule_that_nobody_can_carry_out():
    action = {"op": "F", "stage": 0, "microbatch": 0}
    half = schedule_of({"ranks": [[action], [{**action, "stage": 1}]]})
    with pytest.raises(ScheduleError, match="is missing"):
        Layout(pp=2, own_schedule=half).check(load("tiny"))


def test_without_the_tokens_of_a_sample_no_step_is_checked():
    """How many micro-batches it has may be said elsewhere."""
    layout = Layout(pp=2, schedule="zb-h2")
    layout.check(load("tiny"))
    with pytest.raises(LayoutError, match="grad_acc is 1"):
        layout.check(load("tiny"), seq=64)


@pytest.mark.parametrize("name", SCHEDULES)
@given(st.integers(1, 6), st.integers(1, 3), st.integers(1, 30))
@settings(max_examples=30)
def test_the_table_says_what_the_generators_do(name, pp, vpp, microbatches):
    """Which micro-batches a schedule takes, how many stages it has and where they are."""
    vpp = 1 if KINDS[name].chunks or pp == 1 else vpp
    layout = Layout(pp=pp, vpp=vpp, schedule=name, grad_acc=microbatches)
    try:
        schedule = make(name, pp, microbatches, vpp)
    except ScheduleError:
        if pp > 1:
            with pytest.raises(LayoutError):
                check_microbatches(layout, microbatches)
        return
    check_microbatches(layout, microbatches)
    done = {(rank, a.stage) for rank, actions in enumerate(schedule.ranks) for a in actions}
    there = {(rank, s) for way in on_ranks(name, pp, vpp) for s, rank in enumerate(way)}
    assert done == there
    if pp > 1:
        assert depth(layout) == schedule.depth
        assert placement(layout) == schedule.placement


def test_stages_of_ranks():
    assert stages_of(on_ranks("zb-v", 3), 3) == ((0, 5), (1, 4), (2, 3))
    assert stages_of(on_ranks("dualpipe", 4), 4) == ((0, 3), (1, 2), (1, 2), (0, 3))
    assert stages_of(on_ranks("interleaved", 2, 3), 2) == ((0, 2, 4), (1, 3, 5))
    assert on_ranks("zb-1p", 3) == ((0, 1, 2),)  # found by a solver: not in the table


def test_stages_of_chosen_sizes():
    assert split(8, 2, (3, 5)) == [range(3), range(3, 8)]
    with pytest.raises(LayoutError, match="stage_layers is 3,4, but must be 2 numbers"):
        split(8, 2, (3, 4))


@pytest.mark.parametrize(
    ("layout", "train", "sentence"),
    [
        (
            "pp=2",
            "embedding",
            "train is embedding, but rank 1 of the pipeline has attention, head, mlp, norms alone",
        ),
        ("pp=2,schedule=dualpipev", "embedding", "rank 1 of the pipeline has attention, mlp, norms alone"),
        ("pp=4", "head", "rank 0 of the pipeline has attention, embedding, mlp, norms alone"),
        ("pp=2", "norms", ""),
        ("pp=2,schedule=dualpipe,grad_acc=4", "head", ""),
        ("pp=2", "lora:4", ""),
        ("dp=2", "embedding", ""),
    ],
)
def test_each_rank_of_a_pipeline_learns_something(layout, train, sentence):
    """A rank that learns nothing would have no optimizer; of DualPipe each has both ends."""
    shape, spread = load("tiny").replace(train=train), Layout.parse(layout)
    with pytest.raises(LayoutError, match=sentence) if sentence else nullcontext():
        spread.check(shape)
    with pytest.raises(LayoutError, match="stage_layers"):
        Layout.parse("pp=2").replace(stage_layers=(4, 0)).check(load("tiny").replace(train="mlp"))
