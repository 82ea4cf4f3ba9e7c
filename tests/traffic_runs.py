"""Steps of real ranks, message by message, to be compared with what ``planning.traffic`` predicts."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from parallel_runs import Case

from playbook import launch
from playbook.instruments.counting import CountBytes
from playbook.instruments.expert_load import ExpertRoutes
from playbook.layout import Layout, ParallelOptions
from playbook.model.fp8 import use_fp8
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.expert_traffic import Routed
from playbook.planning.recipes import load_recipe
from playbook.planning.traffic import by_axis, traffic
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens

SEQ, MICRO = 8, 2
#: A model, a layout, and options of ``parallelize``.
Cases = list[tuple[ModelShape, str, dict]]


@dataclass
class Sent:
    """What a step of a rank sent: its messages as (axis, collective, payload, bytes sent), and bytes by axis; and what
    was routed in it."""

    messages: Counter
    axes: dict[str, int]
    routing: dict[int, list[Routed]] | None


def steps(cases: Cases, dtype: torch.dtype, autocast: bool, fp8: str) -> list[list[Sent]]:
    """In a rank, the first two steps of each case."""
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for shape, text, given in cases:
            layout, options = Layout.parse(text), ParallelOptions(**given)
            prepare = partial(use_fp8, recipe=fp8) if fp8 else None
            mesh, case = Mesh(layout), Case(shape, layout.recompute, dtype=dtype, seq=SEQ, prepare=prepare)
            engine = parallelize(case.model(), mesh, case.make(), options)
            generator = torch.Generator().manual_seed(mesh.index("dp"))
            batch = torch.randint(shape.vocab, (MICRO * layout.grad_acc, SEQ), generator=generator)
            x, y, where = own_tokens(batch, batch.clone(), mesh, options.placed)
            kind = torch.bfloat16 if autocast else torch.float32
            found.append([step(engine, (x, y, where), kind, options.node) for _ in range(2)])
    return found


def step(engine: Engine, batch: tuple, dtype: torch.dtype, node: int | None) -> Sent:
    x, y, where = batch
    routes = ExpertRoutes(engine.model, engine.mesh.group("ep"), node) if engine.mesh.layout.ep > 1 else None
    with CountBytes(engine.traffic_groups()) as count, routes or nullcontext():
        engine.zero_grad()
        engine.accumulate(x, y, MICRO, where, dtype=dtype)
        engine.clip(1.0)
        engine.step()
    axes = engine.traffic_groups()
    messages = Counter(
        (e.group if e.group in axes else "world", e.kind, e.payload, e.sent) for e in count.events if e.sent
    )
    return Sent(messages, {axis: count[axis].total.sent for axis in axes}, routes and routes.counted())


def check(ranks, cases: Cases, world: int, dtype=torch.float32, recipe="fp32", fp8="") -> None:
    found = ranks(steps, cases, dtype, recipe == "autocast", fp8, ranks=world, timeout=240).values
    for rank, mine in enumerate(found):
        for (shape, text, given), counted in zip(cases, mine, strict=True):
            layout, options = Layout.parse(f"{text},micro_batch={MICRO}"), ParallelOptions(**given)
            for first, sent in zip((True, False), counted, strict=True):
                precision = load_recipe(recipe).with_fp8(fp8)
                told = traffic(
                    shape,
                    layout,
                    SEQ,
                    options,
                    rank=rank,
                    recipe=precision,
                    first=first,
                    routing=sent.routing,
                )
                expected: Counter = Counter()
                for message in told:
                    if message.bytes:
                        key = message.axis, message.collective, message.payload, message.bytes
                        expected[key] += message.count
                assert expected == sent.messages, (text, given, rank, first)
                axes = by_axis(told)
                axes.pop("world", None)
                assert axes == {axis: n for axis, n in sent.axes.items() if n}, (text, given, rank)
