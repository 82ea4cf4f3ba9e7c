"""Communication hides behind compute: what starts before what, in the traces of real ranks.

Two ranks may share a core with others, so that a thread of Gloo may start late for no reason of ours. Durations are
never compared. What a rank *asks for* early it asks for early in every step; that it also *started* early is wanted of
one gather in a few steps, and of the first reduction, which has the whole backward pass to start in, always.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from playbook import launch
from playbook.instruments.rank_trace import record_step, together
from playbook.instruments.trace import Trace
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.overlap import (
    collectives,
    gathers,
    hidden,
    last_gradient,
    overlaps_backward,
    reductions,
)

LAYERS = 3
SHAPE = load("tiny").replace(layers=LAYERS, hidden=128, ffn=344)
BUCKETS = {"bucket": 2**18, "first_bucket": 2**15}


def record(text: str, steps: int, recompute: str, data_parallel: str, options: dict[str, Any]) -> list[Trace]:
    """In a rank: traces of some steps, after two in which ranks agree on parameters in use and count bytes."""
    with launch.process_group():
        layout = Layout.parse(text).replace(data_parallel=data_parallel, **options)
        config = TrainConfig(
            steps=steps + 2, global_batch=8, seq=64, layout=layout, recompute=recompute,
            micro_batch=4 // layout.grad_acc,
        )  # fmt: skip
        trainer = make_trainer(SHAPE, load_corpus(), config, Mesh(layout))
        trainer.step()
        trainer.step()
        return [record_step(trainer.step, trainer.model) for _ in range(steps)]


@pytest.fixture(scope="module")
def traced(ranks):
    """``traced("dp=2,zero=3", prefetch=False)``: for each of the recorded steps, the traces of both ranks."""
    known: dict[str, list[tuple[Trace, ...]]] = {}

    def run(
        text: str, steps: int = 1, recompute: str = "none", data_parallel: str = "bucketed", **options: Any
    ) -> list[tuple[Trace, ...]]:
        key = repr((text, steps, recompute, data_parallel, options))
        if key not in known:
            work = partial(record, text, steps, recompute, data_parallel)
            known[key] = list(zip(*ranks(work, options, ranks=2).values, strict=True))
        return known[key]

    return run


def each(steps: list[tuple[Trace, ...]]) -> list[Trace]:
    return [trace for step in steps for trace in step]


# ---- gradients


def test_naive_starts_no_reduction_before_the_last_gradient(traced):
    for trace in each(traced("dp=2", data_parallel="naive")):
        found = reductions(trace)
        assert sum(event.args["bytes"] for event in found) == 4 * SHAPE.num_parameters
        assert all(min(e.start, e.args["issued"]) > last_gradient(trace) for e in found)
        assert not overlaps_backward(trace)


OVERLAPPING = {
    "overlapped": ("dp=2", {"data_parallel": "overlapped"}),
    "bucketed": ("dp=2", BUCKETS),
    "zero 1": ("dp=2,zero=1", BUCKETS),
    "zero 2": ("dp=2,zero=2", BUCKETS),
    "zero 3": ("dp=2,zero=3", {}),
}


@pytest.mark.parametrize("kind", OVERLAPPING)
def test_with_hooks_the_first_reduction_starts_before_the_last_gradient(traced, kind):
    layout, options = OVERLAPPING[kind]
    for trace in each(traced(layout, **options)):
        found = reductions(trace)
        assert {event.name for event in found} == {"reduce_scatter" if "zero" in layout else "all_reduce"}
        assert sum(event.args["bytes"] for event in found) == 4 * SHAPE.num_parameters
        # Asked for before, that is: when Gloo's thread gets a core is up to the machine.
        assert found[0].args["issued"] < last_gradient(trace)


def test_one_bucket_for_everything_overlaps_nothing(traced):
    """So it is the buckets that overlap, and the question can be answered with no."""
    whole = 4 * SHAPE.num_parameters
    for trace in each(traced("dp=2", bucket=whole, first_bucket=whole)):
        assert [event.args["bytes"] for event in reductions(trace)] == [whole]
        assert not overlaps_backward(trace)


@pytest.mark.parametrize(
    ("layout", "every"), [("dp=2", False), ("dp=2,zero=1", False), ("dp=2,zero=2", True)]
)
def test_of_several_micro_batches_the_last_one_sends(traced, layout, every):
    """But stage 2, which has no place to keep whole gradients, sends those of each."""
    for trace in each(traced(f"{layout},grad_acc=2", **BUCKETS)):
        passes = [event for event in trace.events if event.name == "backward"]
        early = [event for event in reductions(trace) if event.args["issued"] < passes[1].start]
        assert len(passes) == 2
        assert bool(early) is every
        assert len(reductions(trace)) == len(early) * 2 if every else not early


# ---- weights


def pairs(trace: Trace) -> list[tuple[bool, int]]:
    return [(gather.backward, gather.block) for gather in gathers(trace)]


FORWARD, BACKWARD = [(False, block) for block in (1, 2)], [(True, block) for block in (1, 0)]


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_prefetch_gathers_a_block_before_the_one_before_it_ends(traced, recompute):
    recorded = each(traced("dp=2,zero=3", steps=3, recompute=recompute))
    for trace in recorded:
        assert pairs(trace) == FORWARD + BACKWARD
        assert all(gather.issued < gather.before_ended for gather in gathers(trace))
    assert any(gather.early for trace in recorded for gather in gathers(trace))


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_without_prefetch_no_gather_begins_before_it_is_needed(traced, recompute):
    for trace in each(traced("dp=2,zero=3", recompute=recompute, prefetch=False)):
        assert pairs(trace) == FORWARD + BACKWARD
        for gather in gathers(trace):
            assert gather.issued > gather.before_ended
            assert not gather.early


def gathers_left(gather: str) -> list[bool]:
    """In a rank: of each bucket's gather after the first step, whether it was still going on when the second step's
    first module began. If lazily, rank 1 takes part in none before rank 0 has answered."""
    with launch.process_group():
        layout = Layout(dp=2, zero=1, gather=gather, **BUCKETS)
        config = TrainConfig(steps=2, global_batch=4, seq=32, layout=layout)
        trainer = make_trainer(SHAPE, load_corpus(), config, Mesh(layout))
        weights, store = trainer.engine.sets[0].weights, dist.distributed_c10d._get_default_store()
        late = weights.all_gather if gather == "lazily" and dist.get_rank() == 1 else None
        if late:
            weights.all_gather = lambda: None
        trainer.step()
        going_on = []

        def begins(*_: Any) -> None:
            if late:
                store.wait(["answered"])
                weights.all_gather = late
                late()
            else:
                going_on.extend(not work.is_completed() for work in weights.works.values())
                store.set("answered", "yes")

        trainer.model.embedding.register_forward_pre_hook(begins, prepend=True)
        trainer.step()
        weights.wait()
        return going_on


@pytest.mark.parametrize("gather", ["lazily", "after"])
def test_lazy_gathers_go_on_while_the_next_step_computes(ranks, gather):
    """What the step asks for first, its number of tokens, does not wait for them: else rank 0 would never answer."""
    going_on = ranks(gathers_left, gather, ranks=2).values[0]
    assert all(going_on)
    assert (len(going_on) > LAYERS) is (gather == "lazily")


# ---- the traces themselves


def parts(trace: Trace, which: str) -> list[str]:
    return [event.args["part"] for event in trace.events if event.args.get("pass") == which]


def test_blocks_lie_in_their_passes(traced):
    order = ["embedding", *(f"block {i}" for i in range(LAYERS)), "head"]
    for trace in each(traced("dp=2,grad_acc=2", **BUCKETS)):
        assert parts(trace, "forward") == order * 2
        assert parts(trace, "backward") == order[::-1] * 2
        passes = [e for e in trace.events if e.name in ("forward", "backward")]
        assert [e.name for e in passes] == ["forward", "backward"] * 2
        for event in (e for e in trace.events if e.args.get("pass") in ("forward", "backward")):
            around = next(p for p in reversed(passes) if p.start <= event.start)
            assert around.name == event.args["pass"]
            assert event.end <= around.end + 1


def test_what_backward_computes_again_is_no_forward_pass(traced):
    for trace in each(traced("dp=2,zero=3", recompute="full", prefetch=False)):
        assert parts(trace, "forward") == ["embedding", "block 0", "block 1", "block 2", "head"]
        assert parts(trace, "recompute") == ["block 2", "block 1", "block 0"]
        assert parts(trace, "backward") == ["head", "block 2", "block 1", "block 0", "embedding"]


def test_ranks_lie_on_one_time_axis(traced):
    """No rank is done with an all-reduce before all have begun it, in whatever order they come to it."""
    (step,) = traced("dp=2", data_parallel="naive")
    for a, b in zip(*(reductions(trace) for trace in step), strict=True):
        assert a.args["bytes"] == b.args["bytes"]
        assert max(a.start, b.start) < min(a.end, b.end) + 1
    assert min(trace.start for trace in step) == pytest.approx(0, abs=1)
    whole = together(list(step))
    assert [lane.name for lane in whole.lanes] == [
        f"rank {rank} · {name}" for rank in (0, 1) for name in ("compute", "communication")
    ]
    assert len(whole) == sum(len(trace) for trace in step)


def test_what_is_hidden_and_what_is_exposed_is_all_communication(traced):
    for trace in each(traced("dp=2", **BUCKETS)):
        found = hidden(trace)
        assert found.hidden > 0
        assert found.communication <= sum(event.duration for event in collectives(trace)) + 1e-6
        assert 0 < found.fraction <= 1
