"""``playbook bench parallel``: ways to train on many ranks beside torch's own, one training step after the other.

Ours and the peer train the same model from the same weights on the same tokens, in turns inside the same ranks, each
step from a barrier on. A step takes as long as on its slowest rank; medians of all steps are compared. On a machine that
others use, too, its speed may jump by more than what is to be seen: there the ratios *within* each turn tell more, and
their quartiles are given, and so is the ratio of the seconds in which the busiest rank had a core.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.fields import DATA_PARALLEL
from playbook.shapes import ModelShape, load
from playbook_book.bench import chosen, muon_peers, peers
from playbook_book.bench.contest import Group, Pair, Way, contest, model_of, ours, start_ours
from playbook_book.bench.turns import OPTIMIZER, Run, Work

Rounds = tuple[tuple[Pair, ...], ...]


def theirs(name: str, engine: type[peers.Peer]) -> Way:
    """A peer: its name, and the class of its engine."""
    return Way(name, partial(start_theirs, engine), engine.settings)


def start_theirs(engine: type[peers.Peer], work: Work, device: torch.device) -> Run:
    return engine(model_of(work, device), **OPTIMIZER).run(work)


# ---- data parallelism and ZeRO

_ZERO1 = ours("ZeRO-1", "dp=N,zero=1")
_KEPT = theirs("FSDP2, kept", peers.FSDP2Kept)
_DDP = theirs("DDP", peers.DDP)
_LIMITS = {"bucketed": 1.05}
_DATA: Rounds = (
    tuple(
        Pair(ours(name, "dp=N", data_parallel=name), _DDP, _LIMITS.get(name))
        for name in reversed(DATA_PARALLEL)
    ),
    (
        Pair(_ZERO1, theirs("ZeroRedundancyOptimizer", peers.ZeroRedundancy), 1.0),
        Pair(_ZERO1, theirs("the same, bucket view", peers.ZeroRedundancyView)),
    ),
    # torch has no stage 2. What comes nearest is FSDP2 that keeps its weights from forward to backward.
    (
        Pair(ours("ZeRO-2", "dp=N,zero=2"), _KEPT),
        Pair(ours("ZeRO-3, kept", "dp=N,zero=3", reshard=False), _KEPT),
    ),
    (Pair(ours("ZeRO-3", "dp=N,zero=3"), theirs("FSDP2", peers.FSDP2), 1.0),),
)

_HYBRID: Rounds = (
    (Pair(ours("HSDP", "dp=N,zero=3,replicate=2"), theirs("FSDP2, 2-D mesh", peers.FSDP2Hybrid), 1.0),),
)

# ---- Muon, whose matrices have to be whole


def _beside(peer: Way, layout: str, **limits: float | None) -> tuple[Pair, ...]:
    """Our three ways and a peer. In bf16 a last bit that differs makes an iteration's result differ by a thousandth."""
    return tuple(
        Pair(muon_peers.ours(way.replace("_", "-"), layout), peer, limit, 1e-4)
        for way, limit in limits.items()
    )


_MUON: Rounds = (
    (
        *_beside(
            theirs("FSDP2, gathered", muon_peers.FSDP2Gathered),
            "dp=N,zero=3",
            all_to_all=1.0,
            owner=1.0,
            gather=1.0,
        ),
        *_beside(theirs("FSDP2, DTensors", muon_peers.FSDP2Muon), "dp=N,zero=3", all_to_all=1.0),
    ),
    _beside(theirs("DDP, Muon", muon_peers.DDPMuon), "dp=N", all_to_all=1.0, owner=1.0, gather=None),
)

# ---- tensor and sequence parallelism

_ASYNC, _NONE, _CHUNKED = (
    ours(f"TP+SP, {how}", "tp=N,sp", tensor_overlap=how) for how in ("async", "none", "chunked")
)
_TENSOR: Rounds = (
    (Pair(ours("TP", "tp=N"), theirs("DTensor", peers.DTensorPeer), 1.0),),
    (
        Pair(_ASYNC, theirs("DTensor, sequence", peers.DTensorSequence), 0.9),
        Pair(_ASYNC, _NONE),
        Pair(_CHUNKED, _NONE),
    ),
)


