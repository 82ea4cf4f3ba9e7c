"""Pipelines of every schedule, alone and with other axes: the losses, norms and gradients of one device, in the
messages that are predicted."""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import Case, flat, on_ranks, reference
from traffic_runs import check_run

from playbook import launch
from playbook.errors import ScheduleError
from playbook.launch import RankError
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.parallel.pipeline import Pipeline
from playbook.schedules.catalogue import make
from playbook.schedules.timeline import Times

TOLERANCE = 1e-5
#: One layer more than two in each stage of four ranks: stages are uneven. Samples have 9 tokens, the vocabulary 37 words.
SMALL = BLOCKS["llama"].replace(layers=9, hidden=16, heads=4, kv_heads=2, ffn=24, vocab=37)
GPT = BLOCKS["gpt"].replace(layers=4, hidden=16, heads=4, vocab=37, dropout=0.0)
NAMES = (
    "naive",
    "afab",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zb-h1",
    "zb-h2",
    "zb-2p",
    "zb-v",
    "dualpipe",
    "dualpipev",
)


def check(ranks, runs: list[tuple[Case, str, dict[str, Any]]], world: int) -> None:
    for rank, found in enumerate(ranks(on_ranks, runs, None, True, ranks=world).values):
        for (case, text, options), run in zip(runs, found, strict=True):
            assert run.error(reference(case)) <= TOLERANCE, (rank, text, options)
            check_run(case, text, options, rank, run)


#: Micro-batches of p ranks: fewer than ranks, as many, twice as many, and 3p + 1; on two ranks a schedule has both
#: numbers, on more the first that it takes.
MICRO_BATCHES = {2: (4, 7), 3: (2, 6), 4: (4, 8)}


def allowed(p: int) -> list[tuple[str, int, int]]:
    """Schedule, micro-batches and chunks."""
    found = []
    for name in NAMES:
        vpp, taken = 2 if name in ("interleaved", "breadth-first") else 1, []
        for m in MICRO_BATCHES[p]:
            with suppress(ScheduleError):
                make(name, p, m, vpp)
                taken.append((name, m, vpp))
        found += taken[: 2 if p == 2 else 1]
    return found


@pytest.mark.parametrize("p", MICRO_BATCHES)
def test_every_schedule(ranks, p):
    runs = []
    for i, (name, m, vpp) in enumerate(allowed(p)):
        # A second step finds what the first may have left behind.
        halves = vpp == 2 or name in ("zb-v", "dualpipe", "dualpipev")
        shape = SMALL.replace(layers=(2 if halves else 1) * p + 1, tied=bool(i % 2))
        case = Case(shape, steps=2 if (p, m) == (2, 4) else 1, samples=2 * m)
        # The schedule is given: the layout has no name for some.
        runs.append((case, f"pp={p},grad_acc={m}", {"own_schedule": make(name, p, m, vpp)}))
    assert {name for name, *_ in allowed(p)} >= set(NAMES) - ({"dualpipe"} if p % 2 else set())
    check(ranks, runs, p)


def freeze_embedding(model: Any) -> None:
    model.embedding.requires_grad_(False)


def test_with_other_axes(ranks):
    shape = SMALL.replace(layers=5)
    # With ZeRO a second step, which has the weights that ranks gave each other after the first.
    tied, untied = (Case(shape.replace(tied=tied), steps=2) for tied in (True, False))
    one_tied, one_untied = (replace(case, steps=1) for case in (tied, untied))
    few = Case(shape.replace(layers=3, tied=True), steps=2)  # for a rank has one stage
    one_few = replace(few, steps=1)
    frozen = replace(one_few, prepare=freeze_embedding)
    small = {"bucket": 3000, "first_bucket": 1000}
    runs = [
        (few, "pp=2,dp=2,zero=1,grad_acc=3", small),
        (frozen, "pp=2,dp=2,grad_acc=3", {}),
        (one_tied, "pp=2,dp=2,zero=2,grad_acc=4,schedule=zb-v", small),
        (untied, "pp=2,dp=2,zero=2,grad_acc=4,schedule=dualpipe", small),
        (few, "pp=2,dp=2,zero=3,grad_acc=3", {}),
        (one_untied, "pp=2,dp=2,zero=3,grad_acc=4,vpp=2,schedule=breadth-first", {}),
        (untied, "pp=2,dp=2,zero=3,grad_acc=4,vpp=2,schedule=interleaved", {"reshard": False}),
        (one_tied, "pp=2,dp=2,zero=3,grad_acc=4,schedule=zb-v", {}),
        (untied, "pp=2,dp=2,zero=3,grad_acc=4,schedule=dualpipe", {"prefetch": False}),
        (one_tied, "pp=2,dp=2,grad_acc=4,schedule=dualpipev", {"data_parallel": "naive"}),
        (one_few, "pp=2,dp=2,grad_acc=4,schedule=zb-h1", {"data_parallel": "overlapped"}),
        (replace(few, samples=10), "pp=2,dp=2,zero=2,grad_acc=3", small),  # 2, 2 and 1
        (one_few, "pp=2,tp=2,grad_acc=4,schedule=zb-h1", {}),
        (one_tied, "pp=2,tp=2,sp,grad_acc=4,schedule=zb-v", {"tensor_overlap": "chunked"}),
        (one_untied, "pp=2,cp=2,grad_acc=4,vpp=2,schedule=interleaved", {}),
        (Case(GPT, "full", steps=2), "pp=2,dp=2,zero=1,grad_acc=4,schedule=zb-h1", {"gather": "lazily"}),
        (Case(GPT, "selective", steps=1), "pp=2,tp=2,sp,grad_acc=3", {"stage_layers": (3, 1)}),
    ]
    check(ranks, runs, 4)


