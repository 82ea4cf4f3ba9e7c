"""The block, once: every linear layer and norm of a block on one rank, in symbols. All else is a sum over it.

Parameters, tensors of the flat vector, products, copies in FP8, what crosses the borders of tensor-parallel regions and
what weight gradients wait for are read from these rows. Column-parallel matrices (queries, keys, values, up, gate) are
cut with their biases, row-parallel ones (output, down) keep a whole bias on every rank (Shoeybi et al. 2019, arXiv
1909.08053, section 3). Key/value heads are copied where there are more ranks than heads. A ``shape`` is a `ModelShape`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any, NamedTuple


class Linear(NamedTuple):
    """y = x·Wᵀ, W of ``rows`` × ``columns`` on one rank, ``number`` of them (its experts).

    It multiplies what it ``reads``: layers that read the same keep and gather it once; ``times`` rows of it for each
    token. ``cut`` is "column" (x enters a tensor-parallel region), "row" (y leaves it) or "": whole on every rank.
    ``shared``: which ranks have the same weights, "copies" of heads, "all", or those with other "tokens" under sp.
    An ``adapter`` is A or B of the layer before it.
    """

    part: str
    name: str
    rows: str
    columns: str
    reads: str
    cut: str = ""
    bias: bool = False
    shared: str = ""
    number: str = "1"
    times: str = "1"
    adapter: bool = False

    @property
    def input(self) -> tuple[str, str]:
        """The tensor that it reads, of its part."""
        return self.part, self.reads


class Norm(NamedTuple):
    """A norm over ``width`` features, with a ``bias`` or without; or another vector of weights."""

    part: str
    name: str
    width: str
    bias: bool = False
    shared: str = "tokens"


class Core(NamedTuple):
    """Attention between its projections: ``heads`` of a rank, whose queries see their ``window`` last keys (0: all)."""

    part: str = "attention"
    name: str = "core"
    heads: str = "a//t"
    window: int = 0

    def keys(self, seq: int) -> int:
        """Keys that a query has scores for in a sample of ``seq`` tokens, before the mask."""
        return min(self.window or seq, seq)

    def pairs(self, seq: int) -> float:
        """Twice the pairs of a query and a key that the mask leaves of a sample, by query: ``seq`` of all."""
        keys = self.keys(seq)
        return float(keys) if keys == seq else keys * (2 * seq - keys) / seq


class Kind(NamedTuple):
    """What tells the blocks of a model apart: ``experts`` in place of one MLP, the ``window`` of attention (0: none, -1:
    no attention but a state), whether they keep all, beside others of which parts are computed again, and whether they
    are ``wide``: in higher precision than others (`FP8Recipe.wide_blocks`)."""

    experts: bool = False
    window: int = 0
    whole: bool = False
    wide: bool = False

    @property
    def recurrent(self) -> bool:
        """Whether a state stands for attention (`ModelShape.recurrent`)."""
        return self.window < 0

    def again(self, modules: frozenset[str]) -> frozenset[str]:
        """The modules that backward computes again of such a block, where it does of the others."""
        return frozenset() if self.whole else modules


DENSE = Kind()
#: Parts of a model without experts: some may be all that learns.
PARTS = ("embedding", "attention", "norms", "mlp", "head")
#: Norms before and after attention, before and after the MLP: "parallel" has both parts read the same one.
NORMS = {
    "before": ("norm 1", "", "norm 2", ""),
    "after": ("", "norm 1", "", "norm 2"),
    "both": ("norm 1", "norm after attention", "norm 2", "norm after the MLP"),
    "parallel": ("norm 1", "", "", ""),
}
Layer = Linear | Norm | Core


@cache
def block_layers(shape: Any, kind: Kind) -> tuple[Layer, ...]:
    """One block of a kind, in the order of the model."""
    attention = _latent(shape, kind) if shape.mla else _heads(shape, kind)
    attention = shape.recurrent.layers(kind, attention) if shape.recurrent else attention
    mlp = _experts(shape, shape.moe) if kind.experts else _mlp(shape, "mlp", "f", "MLP input")
    first, then, second, last = ((norm(shape, name),) if name else () for name in NORMS[shape.norms])
    layers = (*first, *attention, *then, *second, *mlp, *last)
    return tuple(_adapted(layers, str(shape.lora))) if shape.lora else layers


def _adapted(layers: Iterable[Layer], rank: str) -> Iterator[Layer]:
    """Each linear layer, then A, which reads what it reads, and B, which adds to its output (Hu et al. 2021, arXiv
    2106.09685). At the entry of a tensor-parallel region A is whole on every rank, at its exit B is: partial sums."""
    for row in layers:
        yield row
        if isinstance(row, Linear):
            down, up = {"column": ("all", row.shared), "row": ("", "all")}.get(row.cut, (row.shared,) * 2)
            output = f"{row.name}, output of A"
            yield Linear(row.part, f"{row.name}, A", rank, row.columns, row.reads, shared=down, adapter=True)
            yield Linear(row.part, f"{row.name}, B", row.rows, rank, output, shared=up, adapter=True)


def learns(shape: Any, row: Linear | Norm) -> bool:
    """Whether a layer is trained: beside adapters nothing else is."""
    return row.part in shape.trained or shape.train == "full" or (isinstance(row, Linear) and row.adapter)


@cache
def weighty(shape: Any, kind: Kind) -> tuple[Linear | Norm, ...]:
    """The layers of a block that have weights."""
    return tuple(row for row in block_layers(shape, kind) if not isinstance(row, Core))


def norm(shape: Any, name: str) -> Norm:
    """A norm of the residual stream."""
    return Norm("norms", name, "h", bool(shape.norm_bias))


def _heads(shape: Any, kind: Kind) -> Iterator[Layer]:
    bias = bool(shape.qkv_bias)
    yield Linear("attention", "queries", "a*d//t", "h", "projections input", "column", bias)
    for name in ("keys", "values"):
        yield Linear("attention", name, "g*d//t", "h", "projections input", "column", bias, "copies")
    yield Core(window=kind.window)
    yield Linear("attention", "output", "h", "a*e//t", "output projection input", "row", shape.bias, "tokens")
    whole = shape.qk_norm_over == "heads"
    for name, width in (("query norm", "a*d//t"), ("key norm", "g*d//t")) if shape.qk_norm else ():
        yield Norm("norms", name, width if whole else "d", shared="" if whole else "all")


def _latent(shape: Any, kind: Kind) -> Iterator[Layer]:
    """What makes latents is on every rank, what is made of them is cut by heads (DeepSeek-V2, arXiv 2405.04434, 2.1)."""
    compressed = bool(shape.mla and shape.mla.q_rank)
    if compressed:
        yield Linear("attention", "queries, down", "q", "h", "projections input", shared="tokens")
        yield Norm("norms", "query latent", "q")
    reads, columns = ("query latent", "q") if compressed else ("projections input", "h")
    yield Linear("attention", "queries", "a*d//t", columns, reads, "column")
    yield Linear("attention", "keys and values, down", "u+p", "h", "projections input", shared="tokens")
    yield Norm("norms", "key/value latent", "u")
    yield Linear("attention", "keys and values, up", "a*(d-p+e)//t", "u", "key/value latent", "column")
    yield Core(window=kind.window)
    yield Linear("attention", "output", "h", "a*e//t", "output projection input", "row", shape.bias, "tokens")


def _mlp(
    shape: Any, part: str, width: str, reads: str, number: str = "1", times: str = "1"
) -> Iterator[Layer]:
    whole, over = ("all", "T") if part == "experts" else ("tokens", "t")
    for name in ("up", "gate") if shape.gated else ("up",):
        yield Linear(part, name, f"{width}//{over}", "h", reads, "column", shape.bias, "", number, times)
    down = ("h", f"{width}//{over}", "down projection input", "row", shape.bias, whole, number, times)
    yield Linear(part, "down", *down)


def _experts(shape: Any, moe: Any) -> Iterator[Layer]:
    """The router, which is no part of a region, the experts that a rank holds, and those that see every token."""
    yield Linear("router", "router", "E", "h", "MLP input", shared="all")
    yield from _mlp(shape, "experts", "F", "rows sent to experts", "m", "K")
    if moe.shared_experts:
        yield from _mlp(shape, "shared experts", "G", "MLP input")


@cache
def linears(shape: Any, kind: Kind) -> tuple[Linear, ...]:
    """The linear layers of a block that FP8 recipes multiply in FP8: all but the router, and adapters."""
    rows = (row for row in block_layers(shape, kind) if isinstance(row, Linear))
    return tuple(row for row in rows if row.part != "router" and not row.adapter)


# ---- what rows come to


@cache
def symbols(shape: Any, tp: int = 1, ep: int = 1, etp: int = 0) -> Mapping[str, int]:
    """The values of the symbols (`planning.terms.SYMBOLS`) for one rank of ``tp`` and ``ep`` (and ``etp``)."""
    moe, mla = shape.moe, shape.mla
    return {
        "h": shape.hidden, "a": shape.heads, "g": max(shape.n_kv_heads, tp), "d": shape.qk_dim, "e": shape.v_dim,
        "f": shape.ffn_dim, "v": -(-shape.vocab // tp) * tp, "y": shape.max_seq, "t": tp,
        "T": etp or tp, "R": tp if etp else 1,
        "K": moe.top_k if moe else 0, "E": moe.experts if moe else 0, "m": moe.experts // ep if moe else 0,
        "F": moe.ffn if moe else 0, "G": moe.ffn * moe.shared_experts if moe else 0,
        "q": (mla.q_rank or 0) if mla else 0, "u": mla.kv_rank if mla else 0, "p": mla.rope_dim if mla else 0,
        **(shape.recurrent.symbols if shape.recurrent else {}),
    }  # fmt: skip


def evaluate(formula: str, values: Mapping[str, int]) -> int:
    """A formula of integers, ``//`` where a rank holds a share."""
    return int(eval(_compiled(formula), {"__builtins__": {}}, values))


@cache
def _compiled(formula: str) -> CodeType:
    return compile(formula, formula, "eval")


@cache
def size_formula(layer: Linear | Norm) -> str:
    """The parameters of a layer on one rank."""
    if isinstance(layer, Norm):
        return f"2*{layer.width}" if layer.bias else layer.width
    rows, columns = (f"({side})" if side == "u+p" else side for side in (layer.rows, layer.columns))
    if layer.bias:
        columns = f"({columns}+1)"
    # A share is taken last, so that the formula reads 4·h·f/t.
    factors = sorted((rows, columns), key=lambda factor: factor.endswith(("//t", "//T")))
    return "*".join([*[layer.number] * (layer.number != "1"), *factors])


def size(layer: Linear | Norm, values: Mapping[str, int]) -> int:
    """How many they are."""
    return evaluate(size_formula(layer), values)
