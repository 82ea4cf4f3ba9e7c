"""What one rank computes for one micro-batch, operation by operation: matrix products, attention, passes over memory.

The operations are those of ``model/`` as frameworks carry them out: sizes are one rank's, after tensor, context and
expert parallelism. Backward is in two parts, as schedules have them: gradients of inputs (B) and of weights (W). Matrix
products are counted as in ``flops.py``, but for the half of attention that a causal mask throws away and kernels skip.
Passes are bytes read and written. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple

from playbook.block import Core, Kind, Linear, block_layers, evaluate, learns, linears, symbols
from playbook.planning.job import OfJob
from playbook.registry import lab

FP32 = 4
#: How many times the bytes these move where they are not one kernel, forward and backward, counted operator by operator
#: in PyTorch: RMSNorm is written on fp32 copies, rotary positions too; a gate is two kernels, the loss a cast, a
#: log-softmax and a gather. LayerNorm and GELU are one kernel in any case.
EAGER = {"rmsnorm": 7.0, "rotary": 5.0, "gated": 1.7, "dropout": 1.6, "loss": 1.6}


#: What recomputation of a module runs again beside the attention core: operations, or all of a part, by their names.
AGAIN = {
    "mlp": ("mlp",),
    "moe": ("router", "permute and combine", "experts", "shared experts"),
    "shared_experts": ("shared experts",),
    "layernorm": ("norm",),
    "moe_act": ("experts, activation",),
    "mla_up_proj": ("queries", "keys and values, up", "rotary"),
}


class Operation(NamedTuple):
    """One operation: a ``product`` of (m, k) by (k, n), ``batch`` times; ``attention`` of ``flops``; or a ``pass`` over
    ``bytes``. ``narrow`` is a product of a linear layer, which FP8 recipes multiply in FP8. Of a pass, frameworks that
    compute it in several kernels move ``eager`` times the bytes."""

    name: str
    kind: str
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    flops: float = 0.0
    bytes: float = 0.0
    kernels: int = 1
    narrow: bool = False
    eager: float = 1.0

    @property
    def work(self) -> float:
        """FLOPs."""
        return 2.0 * self.m * self.n * self.k * self.batch if self.kind == "product" else self.flops


@dataclass(frozen=True)
class Passes:
    """Operations of a part of the model: ``forward``, gradients of ``inputs`` and of ``weights``, and what selective
    recomputation repeats (``core``)."""

    forward: tuple[Operation, ...] = ()
    inputs: tuple[Operation, ...] = ()
    weights: tuple[Operation, ...] = ()
    core: tuple[Operation, ...] = ()

    def wide(self) -> Passes:
        """The same, all products in higher precision."""
        some = self.forward, self.inputs, self.weights, self.core
        return Passes(*(tuple(o._replace(narrow=False) for o in each) for each in some))


@dataclass
class _Made:
    """Operations as they are found, forward and backward together."""

    forward: list[Operation] = field(default_factory=list)
    inputs: list[Operation] = field(default_factory=list)
    weights: list[Operation] = field(default_factory=list)
    core: list[Operation] = field(default_factory=list)

    def linear(
        self, name: str, m: int, n: int, k: int, batch: int = 1, narrow: bool = True, learns: bool = True
    ) -> None:
        """A linear layer: one product forward, two backward; one if it is frozen."""
        if min(m, n, k, batch) < 1:
            return
        make = lambda m, n, k: Operation(name, "product", m, n, k, batch, narrow=narrow)  # noqa: E731
        self.forward.append(make(m, n, k))
        self.inputs.append(make(m, k, n))
        self.weights += [make(k, n, m)] * learns

    def linears(self, rows: Sequence[Linear], sizes: Sizes, tokens: int) -> None:
        """Linear layers over so many ``tokens``; those side by side that read the same are one product."""
        for _, group in groupby(rows, lambda row: (row.input, row.cut)):
            same, values = list(group), sizes.values
            part = f"{same[0].part}, " * (same[0].part != "attention")
            width = sum(evaluate(row.rows, values) for row in same)
            columns, count = evaluate(same[0].columns, values), evaluate(same[0].number, values)
            name, rank = part + ", ".join(row.name for row in same), sizes.shape.lora
            self.linear(name, tokens, width, columns, count, learns=learns(sizes.shape, same[0]))
            for row in same if rank else ():
                self.linear(f"{part}{row.name}, A", tokens, rank, columns)
                self.linear(f"{part}{row.name}, B", tokens, evaluate(row.rows, values), rank)

    def over(self, name: str, forward: float, backward: float, kernels: int = 1, eager: float = 1.0) -> None:
        """A pass over so many bytes forward and backward."""
        one = Operation(name, "pass", kernels=kernels, eager=eager)
        self.forward.append(one._replace(bytes=forward))
        self.inputs.append(one._replace(bytes=backward))

    def done(self) -> Passes:
        return Passes(tuple(self.forward), tuple(self.inputs), tuple(self.weights), tuple(self.core))


@dataclass(frozen=True)
class Sizes(OfJob):
    """A model on one rank, whose experts get ``imbalance`` times a rank's share of the tokens."""

    imbalance: float = 1.0
    #: Messages of its blocks, once they are known: they are the same on every device and network.
    sent: dict[Kind, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch in tensor-parallel regions of this rank."""
        return self.layout.micro_batch * self.job.padded // self.layout.cp

    @property
    def values(self) -> Mapping[str, int]:
        """Of the symbols of a block's rows."""
        return symbols(self.shape, self.layout.tp, self.layout.ep, self.layout.etp)

    @property
    def stream(self) -> float:
        """Elements of the residual stream outside of these regions."""
        return self.tokens * self.shape.hidden / (self.layout.tp if self.layout.sp else 1)


def block(sizes: Sizes, kind: Kind) -> Passes:
    """One block of the model."""
    made = _Made()
    residual, dropped = sizes.recipe.residual, 0.5 if sizes.shape.dropout else 0.0
    for _ in range(2):
        _norm(made, sizes)
    rows: dict[str, list[Linear]] = {}
    for row in linears(sizes.shape, kind):
        rows.setdefault(row.part, []).append(row)
    if kind.recurrent:
        lab("recurrent", "passes")(sizes.shape.recurrent, made, sizes, rows["attention"])
    else:
        _attention(made, sizes, rows["attention"], _core_of(sizes, kind))
    if "experts" in rows:
        _experts(made, sizes, rows)
    else:
        _mlp(made, sizes, rows["mlp"], sizes.tokens)
    for _ in range(2):  # branch and stream in, stream out; a mask of a byte beside
        made.over(
            "residual",
            (3 + dropped) * residual * sizes.stream,
            (2 + dropped) * residual * sizes.stream * bool(dropped),
            eager=EAGER["dropout"] if dropped else 1.0,
        )
    return made.done()


def _core_of(sizes: Sizes, kind: Kind) -> Core:
    return next(row for row in block_layers(sizes.shape, kind) if isinstance(row, Core))


def _norm(made: _Made, sizes: Sizes) -> None:
    """Backward reads dy and x and writes dx, and adds what came past the branch."""
    size, eager = sizes.recipe.residual * sizes.stream, EAGER.get(sizes.shape.norm, 1.0)
    made.over("norm", 2 * size, 4 * size, eager=eager)


def _attention(made: _Made, sizes: Sizes, rows: Sequence[Linear], between: Core) -> None:
    shape, t, tokens = sizes.shape, sizes.layout.tp, sizes.tokens
    heads, kv, d = evaluate(between.heads, sizes.values), max(1, shape.n_kv_heads // t), shape.qk_dim
    *projections, output = rows
    made.linears(projections, sizes, tokens)
    if shape.positions == "rotary":
        turned = (heads * (shape.mla.rope_dim if shape.mla else d) + (0 if shape.mla else kv * d)) * tokens
        moved = 2.0 * turned * sizes.recipe.compute
        made.over("rotary", moved, moved, eager=EAGER["rotary"])
    _core(made, sizes, between, heads, d, shape.v_dim)
    made.linears([output], sizes, tokens)


def _core(made: _Made, sizes: Sizes, row: Core, heads: int, d: int, e: int) -> None:
    """Attention itself. A flash kernel skips what the mask hides; backward computes scores again: 5 products for 2."""
    tokens, keys = sizes.tokens, sizes.job.padded
    if sizes.job.attention == "sdpa" or sizes.layout.cp > 1:
        cp = sizes.layout.cp if sizes.layout.context == "ring" else 1
        keys = sizes.job.seen
        flops = heads * tokens * row.pairs(keys) * (d + e)  # 2 of 2·tokens·keys·d each, half of it masked
        forward = Operation("attention", "attention", tokens, max(1, keys // cp), d, heads, flops, kernels=cp)
        made.forward.append(forward)
        made.core.append(forward)
        made.inputs.append(forward._replace(name="attention, backward", flops=2.5 * flops))
        if cp > 1:  # results of each hop are merged in fp32: two are read, one is written
            merged = 3.0 * FP32 * (cp - 1) * tokens * heads
            made.over("merge", merged * e, merged * (d + e), kernels=3 * (cp - 1))
        return
    scores, size = float(heads * tokens * keys), sizes.recipe.compute
    samples = heads * sizes.layout.micro_batch
    dropped = 2 * size + 1 if sizes.shape.dropout else 0
    rows = keys  # of a sample: cp is 1 here
    products = [
        Operation("scores", "product", rows, keys, d, samples),
        Operation("values", "product", rows, e, keys, samples),
    ]
    softmax = Operation("softmax", "pass", bytes=(2 * size + dropped) * scores, kernels=2 if dropped else 1)
    # What comes out is sorted by heads, what goes on by tokens.
    sorted_ = Operation("reorder", "pass", bytes=2.0 * size * tokens * heads * e)
    core = [*products, softmax, sorted_]
    made.forward += core
    made.core += core
    made.inputs += [
        Operation("scores, backward", "product", rows, d, keys, 2 * samples),
        Operation("values, backward", "product", rows, keys, e, 2 * samples),
        Operation(
            "softmax, backward", "pass", bytes=(3 * size + dropped) * scores, kernels=2 if dropped else 1
        ),
        sorted_,
    ]


def _mlp(made: _Made, sizes: Sizes, rows: Sequence[Linear], tokens: int) -> None:
    """An MLP over so many ``tokens``, or the experts of a rank side by side with so many each."""
    *up, down = rows
    wide, values = len(up), sizes.values
    made.linears(up, sizes, tokens)
    inner = 1.0 * tokens * evaluate(down.number, values) * evaluate(down.columns, values)
    inner *= sizes.recipe.compute
    eager = EAGER["gated"] if sizes.shape.gated else 1.0
    made.over(f"{down.part}, activation", (wide + 1) * inner, (2 * wide + 1) * inner, eager=eager)
    made.linears([down], sizes, tokens)


def _experts(made: _Made, sizes: Sizes, linear: Mapping[str, Sequence[Linear]]) -> None:
    """Router, the rows of this rank's experts, on which they fall evenly, and the experts that see every token."""
    moe, shape = sizes.shape.moe, sizes.shape
    assert moe is not None
    tokens = sizes.tokens // sizes.layout.apart
    made.linear("router", tokens, moe.experts, shape.hidden, narrow=False)
    made.over("router", 12.0 * tokens * moe.experts, 12.0 * tokens * moe.experts, kernels=6)
    chosen = tokens * moe.top_k
    if moe.capacity:
        chosen = min(chosen, int(moe.capacity * chosen))
    rows = max(1, math.ceil(chosen * sizes.layout.ep / moe.experts * sizes.imbalance))
    moved = float(chosen * shape.hidden * sizes.recipe.compute)
    made.over("permute and combine", 4 * moved, 5 * moved, kernels=4)
    _mlp(made, sizes, linear["experts"], rows)
    if "shared experts" in linear:
        _mlp(made, sizes, linear["shared experts"], sizes.tokens)


def embedding(sizes: Sizes) -> Passes:
    """The look-up: a row read and written for each token, and in backward added to the table's gradient."""
    made, row = _Made(), sizes.tokens * sizes.shape.hidden * sizes.recipe.residual
    made.over("embedding", 2.0 * row, 3.0 * row * ("embedding" in sizes.shape.trained), kernels=2)
    return made.done()


def head(sizes: Sizes) -> Passes:
    """The final norm, the head and the loss, whose softmax is in fp32."""
    made, shape, words = _Made(), sizes.shape, -(-sizes.shape.vocab // sizes.layout.tp)
    _norm(made, sizes)
    made.linear("head", sizes.tokens, words, shape.hidden, narrow=False, learns="head" in shape.trained)
    logits = float(sizes.tokens * words)
    made.over(
        "loss",
        (sizes.recipe.compute + 4 + 4 + 4) * logits,
        (4 + sizes.recipe.compute) * logits,
        kernels=4,
        eager=EAGER["loss"],
    )
    return made.done()
