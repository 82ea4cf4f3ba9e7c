"""Short training runs on one device and on many ranks, to be compared: losses, gradient norms, gradients."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from helpers import BLOCKS, LLAMA, MIXTRAL
from torch import Tensor, nn
from torch.utils._python_dispatch import _pop_mode, _push_mode

from playbook import launch
from playbook.documents.attention import own_documents
from playbook.instruments.counting import CountBytes, traffic_groups
from playbook.layout import Layout
from playbook.model.ops import Ops
from playbook.model.transformer import IGNORE, Transformer
from playbook.parallel.engine import Engine
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.planning.expert_traffic import Routed
from playbook.shapes import ModelShape
from playbook.training.data import own_tokens
from playbook.training.muon import use_muon
from playbook.training.optimizer import adamw, state_formats
from playbook_book.instruments.expert_load import ExpertRoutes

STEPS, BATCH, SEQ = 10, 24, 9
OPTIMIZER = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}


#: Nothing divides: samples have 9 tokens.
SMALL = {
    "gpt": BLOCKS["gpt"].replace(hidden=24, heads=4, vocab=37, layers=2, dropout=0.0),
    "llama": BLOCKS["llama"].replace(hidden=32, heads=8, kv_heads=2, ffn=52, layers=2),
    "tied": BLOCKS["llama"].replace(hidden=24, heads=4, kv_heads=4, ffn=52, layers=2, tied=True),
    "experts": MIXTRAL.replace(heads=4, kv_heads=4, layers=2, moe={"experts": 4, "top_k": 2, "ffn": 20}),
}
BUCKETS = {"bucket": 20_000, "first_bucket": 3_000}


def nothing(launch: Any) -> None:
    """In the place of the kernels' interpreter, where sizes are all that is looked at: launches write nothing."""


def calm(weights: Any, **options: Any) -> torch.optim.Optimizer:
    """AdamW with a large epsilon: with the usual one the first step moves a weight by the sign of its gradient, which for
    the smallest is rounding."""
    optimizer = adamw(weights, **options)
    for group in optimizer.param_groups:
        group["eps"] = 1e-5
    return optimizer


@dataclass(frozen=True)
class Case:
    """What is trained; ``prepare`` changes the model before anything else sees it."""

    shape: ModelShape = LLAMA
    recompute: str = "none"
    dtype: torch.dtype = torch.float32
    offload: bool = False
    moments: str = "fp32"
    prepare: Callable[[nn.Module], Any] | None = None
    steps: int = STEPS
    causal: bool = True
    seq: int = SEQ
    samples: int = BATCH
    kernels: str = "torch"
    optimizer: str = "adamw"
    documents: bool = False

    def model(self) -> Transformer:
        model = Transformer(
            self.shape,
            recompute=self.recompute,
            causal=self.causal,
            ops=Ops.named(self.kernels),
            seed=1,
            dtype=self.dtype,
        )
        if self.prepare:
            self.prepare(model)
        return model

    def make(self) -> Callable[..., torch.optim.Optimizer]:
        return partial(calm, **OPTIMIZER, offload=self.offload, formats=state_formats(self.moments))

    def engine(self, mesh: Mesh | None = None) -> Engine:
        make = self.make()
        engine = parallelize(self.model(), mesh, make) if mesh else Engine.on_one_device(self.model(), make)
        if self.optimizer == "muon":
            use_muon(engine, **OPTIMIZER)
            for group in (group for one in engine.optimizers for group in one.param_groups):
                group["eps"] = 1e-5
        return engine

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """A global batch in which samples have unequal numbers of targets."""
        generator = torch.Generator().manual_seed(step)
        x, y = torch.randint(self.shape.vocab, (2, self.samples, self.seq), generator=generator)
        drop = torch.rand(y.shape, generator=generator) < torch.linspace(0, 0.9, self.samples)[:, None]
        return x, y.masked_fill(drop, IGNORE)

    def lengths(self, step: int) -> list[tuple[int, ...]]:
        """Documents of each sample, from one to one of every token."""
        rows, generator = [], torch.Generator().manual_seed(step + 1000)
        for i in range(self.samples):
            cuts = torch.rand(self.seq - 1, generator=generator) < i / (self.samples - 1)
            ends = [0, *(cuts.nonzero().flatten() + 1).tolist(), self.seq]
            rows.append(tuple(b - a for a, b in pairwise(ends)))
        return rows


def world_of(one: dict[str, Any]) -> int:
    """The ranks of a layout, as a case of a design."""
    return one["dp"] * one["tp"] * one["cp"] * one["pp"]


def passes(one: dict[str, Any]) -> int:
    """Micro-batches: as few as its schedule takes."""
    return {"naive": 1, "1f1b": 2}.get(one["schedule"], 4)


@dataclass
class Sent:
    """What a step of a rank sent: its messages as (axis, collective, payload, bytes sent), and bytes by axis; and what
    was routed in it."""

    messages: Counter
    axes: dict[str, int]
    routing: dict[int, list[Routed]] | None


#: What ``torch.distributed`` asks a group for, whatever a version of it calls that.
COLLECTIVES = tuple(
    name
    for name in vars(dist.ProcessGroup)
    if name.lstrip("_").startswith(
        ("all", "barrier", "broadcast", "gather", "recv", "reduce", "scatter", "send")
    )
)


