"""Layers that multiply in FP8 learn on many ranks what they learn on one device, where their scales are the same."""

from __future__ import annotations

import dataclasses
import functools
from functools import partial

import pytest
from helpers import LLAMA
from parallel_runs import Case, Run, on_one_device, on_ranks, train

from playbook import launch
from playbook.layout import Layout
from playbook.model.fp8 import use_fp8
from playbook.model.linear import linear_layers
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.precision.recipes import FP8_RECIPES, FP8Recipe, Groups


def small(groups: Groups) -> Groups:
    """Groups of 8 where the recipes' have 128 or 32, so that small models have some: a rank's part has whole ones."""
    rows = groups.rows and min(groups.rows, 8)
    return dataclasses.replace(groups, rows=rows, columns=groups.columns and 8)


RECIPES = {
    name: dataclasses.replace(recipe, groups=small(recipe.groups), weights=small(recipe.weights))
    for name, recipe in FP8_RECIPES.items()
}
DENSE = LLAMA.replace(hidden=32, heads=4, kv_heads=2, ffn=48)
EXPERTS = DENSE.replace(moe={"experts": 4, "top_k": 2, "ffn": 16, "shared_experts": 1})
#: What one code in a few thousand, taken for its neighbour, changes of a gradient.
CODE = 2e-4
SIZES = {"steps": 2, "samples": 4, "seq": 32}


def case(shape, recipe: FP8Recipe, **sizes: int) -> Case:
    return Case(shape, prepare=partial(use_fp8, recipe=recipe), **{**SIZES, **sizes})


@functools.cache
def reference(shape, name: str, grad_acc: int, **sizes: int) -> Run:
    return on_one_device(case(shape, RECIPES[name], **sizes), grad_acc)


#: Model, recipe, layout, and the micro-batches that one device has in a step.
RUNS = {
    2: [
        (DENSE, "tensorwise", "dp=2", 2),
        (DENSE, "tensorwise", "tp=2,sp", 1),
        (DENSE, "tensorwise", "cp=2", 1),
        (DENSE, "delayed", "dp=2,zero=3", 2),
        (DENSE, "delayed", "pp=2,grad_acc=2,schedule=zb-h1", 2),
        (DENSE, "rowwise", "dp=2,zero=3", 2),
        (DENSE, "blockwise", "cp=2", 1),
        (EXPERTS, "blockwise", "dp=2,ep=2", 1),
    ],
    4: [
        (DENSE, "delayed", "dp=2,tp=2,zero=2", 2),
        (DENSE, "tensorwise", "cp=2,tp=2", 1),
        (DENSE, "blockwise", "tp=2,sp,dp=2,zero=3", 2),
        (DENSE, "blockwise", "pp=2,tp=2,sp,grad_acc=2", 2),
        (DENSE, "mxfp8", "cp=2,dp=2,zero=3", 2),
        (EXPERTS, "blockwise", "dp=2,ep=2,tp=2", 1),
        (EXPERTS, "mxfp8", "dp=4,ep=4", 1),
        (EXPERTS, "delayed", "dp=2,cp=2", 2),
        (EXPERTS, "tensorwise", "dp=2,tp=2,zero=3", 2),
    ],
}


@pytest.mark.parametrize("world", RUNS)
def test_ranks_learn_what_one_device_learns(ranks, world):
    runs = [(case(shape, RECIPES[name]), layout, {}) for shape, name, layout, _ in RUNS[world]]
    for rank, each in enumerate(ranks(on_ranks, runs, ranks=world).values):
        for (shape, name, layout, grad_acc), run in zip(RUNS[world], each, strict=True):
            alone = reference(shape, name, grad_acc)
            assert (run.losses / alone.losses - 1).abs().max() <= 1e-6, (rank, name, layout)
            # A sum in another order may move a number across the border between two codes: that is all.
            assert run.error(alone) <= CODE, (rank, name, layout)


def test_histories_are_those_of_one_device_for_many_steps(ranks):
    """Also where ranks at mirrored places of pipelines see one stage, and where weights arrive already rounded."""
    short = dataclasses.replace(RECIPES["delayed"], history=2)
    given, layouts = case(DENSE, short, steps=6), {"pp=2,grad_acc=4,schedule=dualpipe": 4, "dp=2,zero=3": 2}
    runs = [(given, layout, {}) for layout in layouts]
    for each in ranks(on_ranks, runs, ranks=2).values:
        for (layout, grad_acc), run in zip(layouts.items(), each, strict=True):
            assert run.error(on_one_device(given, grad_acc)) <= CODE, layout


def alone(model, recipe: FP8Recipe) -> None:
    """Layers in FP8 whose ranks tell each other nothing of magnitudes."""
    use_fp8(model, recipe)
    for layer in linear_layers(model):
        layer.products.over = lambda group, *tensors: None


def test_without_agreement_ranks_learn_something_else(ranks):
    one = dataclasses.replace(
        case(DENSE, RECIPES["tensorwise"]), prepare=partial(alone, recipe=RECIPES["tensorwise"])
    )
    layouts = ["tp=2,sp", "cp=2"]
    for found in ranks(on_ranks, [(one, layout, {}) for layout in layouts], ranks=2).values:
        for layout, run in zip(layouts, found, strict=True):
            assert run.error(reference(DENSE, "tensorwise", 1)) > 10 * CODE, layout


def resumed(one: Case) -> list[Run]:
    """In a rank: the last step of a run that another layout has begun."""
    with launch.process_group():
        saved, found = None, []
        for text, steps in (
            ("tp=2,sp,grad_acc=2", (0, 2)),
            ("dp=2,zero=2", (2, 3)),
            ("pp=2,grad_acc=2", (2, 3)),
        ):
            mesh = Mesh(Layout.parse(text))
            engine = parallelize(one.model(), mesh, one.make())
            if saved:
                engine.load_state_dict(saved)
            short = dataclasses.replace(one, steps=steps[1])
            run = train(short, engine, grad_acc=mesh.layout.grad_acc, start=steps[0], mesh=mesh)
            found += [run] if saved else []
            saved = saved or engine.state_dict()
        return found


def test_a_checkpoint_has_the_history_of_magnitudes(ranks):
    alone = reference(DENSE, "delayed", 2, steps=3)
    for runs in ranks(resumed, case(DENSE, RECIPES["delayed"], steps=3), ranks=2).values:
        for run in runs:
            assert (run.losses / alone.losses[2:] - 1).abs().max() <= 1e-6
            assert (run.last - alone.last).norm() <= CODE * alone.last.norm()
