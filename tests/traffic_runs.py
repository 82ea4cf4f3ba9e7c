"""Steps of real ranks, message by message, to be compared with what ``planning.traffic`` predicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial

import torch
from parallel_runs import Case, Run, Sent, counted

from playbook import launch
from playbook.layout import Layout
from playbook.model.fp8 import use_fp8
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.memory import predict
from playbook.planning.recipes import Recipe, load_recipe
from playbook.planning.traffic import by_axis, traffic
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens

SEQ, MICRO = 8, 2
#: A model, a layout, and options of its techniques.
Cases = list[tuple[ModelShape, str, dict]]


def steps(cases: Cases, dtype: torch.dtype, autocast: bool, fp8: str, seq: int = SEQ) -> list[list[Sent]]:
    """In a rank, the first two steps of each case."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for shape, text, given in cases:
            layout = Layout.parse(text).replace(**given)
            prepare = partial(use_fp8, recipe=fp8) if fp8 else None
            mesh, case = Mesh(layout), Case(shape, layout.recompute, dtype=dtype, seq=seq, prepare=prepare)
            engine = parallelize(case.model(), mesh, case.make())
            generator = torch.Generator().manual_seed(mesh.index("dp"))
            batch = torch.randint(shape.vocab, (MICRO * layout.grad_acc, seq), generator=generator)
            batch = own_tokens(batch, batch.clone(), mesh, layout.token_placement)
            sent: list[Sent] = []
            for _ in range(2):
                step(engine, batch, torch.bfloat16 if autocast else torch.float32, layout.node, sent)
            found.append(sent)
    return found


def step(engine: Engine, batch: tuple, dtype: torch.dtype, node: int | None, into: list[Sent]) -> None:
    x, y, where = batch
    with counted(engine, node, into):
        engine.zero_grad()
        engine.accumulate(x, y, MICRO, where, dtype=dtype)
        engine.clip(1.0)
        engine.step()


def check(ranks, cases: Cases, world: int, dtype=torch.float32, recipe="fp32", fp8="", seq=SEQ) -> None:
    precision = load_recipe(recipe).with_fp8(fp8)
    found = ranks(steps, cases, dtype, recipe == "autocast", fp8, seq, ranks=world).values
    for rank, mine in enumerate(found):
        for (shape, text, given), sent in zip(cases, mine, strict=True):
            layout = Layout.parse(f"{text},micro_batch={MICRO}").replace(**given)
            compare(shape, layout, seq, precision, rank, sent)


def check_run(case: Case, text: str, given: dict, rank: int, run: Run) -> None:
    """Messages that were counted while a case was compared with one device; not of frozen weights, nor where the last
    micro-batch is smaller, which no prediction knows of."""
    layout = Layout.parse(f"{text},recompute={case.recompute}").replace(**given)
    micro, rest = divmod(case.samples, layout.dp * layout.grad_acc)
    if case.prepare or rest:
        return
    assert run.sent
    until_clipped, updates = run.sent[::2], run.sent[1::2]
    steps = [
        Sent(a.messages + b.messages, {axis: n + b.axes[axis] for axis, n in a.axes.items()}, a.routing)
        for a, b in zip(until_clipped, updates, strict=True)
    ]
    layout, seq = layout.replace(micro_batch=micro), layout.padded(case.seq)
    compare(case.shape, layout, seq, load_recipe("fp32"), rank, steps, case.optimizer)


def kept(engine: Engine) -> dict[str, int]:
    """In a rank: bytes of weights, gradients and optimizer states."""
    return {kind: sum(t.nbytes for t in tensors) for kind, tensors in engine.tensors().items()}


def check_kept(case: Case, text: str, given: dict, of_ranks: Iterable[dict[str, int]]) -> None:
    """What the fullest rank of each stage keeps is what is predicted."""
    layout = Layout.parse(text).replace(**given)
    most = [Counter[str]() for _ in range(layout.pp)]
    for rank, one in enumerate(of_ranks):
        most[layout.coordinates(rank)["pp"]] |= Counter(one)
    how = {"recipe": "fp32", "device": "cpu", "optimizer": case.optimizer}
    told = predict(case.shape, layout, seq=layout.padded(case.seq), **how).stages
    for stage, found in zip(told, most, strict=True):
        assert found == {kind: getattr(stage, kind) for kind in found}, (case, text, given)


def compare(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    precision: Recipe,
    rank: int,
    steps: list[Sent],
    optimizer: str = "adamw",
) -> None:
    for first, sent in zip((True, False), steps, strict=False):
        how = {"recipe": precision, "optimizer": optimizer}
        told = traffic(shape, layout, seq, rank=rank, first=first, routing=sent.routing, **how)
        expected: Counter = Counter()
        for message in told:
            if message.bytes:
                expected[message.axis, message.collective, message.payload, message.bytes] += message.count
        assert expected == sent.messages, (layout, rank, first)
        axes = by_axis(told)
        axes.pop("world", None)
        assert axes == {axis: n for axis, n in sent.axes.items() if n}, (layout, rank)