def check_tensor(shape: ModelShape, ranks: int) -> None:
    """Raises ConfigError for models that DTensor's usual plan does not train as they are, LayoutError for heads that
    ``ranks`` do not divide."""
    for field, value, need in (
        ("tied", shape.tied, "False"),
        ("qk_norm", shape.qk_norm, "False"),
        ("positions", shape.positions == "learned" and "learned", "rotary"),
        ("kv_heads", bool(shape.n_kv_heads % ranks) and shape.n_kv_heads, f"a multiple of {ranks} ranks"),
    ):
        if value:
            raise ConfigError(f"{field} is {value}, but DTensor's plan needs {need}: choose another model")
    Layout(tp=ranks).check(shape)


# ---- context parallelism


def start_gathered(sliced: bool, work: Work, device: torch.device) -> Run:
    """Ours outside of attention, and there what one would write without us."""
    run = start_ours("cp=N", {"context": "gather", "placement": "contiguous"}, work, device)
    for block in run.engine.model.blocks:
        block.attention.core = peers.GatheredSDPA(block.attention.core.group, sliced)
    return run


_GATHERED, _SLICED = (
    Way(name, partial(start_gathered, sliced), text)
    for name, sliced, text in (
        ("gathered SDPA", False, "all_gather_tensor_autograd, scaled_dot_product_attention, mask"),
        ("gathered SDPA, sliced", True, "the same without keys that no query of the rank sees"),
    )
)
_RING, _RING_CONTIGUOUS, _GATHER, _ULYSSES = (
    ours(name, "cp=N", context=context, placement=placement)
    for name, context, placement in (
        ("ring, zigzag", "ring", "zigzag"),
        ("ring, contiguous", "ring", "contiguous"),
        ("gather, zigzag", "gather", "zigzag"),
        ("Ulysses", "ulysses", "contiguous"),
    )
)
_CONTEXT: Rounds = (
    (*(Pair(one, _GATHERED) for one in (_RING, _RING_CONTIGUOUS, _GATHER, _ULYSSES)), Pair(_RING, _SLICED)),
)

# ---- all of them

#: A model in which attention is most of the work, so that a long sample does not take too long.
LONG: dict[str, Any] = {
    "layers": 2, "hidden": 128, "heads": 4, "kv_heads": 2, "head_dim": 32, "vocab": 256, "ffn": 344, "gated": True,
    "activation": "silu", "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied": False, "dropout": 0.0,
}  # fmt: skip
#: What is compared, by name: a title, and who takes turns.
GROUPS: dict[str, tuple[str, Rounds]] = {
    "data": ("data parallelism and ZeRO beside torch's DDP, ZeroRedundancyOptimizer and FSDP2", _DATA),
    "hybrid": ("hybrid sharding of two groups of ranks beside FSDP2 on a mesh of as many", _HYBRID),
    "muon": ("Muon in three ways beside torch.optim.Muon on FSDP2's shards and on replicas", _MUON),
    "tensor": ("tensor and sequence parallelism beside DTensor, and how messages hide", _TENSOR),
    "context": ("context parallelism beside attention to gathered keys and values", _CONTEXT),
    "ring": (
        "a ring of two ranks, in zigzag and contiguous: with a core for each, the slower one is waited for",
        ((Pair(_RING, _RING_CONTIGUOUS, 0.85),),),
    ),
}


def bench_parallel(
    work: Work, ranks: int, steps: int, device: str, only: Sequence[str] | None, long_seq: int
) -> dict[str, Any]:
    """Median seconds of a training step, ours and the peer's, their ratio, and the bytes that both send, by group.

    ``only`` chooses among ``GROUPS`` (None: all of them), ``long_seq`` is what two ranks around a ring train. See
    `contest`. Raises ConfigError and LayoutError for what cannot be run.
    """
    names = chosen("group", only, GROUPS)
    if ranks < 2:
        raise ConfigError(f"ranks is {ranks}, but must be at least 2: one rank has nobody to share with")
    groups = [_group(name, work, 2 if name == "ring" else ranks, long_seq) for name in names]
    return contest(groups, steps, device)


def _group(name: str, work: Work, ranks: int, long_seq: int) -> Group:
    """What was asked for, on the work that this group is for. Raises ConfigError and LayoutError for other models."""
    if name == "hybrid":
        Layout(dp=ranks, zero=3, replicate=2).check(work.shape)
    elif name == "tensor":
        work = replace(work, alike=True)
        check_tensor(work.shape, ranks)
    elif name == "context":
        work = replace(work, seq=min(work.seq * ranks, work.shape.max_seq), alike=True)
        Layout(cp=ranks).check(work.shape)
    elif name == "ring":
        work = Work(load(LONG | {"max_seq": long_seq}), 1, long_seq, 1, alike=True)
    title, rounds = GROUPS[name]
    return Group(name, title, ranks, work, rounds)
