"""A state dict is that of one device, whoever saved it: every engine takes up where another has stopped."""

from __future__ import annotations

import dataclasses
import functools

import pytest
import torch
from helpers import BLOCKS, MIXTRAL
from parallel_runs import Case, Run, train

from playbook import launch
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize

FIRST, WHOLE = 1, 3


def first(case: Case) -> Case:
    return dataclasses.replace(case, steps=FIRST)


def save(*runs: tuple[Case, str, dict]) -> list[dict]:
    """In a rank: the state after the first step, of each run."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = parallelize(case.model(), mesh, case.make())
            train(first(case), engine, grad_acc=mesh.layout.grad_acc, mesh=mesh)
            found.append(engine.state_dict())
    return found


def resume(*runs: tuple[Case, str, dict, dict]) -> list[Run]:
    """In a rank: the other steps, from a state, of each run."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options, state in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = parallelize(case.model(), mesh, case.make())
            engine.load_state_dict(state)
            found.append(train(case, engine, grad_acc=mesh.layout.grad_acc, mesh=mesh, start=FIRST))
    return found


@functools.cache
def state_of_one(case: Case) -> dict:
    engine = case.engine()
    train(first(case), engine)
    return engine.state_dict()


@functools.cache
def whole_run(case: Case) -> Run:
    return train(case, case.engine())


def resume_on_one(case: Case, state: dict) -> Run:
    engine = case.engine()
    engine.load_state_dict(state)
    return train(case, engine, start=FIRST)


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


@pytest.mark.parametrize("name", ENGINES)
def test_saved_by_ranks_and_taken_up_by_one_device(ranks, name):
    text, options = ENGINES[name]
    runs = [(case, text, options) for case in CASES]
    every = zip(*ranks(save, *runs, ranks=Layout.parse(text).world_size).values, strict=True)
    for case, states in zip(CASES, every, strict=True):
        # The bias of the keys has no gradient but rounding noise, of which Adam makes steps: no number to compare.
        tolerance = 1e-4 if case.shape.bias is False else float("inf")
        assert max(differences(state, state_of_one(case)) for state in states) < tolerance
        whole, resumed = whole_run(case), resume_on_one(case, states[-1])
        assert (resumed.losses / whole.losses[FIRST:] - 1).abs().max() < 1e-5
        assert (resumed.norms / whole.norms[FIRST:] - 1).abs().max() < 1e-4


@pytest.mark.parametrize("name", ENGINES)
def test_saved_by_one_device_and_taken_up_by_ranks(ranks, name):
    text, options = ENGINES[name]
    runs = [(case, text, options, state_of_one(case)) for case in CASES]
    for found in ranks(resume, *runs, ranks=Layout.parse(text).world_size).values:
        for case, run in zip(CASES, found, strict=True):
            check_resumed(run, case)


def taken_up(case: Case, text: str, options: dict, state: dict) -> dict:
    """In a rank: what an engine saves that has just taken up a state."""
    torch.set_num_threads(1)
    with launch.process_group():
        mesh = Mesh(Layout.parse(text).replace(**options))
        engine = parallelize(case.model(), mesh, case.make())
        engine.load_state_dict(state)
        return engine.state_dict()


