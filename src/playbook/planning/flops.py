"""FLOPs of a training step, counted matrix multiplication by matrix multiplication.

Multiplying an m × k by a k × n matrix takes m·n·k multiplications and as many additions: 2mnk FLOPs. Norms, activations,
softmax and the embedding's look-up are left out, being a few per cent and no matrix multiplications. The attention core
counts all seq² pairs although a causal mask throws half of them away: so do Narayanan et al. 2021 (arXiv 2104.04473,
section 5.1), Korthikanti et al. 2022 (arXiv 2205.05198, appendix A) and PaLM (Chowdhery et al. 2022, arXiv 2204.02311,
appendix B), and MFU is comparable between papers only if it is counted the same way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from playbook._checks import check_int
from playbook.block import Core, Kind, Linear, block_layers, evaluate, symbols
from playbook.errors import ConfigError
from playbook.layout import recomputed
from playbook.layout.fields import blocks_again
from playbook.registry import lab
from playbook.shapes import ModelShape

#: The part of attention whose cost grows with seq², recomputed by selective recomputation.
ATTENTION_CORE = ("attention scores", "attention over values")
#: Terms of linear layers that belong to attention.
PROJECTIONS = {
    "queries, down": "query projection", "queries": "query projection", "keys": "key projection",
    "values": "value projection", "keys and values, down": "latent projection",
    "keys and values, up": "key and value projection", "output": "output projection",
}  # fmt: skip
_OTHERS = "other projections"


#: The parts of a block that recomputation runs again, messages and all (`Layout.again`).
_AGAIN = {
    "full": ("attention", "mlp", "router", "experts", "shared experts"),
    "mlp": ("mlp",),
    "moe": ("router", "experts", "shared experts"),
    "shared_experts": ("shared experts",),
}


def parts_again(again: Iterable[str]) -> frozenset[str]:
    """The parts that these modules are."""
    return frozenset(part for module in again for part in _AGAIN.get(module, ()))


def matmul_flops(m: int, n: int, k: int) -> int:
    """FLOPs of an (m, k) by (k, n) matrix multiplication."""
    return 2 * m * n * k


def forward_flops(shape: ModelShape, batch: int, seq: int, document: int | None = None) -> dict[str, int]:
    """FLOPs of one forward pass over ``batch`` samples of ``seq`` tokens, by term, summed over the layers.

    Of packed documents, tokens attend to their own: ``document`` is the tokens of the one that a token is in, on average.

    Terms: query, key and value projection (with MLA latent projection, and key and value projection), adapters,
    attention scores, attention over values, output projection, router (with experts), mlp (of the experts
    that tokens are sent to), head. Raises :class:`ConfigError` unless ``batch`` and ``seq`` are positive integers.
    """
    tokens = check_int("batch", batch, ConfigError) * check_int("seq", seq, ConfigError)
    terms: dict[str, int] = {}
    for kind, blocks in shape.blocks().items():
        for name, flops in block_flops(shape, kind, tokens, min(document or seq, seq)).items():
            terms[name] = terms.get(name, 0) + blocks * flops
    terms["head"] = matmul_flops(tokens, shape.vocab, shape.hidden)
    return terms


def block_flops(
    shape: ModelShape, kind: Kind, tokens: int, seq: int, again: frozenset[str] = frozenset({"full"})
) -> dict[str, int]:
    """FLOPs of one block of a kind forward, or of its modules ``again``, by term; tokens attend to ``seq`` each."""
    values, terms, parts = symbols(shape), Counter[str](), parts_again(again)
    for row in block_layers(shape, kind):
        up = "mla_up_proj" in again and row.name in ("queries", "keys and values, up")
        if isinstance(row, Core) and again & {"full", "core_attn"}:
            heads, keys = evaluate(row.heads, values), row.keys(seq)
            terms["attention scores"] = matmul_flops(tokens, keys, heads * shape.qk_dim)
            terms["attention over values"] = matmul_flops(tokens, keys, heads * shape.v_dim)
        if isinstance(row, Linear) and (row.part in parts or up):
            rows, columns, times = (evaluate(size, values) for size in (row.rows, row.columns, row.times))
            term = "router" if row.part == "router" else "mlp"
            term = PROJECTIONS.get(row.name, _OTHERS) if row.part == "attention" else term
            terms["adapters" if row.adapter else term] += matmul_flops(tokens * times, rows, columns)
    if kind.recurrent and "full" in again:
        terms["states"] = lab("recurrent", "flops")(shape.recurrent, tokens)
    return dict(terms)


def stages_of_equal_cost(shape: ModelShape, depth: int) -> tuple[int, ...]:
    """Blocks of each of ``depth`` stages where the last one has fewer, for the head: so that the costliest stage costs
    least. Blocks are taken as if all cost the same."""
    each = {kind: sum(block_flops(shape, kind, 1, 0).values()) for kind in shape.blocks()}
    blocks = sum(count * each[kind] for kind, count in shape.blocks().items())
    head = matmul_flops(1, shape.vocab, shape.hidden) * shape.layers / blocks

    def costliest(last: int) -> float:
        return max(-(-(shape.layers - last) // (depth - 1)), last + head)

    last = min(range(shape.layers // depth, -1, -1), key=costliest)
    size, extra = divmod(shape.layers - last, depth - 1)
    return (*(size + (stage < extra) for stage in range(depth - 1)), last)


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one training step: what the model needs and what the hardware computes."""

    forward: int
    backward: int
    recomputed: int

    @property
    def model(self) -> int:
        """Forward and backward: what training needs, however it is implemented. Numerator of MFU."""
        return self.forward + self.backward

    @property
    def hardware(self) -> int:
        """What is computed, recomputation included. Numerator of HFU."""
        return self.model + self.recomputed


def step_flops(
    shape: ModelShape, batch: int, seq: int, recompute: str = "none", stages: Sequence[range] | None = None,
    document: int | None = None,
) -> StepFlops:  # fmt: skip
    """FLOPs of a forward and backward pass over ``batch`` samples of ``seq`` tokens.

    The backward pass multiplies twice for each multiplication of the forward pass: once for the gradient of the input,
    once for that of the weight, if it learns (of the other input, in attention). ``recompute="full"`` runs the
    blocks, not the head, forward once more; ``"selective"`` the attention core alone (Korthikanti et al. 2022, section
    5); names those modules; with a number, of so many blocks of each of the ``stages``. ``document`` is as for
    `forward_flops`. Raises :class:`ConfigError` for sizes below 1 and an unknown ``recompute``.
    """
    terms, again = forward_flops(shape, batch, seq, document), recomputed(recompute)
    forward, both = sum(terms.values()), {"adapters", "states", *ATTENTION_CORE}
    parts = dict.fromkeys((_OTHERS, *PROJECTIONS.values()), "attention") | {"head": "head", "mlp": "mlp"}
    frozen = sum(terms[name] for name in terms.keys() - both if parts.get(name) not in shape.trained)
    twice = sum(
        blocks
        * sum(block_flops(shape, kind, batch * seq, min(document or seq, seq), kind.again(again)).values())
        for kind, blocks in shape.blocks(stages, blocks_again(recompute)).items()
    )
    return StepFlops(
        forward=forward, backward=2 * forward - (shape.train != "full") * frozen, recomputed=twice
    )
