"""The load of experts: counted once, by step, whatever runs again, and summed over ranks."""

from __future__ import annotations

import dataclasses
import gc
import math
import weakref
from itertools import product

import pytest
import torch
from helpers import DEEPSEEK, GPT, MIXTRAL, tokens
from parallel_runs import Case
from torch import Tensor
from torch.optim.optimizer import _global_optimizer_post_hooks

from playbook import launch
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.model.moe import routers
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.shapes import ModelShape
from playbook_book.instruments.expert_load import ExpertLoad, ExpertRoutes, Loads

EVEN = MIXTRAL.replace(heads=4, kv_heads=4, moe={"experts": 4, "top_k": 2, "ffn": 20})


def sized(shape: ModelShape, **changes) -> ModelShape:
    return shape.replace(moe=dataclasses.replace(shape.moe, **changes))


def step(model, optimizer, seed: int = 0, micro_batches: int = 1) -> None:
    for part in range(micro_batches):
        x, y = tokens(model.shape, 2, 9, seed=seed + part)
        model.loss(x, y)[0].backward()
    optimizer.step()


def test_what_routers_count_is_what_is_counted():
    """Three steps of two micro-batches: rows of each are those that the routers' own counters have seen by then."""
    model = Transformer(DEEPSEEK)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    with ExpertLoad(model) as load:
        for seed in range(3):
            step(model, optimizer, 10 * seed, micro_batches=2)
            found.append(torch.stack([router.load.clone() for router in routers(model).values()]).long())
            for router in routers(model).values():
                router.load.zero_()
    counted = load.counted()
    assert counted.layers == ("blocks.1.mlp.router", "blocks.2.mlp.router")
    assert torch.equal(counted.rows, torch.stack(found))
    assert (counted.rows.sum(-1) == 2 * 2 * 9 * 4).all()
    assert not counted.dropped.any()


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_counts_nothing_twice(recompute):
    found = []
    for mode in ("none", recompute):
        model = Transformer(MIXTRAL, recompute=mode)
        with ExpertLoad(model) as load:
            step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        found.append(load.counted())
    assert torch.equal(found[0].rows, found[1].rows)
    assert int(found[0].rows.sum()) == 2 * 2 * 9 * 2


def test_evaluation_is_left_out():
    model = Transformer(MIXTRAL)
    x, y = tokens(MIXTRAL, 2, 9)
    with ExpertLoad(model) as load:
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
        model.eval()
        model.loss(x, y)
        model.train()
    assert load.counted().rows.shape == (1, 2, 5)


def test_what_no_optimizer_step_follows_is_one_more():
    model = Transformer(MIXTRAL)
    x, y = tokens(MIXTRAL, 2, 9)
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    load = ExpertLoad(model)
    with load:
        model.loss(x, y)[0].backward()
        for optimizer in optimizers:  # of many optimizers, too, the first ends the step
            optimizer.step()
        model.loss(x, y)
        assert len(load.counted().rows) == 2
        model.loss(x, y)
    assert load.counted().rows.sum((1, 2)).tolist() == [2 * 2 * 9 * 2, 2 * 2 * 2 * 9 * 2]
    with load:
        model.loss(x, y)
    assert len(load.counted().rows) == 3


@pytest.mark.parametrize("capacity", [0.5, 1.0, 100.0])
def test_what_is_dropped_and_what_is_not_are_all_choices(capacity):
    model = Transformer(sized(MIXTRAL, capacity=capacity))
    with ExpertLoad(model) as load:
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    counted = load.counted()
    assert (counted.rows.sum(-1) + counted.dropped == 2 * 9 * 2).all()
    assert bool(counted.dropped.any()) == (capacity < 100)
    assert torch.equal(counted.dropped_share, counted.dropped.double() / 36)
    assert int(counted.rows.max()) <= 2 * math.ceil(capacity * 9 * 2 / 5)  # in each of two samples


def test_ratios_by_hand():
    rows = torch.tensor([[[6, 2, 0, 0]], [[0, 0, 4, 4]]])
    loads = Loads(("router",), rows, torch.tensor([[0], [8]]))
    assert loads.shares.tolist() == [[[0.75, 0.25, 0, 0]], [[0, 0, 0.5, 0.5]]]
    assert loads.busiest_expert.tolist() == [[3.0], [2.0]]
    assert loads.busiest_rank(2).tolist() == [[2.0], [2.0]]
    assert loads.busiest_rank(1).tolist() == [[1.0], [1.0]]
    assert loads.dropped_share.tolist() == [[0.0], [0.5]]
    both = loads.together()
    assert both.rows.tolist() == [[[6, 2, 4, 4]]]
    assert both.busiest_rank(2).tolist() == [[1.0]]
    assert loads.together(1).rows.tolist() == [[[0, 0, 4, 4]]]
    with pytest.raises(ConfigError, match=r"ep must divide experts = 4 \(1, 2, 4\), got 3"):
        loads.busiest_rank(3)


def test_all_tokens_to_one_expert():
    model = Transformer(sized(MIXTRAL, top_k=1))
    with torch.no_grad():
        for router in routers(model).values():
            router.bias[3] = 10.0
    with ExpertLoad(model) as load:
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    counted = load.counted()
    assert counted.busiest_expert.tolist() == [[5.0, 5.0]]
    assert counted.rows[..., 3].tolist() == [[18, 18]]