def freeze_first_half(model: Any) -> None:
    for part in (model.embedding, model.blocks[:5]):
        part.requires_grad_(False)


def test_a_rank_without_weights_that_learn_is_named(ranks):
    with pytest.raises(RankError, match=r"rank 0 has no weight that learns"):
        ranks(on_ranks, [(Case(SMALL, prepare=freeze_first_half), "pp=2,grad_acc=2", {})], ranks=2)


def in_bfloat16(engine: Any, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """The whole gradient of a step whose products run in ``dtype``."""
    engine.accumulate(*Case(SMALL, samples=4).batch(0), 1, dtype=dtype)
    return flat(engine.gradients_whole())


def test_products_in_16_bits(ranks):
    case = Case(SMALL, samples=4)

    def work() -> torch.Tensor:
        with launch.process_group():
            layout = Layout.parse("pp=2,grad_acc=4,schedule=zb-h1")
            return in_bfloat16(parallelize(case.model(), Mesh(layout), case.make()))

    wanted, other = in_bfloat16(case.engine()), in_bfloat16(case.engine(), torch.float32)
    for found in ranks(work, ranks=2).values:
        assert (found - wanted).norm() < 0.1 * (other - wanted).norm()


def test_eight_ranks(ranks):
    tied = Case(SMALL.replace(layers=5, tied=True), steps=2)
    runs = [
        (tied, "pp=2,tp=2,sp,dp=2,zero=2,grad_acc=4,schedule=dualpipev", {}),
        (
            replace(tied, shape=tied.shape.replace(layers=3)),
            "pp=2,tp=2,cp=2,zero=1,grad_acc=2,schedule=zb-h1",
            {},
        ),
        (Case(SMALL, steps=1), "pp=8,grad_acc=8", {}),
    ]
    check(ranks, runs, 8)


def test_measured_times_make_schedules_that_run(ranks):
    """Fitted to uneven stages, an order that no name has."""
    times = Times((1.0, 1.3, 0.9), (1.1, 1.0, 2.0), (0.5, 0.7, 0.4), comm=0.05)
    fitted = make("zb-2p", 3, 8, 1, times, limit=4.5, rest=0.4)
    check(ranks, [(Case(SMALL, steps=2), "pp=3,grad_acc=8", {"own_schedule": fitted})], 3)


#: Two hundred and more actions on each rank, each at a random moment.
REPETITIONS = 7


def restless(name: str, repetitions: int) -> tuple[list[float], int]:
    """In a rank: losses of one step, again and again, in which every action comes at a random moment; and the most
    messages held that were sent.
    """
    torch.set_num_threads(1)
    held = [0]
    draw = random.Random(int(os.environ["RANK"]))

    class Restless(Pipeline):
        def _act(self, *args):
            time.sleep(draw.random() * 1e-3)
            super()._act(*args)
            held.append(sum(len(channel._leaving) for channel in self.channels.values()))

    with launch.process_group(timeout=300):
        layout = Layout.parse(f"pp=4,grad_acc=8,schedule={name}{',vpp=2' if name == 'interleaved' else ''}")
        case = Case(SMALL, samples=8)
        engine = parallelize(case.model(), Mesh(layout), case.make())
        engine.pipeline.__class__ = Restless
        x, y = case.batch(0)
        losses = []
        for _ in range(repetitions):
            engine.zero_grad()
            losses.append(float(engine.accumulate(x, y, 1)))
    return losses, max(held)


@pytest.mark.parametrize("name", ["interleaved", "dualpipe"])
def test_no_deadlock_whatever_the_moment(ranks, name):
    for losses, held in ranks(restless, name, REPETITIONS, ranks=4).values:
        assert held < 16  # the peer's messages say what has arrived
        assert len(losses) == REPETITIONS
        assert max(losses) == pytest.approx(min(losses), rel=1e-6)
