"""A state dict is that of one device, whoever saved it: every engine takes up where another has stopped."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import pytest
import torch
from helpers import BLOCKS, MIXTRAL
from parallel_runs import Case, Run, train

from playbook import launch
from playbook.layout import Layout
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize

FIRST, WHOLE = 1, 3
Runs = list[tuple[Case, str, dict]]


def until(case: Case, steps: int) -> Case:
    return dataclasses.replace(case, steps=steps)


def engine_of(case: Case, text: str, options: dict) -> tuple[Engine, dict[str, Any]]:
    """And what `train` has to know."""
    mesh = Mesh(Layout.parse(text).replace(**options))
    return parallelize(case.model(), mesh, case.make()), {"grad_acc": mesh.layout.grad_acc, "mesh": mesh}


def save(runs: Runs) -> list[dict | None]:
    """In a rank: the state after the first step, of each run; all have it, and two of them say so."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group() as world:
        for run in runs:
            engine, how = engine_of(*run)
            train(until(run[0], FIRST), engine, **how)
            state = engine.state_dict()
            found.append(state if world.rank < 2 else None)
    return found


def resume(runs: Runs, states: list[dict], save: bool = False) -> list[tuple[Run, dict | None]]:
    """In a rank: the other steps, from a state, of each run; and what is to ``save`` then, from the last rank."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group() as world:
        for run, state in zip(runs, states, strict=True):
            engine, how = engine_of(*run)
            engine.load_state_dict(state)
            made, after = train(run[0], engine, start=FIRST, **how), engine.state_dict() if save else None
            found.append((made, after if world.rank == world.size - 1 else None))
    return found


@functools.cache
def state_of_one(case: Case, steps: int = FIRST) -> dict:
    engine = case.engine()
    train(until(case, steps), engine)
    return copy.deepcopy(engine.state_dict())


@functools.cache
def whole_run(case: Case) -> Run:
    return train(case, case.engine())


def resume_on_one(case: Case, state: dict, start: int = FIRST) -> Run:
    engine = case.engine()
    engine.load_state_dict(state)
    return train(case, engine, start=start)


def check_resumed(run: Run, case: Case) -> None:
    whole = whole_run(case)
    assert (run.losses / whole.losses[FIRST:] - 1).abs().max() < 1e-5
    assert (run.last - whole.last).norm() / whole.last.norm() < 1e-5


def differences(a: dict, b: dict) -> float:
    """The largest difference between two states, relative to the tensor; their form must be the same."""
    assert a["model"].keys() == b["model"].keys()
    assert a["optimizer"]["state"].keys() == b["optimizer"]["state"].keys()
    groups = [
        [{k: v for k, v in g.items() if k != "lr"} for g in s["optimizer"]["param_groups"]] for s in (a, b)
    ]
    assert groups[0] == groups[1]
    pairs = [(a["model"][name], b["model"][name]) for name in b["model"]]
    for i, state in b["optimizer"]["state"].items():
        assert a["optimizer"]["state"][i].keys() == state.keys()
        pairs += [(a["optimizer"]["state"][i][k], v) for k, v in state.items()]
    with torch.no_grad():
        return max(float((x - y).norm() / y.norm().clamp_min(1e-6)) for x, y in pairs)


ENGINES = {
    "replicas": ("dp=3", {}),
    "zero 1": ("dp=3,zero=1", {"bucket": 20_000, "first_bucket": 3_000}),
    "zero 1, lazily": ("dp=2,zero=1", {"gather": "lazily"}),
    "zero 2": ("dp=4,zero=2", {"bucket": 20_000}),
    "zero 3": ("dp=3,zero=3", {}),
    "zero 3, two groups": ("dp=4,zero=3,replicate=2", {}),
}
CASES = [
    Case(BLOCKS["llama"], steps=WHOLE),
    Case(BLOCKS["gpt"].replace(tied=True), steps=WHOLE),
    Case(BLOCKS["llama"], offload=True, steps=WHOLE),
]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_taken_up_from_one_device_and_saved_for_it(ranks, world):
    """What ranks take up, and train, one device takes up again."""
    engines = [engine for engine in ENGINES.values() if Layout.parse(engine[0]).world_size == world]
    runs = [(case, *engine) for engine in engines for case in CASES]
    found = ranks(resume, runs, [state_of_one(case) for case, *_ in runs], True, ranks=world).values
    for i, (case, *_) in enumerate(runs):
        for each in found:
            check_resumed(each[i][0], case)
        state = found[-1][i][1]
        # The bias of the keys has no gradient but rounding noise, of which Adam makes steps: no number to compare.
        tolerance = 1e-4 if case.shape.bias is False else float("inf")
        assert differences(state, state_of_one(case, WHOLE)) < tolerance
        longer = until(case, WHOLE + 1)
        whole, resumed = whole_run(longer), resume_on_one(longer, state, WHOLE)
        assert (resumed.losses / whole.losses[WHOLE:] - 1).abs().max() < 1e-5
        assert (resumed.norms / whole.norms[WHOLE:] - 1).abs().max() < 1e-4


def taken_up(runs: Runs, states: list[dict]) -> list[float]:
    """In a rank: how much what an engine saves differs from the state that it has just taken up."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for run, state in zip(runs, states, strict=True):
            engine, _ = engine_of(*run)
            engine.load_state_dict(state)
            found.append(differences(engine.state_dict(), state))
    return found


