"""Packed documents: attention to one's own document is FlexAttention's, and on ranks all is as on one device."""

from __future__ import annotations

import functools
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import DEEPSEEK
from parallel_runs import SMALL, Case, on_ranks, passes, reference, world_of
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from traffic_runs import check_run

from playbook import launch
from playbook.documents.attention import own_documents
from playbook.documents.pieces import Documents
from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.model.ops import TORCH_OPS, Ops, reference_attention
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.job import Job
from playbook.planning.memory import predict
from playbook.planning.peak import RunSizes
from playbook.planning.pipeline_memory import StageTerms
from playbook.shapes import ModelShape
from playbook_book.instruments.measured import SavedActivations

TOLERANCE = 1e-5
SHAPES = {
    **{name: SMALL[name] for name in ("gpt", "llama", "experts")},
    "latent": DEEPSEEK.replace(layers=2, heads=4, tied=True, moe=None),
}


def test_attention_is_flex_attentions():
    """Of queries that share keys, in documents of one token and of many."""
    lengths = (5, 1, 17, 1, 8)
    documents = Documents("contiguous", 32, 1, lengths=lengths)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, 32, 16, generator=generator) for heads in (4, 2, 2))
    dy = torch.randn(2, 4, 32, 16, generator=generator)
    of = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))

    def seen(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return (i >= j) & (of[i] == of[j])

    mask = create_block_mask(seen, None, None, 32, 32, device="cpu")

    def found(attend: Any) -> list[Tensor]:
        given = [x.clone().requires_grad_() for x in (q, k, v)]
        y = attend(*given)
        return [y.detach(), *torch.autograd.grad(y, given, dy)]

    theirs = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)  # on a CPU forward alone
    ours, formula = (
        found(partial(how, causal=documents)) for how in (TORCH_OPS.attention, reference_attention)
    )
    for a, b in [*zip(ours, formula, strict=True), (ours[0], theirs)]:
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_fused_kernels_attend_inside_documents():
    documents = Documents("contiguous", 24, 1, lengths=(9, 1, 14))
    q, k, v = torch.randn(3, 1, 2, 24, 16, generator=torch.Generator().manual_seed(0))
    ours = Ops.named("fused").attention(q, k, v, causal=documents)
    torch.testing.assert_close(ours, TORCH_OPS.attention(q, k, v, causal=documents), rtol=1e-5, atol=1e-5)


def text_of(one: dict[str, Any]) -> str:
    axes = ",".join(f"{axis}={one[axis]}" for axis in ("dp", "tp", "cp", "pp", "ep", "zero"))
    return f"{axes},schedule={one['schedule']},grad_acc={passes(one)},micro_batch=1" + ",sp" * (one["tp"] > 1)


def options_of(one: dict[str, Any]) -> dict[str, Any]:
    return {"context": one["context"], "placement": one["placement"]}


def shape_of(one: dict[str, Any]) -> ModelShape:
    shape = SHAPES[one["shape"]]
    return shape.replace(layers=4) if one["schedule"] == "zb-v" else shape


def fits(one: dict[str, Any]) -> bool:
    if not 1 < world_of(one) <= 6 or (one["pp"] == 1) != (one["schedule"] == "naive"):
        return False
    if one["zero"] and one["dp"] * one["cp"] == 1:  # nothing to shard
        return False
    if one["cp"] == 1 and (one["context"], one["placement"]) != ("ring", None):
        return False
    with suppress(LayoutError):
        layout = Layout.parse(text_of(one)).replace(**options_of(one))
        layout.check(shape_of(one), seq=layout.padded(9))
        return True
    return False


def cost(one: dict[str, Any]) -> float:
    """About the messages between all ranks, and their passes."""
    return world_of(one) * (world_of(one) + passes(one) * shape_of(one).layers / one["pp"])


WORLDS = (3, 4, 6)


