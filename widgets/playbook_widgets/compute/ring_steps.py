"""Attention of context-parallel ranks, step by step: who computes which blocks, what is sent meanwhile, how long it is.

The steps are those of ``parallel/context.py``. Time is a model: pairs at a rate of FLOP/s, messages by α and β, and in
each step all wait for the slowest. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.layout.tokens import TokenRanges, placement_of, source_of
from playbook.shapes import ModelShape

FP32 = 4
#: ``[first query, end, first key, end, triangle]``: a rectangle of the mask, or its lower left half.
Piece = list[int | bool]


@dataclass(frozen=True)
class Part:
    """What one rank does in a step: with the keys of ``sources`` it computes ``pairs`` of a query and a key, for each of
    its heads, in ``seconds``."""

    sources: tuple[int, ...] = ()
    pairs: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Step:
    """``moves`` are what every rank sends during the step, in bytes; ``message`` is how long that takes."""

    does: str  # attend, or the collective
    parts: tuple[Part, ...]
    moves: tuple[tuple[str, Fraction], ...] = ()
    message: float = 0.0

    @property
    def sent(self) -> Fraction:
        return sum((size for _, size in self.moves), Fraction())

    @property
    def compute(self) -> float:
        """Seconds of the busiest rank."""
        return max(part.seconds for part in self.parts)

    @property
    def seconds(self) -> float:
        return max(self.compute, self.message)

    @property
    def exposed(self) -> float:
        """Seconds in which the busiest rank waits for messages."""
        return self.seconds - self.compute


@dataclass(frozen=True)
class RingSetting:
    """One layer and one sample of ``ranges.seq`` tokens, ``seq`` of them real; ``flops`` are the FLOP/s reached."""

    shape: ModelShape
    context: str
    ranges: TokenRanges
    seq: int
    backward: bool
    itemsize: int
    cluster: str
    link: AlphaBeta
    flops: float

    def check(self) -> None:
        """Raises :class:`ConfigError` where the heads cannot be sharded, or the placement does not fit."""
        placement_of(self.context, self.ranges.kind)
        ranks = self.ranges.ranks
        if self.context != "ulysses":
            return
        for name, heads in (("heads", self.shape.heads), ("kv_heads", self.shape.n_kv_heads)):
            if heads % ranks:
                raise ConfigError(f"ranks must divide {name} = {heads} for Ulysses, got {ranks}")

    def other(self, context: str, placement: str) -> RingSetting:
        """The same sample, another way."""
        return replace(self, context=context, ranges=replace(self.ranges, kind=placement))

    @property
    def heads_each(self) -> int:
        """Query heads that a rank computes."""
        return self.shape.heads // (self.ranges.ranks if self.context == "ulysses" else 1)

    @property
    def pair_flops(self) -> int:
        """FLOPs of a pair in one head. Forward: q·k, and its weight times v. Backward: q·k again, then dp, dv, dq, dk."""
        qk, v = self.shape.qk_dim, self.shape.v_dim
        return 2 * (3 * qk + 2 * v if self.backward else qk + v)

    @property
    def tokens(self) -> int:
        """Tokens of a rank."""
        return self.ranges.seq // self.ranges.ranks

    @property
    def elements(self) -> int:
        """Elements of K and V of a rank's tokens."""
        return self.tokens * self.shape.n_kv_heads * (self.shape.qk_dim + self.shape.v_dim)

    @property
    def share(self) -> int:
        """Bytes of K and V of a rank's tokens: a message of the ring."""
        return self.elements * self.itemsize

    @property
    def held(self) -> int:
        """Bytes of K and V at a rank at once: in a ring those it works with and those that come."""
        return self.share * {"ring": 2, "gather": self.ranges.ranks, "ulysses": 1}[self.context]

    def part(self, rank: int, sources: Iterable[int]) -> Part:
        """What a rank computes with the keys of ``sources``."""
        sources = tuple(sources)
        pairs = sum(block.pairs for source in sources for block in self.ranges.blocks(rank, source))
        return Part(sources, pairs, pairs * self.heads_each * self.pair_flops / self.flops)

    def pieces(self, rank: int, source: int) -> list[Piece]:
        """Where in the mask a rank's blocks with the keys of ``source`` lie, in positions of the sample."""
        found: list[Piece] = []
        queries, keys = self.ranges.ranges(rank), self.ranges.ranges(source)
        for block in self.ranges.blocks(rank, source):
            for i, q in enumerate(_within(queries, block.q_start, block.q_stop)):
                for j, k in enumerate(_within(keys, block.k_start, block.k_stop)):
                    if not block.causal or j <= i:
                        found.append([q.start, q.stop, k.start, k.stop, block.causal and i == j])
        return found


