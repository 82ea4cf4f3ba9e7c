"""Layouts: the text that names one, the grid of ranks, and what does not fit a model."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook import hardware
from playbook.commands.train import _padding
from playbook.errors import LayoutError
from playbook.layout import AXES, CUT_OUT, RECOMPUTE, SCHEDULES, Layout
from playbook.shapes import load

small = st.integers(1, 4)


@st.composite
def layouts(draw):
    each, cp, zero = draw(small), draw(small), draw(st.integers(0, 3))
    replicate = draw(st.integers(1, 3)) if zero else 1
    tp, sp = draw(small), draw(st.booleans())
    etp = int(tp > 1 and sp and draw(st.booleans()))
    routed = each * cp * (tp if etp else 1)
    return Layout(
        dp=each * replicate,
        replicate=replicate,
        cp=cp,
        tp=tp,
        pp=draw(small),
        ep=draw(st.sampled_from([d for d in range(1, routed + 1) if routed % d == 0])),
        etp=etp,
        vpp=draw(small),
        sp=sp,
        zero=zero,
        recompute=draw(st.sampled_from(RECOMPUTE)),
        schedule=draw(st.sampled_from(SCHEDULES)),
        micro_batch=draw(st.integers(1, 64)),
        grad_acc=draw(st.integers(1, 64)),
    )


@given(layouts())
def test_text_round_trip(layout):
    assert Layout.parse(str(layout)) == layout


def test_text_shows_what_differs_from_one_device():
    assert str(Layout()) == ""
    assert Layout.parse("") == Layout.parse(" , ") == Layout()
    assert str(Layout.parse("sp, zero=1 ,tp=2,dp=2")) == "dp=2,tp=2,sp,zero=1"
    assert Layout.parse("sp=false") == Layout()
    assert Layout.parse("tp=2,sp=TRUE").sp is True


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("dpp=2", "unknown layout field 'dpp'; did you mean"),
        ("x=2", "unknown layout field 'x'; known: "),
        ("dp=two", "dp must be an integer, got 'two'"),
        ("dp=2.0", "dp must be an integer, got '2.0'"),
        ("dp=0", "dp must be at least 1, got 0"),
        ("tp=-2", "tp must be at least 1, got -2"),
        ("dp", "dp needs a value, such as dp=1"),
        ("dp=", "dp needs a value, such as dp=1"),
        ("dp=2,tp=2,dp=4", "dp is given twice in the layout 'dp=2,tp=2,dp=4'"),
        ("zero=4", "zero must be 0, 1, 2 or 3, got 4"),
        ("sp=yes", "sp must stand alone or be true or false, got 'yes'"),
        ("ep=3,dp=4", "ep must divide dp * cp = 4, got 3"),
        ("dp=4,zero=3,replicate=3", "replicate must divide dp = 4, got 3"),
        ("cp=2,zero=3,replicate=2", "replicate must divide dp = 1, got 2"),
        ("dp=4,replicate=2", "replicate = 2 repeats ZeRO's shards: zero must be 1, 2 or 3, got 0"),
        ("dp=4,zero=1,replicate=2,ep=4", "ep must divide dp * cp / replicate = 2, got 4"),
        ("recompute=some", "unknown recompute 'some'"),
        ("recompute=full:some", "recompute is 'full:some': behind the colon goes a number of blocks"),
        ("recompute=none:2", "recompute is 'none:2'"),
        ("recompute=mlp++moe", "unknown recompute ''"),
        ("recompute=mlp+full", "unknown recompute 'full'; known: core_attn, layernorm"),
        ("schedule=2f2b", "schedule must be one of naive, afab, 1f1b"),
    ],
)
def test_bad_text_is_refused_in_one_sentence(text, sentence):
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("value", [True, 2.0, "2", None])
def test_sizes_are_integers(value):
    with pytest.raises(LayoutError, match="dp must be an integer"):
        Layout(dp=value)


@given(layouts())
def test_coordinates_are_a_bijection(layout):
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert [layout.rank(**place) for place in places] == list(range(layout.world_size))
    assert len({tuple(place.items()) for place in places}) == layout.world_size
    assert all(0 <= place[axis] < getattr(layout, axis) for place in places for axis in AXES)


def test_tensor_parallel_ranks_are_neighbours_and_stages_are_far_apart():
    layout = Layout(dp=2, tp=2, pp=2, cp=2)
    assert [layout.rank(tp=1), layout.rank(cp=1), layout.rank(dp=1), layout.rank(pp=1)] == [1, 2, 4, 8]
    assert layout.coordinates(13) == {"tp": 1, "cp": 0, "dp": 1, "pp": 1}


@given(layouts())
def test_every_kind_of_group_partitions_the_ranks(layout):
    kinds = [axes for size in range(1, 5) for axes in itertools.combinations(AXES, size)]
    for axes in [*kinds, *((name,) for name in CUT_OUT)]:
        groups = layout.groups(*axes)
        assert sorted(itertools.chain(*groups)) == list(range(layout.world_size))
        assert all(list(group) == sorted(group) for group in groups)
        assert len({len(group) for group in groups}) == 1


@given(layouts())
def test_ranks_of_a_group_differ_along_its_axis_alone(layout):
    for axis in AXES:
        others = [other for other in AXES if other != axis]
        for group in layout.groups(axis):
            places = [layout.coordinates(rank) for rank in group]
            assert [place[axis] for place in places] == list(range(getattr(layout, axis)))
            assert len({tuple(place[other] for other in others) for place in places}) == 1


@given(layouts())
def test_expert_and_shard_groups_cut_the_ranks_that_hold_the_same_weights(layout):
    routed = ("dp", "cp", "tp") if layout.etp else ("dp", "cp")
    cuts = ((routed, "ep", "edp", layout.ep), (("dp", "cp"), "shard", "replicate", layout.shards))
    for whole, (_, one, other, size) in ((whole, cut) for cut in cuts for whole in layout.groups(*cut[0])):
        sharing = [group for group in layout.groups(one) if set(group) <= set(whole)]
        copies = [group for group in layout.groups(other) if set(group) <= set(whole)]
        assert {len(group) for group in sharing} == {size} == {len(copies)}
        assert all(len(set(one) & set(other)) == 1 for one in sharing for other in copies)


def test_groups_by_hand():
    layout = Layout(dp=4, tp=2, ep=2)
    assert layout.groups("tp") == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert layout.groups("dp") == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert layout.groups("ep") == [(0, 2), (4, 6), (1, 3), (5, 7)]
    assert layout.groups("edp") == [(0, 4), (2, 6), (1, 5), (3, 7)]
    whole = Layout(dp=4, tp=2, ep=4, etp=1, sp=True)
    assert whole.groups("ep") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert whole.groups("edp") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    hybrid = Layout(dp=4, cp=2, zero=3, replicate=2, ep=2)
    assert hybrid.groups("shard") == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert hybrid.groups("replicate") == [(0, 4), (1, 5), (2, 6), (3, 7)]
    for axes in (("xp",), (), ("ep", "tp")):
        with pytest.raises(LayoutError, match="unknown axis"):
            layout.groups(*axes)


def test_ranks_outside_the_grid_are_refused():
    layout = Layout(dp=2)
    for bad in (2, -1, 0.5):
        with pytest.raises(LayoutError, match="rank must be"):
            layout.coordinates(bad)
    with pytest.raises(LayoutError, match="tp must be below the layout's tp = 1, got 1"):
        layout.rank(tp=1)


def test_sizes_of_a_step():
    layout = Layout(dp=2, tp=3, pp=4, cp=5, micro_batch=6, grad_acc=7)
    assert layout.world_size == 120
    assert layout.global_batch == 84
    assert layout.replace(tp=1).world_size == 40
    with pytest.raises(LayoutError, match="unknown layout field 'tpp'"):
        layout.replace(tpp=1)


@pytest.mark.parametrize(
    ("model", "text", "more", "sentence"),
    [
        ("gpt2", "tp=5", {}, "tp must divide heads = 12 (1, 2, 3, 4, 6, 12), got 5"),
        (
            "tiny",
            "cp=3",
            {"seq": 2 * 10**15},
            "cp must divide seq = 2000000000000000 (1, 2, 4, 5, 8, 10, 16, 20, …), got 3",
        ),
        ("qwen2.5-7b", "tp=7", {}, "tp must divide kv_heads = 4 or be a multiple of it, got 7"),
        (
            "tiny",
            "pp=2,vpp=3",
            {},
            "vpp must be 1 with schedule=1f1b, whose ranks have one chunk each, got 3",
        ),
        ("tiny", "pp=2,vpp=3,schedule=interleaved", {}, "pp * vpp must be at most layers = 4, got 6"),
        (
            "tiny",
            "pp=3,schedule=zb-v",
            {},
            "pp * 2 (schedule=zb-v folds the pipeline) must be at most layers = 4",
        ),
        ("tiny", "pp=2,vpp=4,schedule=dualpipev", {}, "vpp must be 1 or 2 with schedule=dualpipev"),
        ("tiny", "vpp=2", {}, "vpp must be 1 where pp = 1"),
        ("tiny", "sp", {}, "it needs tp above 1, got tp = 1"),
        ("tiny", "cp=3", {"seq": 1024}, "cp must divide seq = 1024 (1, 2, 4, 8, 16, 32, 64, 128, …), got 3"),
        ("tiny", "", {"seq": 0}, "seq must be at least 1, got 0"),
        ("gpt2", "", {"seq": 2048}, "seq must be at most the model's 1024 learned positions, got 2048"),
        ("tiny", "dp=2,ep=2", {}, "ep must be 1 for a model without experts, got 2"),
        ("tiny", "tp=2,sp,etp=1", {}, "etp must be left out for a model without experts, got 1"),
        ("mixtral-8x7b", "dp=3,ep=3", {}, "ep must divide moe.experts = 8 (1, 2, 4, 8), got 3"),
        (
            "tiny",
            "dp=32",
            {"cluster": hardware.load("h100-8", 16)},
            "must be at most the 16 GPUs of h100-8, got 32",
        ),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(model, text, more, sentence):
    with pytest.raises(LayoutError) as caught:
        Layout.parse(text).check(load(model), **more)
    assert sentence in str(caught.value)


def test_an_mlp_that_cannot_be_cut_is_refused():
    with pytest.raises(LayoutError, match=r"tp must divide ffn = 6 \(1, 2, 3, 6\), got 4"):
        Layout(tp=4).check(load("tiny").replace(ffn=6))
    experts = load("mixtral-8x7b").replace(moe={"experts": 8, "top_k": 2, "ffn": 6})
    with pytest.raises(LayoutError, match=r"tp must divide moe\.ffn = 6"):
        Layout(tp=4).check(experts)
    some = load("tiny").replace(ffn=6, moe={"experts": 8, "top_k": 2, "ffn": 8, "every": 2})
    with pytest.raises(LayoutError, match="tp must divide ffn = 6"):
        Layout(tp=4).check(some)  # every other block has an MLP
    Layout(tp=4).check(load("tiny").replace(ffn=6, moe={"experts": 8, "top_k": 2, "ffn": 8}))  # none has


@pytest.mark.parametrize(
    ("model", "text", "more"),
    [
        ("llama3-8b", "dp=8,tp=8,pp=4,vpp=2,sp,zero=1,schedule=interleaved", {"seq": 8192}),
        ("llama3-70b", "tp=16,pp=8", {"seq": 4096}),  # 8 kv heads on 16 ranks: two copies of each
        ("llama3.1-405b", "dp=2,tp=8,pp=16,cp=16", {"seq": 131072}),
        ("mixtral-8x7b", "dp=4,cp=2,ep=8", {"seq": 32768}),
        ("deepseek-v3", "dp=64,pp=16,ep=64,schedule=dualpipe,grad_acc=32", {"seq": 4096}),
        ("gpt3-175b", "dp=8,tp=8,pp=12", {"seq": 2048, "cluster": hardware.load("a100-8", 1024)}),
        ("tiny", "dp=10000", {"cluster": hardware.load("h100-8")}),  # a cluster of open size
    ],
)
def test_what_fits_passes(model, text, more):
    Layout.parse(text).check(load(model), **more)


@pytest.mark.parametrize(
    ("text", "seq", "padded"),
    [
        ("", 7, 7),
        ("tp=4", 7, 7),
        ("tp=4,sp", 7, 8),
        ("cp=3", 9, 12),
        ("tp=4,cp=2,sp", 12, 16),
        ("tp=2,cp=2,sp", 12, 12),
    ],
)
def test_what_is_padded_is_said(text, seq, padded):
    """Two parts for each cp rank, and with sp a share for each tp rank; the vocabulary a share for each tp rank."""
    layout, shape = Layout.parse(text), load("tiny").replace(vocab=30)
    layout.check(shape, seq=seq)
    assert layout.padded(seq) == padded
    said = _padding(layout, shape, seq)
    assert any(f"of {seq} tokens are padded to {padded}" in note for note in said) is (padded != seq)
    assert any("the vocabulary of 30 is padded to 32" in note for note in said) is (layout.tp == 4)
