"""How many parameters one rank holds, part by part: cut by tensor, expert and pipeline parallelism.

Column-parallel matrices (query, key, value, up, gate) are cut with their biases; row-parallel ones (output, down) keep a
whole bias on every rank (Shoeybi et al. 2019, arXiv 1909.08053, section 3). Key/value heads are copied where there are
more ranks than heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from playbook.layout import Layout
from playbook.planning.sharding import Unit, share_of
from playbook.planning.terms import Make, Part, Term, total
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class StateCounts:
    """Parameters of one rank: ``local`` all that it computes with, ``shard`` the share that it updates: ZeRO's.

    ``block`` is the largest single block on this rank, ``table`` the embedding's matrix; ``units`` are what ZeRO-3
    gathers whole, one at a time.
    """

    local: int
    shard: int
    block: int
    table: int
    units: tuple[Unit, ...]
    parts: tuple[Part, ...]


def stage_parameters(
    shape: ModelShape, layout: Layout, stage: int, held: dict[bool, int], make: Make
) -> StateCounts:
    """Parameters of a rank in pipeline stage ``stage``, whose blocks are ``held`` (see ``ModelShape.blocks``).

    The first stage has the embedding (and positions), the last the final norm and the head; a tied head on another
    stage than the embedding needs a copy of the table there. Experts are replicated dp·cp/ep times, all else dp·cp times.
    """
    parts: list[Part] = []
    units: list[Unit] = []
    largest = 0
    for sparse, blocks in held.items():
        block = [*attention_parameters(shape, make), *norm_parameters(shape, make)]
        block += expert_parameters(shape, make) if sparse else mlp_parameters(shape, make, "mlp", "f")
        parts.append(Part(f"{blocks} blocks" + (" with experts" if sparse else ""), tuple(block), blocks))
        experts = total(t for t in block if t.part == "experts")
        units += [Unit(total(block) - experts, experts=experts)] * blocks
        largest = max(largest, total(block))
    table = make("embedding", "table", "v*h//t")
    if stage == 0:
        positions = [make("embedding", "positions", "y*h")] if shape.positions == "learned" else []
        parts.insert(0, Part("embedding", (table, *positions), 1))
    if stage == layout.pp - 1:
        last = [make("norms", "final norm", _norm(shape, "h"))]
        if not shape.tied or layout.pp > 1:
            last.append(make("head", "matrix", "v*h//t"))
        parts.append(Part("head", tuple(last), 1))
    ends = [part.value for part in parts if part.name in ("embedding", "head")]
    # A tied table is gathered once for both ends.
    units += [Unit(size, again=False) for size in ([sum(ends)] if shape.tied and layout.pp == 1 else ends)]
    local = sum(part.value for part in parts)
    shard = share_of(units, layout.dp * layout.cp, layout.zero, ep=layout.ep) if layout.zero else local
    return StateCounts(local, shard, largest, table.value, tuple(units), tuple(parts))


def attention_parameters(shape: ModelShape, make: Make) -> list[Term]:
    """The projections of queries, keys and values, and of the output."""
    out = [make("attention", "output", "a*e*h//t")]
    if shape.bias:
        out.append(make("attention", "output bias", "h"))
    if (
        shape.mla
    ):  # the down-projections to the latents are on every rank, the up-projections are cut by heads
        query = [make("attention", "queries, down and up", "h*q + q*a*d//t")]
        if not shape.mla.q_rank:
            query = [make("attention", "queries", "h*a*d//t")]
        latent = [
            make("attention", "keys and values, down", "h*(u+p)"),
            make("attention", "keys and values, up", "u*a*(d-p+e)//t"),
        ]
        return [*query, *latent, *out]
    qkv = [make("attention", "queries, keys, values", "h*(a+2*g)*d//t")]
    if shape.qkv_bias:
        qkv.append(make("attention", "their biases", "(a+2*g)*d//t"))
    return [*qkv, *out]


def mlp_parameters(shape: ModelShape, make: Make, part: str, width: str) -> list[Term]:
    """The matrices of one MLP of the given width, and their biases."""
    columns = 2 if shape.gated else 1
    terms = [make(part, "matrices", f"{columns + 1}*h*{width}//t")]
    if shape.bias:
        terms.append(make(part, "biases", f"{'2*' if shape.gated else ''}{width}//t + h"))
    return terms


def expert_parameters(shape: ModelShape, make: Make) -> list[Term]:
    """The router, the experts that a rank holds, and the shared ones."""
    columns = 2 if shape.gated else 1
    terms = [make("router", "router", "h*E"), make("experts", "matrices", f"m*{columns + 1}*h*F//t")]
    if shape.bias:
        terms.append(make("experts", "biases", f"m*({columns}*F//t + h)"))
    if shape.moe and shape.moe.shared_experts:
        terms.append(make("shared experts", "matrices", f"{columns + 1}*h*G//t"))
        if shape.bias:
            terms.append(make("shared experts", "biases", f"{columns}*G//t + w*h"))
    return terms


def norm_parameters(shape: ModelShape, make: Make) -> list[Term]:
    """The two norms of a block, and those inside attention: of each head (Qwen 3), or of the latents (DeepSeek)."""
    terms = [make("norms", "two norms", f"2*{_norm(shape, 'h')}")]
    if shape.mla:
        terms.append(make("norms", "norms of the latents", "q+u"))
    elif shape.qk_norm:
        terms.append(make("norms", "norms of queries and keys", "2*d"))
    return terms


def _norm(shape: ModelShape, width: str) -> str:
    return f"2*{width}" if shape.norm == "layernorm" and shape.bias else width
