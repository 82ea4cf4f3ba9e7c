"""What is counted on the wire, and kept in memory, is what the formulas say: exactly."""

from __future__ import annotations

import itertools

import pytest
import torch
from helpers import BLOCKS
from parallel_runs import BATCH, Case, train

from playbook import launch
from playbook.instruments.counting import CountBytes
from playbook.layout import Layout
from playbook.layout.options import ParallelOptions
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.planning.sharding import share_of, traffic
from playbook.shapes import ModelShape

#: What a step tells beside gradients and parameters: the number of targets (int64), the loss, and ZeRO's norm (fp32).
SCALARS = [("all_reduce", 8), ("all_reduce", 4)]
NORM = ("all_reduce", 4)


def second_step(case: Case, layouts: list[str], options: list[dict]) -> list:
    """In a rank: what the second step of each layout tells the counter, and the bytes that the engine keeps then."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group() as world:
        for text, given in zip(layouts, options, strict=True):
            layout = Layout.parse(text)
            engine = parallelize(case.model(), Mesh(layout), case.make(), ParallelOptions(**given))
            train(case, engine, world.rank, world.size, layout.grad_acc)  # one step
            count = CountBytes(engine.traffic_groups())
            again = Case(case.shape, case.recompute, case.dtype, steps=2)
            with count:
                step(again, engine, world, layout.grad_acc)
            kept = {
                kind: sum(t.numel() * t.element_size() for t in tensors)
                for kind, tensors in engine.tensors().items()
            }
            found.append(([(e.kind, e.payload, e.sent) for e in count.events], kept))
    return found


def step(case: Case, engine, world, grad_acc: int) -> None:
    """The second step, without looks at whole gradients, which cost communication of their own."""
    x, y = (t.chunk(world.size)[world.rank] for t in case.batch(1))
    engine.zero_grad()
    engine.accumulate(x, y, len(x) // grad_acc)
    engine.clip(1.0)
    engine.step()


def units(shape: ModelShape, layout: Layout):
    return predict(shape, layout, seq=9, recipe="fp32", device="cpu").stages[0].counts.units


def split(events: list) -> tuple[dict[str, int], list]:
    """Bytes sent of gradients and parameters by collective, and the scalars beside them."""
    sent: dict[str, int] = {}
    small = [(kind, payload) for kind, payload, _ in events if payload <= 8]
    for kind, payload, bytes_sent in events:
        if payload > 8:
            sent[kind] = sent.get(kind, 0) + bytes_sent
    return sent, small


@pytest.mark.parametrize("dp", [2, 3, 4])
@pytest.mark.parametrize(("block", "tied"), [("gpt", True), ("llama", False)])
def test_traffic_of_a_step(ranks, dp, block, tied):
    """2Ψ, 2Ψ, (1 + G)Ψ and 3Ψ less what need not come twice; odd sizes, so that vectors are padded."""
    case = Case(BLOCKS[block].replace(tied=tied), steps=1)
    variants = [
        (zero, grad_acc, {"reshard": False} if no_reshard else {})
        for zero, grad_acc, no_reshard in itertools.product(range(4), (1, 2, 3, 4), (False, True))
        if (zero == 3 or not no_reshard) and BATCH // dp % grad_acc == 0
    ]
    layouts = [f"dp={dp},zero={zero},grad_acc={grad_acc}" for zero, grad_acc, _ in variants]
    found = ranks(second_step, case, layouts, [o for *_, o in variants], ranks=dp, timeout=120).values
    for i, (zero, grad_acc, options) in enumerate(variants):
        layout = Layout.parse(layouts[i])
        expected = traffic(
            units(case.shape, layout),
            dp,
            zero,
            weight_bytes=4,
            gradient_bytes=4,
            grad_acc=grad_acc,
            **options,
        )
        by_rank = [split(results[i][0]) for results in found]
        for collective in ("all_reduce", "reduce_scatter", "all_gather"):
            sent = [sent.get(collective, 0) for sent, _ in by_rank]
            assert sum(sent) == dp * getattr(expected, collective), (layouts[i], options, collective)
            assert zero == 0 or len(set(sent)) == 1  # padded: every rank sends as much
        for _, small in by_rank:
            assert sorted(small) == sorted([*SCALARS, NORM] if zero else SCALARS)


@pytest.mark.parametrize("dp", [1, 3, 8])
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("recipe", ["fp32", "bf16-mixed"])
def test_memory_of_a_rank(ranks, dp, block, recipe):
    """Parameters, gradients and optimizer states of the fullest rank are those of ``planning.memory``; the states of all
    ranks together are those of one device, whatever the padding."""
    dtype = torch.float32 if recipe == "fp32" else torch.bfloat16
    for tied in (False, True):
        case = Case(BLOCKS[block].replace(tied=tied), dtype=dtype, steps=1)
        layouts = [f"dp={dp},zero={zero}" for zero in range(4)]
        found = ranks(second_step, case, layouts, [{}] * 4, ranks=dp).values
        one = predict(case.shape, Layout(), seq=9, recipe=recipe, device="cpu").stages[0]
        for zero, text in enumerate(layouts):
            stage = predict(case.shape, Layout.parse(text), seq=9, recipe=recipe, device="cpu").stages[0]
            kept = [results[zero][1] for results in found]
            for kind in ("parameters", "gradients", "optimizer"):
                assert max(rank[kind] for rank in kept) == getattr(stage, kind), (text, kind)
            assert sum(rank["optimizer"] for rank in kept) == one.optimizer * (1 if zero else dp)


def test_shares_are_told_by_the_same_function():
    layout = Layout(dp=3, zero=3)
    found = units(BLOCKS["llama"], layout)
    stage = predict(BLOCKS["llama"], layout, seq=9, recipe="fp32").stages[0]
    assert stage.parameters == 4 * share_of(found, 3, 3) == stage.gradients
    assert sum(unit.parameters for unit in found) == BLOCKS["llama"].num_parameters


def peak(case: Case, text: str) -> tuple[int, dict]:
    """In a rank: the peak of the second step."""
    from playbook.instruments.memory_timeline import peak_bytes

    torch.set_num_threads(1)
    with launch.process_group() as world:
        layout = Layout.parse(text)
        engine = parallelize(case.model(), Mesh(layout), case.make())
        train(case, engine, world.rank, world.size, layout.grad_acc)
        with peak_bytes(engine.model, engine.optimizers[0], engine.tensors()) as found:
            step(case, engine, world, layout.grad_acc)
        return found.bytes, found.categories


@pytest.mark.parametrize("zero", range(4))
def test_the_fullest_moment_is_about_as_predicted(ranks, zero):
    """Within a tenth for a model whose weights weigh more than its activations."""
    shape = BLOCKS["llama"].replace(layers=6, hidden=96, heads=6, ffn=256, vocab=300)
    text = f"dp=4,zero={zero},grad_acc=2,micro_batch=3"
    for bytes_, _ in ranks(peak, Case(shape, steps=1), text, ranks=4).values:
        predicted = predict(shape, Layout.parse(text), seq=9, recipe="fp32", device="cpu").peak
        assert predicted == pytest.approx(bytes_, rel=0.1)


def test_weights_of_a_block_come_and_go(ranks):
    """Under ZeRO-3 the peak of parameters lies far below the whole model, and above a rank's share of it."""
    shape = BLOCKS["llama"].replace(layers=12, hidden=48, ffn=100)
    whole = 4 * shape.num_parameters
    for _, categories in ranks(peak, Case(shape, steps=1), "dp=4,zero=3", ranks=4).values:
        assert whole / 4 < categories["parameters"] < whole / 2