def _within(ranges: tuple[range, ...], start: int, stop: int) -> list[range]:
    """Of the tokens that a rank has, those from ``start`` to ``stop`` in its own order, as positions of the sample."""
    found, before = [], 0
    for part in ranges:
        first, last = max(start - before, 0), min(stop - before, len(part))
        if first < last:
            found.append(part[first:last])
        before += len(part)
    return found


# --- The steps


def steps_of(setting: RingSetting) -> list[Step]:
    """All steps of one pass, forward or backward."""
    return {"ring": _ring, "gather": _gather, "ulysses": _ulysses}[setting.context](setting)


def _ring(setting: RingSetting) -> list[Step]:
    """As many steps as ranks. In backward the gradients of K and V follow a step behind, in fp32, and come home last."""
    n, gradients = setting.ranges.ranks, setting.elements * FP32
    steps = []
    for step in range(n + setting.backward):
        moves = [("kv", setting.share)] * (step < n - 1)
        moves += [("dkv", gradients)] * (setting.backward and step >= 2)
        if step == n:
            moves = [("dkv", gradients)]
        parts = [setting.part(r, [source_of(r, step, n)] if step < n else []) for r in range(n)]
        steps.append(_step(setting, "attend" if step < n else "home", parts, moves, 1))
    return steps


def _gather(setting: RingSetting) -> list[Step]:
    """All keys first; nothing hides behind anything. Backward gathers again, and then reduces in fp32."""
    n = setting.ranges.ranks
    all_of_them = [setting.part(r, range(n)) for r in range(n)]
    steps = [
        _step(setting, "all-gather", _nothing(n), [("kv", (n - 1) * setting.share)], n - 1),
        _step(setting, "attend", all_of_them, [], 0),
    ]
    if setting.backward:
        sums = [("dkv", (n - 1) * setting.elements * FP32)]
        steps.append(_step(setting, "reduce-scatter", _nothing(n), sums, n - 1))
    return steps


def _ulysses(setting: RingSetting) -> list[Step]:
    """Tokens for heads, and back: of what a rank has it keeps an n-th. Backward goes the other way."""
    n, shape = setting.ranges.ranks, setting.shape
    away = Fraction(setting.tokens * setting.itemsize * (n - 1), n)
    q, o = (away * shape.heads * dim for dim in (shape.qk_dim, shape.v_dim))
    kv = away * shape.n_kv_heads * (shape.qk_dim + shape.v_dim)
    whole = replace(setting.ranges, ranks=1, kind="contiguous").work(0)
    seconds = whole * setting.heads_each * setting.pair_flops / setting.flops
    first, last = [("q", q), ("kv", kv)], [("o", o)]
    if setting.backward:
        first, last = [("do", o)], [("dq", q), ("dkv", kv)]
    return [
        _step(setting, "all-to-all", _nothing(n), first, (n - 1) * (1 if setting.backward else 3)),
        _step(setting, "attend", [Part(tuple(range(n)), whole, seconds)] * n, [], 0),
        _step(setting, "all-to-all", _nothing(n), last, (n - 1) * (3 if setting.backward else 1)),
    ]


def _step(
    setting: RingSetting,
    does: str,
    parts: list[Part],
    moves: Sequence[tuple[str, int | Fraction]],
    messages: int,
) -> Step:
    """``messages`` is how many each rank sends one after the other, if it sends anything."""
    sizes = tuple((what, Fraction(size)) for what, size in moves)
    seconds = setting.link.time(float(sum(size for _, size in sizes)), messages) if sizes else 0.0
    return Step(does, tuple(parts), sizes, seconds)


def _nothing(ranks: int) -> list[Part]:
    return [Part()] * ranks
