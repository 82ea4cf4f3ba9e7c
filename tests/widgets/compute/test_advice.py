"""Advice is only worth giving if it works, is ranked, and says nothing superfluous."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.advice import CHANGES, Setup, what_would_fit

from playbook.layout import Layout
from playbook.planning.memory import predict
from playbook.planning.recipes import RECIPES
from playbook.shapes import load


def setup(model="llama3-8b", layout="dp=8", seq=8192, **options):
    return Setup(load(model), Layout.parse(layout), seq, RECIPES["bf16-mixed"], **options)


@given(
    st.sampled_from(["llama3-8b", "llama3-70b", "gpt2", "mixtral-8x7b"]),
    st.sampled_from(["", "dp=8", "dp=8,tp=4", "dp=4,pp=4,grad_acc=8,micro_batch=4"]),
    st.sampled_from([24e9, 80e9, 192e9]), st.sampled_from(["sdpa", "reference"]),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_every_advice_fits_is_needed_and_is_ranked(model, layout, capacity, attention):
    start = setup(model, layout, seq=1024, attention=attention)
    advice = what_would_fit(start, int(capacity))
    if start.peak() <= capacity:
        assert advice == []
    gpus = start.layout.world_size
    ranks = [(a.setup.layout.world_size > gpus, a.cost) for a in advice]
    assert ranks == sorted(ranks)
    for a in advice:
        s = a.setup
        report = predict(
            s.shape, s.layout, seq=s.seq, recipe=s.recipe, attention=s.attention, offload=s.offload
        )
        assert report.peak == a.peak <= capacity
        assert s.layout.global_batch == start.layout.global_batch  # the same training run
    sets = [set(a.changes) for a in advice]
    assert not any(x < y for x in sets for y in sets)


def test_the_cheapest_single_change_comes_first():
    advice = what_would_fit(setup(seq=4096), int(80e9))
    assert [c.label for c in advice[0].changes] == ["ZeRO-1"]


def test_gpus_stay_the_same_while_data_parallelism_can_be_halved():
    advice = what_would_fit(setup(), int(60e9))
    assert advice
    assert all(a.setup.layout.world_size == 8 for a in advice)


def test_buying_gpus_comes_after_what_the_gpus_at_hand_can_do():
    advice = what_would_fit(setup("llama3.2-1b", "", seq=4096), int(24e9))
    gpus = [a.setup.layout.world_size for a in advice]
    assert gpus[0] == 1
    assert gpus[-1] == 2
    assert gpus == sorted(gpus)
    assert [c.label for c in advice[0].changes] == ["full recomputation"]


def test_nothing_helps_a_card_that_is_far_too_small():
    assert what_would_fit(setup("llama3.1-405b", "", seq=4096), int(1e9)) == []


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.label)
def test_every_change_lowers_the_peak_of_something(change):
    start = setup(layout="dp=8,tp=2,micro_batch=2", attention="reference")
    changed = change.make(start)
    assert changed is not None
    assert changed.peak() < start.peak()
