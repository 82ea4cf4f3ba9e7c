"""What ranks send for experts is what a run counts (in every layout: ``parallel/test_expert.py``); and an even load."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from fractions import Fraction
from itertools import combinations
from typing import Any

import pytest
import torch
from helpers import BLOCKS, DEEPSEEK, MIXTRAL
from traffic_runs import Cases, check

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.fields import DISPATCH
from playbook.planning.expert_traffic import Routed, even, missed
from playbook.planning.job import Job
from playbook.planning.messages import Sender
from playbook.planning.traffic import total, traffic
from playbook.shapes import MoE, load

#: Every other layer dense; a dense first layer, biases, learned positions; latent attention, groups, a tied table.
SHAPES = {
    "every": MIXTRAL.replace(layers=4, heads=4, kv_heads=4, moe={"experts": 8, "top_k": 2, "ffn": 20, "every": 2}),
    "gpt": BLOCKS["gpt"].replace(
        layers=4, heads=4, ffn=36,
        moe={"experts": 8, "top_k": 1, "ffn": 8, "dense_layers": 1, "shared_experts": 1, "normalized": False},
    ),
    "deepseek": DEEPSEEK.replace(
        layers=4, heads=4, tied=True, moe=dataclasses.replace(DEEPSEEK.moe, experts=16, ffn=12, groups=4),
    ),
}  # fmt: skip


def test_elements_of_sixteen_bits(ranks):
    """Rows are what products read; what enters experts over tensor-parallel ranks is as wide as the residual stream."""
    shape, routed = (SHAPES[name].replace(layers=3) for name in ("deepseek", "gpt"))
    routed = routed.replace(norm="rmsnorm", bias=False)
    runs: Cases = [
        (shape, "dp=2,ep=2,zero=2", {}),
        (routed, "dp=2,ep=2,recompute=full", {"dispatch": "gather"}),
        (shape, "tp=2,sp", {}),
        (routed, "tp=2", {}),
    ]
    check(ranks, runs, 2, torch.bfloat16, "bf16-mixed")
    check(ranks, runs[:1] + runs[3:], 2, torch.float32, "autocast")
    check(ranks, [(shape, "dp=4,ep=4", {"dispatch": "two-step", "node": 2})], 4, torch.bfloat16, "bf16-mixed")


# ---- the load of experts


def sender(moe: dict[str, Any], text: str, node: int | None = None, seq: int = 8) -> Sender:
    shape = MIXTRAL.replace(heads=4, kv_heads=4, moe={"ffn": 8, **moe})
    return Sender(Job(shape, Layout.parse(text).replace(node=node), seq=seq, recipe="fp32"), 1)


def test_an_even_load_by_hand():
    """14 rows of 7 tokens over four ranks, the first of which get one more."""
    found = even(sender({"experts": 8, "top_k": 2}, "dp=4,ep=4", seq=7))
    assert found == Routed(((4, 4, 3, 3),) * 4, ((7,),) * 4)
    # Of a token's two experts neither is in one of two nodes with probability 4/8 · 3/7: 11/14 of 8 tokens are 6.3.
    found = even(sender({"experts": 8, "top_k": 2}, "dp=4,ep=4", node=2))
    assert found == Routed(((4, 4, 4, 4),) * 4, ((7, 7),) * 4)


@pytest.mark.parametrize(
    ("capacity", "rows"), [(None, 16), (8.0, 16), (1.0, 16), (0.75, 16), (0.5, 8), (0.01, 8)]
)
def test_of_an_even_load_experts_take_what_they_have_room_for(capacity, rows):
    """Eight experts take ceil(c · 2) of a sample of eight tokens with two experts each."""
    found = even(sender({"experts": 8, "top_k": 2, "capacity": capacity}, "dp=2,cp=1,ep=2"))
    assert sum(found.rows[0]) == rows


@pytest.mark.parametrize(
    ("nodes", "sizes"),
    [
        (4, {"experts": 8, "top_k": 3}),
        (2, {"experts": 8, "top_k": 1}),
        (2, {"experts": 12, "top_k": 4, "groups": 4, "top_groups": 2}),
        (4, {"experts": 12, "top_k": 2, "groups": 4, "top_groups": 2}),
        (4, {"experts": 12, "top_k": 3, "groups": 2, "top_groups": 1}),
        (2, {"experts": 8, "top_k": 5, "groups": 4, "top_groups": 3}),
        (1, {"experts": 4, "top_k": 2}),
    ],
)
def test_how_many_nodes_a_token_meets(nodes, sizes):
    """All possible choices, one by one: groups, then experts in these."""
    moe = MoE(ffn=1, **sizes)
    each, node = moe.experts // moe.groups, moe.experts // nodes
    absent = [
        all(expert // node for expert in chosen)  # none in node 0
        for groups in combinations(range(moe.groups), moe.top_groups)
        for chosen in combinations([g * each + e for g in groups for e in range(each)], moe.top_k)
    ]
    assert missed(moe, nodes) == Fraction(sum(absent), len(absent))


def test_groups_that_fit_no_nodes_are_left_out():
    grouped = MoE(experts=12, top_k=2, ffn=1, groups=3, top_groups=2)
    assert missed(grouped, 2) == missed(dataclasses.replace(grouped, groups=1, top_groups=1), 2)


@pytest.mark.parametrize("dispatch", DISPATCH)
def test_without_a_count_what_all_ranks_send_is_what_they_get(dispatch):
    """So many rows there and back, however few tokens there are: bytes of an even load are whole rows."""
    layout = Layout(dp=4, ep=4, dispatch=dispatch, node=2)
    shape = SHAPES["every"]
    for seq in (1, 3, 64):
        sent = [traffic(shape, layout, seq, rank=rank) for rank in range(4)]
        rows = [m for found in sent for m in found if m.axis == "ep" and m.phase == "backward"]
        assert {m.collective for m in rows} <= {"all_to_all", "all_gather", "reduce_scatter"}
        assert all(m.bytes % 2 == 0 and m.count == 2 for m in rows)
        if dispatch == "all-to-all":  # of a token's two rows three in four leave the rank, twice
            least, row = 2 * seq // 4, 2 * shape.hidden
            assert all(abs(m.payload - 2 * seq * row) <= 3 * row for m in rows)
            assert sum(m.bytes for m in rows) >= 4 * 2 * 3 * least * row


def test_recomputation_sends_rows_again_and_no_gradients():
    def sent(recompute: str, phase: str) -> int:
        layout = Layout.parse(f"dp=4,ep=4,recompute={recompute}")
        return total(traffic(SHAPES["every"], layout, 8), "ep", phase)

    assert sent("none", "forward") == sent("selective", "forward") == sent("full", "forward")
    assert sent("none", "backward") == sent("selective", "backward")
    assert sent("full", "backward") == sent("none", "backward") + sent("none", "forward")


def test_a_routing_of_another_step_is_refused():
    layout, one = Layout.parse("dp=4,ep=4,grad_acc=2"), Routed(((4,) * 4,) * 4, ((8,),) * 4)
    shape = SHAPES["every"]
    assert traffic(shape, layout, 8, routing={1: [one] * 2, 3: [one] * 2})
    for routing in ({}, {1: [one] * 2}, {1: [one], 3: [one]}, {0: [one] * 2, 3: [one] * 2}):
        with pytest.raises(ConfigError, match=r"but rank 0 has \{1: 2, 3: 2\}"):
            traffic(shape, layout, 8, routing=routing)


def test_tokens_of_deepseek_v3_meet_fewer_nodes_than_experts():
    """Eight of 256 experts, in four of eight groups, each group on a node of eight GPUs: at most four nodes a token."""
    layout, tokens = Layout(dp=64, ep=64, node=8), 4096
    here = Sender(Job(load("deepseek-v3"), layout, seq=tokens), 0)
    missed = math.comb(96, 8) / math.comb(128, 8)  # by the eight experts, a group that was chosen
    assert sum(even(here).tokens[0]) == pytest.approx(4 * (1 - missed) * tokens, abs=8)
    assert sum(even(here).rows[0]) == 8 * tokens
    sent = {
        how: traffic(here.shape, layout.replace(dispatch=how), tokens) for how in ("all-to-all", "two-step")
    }
    row = 7168 * 2  # bytes
    alone = [m for m in sent["all-to-all"] if m.payload == 8 * tokens * row]
    across = [m for m in sent["two-step"] if m.payload == sum(even(here).tokens[0]) * row]
    for messages, ranks in ((alone, 64), (across, 8)):  # there and back, and gradients, in 58 layers
        assert Counter(m.phase for m in messages) == {"forward": 2, "backward": 2}
        assert {(m.count, m.ranks) for m in messages} == {(58, ranks)}
    # Of the rows that go to single ranks, 7/8 leave the node.
    assert sum(m.bytes for m in across) < 0.46 * sum(m.payload for m in alone) * 7 / 8
