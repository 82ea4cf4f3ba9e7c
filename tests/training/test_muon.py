"""Muon: PyTorch's own on one device; on many, that of one device, in the messages and the memory that are predicted."""

from __future__ import annotations

import functools
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
import torch
from all_pairs import all_pairs, combined
from helpers import BLOCKS, DEEPSEEK, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_runs import BUCKETS, OPTIMIZER, SMALL, Case, on_ranks, passes, reference, world_of
from random_shapes import RUNS, deepseek_shapes, shapes
from torch.utils.flop_counter import FlopCounterMode
from traffic_runs import check_kept, check_run, kept

from playbook import launch
from playbook.errors import ConfigError, LayoutError
from playbook.instruments.memory_timeline import MemoryTimeline, peak_bytes
from playbook.layout import Layout
from playbook.layout.fields import MUON
from playbook.model.linear import linear_layers
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.planning import memory
from playbook.planning.job import Job
from playbook.planning.jobs import run_of
from playbook.planning.memory import predict, predict_job
from playbook.planning.muon import STEPS, Matrix, Part, rounds
from playbook.planning.peak import Moment, moments
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig
from playbook.training.muon import orthogonal, use_muon
from playbook.training.optimizer import adamw

TOLERANCE = 1e-5
SHAPES = {
    **{name: SMALL[name] for name in ("gpt", "experts")},
    "llama": SMALL["llama"].replace(kv_heads=1),  # which ranks of tp copy
    "latent": DEEPSEEK.replace(layers=2, heads=4, tied=True, moe=None),
}


def check(ranks, runs: list[tuple[Case, str, dict]], world: int) -> None:
    found = ranks(on_ranks, runs, kept, True, ranks=world).values
    for i, (case, text, options) in enumerate(runs):
        check_kept(case, text, options, [each[i][1] for each in found])
        for rank, (run, _) in enumerate(each[i] for each in found):
            error = run.error(reference(replace(case, recompute="none")))
            assert error <= TOLERANCE, (rank, case, text, options, error)
            check_run(case, text, options, rank, run)


def text_of(one: dict[str, Any]) -> str:
    axes = ",".join(
        f"{axis}={one[axis]}" for axis in ("dp", "tp", "cp", "pp", "ep", "etp", "zero", "replicate")
    )
    return f"{axes},schedule={one['schedule']},grad_acc={passes(one)},micro_batch=1" + ",sp" * (one["tp"] > 1)


def options_of(one: dict[str, Any]) -> dict[str, Any]:
    return {"muon": one["way"], **(BUCKETS if one["zero"] in (1, 2) else {})}


def fits(one: dict[str, Any]) -> bool:
    if not 1 < world_of(one) <= 6 or (one["pp"] == 1) != (one["schedule"] == "naive"):
        return False
    if (one["replicate"] > 1 and not one["zero"]) or (
        one["zero"] and one["dp"] * one["cp"] == 1
    ):  # nothing to shard
        return False
    with suppress(LayoutError):
        layout = Layout.parse(text_of(one))
        layout.check(shape_of(one), seq=layout.padded(9))
        return True
    return False


def shape_of(one: dict[str, Any]) -> ModelShape:
    shape = SHAPES[one["shape"]]
    return shape.replace(layers=4) if one["schedule"] == "dualpipe" else shape


def cost(one: dict[str, Any]) -> float:
    """About the messages between all ranks, and their passes."""
    return world_of(one) * (world_of(one) + passes(one) * shape_of(one).layers / one["pp"])


#: Two axes of 4 are in `test_eight_ranks_of_all_kinds`.
WORLDS = (2, 4, 6)


@functools.cache
def chosen() -> list[dict[str, Any]]:
    every = combined(
        dp=(1, 2, 3, 4), tp=(1, 2), cp=(1, 2), pp=(1, 2), ep=(1, 2), etp=(0, 1), zero=(0, 1, 2, 3), replicate=(1, 2),
        schedule=("naive", "1f1b", "dualpipe"), shape=tuple(SHAPES), way=MUON,
    )  # fmt: skip
    return all_pairs(filter(fits, every), cost)


@pytest.mark.parametrize("world", WORLDS)
def test_any_two_options_are_one_device(ranks, world):
    runs = [
        (
            Case(shape_of(one), steps=2, samples=passes(one) * one["dp"], optimizer="muon"),
            text_of(one),
            options_of(one),
        )
        for one in chosen()
        if world_of(one) == world
    ]
    assert {world_of(one) for one in chosen()} == set(WORLDS)
    check(ranks, runs, world)


def test_eight_ranks_of_all_kinds(ranks):
    """Shards of slices of experts and of heads that ranks copy, and what two halves of a pipeline have in common."""
    experts = Case(SHAPES["experts"], steps=2, samples=8, optimizer="muon")
    deep = replace(experts, shape=SHAPES["llama"].replace(layers=4))
    runs = [
        (experts, "dp=4,tp=2,sp,ep=4,etp=1,zero=3,replicate=2,micro_batch=2", {}),
        (deep, "dp=2,tp=2,sp,pp=2,zero=1,schedule=dualpipe,grad_acc=4", {**BUCKETS, "gather": "lazily"}),
    ]
    check(ranks, runs, 8)