def test_moments_in_few_bits_are_saved_in_fp32(ranks):
    """Shards and whole tensors have other scales, powers of two all of them: what is not the same is among the smallest
    numbers that the larger scale has, below 2^-17 of the largest in E4M3."""
    smallest = {"bf16": 2**-133, "fp8": 2**-17}
    cases = [Case(BLOCKS["llama"], steps=WHOLE, moments=moments) for moments in smallest]
    runs = [(case, *ENGINES["zero 1"]) for case in cases]
    states = ranks(save, runs, ranks=3)[0].value
    assert ranks(taken_up, runs, states, ranks=3).values == [[0, 0]] * 3
    for case, saved in zip(cases, states, strict=True):
        alone = case.engine()
        alone.load_state_dict(saved)
        for i, state in alone.state_dict()["optimizer"]["state"].items():
            for kind, value in state.items():
                there = saved["optimizer"]["state"][i][kind]
                assert value.dtype == torch.float32
                near = smallest[case.moments] * there.abs().max()
                assert ((value - there).abs() <= near).all(), (case.moments, i, kind)


SHAPE = BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52, tied=True)
#: Also where parameters are cut, keys are held twice, and the vocabulary is padded; and frozen weights.
CHANGES: list[tuple[Case, str, str]] = [
    (Case(SHAPE.replace(train=train), steps=WHOLE), before, after)
    for train in ("full", "lora:3")
    for before, after in (
        ("dp=3,zero=3", "dp=2,zero=1"),
        ("dp=4,zero=2,replicate=2", "dp=3,zero=3"),
        ("tp=2,cp=2", "dp=2,tp=2,zero=1,replicate=2"),
        ("tp=4", "tp=2,sp,cp=2"),
        ("tp=2,cp=2,zero=1", "tp=2,sp,dp=2,zero=3"),
        ("pp=2,dp=2,zero=2,grad_acc=4", "pp=2,tp=2,grad_acc=4,schedule=dualpipe"),
    )
]
#: Slices of experts come from other ranks than the rest; biases, which no gradient trains, are saved as well.
EXPERTS = MIXTRAL.replace(
    heads=4, kv_heads=4, moe=dataclasses.replace(MIXTRAL.moe, experts=4, bias_rate=0.02)
)
CHANGES += [
    (Case(EXPERTS, steps=WHOLE, seq=8), before, after)
    for before, after in (
        ("dp=2,ep=2,zero=1", "dp=2,pp=2,ep=2"),
        ("cp=2,ep=2,zero=3", "tp=2,sp,ep=2,etp=1"),
        ("tp=4,sp,ep=2,etp=1,zero=1", "tp=2"),
        ("dp=4,ep=2", ""),
    )
]


def by_world(which: int) -> dict[int, list[tuple[Case, str, str]]]:
    found: dict[int, list] = {}
    for change in CHANGES:
        found.setdefault(Layout.parse(str(change[which])).world_size, []).append(change)
    return found


@pytest.fixture(scope="module")
def saved(ranks) -> dict[tuple[Case, str, str], list[dict]]:
    """What the layouts before have saved, by change, from two ranks."""
    found = {}
    for world, some in by_world(1).items():
        every = ranks(save, [(case, before, {}) for case, before, _ in some], ranks=world).values
        found |= {change: [each[i] for each in every[:2]] for i, change in enumerate(some)}
    return found


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_from_one_layout_to_another(ranks, saved, world):
    some = by_world(2)[world]
    for case, *layouts in some:
        for state in saved[case, *layouts]:
            assert differences(state, state_of_one(case)) < 1e-4, layouts
            assert case.shape != EXPERTS or state["model"]["blocks.0.mlp.router.bias"].any()
    states = [saved[change][-1] for change in some]
    if world == 1:
        every = [[(resume_on_one(case, state), None) for (case, *_), state in zip(some, states, strict=True)]]
    else:
        every = ranks(resume, [(case, after, {}) for case, _, after in some], states, ranks=world).values
    for found in every:
        for (case, *_), (run, _) in zip(some, found, strict=True):
            check_resumed(run, case)


def test_masters_keep_what_16_bits_have_lost(ranks):
    """A checkpoint of bf16 weights has their fp32 masters: without them, the next steps would be others."""
    case = Case(BLOCKS["llama"], dtype=torch.bfloat16, steps=WHOLE)
    [state] = ranks(save, [(case, "dp=2,zero=2", {})], ranks=2)[0].value
    names = [
        name
        for decays in (True, False)
        for name, p in case.model().named_parameters()
        if (p.dim() >= 2) is decays
    ]
    for i, name in enumerate(names):
        master = state["optimizer"]["state"][i]["master"]
        assert master.dtype == torch.float32
        assert torch.equal(master.reshape(-1).bfloat16(), state["model"][name].reshape(-1))
        assert not torch.equal(master, master.bfloat16().float())
    whole = whole_run(case)
    for [(run, _)] in ranks(resume, [(case, "dp=3,zero=3", {})], [state], ranks=3).values:
        assert (run.losses / whole.losses[FIRST:] - 1).abs().max() < 5e-3


def test_what_was_loaded_is_what_is_saved(ranks):
    """To the bit, masters included."""
    case = Case(BLOCKS["llama"], dtype=torch.bfloat16, steps=WHOLE)
    for world, layouts in ((2, ("dp=2", "dp=2,zero=2")), (3, ("dp=3,zero=1", "dp=3,zero=3"))):
        runs = [(case, text, {}) for text in layouts]
        assert ranks(taken_up, runs, [state_of_one(case)] * 2, ranks=world).values == [[0, 0]] * world