@functools.cache
def chosen() -> list[dict[str, Any]]:
    placed = [("ulysses", None), *((how, where) for how in ("ring", "gather") for where in WHERE)]
    every = [
        {**one, "context": how, "placement": where}
        for one in combined(
            dp=(1, 2), tp=(1, 2), cp=(1, 2, 3, 4), pp=(1, 2), ep=(1, 2), zero=(0, 1, 3), shape=tuple(SHAPES),
            schedule=("naive", "1f1b", "zb-v"), recompute=("none", "selective", "full"),
        )
        for how, where in placed
    ]  # fmt: skip
    return all_pairs(filter(fits, every), cost)


WHERE = (None, "contiguous", "zigzag", "documents", "greedy")


def run_of(one: dict[str, Any]) -> tuple[Case, str, dict]:
    """A second step has other documents, and asks no more what a first one asks."""
    steps, samples = 1 + (one["pp"] == 1), passes(one) * one["dp"] * 2
    case = Case(shape_of(one), one["recompute"], steps=steps, samples=samples, documents=True)
    return case, text_of(one), options_of(one)


@pytest.mark.parametrize("world", WORLDS)
def test_any_two_options_are_one_device(ranks, world):
    runs = [run_of(one) for one in chosen() if world_of(one) == world]
    assert {world_of(one) for one in chosen()} == set(WORLDS)
    for rank, found in enumerate(ranks(on_ranks, runs, None, True, ranks=world).values):
        for (case, text, options), run in zip(runs, found, strict=True):
            error = run.error(reference(replace(case, recompute="none")))
            assert error <= TOLERANCE, (rank, case, text, options, error)
            check_run(case, text, options, rank, run)


def kept(runs: list[tuple[Case, str, dict]]) -> list[int]:
    """In a rank: bytes that a forward pass of two samples keeps for backward."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            model = parallelize(case.model(), mesh, case.make()).model
            x, y, ((where, documents),) = own_documents(*case.batch(0), case.lengths(0), 2, mesh)
            with SavedActivations(model, inputs=(x, y, where)) as saved:
                model.loss(x, y, (where, documents))
            found.append(saved.bytes)
    return found


@pytest.mark.parametrize("cp", [1, 2])
def test_what_is_kept_is_what_a_sample_keeps(ranks, cp):
    contexts = ("ring", "gather", "ulysses") if cp > 1 else ("ring",)
    case = Case(SHAPES["llama"], seq=16, samples=2, documents=True)
    runs = [
        (
            replace(case, shape=SHAPES[shape], recompute=recompute),
            f"cp={cp},micro_batch=2",
            {"context": context},
        )
        for shape in ("gpt", "llama", "latent")
        for recompute in ("none", "selective")
        for context in contexts
    ]
    for found in ranks(kept, runs, ranks=cp).values:
        for (one, text, options), bytes_ in zip(runs, found, strict=True):
            layout = Layout.parse(f"{text},recompute={one.recompute}").replace(**options)
            (stage,) = predict(one.shape, layout, seq=16, document=9, recipe="fp32", device="cpu").stages
            assert bytes_ == stage.activations, (one, text, options)


def angles(text: str) -> int:
    """In a rank of a pipeline: bytes of the angles that are there in a step."""
    torch.set_num_threads(1)
    found = 0
    with launch.process_group():
        mesh, case = Mesh(Layout.parse(text)), Case(SHAPES["llama"], seq=16, samples=8, documents=True)
        engine = parallelize(case.model(), mesh, case.make())
        x, y, where = own_documents(*case.batch(0), case.lengths(0), 2, mesh)
        run = engine.pipeline.run

        def looked_at(step: Any) -> None:
            nonlocal found
            found = sum(angle.nbytes for each in step.rotary for angle in each[:2])
            run(step)

        engine.pipeline.run = looked_at
        engine.accumulate(x, y, 1, where)
    return found


def test_each_micro_batch_of_a_pipeline_has_angles_of_its_own(ranks):
    text = "pp=2,cp=2,micro_batch=2,grad_acc=4"
    job = Job(SHAPES["llama"], Layout.parse(text), seq=16, document=9, recipe="fp32", device="cpu")
    (term,) = StageTerms.of(RunSizes(job)).once
    assert ranks(angles, text, ranks=4).values == [term.value] * 4