@pytest.mark.parametrize("shape", [BLOCKS["gpt"], BLOCKS["llama"]], ids=["gpt", "llama"])
def test_one_device_is_torchs_own(shape):
    """Matrices by `torch.optim.Muon`, in bf16 as it has it, all else by torch's AdamW."""
    ours, theirs = (Transformer(shape, seed=1) for _ in range(2))
    engine = Engine.on_one_device(ours)
    use_muon(engine, **OPTIMIZER, dtype=torch.bfloat16, ratio=3.0)
    hidden = [layer.weight for layer in linear_layers(theirs.blocks)]
    rest = [p for p in theirs.parameters() if all(p is not q for q in hidden)]
    lr, decay = OPTIMIZER["lr"], OPTIMIZER["weight_decay"]
    optimizers = [
        torch.optim.Muon(hidden, lr=3 * lr, weight_decay=decay, adjust_lr_fn="match_rms_adamw"),
        adamw([(p, p.dim() > 1) for p in rest], **OPTIMIZER),
    ]
    for step in range(4):
        x, y = tokens(shape, 4, 9, step)
        for model in (ours, theirs):
            model.zero_grad()
            (model.loss(x, y)[0] / y.numel()).backward()
        for one in (*engine.optimizers, *optimizers):
            one.step()
    assert (
        max((a - b).abs().max() for a, b in zip(ours.parameters(), theirs.parameters(), strict=True)) <= 1e-6
    )


@given(st.integers(1, 20), st.integers(1, 20), st.integers(0, 3), st.integers(0, 99))
def test_singular_values_come_near_one_and_vectors_stay(rows, columns, number, seed):
    """U·Vᵀ is the judge: what an SVD makes of the same matrix."""
    shape = (number, rows, columns) if number else (rows, columns)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    u, s, v = torch.linalg.svd(x, full_matrices=False)
    found = u.mT @ orthogonal(x) @ v.mT
    values = found.diagonal(dim1=-2, dim2=-1)
    assert (found - torch.diag_embed(values)).abs().max() < 1e-9
    large = s > 0.02 * torch.linalg.vector_norm(s, dim=-1, keepdim=True)
    assert ((values[large] > 0.6) & (values[large] < 1.3)).all()


@given(shapes() | deepseek_shapes(), st.sampled_from(list(RUNS)))
@settings(max_examples=40, deadline=None)
def test_one_device_keeps_what_is_predicted(shape, recipe):
    run = RUNS[recipe]
    model = Transformer(shape, dtype=run["dtype"])
    engine = Engine.on_one_device(model)
    use_muon(engine, **OPTIMIZER)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    engine.step()
    told = predict(shape, seq=8, recipe=recipe, device="cpu", optimizer="muon").stages[0]
    assert kept(engine)["optimizer"] == told.optimizer


@pytest.mark.parametrize("recipe", RUNS)
def test_the_fullest_moment_of_an_update(recipe):
    """Wide blocks and a small vocabulary, so that a matrix needs most: predicted within what scalars take."""
    shape, run = BLOCKS["llama"].replace(hidden=96, ffn=200), RUNS[recipe]
    model = Transformer(shape, dtype=run["dtype"])
    engine, dtype = Engine.on_one_device(model), run["autocast"] or run["dtype"]
    use_muon(engine, **OPTIMIZER, dtype=dtype)
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        with MemoryTimeline(model, engine.optimizers[0]) as timeline:
            engine.step()
    job = Job(shape, seq=8, recipe=recipe, device="cpu", optimizer="muon")
    stage, moment = predict_job(job).stages[0], optimizer_moment(job)
    told = stage.parameters + stage.optimizer + stage.buffers + moment.bytes
    assert told == pytest.approx(max(timeline.curves().total), rel=2e-3)


WIDE = BLOCKS["llama"].replace(hidden=96, heads=8, kv_heads=8, ffn=200, layers=3)


