"""What the ranks of a pipeline save, keep and send: as the formulas say, to the byte, for every schedule."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from helpers import BLOCKS, DEEPSEEK
from parallel_runs import Case, nothing

from playbook import launch
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.instruments.memory_timeline import peak_bytes
from playbook.kernels import jit
from playbook.layout import SCHEDULES, Layout
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.planning.traffic import total, traffic
from playbook.schedules.validate import schedule_of
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens
from playbook_book.instruments.kept_activations import KeptActivations

SEQ, MICRO = 8, 2
#: Odd sizes; nine layers do not divide into stages.
GPT = BLOCKS["gpt"].replace(layers=9, hidden=24, heads=4, vocab=37)
LLAMA = BLOCKS["llama"].replace(layers=9, hidden=24, heads=6, kv_heads=2, ffn=50, vocab=37)
LATENT = DEEPSEEK.replace(layers=4, moe=None, heads=4, bias=True, qkv_bias=False, ffn=52)
#: One micro-batch after another, B and W apart: a schedule of one's own, for two ranks with three stages.
OWN = schedule_of(
    {
        "name": "own",
        "ranks": [
            [{"op": op, "stage": s, "microbatch": m} for m in range(2) for op, s in steps]
            for steps in (
                [("F", 0), ("F", 2), ("B", 2), ("B", 0), ("W", 0), ("W", 2)],
                [("F", 1), ("B", 1), ("W", 1)],
            )
        ],
    }
)

Runs = list[tuple[ModelShape, str, dict[str, Any]]]


def steps(runs: Runs, peak: bool = False, kernels: str = "torch") -> list[dict[str, Any]]:
    """In a rank, of each run: bytes kept for backward, of states and, where embeddings are tied or gradients
    shared, sent in a second step; or the ``peak`` of the second step.
    """
    torch.set_num_threads(1)
    found = []
    with mock.patch.object(jit, "interpret", new=nothing), launch.process_group():
        for shape, text, options in runs:
            layout = Layout.parse(text).replace(**options)
            mesh, case = Mesh(layout), Case(shape, layout.recompute, seq=SEQ, kernels=kernels)
            engine: Any = parallelize(case.model(), mesh, case.make())
            batch = torch.randint(shape.vocab, (MICRO * layout.grad_acc, SEQ))
            given = own_tokens(batch, batch.clone(), mesh, "zigzag")
            with KeptActivations(engine.pipeline) as kept:
                step(engine, *given)
            one: dict[str, Any] = {"place": mesh.index("pp"), "kept": kept.peak}
            if peak:
                with peak_bytes(engine.model, engine.optimizers[0], engine.tensors()) as most:
                    step(engine, *given)
                one["peak"] = most.bytes
            elif shape.tied or layout.zero == 2:
                with CountBytes(traffic_groups(engine)) as count:
                    step(engine, *given)
                one |= {kind: count["pp"][kind].sent for kind in ("send", "all_reduce")}
                one["scattered"] = count["dp"]["reduce_scatter"].sent
            found.append(one | {kind: sum(t.nbytes for t in ts) for kind, ts in engine.tensors().items()})
    return found


def step(engine: Any, x: torch.Tensor, y: torch.Tensor, where: torch.Tensor | None) -> None:
    engine.zero_grad()
    engine.accumulate(x, y, MICRO, where)
    engine.clip(1.0)
    engine.step()


def check(ranks, runs: Runs, world: int, kernels: str = "torch") -> None:
    for rank, mine in enumerate(ranks(steps, runs, False, kernels, ranks=world).values):
        for (shape, text, options), one in zip(runs, mine, strict=True):
            layout, place = Layout.parse(f"{text},micro_batch={MICRO}").replace(**options), one["place"]
            how = {"recipe": "fp32", "device": "cpu", "fused": kernels == "fused"}
            told = predict(shape, layout, seq=SEQ, **how).stages[place]
            assert one["kept"] == told.activations, (text, place)
            states = [one[kind] for kind in ("parameters", "gradients", "optimizer")]
            assert states == [told.parameters, told.gradients, told.optimizer], (text, place)
            if layout.zero == 2:  # every micro-batch; in a DualPipe half of them, on twice as many ranks
                scattered = layout.grad_acc // 2 * (2 * layout.dp - 1) * told.gradients
                assert one["scattered"] == scattered, (text, place)
            if not shape.tied:
                continue
            found = traffic(shape, layout, SEQ, rank=rank, recipe="fp32")
            sent = {m.collective: m.total for m in found if m.axis == "pp" and m.payload > 8}
            assert one["send"] == total(found, "pp", "forward") + total(found, "pp", "backward"), (
                text,
                place,
            )
            tied = one["all_reduce"] - sent.get("all_reduce", 0)
            assert 0 <= tied <= 3 * 8, (text, place)  # the norm, the loss, tokens


def of(name: str, microbatches: int) -> str:
    chunks = ",vpp=2" if name in ("interleaved", "breadth-first") else ""
    return f"schedule={name},grad_acc={microbatches}{chunks}"


def test_every_schedule(ranks):
    """With stages that are not alike."""
    check(ranks, [(LLAMA.replace(layers=5), f"pp=2,{of(name, 4)}", {}) for name in SCHEDULES], 2)


def test_latent_attention(ranks):
    """Of which W needs the latents, compressed queries or not."""
    direct = LATENT.replace(mla={**vars(LATENT.mla), "q_rank": None})
    runs: Runs = [
        (shape, f"pp=2,{of(name, 4)}", {}) for shape in (LATENT, direct) for name in ("zb-h1", "zb-v")
    ]
    check(ranks, runs, 2)


def test_adapters(ranks):
    """Of which both factors wait between B and W, and of frozen matrices nothing."""
    shapes = [shape.replace(layers=4, train="lora:3") for shape in (GPT, LLAMA, LATENT)]
    check(
        ranks,
        [(shape, f"pp=2,{of(name, 4)}", {}) for shape in shapes for name in ("1f1b", "zb-h1", "zb-v")],
        2,
    )
    check(ranks, [(shapes[1], f"pp=2,tp=2,sp,{of(name, 2)}", {}) for name in ("1f1b", "zb-h1")], 4)


def test_ranks_in_the_middle(ranks):
    """As many micro-batches as fill the longest pipeline; tied tables, on two ranks, on one, and on all of a way."""
    runs: Runs = [(GPT, f"pp=4,{of(name, 8)}", {}) for name in ("interleaved", "zb-v", "dualpipe")]
    check(ranks, [*runs, (LLAMA, f"pp=4,{of('zb-h1', 5)}", {})], 4)


def test_with_every_other_axis(ranks):
    runs: Runs = [
        (GPT, "pp=2,tp=2,schedule=zb-h2,grad_acc=3", {}),
        (LLAMA, "pp=2,tp=2,sp,schedule=zb-v,grad_acc=3", {}),
        (LLAMA, "pp=2,cp=2,schedule=zb-h2,grad_acc=3", {}),
        (LLAMA, "pp=2,dp=2,zero=1,schedule=zb-h1,grad_acc=2,recompute=full", {}),
        (LLAMA, "pp=2,dp=2,zero=2,schedule=dualpipe,grad_acc=4,recompute=selective", {}),
        (LLAMA, "pp=2,dp=2,zero=3,vpp=2,schedule=breadth-first,grad_acc=4", {}),
        (GPT, "pp=2,dp=2,zero=3,schedule=zb-h1,grad_acc=3,recompute=full", {}),
        (GPT, "pp=2,tp=2,sp,schedule=1f1b,grad_acc=2", {"stage_layers": (2, 7)}),
    ]
    few = [(shape.replace(layers=5), text, options) for shape, text, options in runs[:-1]]
    check(ranks, [*few, runs[-1]], 4)


def test_with_fused_kernels(ranks):
    """Of which the loss leaves nothing for W."""
    runs: Runs = [
        (LLAMA.replace(layers=5), "pp=2,dp=2,schedule=zb-h1,grad_acc=3", {}),
        (LLAMA.replace(layers=5), "pp=2,tp=2,sp,schedule=zb-v,grad_acc=3", {}),
        (GPT.replace(layers=5), "pp=2,cp=2,schedule=1f1b,grad_acc=2,recompute=selective", {}),
    ]
    check(ranks, runs, 4, "fused")


def test_a_schedule_of_ones_own(ranks):
    given = {"own_schedule": OWN, "stage_layers": (2, 4, 3)}
    check(
        ranks,
        [
            (LLAMA, "pp=2,grad_acc=2", given),
            (GPT, "pp=2,grad_acc=2,recompute=full", given),
            (GPT, "pp=2,grad_acc=2,recompute=full:1", given),
        ],
        2,
    )


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_the_fullest_moment_is_about_as_foretold(ranks, name):
    """Within a tenth for a model whose weights weigh more than its messages."""
    shape = LLAMA.replace(layers=6, hidden=96, heads=6, ffn=256, vocab=300)
    text = f"pp=2,{of(name, 4)}"
    for (one,) in ranks(steps, [(shape, text, {})], True, ranks=2).values:
        layout = Layout.parse(f"{text},micro_batch={MICRO}")
        told = predict(shape, layout, seq=SEQ, recipe="fp32", device="cpu").stages[one["place"]].total
        assert told == pytest.approx(one["peak"], rel=0.1)
