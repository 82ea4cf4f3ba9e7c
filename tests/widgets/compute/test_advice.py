"""Advice is only worth giving if it works, is ranked, and says nothing superfluous."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playbook_widgets.compute.advice import what_would_fit
from playbook_widgets.compute.changes import CHANGES, limit_of_experts

from playbook.hardware import CLUSTERS
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.planning.fusion import EVERYTHING
from playbook.planning.job import Job
from playbook.planning.memory import predict, predict_job
from playbook.planning.search import Problem, search
from playbook.planning.simulator import simulate
from playbook.shapes import load


def setup(model="llama3-8b", layout="dp=8", seq=8192, **options):
    return Job(load(model), Layout.parse(layout), seq=seq, **options)


@given(
    st.sampled_from(["llama3-8b", "llama3-70b", "gpt2", "mixtral-8x7b", "qwen3-30b-a3b"]),
    st.sampled_from(["", "dp=8", "dp=8,tp=4", "grad_acc=4", "dp=4,pp=4,grad_acc=8,micro_batch=4"]),
    st.sampled_from([24e9, 80e9, 192e9]), st.sampled_from(["sdpa", "reference"]),
)  # fmt: skip
@settings(max_examples=6, deadline=None)
def test_every_advice_fits_is_needed_and_is_ranked(model, layout, capacity, attention):
    start = setup(model, layout, seq=1024, attention=attention)
    advice = what_would_fit(start, int(capacity))
    if predict_job(start).peak <= capacity:
        assert advice == []
    gpus = start.layout.world_size
    fastest = min((a.seconds for a in advice), default=1)
    ranks = [(a.job.layout.world_size > gpus, round(a.seconds / fastest, 2)) for a in advice]
    assert ranks == sorted(ranks)
    for a in advice:
        s = a.job
        given = {"attention": s.attention, "offload": s.offload, "fused": s.fused}
        report = predict(s.shape, s.layout, seq=s.seq, recipe=s.recipe, **given)
        assert report.peak == a.peak <= capacity
        assert s.layout.global_batch == start.layout.global_batch  # the same training run
    sets = [set(a.changes) for a in advice]
    assert not any(x < y for x in sets for y in sets)


def test_the_cheapest_single_change_comes_first():
    advice = what_would_fit(setup(seq=4096), int(80e9))
    assert [c.label for c in advice[0].changes] == ["ZeRO-1"]


def test_the_search_finds_what_no_small_change_leads_to():
    """70B on 32 H100 with replicas alone: ZeRO-3, full recomputation and a larger micro-batch together."""
    start = setup("llama3-70b", "dp=32,grad_acc=16", seq=4096)
    capacity = CLUSTERS["h100-8"].accelerator.memory_bytes
    first, *_ = what_would_fit(start, capacity)
    layout = first.job.layout
    assert (layout.dp, layout.zero, layout.recompute) == (32, 3, "full")
    assert layout.micro_batch > start.layout.micro_batch
    best = search(Problem(start, load_cluster("h100-8", 32), 512), top=1, among=1).best
    assert layout == best.layout


def test_seconds_of_advice_are_those_of_the_simulator():
    start = setup("llama3-8b", "dp=8,grad_acc=2", seq=4096)
    cluster = load_cluster("h100-8", 8)
    advice = [a for a in what_would_fit(start, int(80e9)) if not a.job.offload]
    assert advice
    for a in advice:
        s = a.job
        step = simulate(s.shape, s.layout, cluster, seq=4096, recipe=s.recipe, fused=s.fused, limit=False)
        assert a.seconds == pytest.approx(step.seconds)


def test_fused_kernels_cost_nothing():
    start = setup("llama3-8b", "dp=8,zero=1", seq=8192)
    (first, *_) = what_would_fit(start, predict_job(replace(start, fused=EVERYTHING)).peak)
    assert labels([first]) == [["fused kernels"]]
    assert first.job.fused == EVERYTHING


def test_gpus_stay_the_same_while_data_parallelism_can_be_halved():
    advice = what_would_fit(setup(), int(60e9))
    assert advice
    assert all(a.job.layout.world_size == 8 for a in advice)


def test_buying_gpus_comes_after_what_the_gpus_at_hand_can_do():
    advice = what_would_fit(setup("llama3.2-1b", "", seq=4096, fused=EVERYTHING), int(22e9))
    gpus = [a.job.layout.world_size for a in advice]
    assert gpus[0] == 1
    assert gpus[-1] == 2
    assert gpus == sorted(gpus)
    assert [c.label for c in advice[0].changes] == ["recomputation of MLPs, too"]


def test_nothing_helps_a_card_that_is_far_too_small():
    assert what_would_fit(setup("llama3.1-405b", "", seq=4096), int(1e9)) == []


def labels(advice):
    return [[c.label for c in a.changes] for a in advice]


def test_experts_that_do_not_fit_are_spread_over_the_replicas_there_are():
    start = setup("mixtral-8x7b", "dp=8,zero=1,recompute=full", seq=4096)
    for label, ep in (("twice the expert parallelism", 2), ("the widest expert parallelism", 8)):
        wanted = start.relayout(ep=ep)
        advice = {
            tuple(c.label for c in a.changes): a for a in what_would_fit(start, predict_job(wanted).peak)
        }
        assert advice[(label,)].job == wanted
    assert ("twice the expert parallelism",) not in advice


def test_experts_that_no_replica_has_room_for_need_more_replicas():
    start = setup("qwen3-30b-a3b", "dp=4,ep=4,zero=1,grad_acc=8,recompute=full", seq=4096, fused=EVERYTHING)
    advice = what_would_fit(start, predict_job(start).peak - 1)
    wider = next(a for a in advice if labels([a]) == [["twice the expert parallelism"]])
    assert (wider.job.layout.ep, wider.job.layout.dp, wider.job.layout.grad_acc) == (8, 8, 4)


def test_other_axes_take_no_replica_that_experts_are_spread_over():
    wider = next(c for c in CHANGES if c.label == "twice the tensor parallelism")
    layouts = [wider.make(setup("mixtral-8x7b", f"dp=8,ep={ep}")).layout for ep in (4, 8)]
    assert [(layout.tp, layout.dp, layout.grad_acc) for layout in layouts] == [(2, 4, 2), (2, 8, 1)]


@pytest.mark.parametrize(
    ("model", "layout", "words"),
    [
        ("mixtral-8x7b", "", "Experts are 97 % of the parameters that a GPU computes with"),
        ("deepseek-v3", "dp=6,ep=2", "DP · CP = 6"),
        ("mixtral-8x7b", "dp=8,ep=4", ""),  # ep may grow
        ("mixtral-8x7b", "dp=8,ep=8", ""),  # one expert on each rank
        ("llama3-8b", "", ""),
    ],
)  # fmt: skip
def test_what_keeps_experts_together_is_said(model, layout, words):
    start = setup(model, layout)
    said = limit_of_experts(start, predict_job(start).fullest.counts)
    assert words in said
    assert bool(said) == bool(words)


@pytest.mark.parametrize("change", CHANGES, ids=lambda c: c.label)
def test_every_change_lowers_the_peak_of_something(change):
    start = setup("mixtral-8x7b", "dp=8,tp=2,micro_batch=2", attention="reference")
    changed = change.make(start)
    assert changed is not None
    assert predict_job(changed).peak < predict_job(start).peak