@pytest.mark.parametrize("shape", [GPT, MIXTRAL], ids=["dense", "mixtral"])
def test_where_nothing_ran_there_is_nothing(shape):
    with ExpertLoad(Transformer(shape)) as load:
        pass
    counted = load.counted()
    layers = 2 if shape is MIXTRAL else 0
    assert counted.busiest_expert.shape == counted.dropped_share.shape == (0, layers)
    assert counted.together().busiest_expert.tolist() == [[0.0] * layers]


def test_no_hook_is_left_even_by_an_error():
    model, before = Transformer(MIXTRAL), len(_global_optimizer_post_hooks)
    with pytest.raises(RuntimeError, match="stop"):
        fail(model)
    assert len(_global_optimizer_post_hooks) == before
    assert not any(router._forward_hooks for router in routers(model).values())


def fail(model) -> None:
    with ExpertLoad(model):
        assert _global_optimizer_post_hooks
        assert all(router._forward_hooks for router in routers(model).values())
        raise RuntimeError("stop")


def test_no_graph_is_kept():
    """What the loss needs for backward goes when the loss does."""
    model = Transformer(MIXTRAL)
    x, y = tokens(MIXTRAL, 2, 9)
    seen: list[weakref.ref] = []
    for router in routers(model).values():
        router.register_forward_hook(lambda _, __, out: seen.append(weakref.ref(out[1].weights)))
    with ExpertLoad(model) as load:
        loss = model.loss(x, y)[0]
        assert len(seen) == 2
        assert all(ref() is not None for ref in seen)
        del loss
        gc.collect()
        assert all(ref() is None for ref in seen)
    assert not load.counted().rows.requires_grad


def counted_on_ranks(text: str, steps: int) -> tuple[Loads, Loads]:
    """In a rank: what its own tokens chose, and those of all."""
    torch.set_num_threads(1)
    with launch.process_group():
        mesh, case = Mesh(Layout.parse(text)), Case(sized(EVEN, bias_rate=0.01), seq=8, samples=8)
        engine = parallelize(case.model(), mesh, case.make())
        share, rank = 8 // mesh.size("dp"), mesh.index("dp")
        with ExpertLoad(engine.model) as load:
            for n in range(steps):
                x, y = (t[rank * share : (rank + 1) * share] for t in case.batch(n))
                engine.zero_grad()
                engine.accumulate(x, y, share // 2)
                engine.step()
        return load.counted(), load.counted(mesh.group("dp"))


@pytest.mark.parametrize("text", ["dp=2,ep=2", "dp=2,ep=2,zero=1"])
def test_ranks_together_count_what_one_device_does(ranks, text):
    """Also where a rank has two optimizers, one for experts."""
    case = Case(sized(EVEN, bias_rate=0.01), seq=8, samples=8)
    engine = case.engine()
    with ExpertLoad(engine.model) as load:
        for n in range(3):
            engine.zero_grad()
            engine.accumulate(*case.batch(n), 8)
            engine.step()
    alone = load.counted()
    (first, both), (second, other) = ranks(counted_on_ranks, text, 3, ranks=2).values
    assert torch.equal(both.rows, other.rows)
    assert torch.equal(first.rows + second.rows, both.rows)
    assert not torch.equal(first.rows, second.rows)
    assert torch.equal(both.rows, alone.rows)
    assert both.busiest_rank(2).shape == (3, 2)


def routes_on_ranks(text: str, node: int | None, recompute: str) -> tuple[dict, Loads, list[Tensor]]:
    """In a rank: where rows went in two micro-batches, their load, and the choices of each layer and micro-batch."""
    torch.set_num_threads(1)
    with launch.process_group():
        layout = Layout.parse(text).replace(dispatch="two-step" if node else "all-to-all", node=node)
        mesh, case = Mesh(layout), Case(sized(EVEN, capacity=1.0), recompute, seq=8, samples=8)
        engine = parallelize(case.model(), mesh, case.make())
        share, rank, chosen = 8 // mesh.size("dp"), mesh.index("dp"), []
        for router in routers(engine.model).values():
            router.register_forward_hook(lambda _, __, out: chosen.append(out[1].chosen))
        x, y = (t[rank * share : (rank + 1) * share] for t in case.batch(0))
        with ExpertRoutes(engine.model, mesh.group("ep"), node) as routes, ExpertLoad(engine.model) as load:
            engine.accumulate(x, y, share // 2)
        return routes.counted(), load.counted(), chosen


@pytest.mark.parametrize(("node", "recompute"), [(2, "none"), (None, "full")])
def test_where_rows_go(ranks, node, recompute):
    """Each rank has the same matrices; their rows are its load, their columns what comes; no choice counts twice."""
    found = ranks(routes_on_ranks, "dp=4,ep=4", node, recompute, ranks=4).values
    for rank, (routes, load, chosen) in enumerate(found):
        assert routes == found[0][0]
        assert [len(routed) for routed in routes.values()] == [2, 2]
        for place, layer in enumerate((0, 1)):
            sent = torch.tensor([routed.rows[rank] for routed in routes[layer]]).sum(0)
            assert torch.equal(sent, load.rows[0, place])  # an expert on each rank
        if recompute == "none":
            choices = iter(chosen)
            for micro_batch, layer in product(range(2), range(2)):
                own = next(choices).tolist()
                met = [sum(any(e // 2 == n for e in one if e < 4) for one in own) for n in range(2)]
                assert routes[layer][micro_batch].tokens[rank] == tuple(met)
    assert int(load.dropped.sum()) > 0
