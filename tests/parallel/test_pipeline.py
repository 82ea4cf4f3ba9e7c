"""What the engine of a pipeline does besides giving the right numbers: what is deferred, what is kept."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from helpers import BLOCKS
from parallel_runs import OPTIMIZER, Case

from playbook import launch
from playbook.layout import Layout
from playbook.model.linear import DeferredGradients, defer_weights
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.training.optimizer import adamw

CASE = Case(BLOCKS["llama"].replace(layers=4, hidden=16, heads=4, kv_heads=2, ffn=24), samples=4)
LINEARS = 7  # of a block: q, k, v, o, gate, up, down


def deferred(text: str, recompute: str = "none") -> list[int]:
    """Of a step on this rank: how many weights of linear layers each W multiplies."""
    found: list[int] = []
    with launch.process_group():
        engine: Any = parallelize(
            replace(CASE, recompute=recompute).model(), Mesh(Layout.parse(text)), partial(adamw, **OPTIMIZER)
        )
        compute = DeferredGradients.compute

        def look(waiting, kept):
            found.append(len(kept))
            compute(waiting, kept)

        engine.pipeline.deferred.compute = partial(look, engine.pipeline.deferred)
        engine.accumulate(*CASE.batch(0), 1)
        with pytest.raises(RuntimeError, match="run stages, or an engine's accumulate, not the model"):
            engine.model(CASE.batch(0)[0])
    return found


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_w_has_every_linear_layer_of_its_stage(ranks, recompute):
    first, last = ranks(deferred, "pp=2,grad_acc=4,schedule=zb-h1", recompute, ranks=2).values
    assert first == [2 * LINEARS] * 4
    assert last == [2 * LINEARS + 1] * 4  # and the head


def test_without_w_nothing_is_deferred(ranks):
    assert ranks(deferred, "pp=2,grad_acc=4", ranks=2).values == [[], []]


def waited_for() -> list[int]:
    """In a rank: of two steps, how many messages it has sent, and for how many of these it has waited."""
    sent: list[dist.Work] = []
    waited: list[int] = []
    send = dist.isend

    class Watched:
        def __init__(self, work: dist.Work):
            self.work = work

        def wait(self) -> None:
            self.work.wait()
            waited.append(id(self))

    def watch(*args: Any) -> Watched:
        sent.append(Watched(send(*args)))
        return sent[-1]

    with launch.process_group(), mock.patch.object(dist, "isend", watch):
        engine = parallelize(CASE.model(), Mesh(Layout.parse("pp=4,grad_acc=4")), CASE.make())
        counts = []
        for step in range(2):
            engine.accumulate(*CASE.batch(step), 1)
            counts += [len(sent), len(set(waited))]
    return counts


def test_after_a_step_every_message_is_out(ranks):
    """With NCCL the memory of a message that nobody has waited for would be used again too early."""
    for rank, (sent, waited, sent_in_all, waited_in_all) in enumerate(ranks(waited_for, ranks=4).values):
        each = 4 if rank in (0, 3) else 8
        assert sent_in_all - sent == each
        assert sent >= each  # and a header before the first of a kind
        assert (waited, waited_in_all) == (sent, sent_in_all)


@pytest.mark.parametrize("wanted", [True, False])
def test_under_autocast_no_layer_keeps_a_16_bit_copy_of_its_weight(wanted):
    """Torch's own layers would, one for each micro-batch: backward needs the copy that forward has cast."""
    model, deferred, kept = CASE.model(), DeferredGradients(in_place=True), set()
    defer_weights(model, deferred)
    deferred.wanted = wanted

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.add((tensor.dtype, tuple(tensor.shape)))
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16),
    ):
        model.loss(*CASE.batch(0))
    shapes = {tuple(p.shape) for p in model.parameters() if p.dim() == 2}
    shapes |= {shape[::-1] for shape in shapes}
    assert not kept & {(torch.bfloat16, shape) for shape in shapes}
    assert kept & {(torch.float32, shape) for shape in shapes}