@pytest.mark.parametrize(("moments", "numbers"), [("bf16", 2**-133), ("fp8", 2**-17)])
def test_moments_in_few_bits_are_saved_in_fp32(ranks, moments, numbers):
    """Shards and whole tensors have other scales, powers of two all of them: what is not the same is among the smallest
    numbers that the larger scale has, below 2^-17 of the largest in E4M3."""
    case, (text, options) = Case(BLOCKS["llama"], steps=WHOLE, moments=moments), ENGINES["zero 1"]
    [saved] = ranks(save, (case, text, options), ranks=3)[0].value
    again = ranks(taken_up, case, text, options, saved, ranks=3)[0].value
    assert differences(again, saved) == 0
    alone = case.engine()
    alone.load_state_dict(saved)
    for i, state in alone.state_dict()["optimizer"]["state"].items():
        for kind, value in state.items():
            there = saved["optimizer"]["state"][i][kind]
            assert value.dtype == torch.float32
            assert ((value - there).abs() <= numbers * there.abs().max()).all(), (i, kind)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dp=3,zero=3", "dp=2,zero=1"),
        ("dp=4,zero=2,replicate=2", "dp=3,zero=3"),
        ("tp=2,cp=2", "dp=2,tp=2,zero=1,replicate=2"),
        ("tp=4", "tp=2,sp,cp=2"),
        ("tp=2,cp=2,zero=1", "tp=2,sp,dp=2,zero=3"),
        ("pp=2,dp=2,zero=2,grad_acc=4", "pp=2,tp=2,grad_acc=4,schedule=dualpipe"),
    ],
)
@pytest.mark.parametrize("train", ["full", "lora:3"])
def test_from_one_layout_to_another(ranks, before, after, train):
    """Also where parameters are cut, keys are held twice, and the vocabulary is padded; and frozen weights."""
    shape = BLOCKS["llama"].replace(heads=4, kv_heads=2, ffn=52, tied=True, train=train)
    case = Case(shape, steps=WHOLE)
    states = ranks(save, (case, before, {}), ranks=Layout.parse(before).world_size).values
    assert max(differences(state, state_of_one(case)) for [state] in states) < 1e-4
    for [run] in ranks(resume, (case, after, {}, *states[1]), ranks=Layout.parse(after).world_size).values:
        check_resumed(run, case)


def test_masters_keep_what_16_bits_have_lost(ranks):
    """A checkpoint of bf16 weights has their fp32 masters: without them, the next steps would be others."""
    case = Case(BLOCKS["llama"], dtype=torch.bfloat16, steps=WHOLE)
    [state] = ranks(save, (case, "dp=2,zero=2", {}), ranks=2)[0].value
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
    for [run] in ranks(resume, (case, "dp=3,zero=3", {}, state), ranks=3).values:
        assert (run.losses / whole.losses[FIRST:] - 1).abs().max() < 5e-3


@pytest.mark.parametrize("text", ["dp=2", "dp=3,zero=1", "dp=2,zero=2", "dp=3,zero=3"])
def test_what_was_loaded_is_what_is_saved(ranks, text):
    """To the bit, masters included."""
    case = Case(BLOCKS["llama"], dtype=torch.bfloat16, steps=WHOLE)
    state = state_of_one(case)

    def loaded() -> dict:
        with launch.process_group():
            engine = parallelize(case.model(), Mesh(Layout.parse(text)), case.make())
            engine.load_state_dict(state)
            return engine.state_dict()

    for found in ranks(loaded, ranks=Layout.parse(text).world_size).values:
        assert differences(found, state) == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("dp=2,ep=2,zero=1", "dp=2,pp=2,ep=2"),
        ("cp=2,ep=2,zero=3", "tp=2,sp,ep=2,etp=1"),
        ("tp=4,sp,ep=2,etp=1,zero=1", "tp=2"),
        ("dp=4,ep=2", ""),
    ],
)
def test_experts_and_the_biases_of_routers(ranks, before, after):
    """Slices of experts come from other ranks than the rest; biases, which no gradient trains, are saved as well."""
    moe = dataclasses.replace(MIXTRAL.moe, experts=4, bias_rate=0.02)
    case = Case(MIXTRAL.replace(heads=4, kv_heads=4, moe=moe), steps=WHOLE, seq=8)
    [state] = ranks(save, (case, before, {}), ranks=Layout.parse(before).world_size)[0].value
    assert differences(state, state_of_one(case)) < 1e-4
    assert state["model"]["blocks.0.mlp.router.bias"].any()
    if not after:
        check_resumed(resume_on_one(case, state), case)
        return
    for [run] in ranks(resume, (case, after, {}, state), ranks=Layout.parse(after).world_size).values:
        check_resumed(run, case)