def peaks(layouts: list[tuple[str, str]]) -> list[int]:
    """In a rank, the most that an update has beside weights, gradients and states."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for text, way in layouts:
            mesh = Mesh(Layout.parse(text).replace(muon=way))
            case = Case(WIDE, optimizer="muon", samples=2)
            engine, share = case.engine(mesh), 2 // mesh.size("dp")
            for step in range(2):
                here = slice(mesh.index("dp") * share, (mesh.index("dp") + 1) * share)
                engine.zero_grad()
                engine.accumulate(*(t[here] for t in case.batch(step)), share)
                held = engine.tensors()
                with peak_bytes(engine.model, engine.optimizers[0], held) as peak:
                    engine.step()
            found.append(peak.bytes - sum(t.nbytes for some in held.values() for t in some))
    return found


def test_what_an_update_works_with_on_ranks(ranks):
    """An estimate that is never below what was measured, and not far above."""
    layouts = [(text, way) for text in ("dp=2", "dp=2,zero=1", "dp=2,zero=3", "tp=2") for way in MUON]
    found = zip(*(rank.value for rank in ranks(peaks, layouts, ranks=2)), strict=True)
    for (text, way), measured in zip(layouts, found, strict=True):
        job = Job(
            WIDE, Layout.parse(text).replace(muon=way), seq=9, recipe="fp32", device="cpu", optimizer="muon"
        )
        assert max(measured) <= optimizer_moment(job).working * 1.02 <= 1.7 * max(measured), (text, way)


def optimizer_moment(job: Job) -> Moment:
    seen: list[Moment] = []
    with mock.patch.object(memory, "moments", lambda *given: seen.extend(moments(*given)) or seen):
        predict_job(job)
    assert seen[-1].name == "optimizer"
    return seen[-1]


def test_flops_are_those_of_products():
    rows, columns, number = 12, 20, 3
    with FlopCounterMode(display=False) as counter:
        orthogonal(torch.randn(number, rows, columns))
    assert Matrix(number, rows, columns, ()).flops == counter.get_total_flops()


@pytest.mark.parametrize("way", MUON)
@given(st.data())
@settings(max_examples=60)
def test_every_part_comes_and_every_part_of_the_update_goes_back(way, data):
    """Whoever makes a matrix has all its parts then, whoever has a part gets its update, and nothing twice."""
    ranks = data.draw(st.integers(1, 6))
    holders = st.sets(st.integers(0, ranks - 1), min_size=1).map(lambda some: tuple(sorted(some)))
    parts = st.lists(st.builds(Part, st.integers(1, 9), holders), min_size=1, max_size=5).map(tuple)
    matrices = data.draw(st.lists(st.builds(Matrix, st.just(1), st.integers(1, 9), st.integers(1, 9), parts)))
    seen: Counter[int] = Counter()
    for together in rounds(matrices, ranks, way):
        assert way != "all-to-all" or len({owner for _, owner in together}) == len(together)
        for i, owner in together:
            seen[i] += 1
            makers = matrices[i].makers(way, owner)
            came = Counter((part, to) for part, source, to in matrices[i].there(makers))
            back = Counter((part, to) for part, source, to in matrices[i].back(makers))
            assert all(
                source in matrices[i].parts[part].holders for part, source, _ in matrices[i].there(makers)
            )
            for k, part in enumerate(matrices[i].parts):
                assert all(came[k, rank] + (rank in part.holders) == 1 for rank in makers)
                assert all(back[k, rank] + (rank in makers) == 1 for rank in part.holders)
            assert not set(came.values()) - {1}
    assert seen == Counter(range(len(matrices)))


@pytest.mark.parametrize(("given", "words"), [
    ({"offload": True}, "offload is True, but optimizer is muon"),
    ({"moments": "bf16"}, "moments is bf16, but optimizer is muon"),
    ({"optimizer": "adamw", "muon_lr": 1e-3}, "muon_lr is 0.001, but"),
    ({"optimizer": "adamw", "layout": Layout(muon="owner")}, "muon is owner, but optimizer is adamw"),
    ({"lr": 0.0, "muon_lr": 1e-3}, "muon_lr is 0.001, but"),
    ({"layout": Layout.parse("dp=2").replace(find_unused=True)}, "leave find_unused out"),
    ({"layout": Layout.parse("dp=2").replace(data_parallel="local:2")}, "leave data_parallel=local:2 out"),
    ({"optimizer": "lion"}, "optimizer must be one of adamw, muon"),
])  # fmt: skip
def test_what_cannot_be_is_refused_in_one_sentence(given, words):
    with pytest.raises(ConfigError, match=words) as error:
        TrainConfig(**{"optimizer": "muon", **given})
    assert "\n" not in str(error.value)


def test_gathered_by_all_the_update_costs_what_no_share_of_it_does():
    """70B on 64 GPUs: every rank makes every update, or one of 64; the rest of the step is the same."""
    job = {
        "model": "llama3-8b",
        "cluster": "h100-8",
        "gpus": 64,
        "layout": "zero=1",
        "global_batch": 64,
        "seq": 8192,
        "optimizer": "muon",
    }
    all_, owner, together = (run_of({**job, "muon": way}).breakdown["optimizer"] for way in MUON)
    adam = run_of({**job, "optimizer": "adamw"}).breakdown["optimizer"]
    assert adam < together <= owner < all_ / 20
    flops = sum(
        STEPS * (4 * min(r, c) ** 2 * max(r, c) + 2 * min(r, c) ** 3) * 32
        for r, c in [(4096, 4096)] * 2 + [(1024, 4096)] * 2 + [(14336, 4096)] * 3
    )
    assert all_ > flops / 989e12
