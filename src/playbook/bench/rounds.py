"""Who takes turns with whom in ``playbook bench parallel``, on which ranks and on what work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
import torch.distributed as dist

from playbook.bench import peers
from playbook.bench.context_peers import GatheredSDPA
from playbook.bench.tensor_peers import DTensorPeer, DTensorSequence, RunDTensor, check_tensor
from playbook.bench.turns import OPTIMIZER, Run, RunOnMesh, Work
from playbook.layout import Layout
from playbook.layout.fields import DATA_PARALLEL
from playbook.model.transformer import Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.parallelize import parallelize
from playbook.shapes import ModelShape, load
from playbook.training.optimizer import adamw


class Contender(Protocol):
    """A way to train, with its name in tables."""

    @property
    def name(self) -> str: ...

    def start(self, model: Transformer, work: Work) -> Run:
        """In a rank: make ``model`` ready to be trained by all of them together."""
        ...


@dataclass(frozen=True)
class Ours:
    """``parallelize`` with a layout, in which N is the number of ranks, and its other options."""

    name: str
    layout: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def start(self, model: Transformer, work: Work) -> Run:
        layout = Layout.parse(self.layout.replace("N", str(dist.get_world_size()))).replace(**self.options)
        mesh = Mesh(layout)
        engine = parallelize(model, mesh, partial(adamw, **OPTIMIZER))
        if layout.tp == layout.cp == 1:
            return Run(engine, work.tokens * layout.dp)
        return RunOnMesh(engine, work, mesh, layout.token_placement)


@dataclass(frozen=True)
class Theirs:
    """A peer: the class of its engine, and how many tokens its losses are divided by."""

    name: str
    engine: Any

    @property
    def settings(self) -> str:
        return self.engine.settings

    def start(self, model: Transformer, work: Work) -> Run:
        engine = self.engine(model, **OPTIMIZER)
        if issubclass(self.engine, DTensorPeer):
            return RunDTensor(engine, work.tokens, copies=dist.get_world_size())
        return Run(engine, work.tokens)


@dataclass(frozen=True)
class Gathered:
    """Ours outside of attention, and there what one would write without us."""

    name: str
    settings: str
    sliced: bool

    def start(self, model: Transformer, work: Work) -> Run:
        run = Ours(self.name, "cp=N", {"context": "gather", "placement": "contiguous"}).start(model, work)
        blocks: Any = model.blocks
        for block in blocks:
            block.attention.core = GatheredSDPA(block.attention.core.group, self.sliced)
        return run


@dataclass(frozen=True)
class Pair:
    """Two that are compared: ours may take at most ``limit`` times as long as the peer, if there is a limit."""

    ours: Contender
    peer: Contender
    limit: float | None = None


@dataclass(frozen=True)
class Group:
    """Rounds that share ranks and work; the contenders of one round take turns.

    ``ranks`` is fixed, or None for as many as are asked for. ``work`` makes of what was asked for what is trained;
    ``check`` refuses models.
    """

    name: str
    title: str
    rounds: tuple[tuple[Pair, ...], ...]
    work: Callable[[Work, int], Work]
    ranks: int | None = None
    check: Callable[[ModelShape, int], None] = lambda shape, ranks: None

    @property
    def pairs(self) -> list[Pair]:
        return [pair for turns in self.rounds for pair in turns]


def contenders(turns: tuple[Pair, ...]) -> list[Contender]:
    """Those of one round, each once."""
    return list({one.name: one for pair in turns for one in (pair.peer, pair.ours)}.values())


# ---- data parallelism and ZeRO

_ZERO1 = Ours("ZeRO-1", "dp=N,zero=1")
_KEPT = Theirs("FSDP2, kept", peers.FSDP2Kept)
_DDP = Theirs("DDP", peers.DDP)
_REPLICAS = {name: Ours(name, "dp=N", {"data_parallel": name}) for name in reversed(DATA_PARALLEL)}
_LIMITS = {"bucketed": 1.05}
_DATA = Group(
    "data",
    "data parallelism and ZeRO beside torch's DDP, ZeroRedundancyOptimizer and FSDP2",
    (
        tuple(Pair(ours, _DDP, _LIMITS.get(name)) for name, ours in _REPLICAS.items()),
        (
            Pair(_ZERO1, Theirs("ZeroRedundancyOptimizer", peers.ZeroRedundancy), 1.0),
            Pair(_ZERO1, Theirs("the same, bucket view", peers.ZeroRedundancyView)),
        ),
        # torch has no stage 2. What comes nearest is FSDP2 that keeps its weights from forward to backward.
        (
            Pair(Ours("ZeRO-2", "dp=N,zero=2"), _KEPT),
            Pair(Ours("ZeRO-3, kept", "dp=N,zero=3", {"reshard": False}), _KEPT),
        ),
        (Pair(Ours("ZeRO-3", "dp=N,zero=3"), Theirs("FSDP2", peers.FSDP2), 1.0),),
    ),
    work=lambda work, ranks: work,
)

# ---- tensor and sequence parallelism


def _overlap(how: str) -> Ours:
    return Ours(f"TP+SP, {how}", "tp=N,sp", {"tensor_overlap": how})


_TENSOR = Group(
    "tensor",
    "tensor and sequence parallelism beside DTensor, and how messages hide",
    (
        (Pair(Ours("TP", "tp=N"), Theirs("DTensor", DTensorPeer), 1.0),),
        (
            Pair(_overlap("async"), Theirs("DTensor, sequence", DTensorSequence), 0.9),
            Pair(_overlap("async"), _overlap("none")),
            Pair(_overlap("chunked"), _overlap("none")),
        ),
    ),
    work=lambda work, ranks: replace(work, alike=True),
    check=check_tensor,
)

# ---- context parallelism

_GATHERED = Gathered("gathered SDPA", "all_gather_tensor_autograd, scaled_dot_product_attention, mask", False)
_SLICED = Gathered("gathered SDPA, sliced", "the same without keys that no query of the rank sees", True)
_RING, _RING_CONTIGUOUS, _GATHER, _ULYSSES = (
    Ours(name, "cp=N", {"context": context, "placement": placement})
    for name, context, placement in (
        ("ring, zigzag", "ring", "zigzag"),
        ("ring, contiguous", "ring", "contiguous"),
        ("gather, zigzag", "gather", "zigzag"),
        ("Ulysses", "ulysses", "contiguous"),
    )
)
_CONTEXT = Group(
    "context",
    "context parallelism beside attention to gathered keys and values",
    (
        (
            *(Pair(ours, _GATHERED) for ours in (_RING, _RING_CONTIGUOUS, _GATHER, _ULYSSES)),
            Pair(_RING, _SLICED),
        ),
    ),
    work=lambda work, ranks: replace(work, seq=min(work.seq * ranks, work.shape.max_seq), alike=True),
    check=lambda shape, ranks: Layout(cp=ranks).check(shape),
)

#: A model in which attention is most of the work, so that a long sample does not take too long.
LONG: dict[str, Any] = {
    "layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 256, "ffn": 344, "gated": True,
    "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False, "dropout": 0.0,
}  # fmt: skip
LONG_SEQ = 8192


def long_work(work: Work, ranks: int, seq: int = LONG_SEQ) -> Work:
    """One long sample for a small model."""
    return Work(load(LONG | {"max_seq": seq}), 1, seq, 1, alike=True)


_BALANCE = Group(
    "ring",
    "a ring of two ranks, in zigzag and contiguous: with a core for each, the slower one is waited for",
    ((Pair(_RING, _RING_CONTIGUOUS, 0.85),),),
    work=long_work,
    ranks=2,
)

GROUPS = {group.name: group for group in (_DATA, _TENSOR, _CONTEXT, _BALANCE)}
#: Settings of the peers, by name.
SETTINGS: dict[str, str] = {
    one.name: one.settings
    for group in GROUPS.values()
    for turns in group.rounds
    for one in contenders(turns)
    if isinstance(one, Theirs | Gathered)
}


def make_runs(turns: tuple[Pair, ...], work: Work, device: torch.device) -> dict[str, Run]:
    """Those of one round by name, each with a model of its own, all from the same weights. Without dropout: what is
    dropped would differ."""
    shape = work.shape.replace(dropout=0.0)
    return {one.name: one.start(Transformer(shape, device=device), work) for one in contenders(turns)}