@contextmanager
def at_collectives(count: CountBytes) -> Iterator[None]:
    """``count`` sees each collective and nothing else: all other operations would come by it, too, for half the time."""

    def seen(of: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            _push_mode(count)  # `with count` is for torch.compile, too, and takes ten times as long
            try:
                return of(*args, **options)
            finally:
                _pop_mode()

        return call

    watched = {name: seen(getattr(dist.ProcessGroup, name)) for name in COLLECTIVES}
    with mock.patch.multiple(dist.ProcessGroup, **watched):  # monkeypatch would have each rank import pytest
        yield


@contextmanager
def counted(engine: Engine, node: int | None, into: list[Sent]) -> Iterator[None]:
    """A part of a step; its messages go ``into`` the list."""
    axes = traffic_groups(engine)
    routes = ExpertRoutes(engine.model, engine.mesh.group("ep"), node) if engine.mesh.layout.ep > 1 else None
    count = CountBytes(axes)
    with at_collectives(count), routes or nullcontext():
        yield
    messages = Counter(
        (e.group if e.group in axes else "world", e.kind, e.payload, e.sent) for e in count.events if e.sent
    )
    into.append(Sent(messages, {axis: count[axis].total.sent for axis in axes}, routes and routes.counted()))


@dataclass
class Run:
    """Losses and norms of all steps, and the whole gradients of the first and the last, as one vector each; and, where
    they were counted, messages of the first two, each in two parts: until gradients are clipped, and the update."""

    losses: Tensor
    norms: Tensor
    first: Tensor
    last: Tensor
    sent: list[Sent] = field(default_factory=list)

    def __getstate__(self) -> dict[str, Any]:
        """As bytes: pickle writes an archive for every tensor, which takes as long as a step."""
        return {name: x.numpy() if isinstance(x, Tensor) else x for name, x in vars(self).items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: torch.as_tensor(x) if name != "sent" else x for name, x in state.items()})

    def error(self, other: Run) -> float:
        """The largest relative difference to the reference ``other``."""
        scalars = [(self.losses / other.losses - 1).abs().max(), (self.norms / other.norms - 1).abs().max()]
        pairs = ((self.first.double(), other.first.double()), (self.last.double(), other.last.double()))
        vectors = [(a - b).norm() / b.norm() for a, b in pairs]
        return float(torch.stack([*scalars, *vectors]).max())


def train(
    case: Case,
    engine: Engine,
    rank: int = 0,
    ranks: int = 1,
    grad_acc: int = 1,
    start: int = 0,
    mesh: Mesh | None = None,
    count: bool = False,
) -> Run:
    """Steps from ``start`` to ``case.steps`` of this rank, which has its samples; on a ``mesh``, its tokens of those."""
    layout = mesh.layout if mesh else Layout()
    if mesh:
        rank, ranks = mesh.index("dp"), mesh.size("dp")
    share = case.samples // ranks
    losses, norms, vectors = [], [], []
    sent: list[Sent] = []
    for step in range(start, case.steps):
        x, y = (t[rank * share : (rank + 1) * share] for t in case.batch(step))
        micro = -(-share // grad_acc)
        if case.documents:
            lengths = case.lengths(step)[rank * share : (rank + 1) * share]
            (x, y, where), micro = own_documents(x, y, lengths, micro, mesh), 1
        else:
            x, y, where = (
                own_tokens(x, y, mesh, layout.token_placement, case.causal) if mesh else (x, y, None)
            )
        counting = count and step < start + 2
        with counted(engine, layout.node, sent) if counting else nullcontext():
            engine.zero_grad()
            loss = engine.accumulate(x, y, micro, where)
            norms.append(engine.clip(1.0))
        if step in (start, case.steps - 1):
            vectors.append(flat(engine.gradients_whole()))
        with counted(engine, layout.node, sent) if counting else nullcontext():
            engine.step()
        losses.append(loss)
    return Run(torch.stack(losses), torch.stack(norms), vectors[0], vectors[-1], sent)


def flat(gradients: dict[str, Tensor | None]) -> Tensor:
    """All gradients end to end in the order of their names; what got none counts nothing."""
    return torch.cat([g.reshape(-1).float() for _, g in sorted(gradients.items()) if g is not None])


def on_one_device(case: Case, grad_acc: int = 1) -> Run:
    return train(case, case.engine(), grad_acc=grad_acc)


@functools.cache
def reference(case: Case) -> Run:
    return on_one_device(case)


def on_ranks(
    runs: list[tuple[Case, str, dict[str, Any]]],
    keep: Callable[[Engine], Any] | None = None,
    count: bool = False,
) -> list:
    """In a rank: each (case, layout, options of its techniques) in turn, in one process group.

    The layout's ``grad_acc`` counts. Gives a ``Run`` each, messages counted with ``count``; with ``keep``, that
    and what it says of the engine then.
    """
    torch.set_num_threads(1)
    found = []
    with launch.process_group():
        for case, text, options in runs:
            mesh = Mesh(Layout.parse(text).replace(**options))
            engine = case.engine(mesh)
            run = train(case, engine, grad_acc=mesh.layout.grad_acc, mesh=mesh, count=count)
            found.append((run, keep(engine)) if keep else run)
    return found
