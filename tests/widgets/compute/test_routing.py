"""The routing widget's function: against the library's router, its placement, and what real ranks send."""

from __future__ import annotations

import dataclasses
import random
import shlex
from typing import Any

import pytest
import torch
from playbook_widgets.compute.routing import BANDS, UPDATES, compute
from playbook_widgets.compute.routing_rows import Level, Rows, placed, travel
from playbook_widgets.compute.routing_rule import choose, draw_scores, keep, load_of, room, updated
from playbook_widgets.compute.routing_setting import CAPACITIES, DEFAULTS, read

from playbook import launch
from playbook.cli import main
from playbook.commands import train
from playbook.instruments.counting import CountBytes
from playbook.layout import Layout
from playbook.model.moe import Experts, Router, Routing
from playbook.parallel.expert import make_path
from playbook.parallel.mesh import Mesh
from playbook.shapes import PRESETS, MoE


def random_router(rng: random.Random) -> MoE:
    """With or without groups and a capacity."""
    groups = rng.choice([1, 2, 4])
    experts, top_groups = groups * rng.randint(2, 8), rng.randint(1, groups)
    top_k = rng.randint(1, min(8, experts // groups * top_groups))
    capacity = rng.choice([None, None, None, 0.3, *CAPACITIES])
    return MoE(experts=experts, top_k=top_k, ffn=1, scores="sigmoid", groups=groups, top_groups=top_groups,
               capacity=capacity, bias_rate=rng.choice([0.001, 0.1, 1.0]))  # fmt: skip


def router_of(sizes: MoE, bias: list[float]) -> Router:
    """In fp64, as numbers of Python are: of nearly equal scores both then choose the same."""
    router = Router(1, sizes)
    router.begin()
    router.bias = torch.tensor(bias, dtype=torch.float64)
    return router


@pytest.mark.parametrize("seed", range(60))
def test_choices_drops_and_biases_are_those_of_the_librarys_router(seed):
    rng = random.Random(seed)
    sizes, samples, tokens = random_router(rng), rng.randint(1, 4), rng.randint(1, 40)
    scores = draw_scores(samples, tokens, sizes.experts, rng.uniform(0, 3), seed)
    bias = [rng.uniform(-0.3, 0.3) for _ in range(sizes.experts)]
    router, given = router_of(sizes, bias), torch.tensor(scores, dtype=torch.float64)

    chosen = choose(scores, bias, sizes)
    theirs = router._choose(given)
    assert chosen == theirs.tolist()

    kept = keep(chosen, scores, sizes)
    left = theirs if sizes.capacity is None else router._drop(theirs, given, sizes.capacity)
    assert kept == [[[e for e in token if e < sizes.experts] for token in sample] for sample in left.tolist()]

    load = load_of(chosen, sizes.experts)
    router.update_bias(theirs.flatten().bincount(minlength=sizes.experts).double())
    assert updated(bias, load, sizes.bias_rate) == router.bias.tolist()


def test_random_cases_drop_limit_and_overflow():
    """The cases above are of all kinds."""
    rngs = [random.Random(seed) for seed in range(60)]
    routers = [random_router(rng) for rng in rngs]
    assert sum(sizes.top_groups < sizes.groups for sizes in routers) > 10
    assert sum(room(sizes, 20) is not None for sizes in routers) > 10
    assert sum(sizes.capacity is None for sizes in routers) > 3


def test_scores_are_drawn_from_what_they_are_for():
    assert draw_scores(2, 3, 8, 1.0, 5) == draw_scores(2, 3, 8, 1.0, 5) != draw_scores(2, 3, 8, 1.0, 6)
    even = torch.tensor(draw_scores(10, 400, 8, 0.0, 0)).flatten(0, 1)  # of a logistic noise, uniform
    assert torch.allclose(even.mean(0), torch.full((8,), 0.5), atol=0.02)
    # The odds of the most and the least popular of 8 differ by 8 to the skew, in the median.
    for skew in (1.0, 2.0):
        median = (
            torch.tensor(draw_scores(10, 400, 8, skew, 0), dtype=torch.float64).flatten(0, 1).median(0).values
        )
        odds = (median / (1 - median)).sort(descending=True).values
        assert torch.allclose(odds / odds[0], torch.arange(1, 9).double() ** -skew, rtol=0.25)
        assert float(odds.log().mean()) == pytest.approx(0, abs=0.05)


def by_hand(kept, placement, node: int) -> tuple[Level, Level]:
    """Of every token of every rank the ways, without replicas."""
    home = {e: rank for rank, experts in enumerate(placement) for e in experts}
    inside = across = on = between = 0
    for source, sample in enumerate(kept):
        for token in sample:
            targets = [home[e] for e in token]
            inside += sum(t != source and t // node == source // node for t in targets)
            across += sum(t // node != source // node for t in targets)
            between += len({t // node for t in targets} - {source // node})
            on += sum(
                t != t // node * node + source % node for t in targets
            )  # from the rank on the same rail
    return Level(inside, across), Level(on, between)


@pytest.mark.parametrize("remedy", ["none", "bias", "replicas"])
@pytest.mark.parametrize("seed", range(8))
def test_every_row_is_somewhere(seed, remedy):
    rng = random.Random(seed)
    node = rng.choice([1, 2, 4])
    inputs = {
        "remedy": remedy,
        "seed": seed,
        "node": node,
        "top_k": rng.randint(1, 4),
        "skew": rng.uniform(0, 3),
    }
    inputs |= {
        "top_groups": rng.randint(1, 8 // node),
        "spare": rng.randint(0, 16 // (8 // node) - 2 if node > 1 else 0),
    }
    inputs |= {"capacity": rng.choice(["none", *CAPACITIES])}
    if inputs["top_k"] > 16 // (8 // node) * inputs["top_groups"]:
        inputs["top_k"] = 1
    result, setting = compute(inputs), read(inputs)
    assert len(result["pictures"]) == (UPDATES + 1 if remedy == "bias" else 1)
    for picture in result["pictures"]:
        assert (
            sum(picture["ranks"]) + sum(picture["dropped"]) == result["choices"] == 8 * 64 * inputs["top_k"]
        )
        assert sum(picture["dropped"]) == sum(picture["missed"])
        assert sum(picture["loads"]) == sum(picture["slots"]) == sum(map(sum, picture["bands"]))
        assert [sum(column) for column in zip(*picture["bands"], strict=True)] == picture["slots"]
        for source, row in enumerate(picture["bands"]):
            assert sum(row) == setting.tokens * inputs["top_k"] - picture["dropped"][source]
        assert picture["imbalance"] == max(picture["ranks"]) * 8 / sum(picture["ranks"])
        if picture["capacity"]:
            rounded = (
                max(map(len, picture["experts"])) if remedy == "replicas" else 0
            )  # an odd row for some replicas
            assert all(
                rows <= most + rounded
                for rows, most in zip(picture["ranks"], picture["capacity"], strict=True)
            )
        slots = [e for experts in picture["experts"] for e in experts]
        for e, load in enumerate(picture["loads"]):  # replicas share evenly
            rows = [count for other, count in zip(slots, picture["slots"], strict=True) if other == e]
            assert sum(rows) == load
            assert max(rows) - min(rows) <= 1


@pytest.mark.parametrize("seed", range(10))
def test_rows_travel_as_counted_token_by_token(seed):
    rng = random.Random(seed)
    sizes, node = (
        dataclasses.replace(random_router(rng), experts=16, groups=1, top_groups=1),
        rng.choice([1, 2, 4]),
    )
    scores = draw_scores(4, 20, 16, 1.0, seed)
    chosen = choose(scores, [0.0] * 16, sizes)
    kept = keep(chosen, scores, sizes)
    loads = load_of(kept, 16)
    rows: Rows = travel(chosen, kept, placed(loads, 4, None), loads, node)
    assert (rows.plain, rows.two_steps) == by_hand(kept, rows.placement, node)
    assert rows.dropped == [sum(map(len, a)) - sum(map(len, b)) for a, b in zip(chosen, kept, strict=True)]


def routed(dispatch: str, chosen: list[list[list[int]]], sizes: MoE) -> list[tuple[str, int]]:
    """In a rank of four, two a node: rows of 10 numbers that a layer sends, and in which group, there and back."""
    torch.set_num_threads(1)
    shape = PRESETS["tiny-moe"].replace(hidden=10, heads=1, kv_heads=1, moe=dataclasses.replace(sizes, ffn=2))
    with launch.process_group():
        mesh = Mesh(Layout.parse("dp=4,ep=4"))
        mesh.add("ep", mesh.layout.groups("ep"))
        path = make_path(mesh, dispatch, 2)
        own = Experts(shape, dataclasses.replace(sizes, experts=sizes.experts // 4, top_k=1, ffn=2))
        for p in own.parameters():
            torch.nn.init.ones_(p)
        mine = torch.tensor(chosen[mesh.rank])
        routing = Routing(mine, torch.ones(mine.shape), mine.flatten().bincount(minlength=sizes.experts))
        with CountBytes({name: [mesh.group(name)] for name in mesh.names()}) as count:
            path(own, torch.ones(len(mine), 10), routing)()
        return [(e.group, e.sent) for e in count.events]


def test_bytes_are_those_that_real_ranks_send(ranks):
    """In fp32: a way there and a way back, and of each kind of dispatch what its first messages say of rows to come."""
    inputs = {"ranks": 4, "node": 2, "experts": 8, "tokens": 24, "top_k": 3, "hidden": 10, "itemsize": 4}
    setting, (picture,) = read(inputs), compute(inputs)["pictures"]
    chosen = choose(setting.scores(), [0.0] * 8, setting.sizes)
    plain = ranks(routed, "all-to-all", chosen, setting.sizes, ranks=4).values
    assert sum(sum(sent for _, sent in mine[1:]) for mine in plain) == 2 * sum(picture["plain"])
    two = ranks(routed, "two-step", chosen, setting.sizes, ranks=4).values
    across = [[sent for group, sent in mine if group == "ep across nodes"] for mine in two]
    inside = [[sent for group, sent in mine if group == "ep in a node"] for mine in two]
    # Across nodes: a count, the tokens, and of each its choices and weights; then the way back.
    assert [sum(column) for column in zip(*across, strict=True)][1::3] == [picture["two_steps"][1]] * 2
    assert [sum(column) for column in zip(*inside, strict=True)][1:] == [picture["two_steps"][0]] * 2


def test_biases_and_replicas_even_the_load():
    none, bias, replicas = (compute({"remedy": remedy}) for remedy in ("none", "bias", "replicas"))
    before, after = bias["pictures"][0], bias["pictures"][-1]
    assert before | {"answer": ""} == none["pictures"][0] | {"answer": ""}
    assert before["imbalance"] > 2
    assert after["imbalance"] < 1.1
    assert before["bias"] == [0.0] * 16
    assert max(map(abs, bias["pictures"][3]["bias"])) == pytest.approx(3 * DEFAULTS["bias_rate"])
    (replicated,) = replicas["pictures"]
    assert replicated["imbalance_in_order"] == before["imbalance"]
    assert replicated["imbalance"] < 1.05
    assert [len(experts) for experts in replicated["experts"]] == [3] * 8


def test_a_limit_on_nodes_keeps_tokens_and_replicas_there():
    inputs = {"ranks": 16, "node": 4, "experts": 32, "top_k": 4}
    free, limited = compute(inputs)["pictures"][0], compute({**inputs, "top_groups": 1})["pictures"][0]
    tokens = 16 * 64
    row = DEFAULTS["hidden"] * DEFAULTS["itemsize"]
    assert limited["two_steps"][1] <= tokens * row < free["two_steps"][1]
    (replicated,) = compute({**inputs, "top_groups": 1, "remedy": "replicas"})["pictures"]
    for rank, experts in enumerate(replicated["experts"]):
        assert {e // 8 for e in experts} == {rank // 4}
    (anywhere,) = compute({**inputs, "remedy": "replicas"})["pictures"]
    assert any({e // 8 for e in experts} != {rank // 4} for rank, experts in enumerate(anywhere["experts"]))


def test_many_bands_are_taken_together():
    fine, coarse = compute({"experts": 64}), compute({"experts": 128, "ranks": 8})
    assert (fine["coarse"], coarse["coarse"]) == (False, True)
    assert 8 * 64 <= BANDS < 8 * 128
    assert [len(row) for row in fine["pictures"][0]["bands"]] == [64] * 8
    assert [sum(column) for column in zip(*coarse["pictures"][0]["bands"], strict=True)] == coarse[
        "pictures"
    ][0]["ranks"]


def test_the_answer_says_what_is_drawn():
    def said(at: int = 0, **inputs: Any) -> str:
        return compute(inputs)["pictures"][at]["answer"]

    assert (
        "rank 6 computes 265 rows, 2.07 times the mean of 128, and the others wait 59 % of the time" in said()
    )
    assert "The busiest expert, 12, has 236 rows." in said()
    assert "Two-step dispatch sends" in said()
    assert "Two-step" not in said(node=8)
    assert "Two-step dispatch sends as much between nodes as a plain all-to-all" in said(top_k=1)
    assert said(ranks=1, experts=4) == "One rank has all experts: every row stays, and nobody waits."
    assert said(ranks=2, experts=2, top_k=2, node=2) == "Every rank computes 128 rows: nobody waits."
    assert "All biases are still zero" in said(remedy="bias")
    assert "After 1 update of 0.01, biases are between −0.01 and 0.01; without them" in said(1, remedy="bias")
    assert "8 extra replicas of hot experts and a better packing take the busiest rank from 2.07 to" in said(
        remedy="replicas"
    )
    assert "at the cost of 50 % more expert weights" in said(remedy="replicas")
    assert "A better packing alone takes the busiest rank from 2.07 to" in said(remedy="replicas", spare=0)
    dropped = sum(compute({"capacity": 1.25})["pictures"][0]["dropped"])
    assert f"A capacity factor of 1.25 drops {dropped} of 1024 choices" in said(capacity=1.25)
    assert "A capacity factor of 4 drops nothing." in said(capacity=4, skew=0)


@pytest.mark.parametrize(
    ("inputs", "field", "words"),
    [
        ({"experts": 1}, "experts", "experts must be at least 2, got 1"),
        ({"experts": 257}, "experts", "experts must be at most 256, got 257"),
        ({"ranks": 3}, "ranks", "ranks must divide experts = 16 (1, 2, 4, 8, 16), got 3"),
        ({"node": 3}, "node", "node must divide ranks = 8 (1, 2, 4, 8), got 3"),
        ({"top_k": "two"}, "top_k", "top_k must be an integer, got 'two'"),
        ({"top_k": 9, "top_groups": 1}, "top_k", "top_k must be at most the experts of top_groups groups = 8, got 9"),
        ({"top_groups": 3}, "top_groups", "top_groups must be at most 2, got 3"),
        ({"capacity": 1.3}, "capacity", "capacity must be one of 0.5, 0.75, 1, 1.1, 1.25, 1.5, 2, 3, 4 or none, got 1.3"),
        ({"skew": -1}, "skew", "skew must be a number from 0 to 3, got -1"),
        ({"skew": True}, "skew", "skew must be a number from 0 to 3, got True"),
        ({"bias_rate": 0}, "bias_rate", "bias_rate must be a number from 0.0001 to 1, got 0"),
        ({"tokens": 0}, "tokens", "tokens must be at least 1, got 0"),
        ({"experts": 256, "tokens": 65}, "tokens", "tokens must be at most 64 for 256 experts on 8 ranks, got 65"),
        ({"remedy": "replicas", "spare": 15}, "spare",
         "spare must be at most 14: a rank then has all 16 experts of the layer, got 15"),
        ({"remedy": "replicas", "spare": 7, "top_groups": 1}, "spare",
         "spare must be at most 6: a rank then has all 8 experts of a node, got 7"),
        ({"remedy": "prayer"}, "remedy", "unknown remedy 'prayer'"),
        ({"hidden": 0}, "hidden", "hidden must be at least 1, got 0"),
        ({"itemsize": 3}, "itemsize", "itemsize must be one of 1, 2, 4 bytes, got 3"),
        ({"seed": -1}, "seed", "seed must be at least 0, got -1"),
        ({"step": "last"}, "step", "step must be an integer, got 'last'"),
        ({"speed": 1}, "speed", "speed is not a setting of the routing widget"),
    ],
)  # fmt: skip
def test_what_cannot_be_names_its_control(inputs, field, words):
    error = compute(inputs)["error"]
    assert (error["field"], error["message"][: len(words)]) == (field, words)


def test_numbers_as_a_link_has_them():
    given = {"skew": "1.5", "capacity": "1.25", "itemsize": "1", "experts": "32", "bias_rate": "0.02"}
    values = compute(given)["values"]
    assert {key: values[key] for key in given} == {
        "skew": 1.5, "capacity": 1.25, "itemsize": 1, "experts": 32, "bias_rate": 0.02
    }  # fmt: skip
    assert compute({"capacity": "none"})["values"]["capacity"] is None
    assert compute({"ranks": 2})["values"]["node"] == 2  # a node has no more ranks than there are


@pytest.mark.parametrize(
    "inputs",
    [
        {},
        {"remedy": "bias"},
        {"remedy": "replicas"},
        {"remedy": "replicas", "spare": 2, "top_groups": 1},
        {"capacity": 1},
    ],
    ids=str,
)
def test_the_code_gives_the_rows_of_each_rank(inputs):
    for picture in compute(inputs)["pictures"]:
        made, counted = picture["code"].split("\n")
        names: dict[str, Any] = {}
        exec(made, names)
        rows = eval(counted, names)
        # Copies share an expert's rows evenly, and rows are whole.
        assert rows == pytest.approx(picture["ranks"], abs=len(picture["experts"][0]))
        assert max(rows) * len(rows) / sum(rows) == pytest.approx(picture["imbalance"], abs=0.03)


def test_the_command_trains_with_this_router(monkeypatch):
    runs = []
    monkeypatch.setattr(train, "_run", lambda args, shape, config: runs.append((shape, config)) or 0)
    for inputs in (
        {},
        {"remedy": "bias", "capacity": 1.25, "bias_rate": 0.002},
        {"top_groups": 1, "top_k": 3},
        {"ranks": 1, "experts": 4},
        {"node": 8},
        {"experts": 64, "ranks": 16, "node": 2, "top_groups": 4, "tokens": 16},
    ):
        result, setting = compute(inputs), read(inputs)
        assert main(shlex.split(result["command"])[1:]) == 0
        shape, config = runs[-1]
        rate = setting.sizes.bias_rate if setting.remedy == "bias" else 0
        assert shape.moe == dataclasses.replace(
            setting.sizes if setting.limited else dataclasses.replace(setting.sizes, groups=1, top_groups=1),
            ffn=PRESETS["tiny-moe"].moe.ffn,
            bias_rate=rate,
        )
        layout = config.layout.of_step()
        assert (layout.ep, layout.dp) == (setting.ranks, setting.ranks)
        assert (config.seq, config.global_batch) == (setting.tokens, setting.ranks)
        assert config.layout.node == (setting.node if setting.nodes > 1 else None)
    assert compute({"remedy": "replicas"})["command"] == ""  # no training run has replicas
