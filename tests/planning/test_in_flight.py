"""What a rank keeps of its stages at the fullest moment, without walking through all micro-batches of a schedule."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from playbook.errors import LayoutError, ScheduleError
from playbook.layout import SCHEDULES, Layout
from playbook.layout.stages import check_microbatches
from playbook.planning.in_flight import pipeline_stages
from playbook.schedules.catalogue import make
from playbook.schedules.kept import InFlight
from playbook.schedules.kept import kept as kept_over


def layout(name, pp, vpp, microbatches):
    return Layout(pp=pp, vpp=vpp, schedule=name, grad_acc=microbatches)


@given(
    st.sampled_from(SCHEDULES), st.integers(2, 7), st.integers(1, 4), st.integers(1, 60),
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 60)), min_size=28, max_size=28),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_most_is_that_of_the_whole_schedule(name, pp, vpp, microbatches, sizes):
    """Whatever stages weigh: W may need more than F has saved, where layers are computed again."""
    vpp = vpp if name in ("interleaved", "breadth-first") else 1
    try:
        schedule = make(name, pp, microbatches, vpp)
    except ScheduleError:
        with pytest.raises(LayoutError):
            check_microbatches(layout(name, pp, vpp, microbatches), microbatches)
        return
    check_microbatches(layout(name, pp, vpp, microbatches), microbatches)
    full, rest = zip(*sizes, strict=True)
    for pipeline in (
        pipeline_stages(layout(name, pp, vpp, microbatches)),
        pipeline_stages(Layout(own_schedule=schedule)),
    ):
        assert pipeline.depth == schedule.depth
        assert pipeline.directions == len(schedule.placement)
        for rank, stages in enumerate(pipeline.stages):
            kept = [
                sum(n * full[s] + k * rest[s] for s, n, k in zip(stages, *moment, strict=True))
                for moment in pipeline.fullest[rank]
            ]
            assert max(kept) == max(kept_over(schedule, rank, full, rest))


def micro_batches(name, pp, vpp, microbatches):
    """In flight on each rank, in shares of 1/pp of the model."""
    pipeline = pipeline_stages(layout(name, pp, vpp, microbatches))
    return [
        max(sum(m.full) + sum(m.rest) for m in moments) * pp / pipeline.depth for moments in pipeline.fullest
    ]


def test_by_the_book():
    assert micro_batches("1f1b", 4, 1, 8) == [4, 3, 2, 1]
    assert micro_batches("naive", 4, 1, 8) == [1] * 4
    assert micro_batches("afab", 4, 1, 8) == [8] * 4
    assert micro_batches("zb-h1", 4, 1, 8) == [4] * 4  # those of 1F1B's first rank, on every rank
    assert micro_batches("zb-h2", 4, 1, 8) == [7] * 4
    assert micro_batches("dualpipe", 4, 1, 8) == [5] * 4  # PP + 1 (DeepSeek-AI 2024, table 2)
    assert micro_batches("dualpipev", 4, 1, 8)[0] == 4.5
    # Interleaving raises the first rank's memory by (pp − 1)/(pp·v) (Korthikanti et al. 2022, section 4.2.3).
    assert micro_batches("interleaved", 8, 3, 64)[0] == pytest.approx(8 * (1 + 7 / 24))
    assert {InFlight((3,), (1,)), InFlight((2,), (2,))} <= set(
        pipeline_stages(layout("zb-h1", 4, 1, 8)).fullest[1]
    )


def test_of_many_micro_batches_few_are_walked_through():
    """Numbers that nobody could walk through one by one."""
    assert micro_batches("afab", 4, 1, 10**15) == [10**15] * 4
    assert pipeline_stages(layout("breadth-first", 4, 3, 10**15)).fullest[0][-1].full[:2] == (10**15, 10**15)
    for name in ("1f1b", "zb-h2", "zb-v", "dualpipe", "interleaved"):
        assert micro_batches(name, 4, 1, 10**15) == micro_batches(name, 4, 1, 40)
    # Half of DualPipe's enter at either end: it is an even number that is walked through.
    for pp in (2, 4, 6, 16):
        for count in (2 * pp, 2 * pp + 2, 120, 122):
            assert micro_batches("dualpipe", pp, 1, count) == [pp + 1] * pp
