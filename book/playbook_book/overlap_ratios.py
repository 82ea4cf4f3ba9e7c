"""What each technique sends for one block and one micro-batch, and the FLOPs that a rank computes meanwhile.

Both are exact numbers (`Overlap`); with FLOP/s and bytes/s they give the ratio that says whether messages can be
hidden. FLOPs are those of products with weights. The attention core, which grows with the length of samples and only
helps, is left out but in context parallelism, which hides behind it. Tests hold bytes to ``planning/traffic.py``, FLOPs
to ``planning/flops.py``. Elements have two bytes, gradients that replicas add up four: what Megatron-LM and torchtitan
do by default (``--accumulate-allreduce-grads-in-fp32``, on with bf16; ``mixed_precision_reduce = "float32"``). Standard
library only.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from playbook._checks import check_positive, unknown
from playbook.block import Kind
from playbook.errors import ConfigError
from playbook.hardware import Cluster
from playbook.layout import Layout
from playbook.planning.expert_traffic import missed
from playbook.planning.flops import ATTENTION_CORE, block_flops
from playbook.planning.messages import FP32
from playbook.planning.rank_view import groups_of
from playbook.planning.weights import block_weights, crossings
from playbook.shapes import ModelShape, MoE


@dataclass(frozen=True)
class Overlap:
    """Bytes that a rank sends, and FLOPs that it computes meanwhile."""

    sent: Fraction
    flops: Fraction

    @property
    def intensity(self) -> float:
        """FLOPs for each byte that is sent. Messages are hidden where a GPU does fewer in the time of a byte."""
        return float(self.flops / self.sent) if self.sent else float("inf")

    def ratio(self, *, peak_flops: float, bandwidth: float) -> float:
        """Time to send over time to compute; below 1 the sending can be hidden.

        ``peak_flops`` are FLOP/s that are really reached, ``bandwidth`` bytes/s that a GPU sends.
        """
        check_positive("peak_flops", peak_flops, ConfigError)
        check_positive("bandwidth", bandwidth, ConfigError)
        return float(self.sent) / bandwidth / (float(self.flops) / peak_flops)


def data_parallel(
    shape: ModelShape, layout: Layout, seq: int, *, experts: bool | None = None, gradient_bytes: int = FP32
) -> Overlap:
    """The all-reduce of a block's gradients, 2(N − 1)/N of their bytes, behind the backward pass of the block.

    ``data_parallel_ratio`` is the same for a dense model, whose parameters cancel. With experts they do not: all have
    gradients, and a token meets few of them. Those of other ranks' experts have copies of their own: ``experts`` says
    whether only these gradients are sent (True), or only the others (False).
    """
    sent = [2 * Fraction(n - 1, n) * elements for elements, n in _copied(shape, layout, experts)]
    return Overlap(sum(sent, Fraction(0)) * gradient_bytes, 2 * _products(shape, layout, seq))


def zero3(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    backward: bool = False,
    experts: bool | None = None,
    weight_bytes: int = 2,
    gradient_bytes: int = FP32,
) -> Overlap:
    """The all-gather of a block's weights behind its forward pass (in fact, that of the block before).

    In backward, a second gather and the reduce-scatter of the gradients, behind twice the FLOPs. Every micro-batch sends
    all of it again. A block is padded to a multiple of its replicas. ``experts``: as in ``data_parallel``.
    """
    gathered = Fraction(sum((n - 1) * -(-elements // n) for elements, n in _copied(shape, layout, experts)))
    each = weight_bytes + (gradient_bytes if backward else 0)
    return Overlap(gathered * each, _products(shape, layout, seq) * (1 + backward))


def tensor(
    shape: ModelShape, layout: Layout, seq: int, *, backward: bool = False, itemsize: int = 2
) -> Overlap:
    """What enters and leaves a block's tensor-parallel regions, and the block's products; tokens cancel.

    With sequence parallelism an all-gather into each region and a reduce-scatter out of it, and in backward another
    gather of the inputs; without it an all-reduce out of each, which sends as much as both. The forward ratio of a GPT
    block of 12h² parameters is (tp − 1)/6h · bytes · FLOP/s over bytes/s.
    """
    into, out, again = _crossings(shape, layout)
    crossing = into + out + (again if backward else 0) if layout.sp else 2 * (into if backward else out)
    sent = Fraction(layout.tp - 1, layout.tp) * crossing * _tokens(layout, seq) * itemsize
    return Overlap(sent, _products(shape, layout, seq) * (1 + backward))


def context(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    backward: bool = False,
    itemsize: int = 2,
    causal: bool = True,
) -> Overlap:
    """A hop of ring attention, and the block of queries and keys that is computed meanwhile.

    In backward a hop takes gradients along, in fp32, and a block is five products instead of two: the scores once more,
    and the gradients of queries, keys, values and weights (Dao et al. 2022, arXiv 2205.14135, appendix B). A causal mask
    leaves half of the pairs in zigzag. The forward ratio is 1 with the tokens that ``hiding_tokens`` gives.
    """
    tokens = layout.padded(seq) // layout.cp
    kv_heads = max(1, shape.n_kv_heads // layout.tp)
    hop = layout.micro_batch * tokens * kv_heads * 2 * shape.qk_dim  # values are padded to the width of keys
    pairs = Fraction(layout.micro_batch * tokens**2, 2 if causal else 1)
    d, e = shape.qk_dim, shape.v_dim
    flops = 2 * (3 * d + 2 * e if backward else d + e) * pairs * (shape.heads // layout.tp)
    sent = Fraction(hop * (itemsize + (FP32 if backward else 0))) if layout.cp > 1 else Fraction(0)
    return Overlap(sent, flops)


def pipeline(
    shape: ModelShape, layout: Layout, seq: int, *, backward: bool = False, itemsize: int = 2
) -> Overlap:
    """The residual stream from one stage to the next, and the products of a stage of average depth; tokens cancel."""
    stream = Fraction(_tokens(layout, seq) * shape.hidden * itemsize, layout.tp if layout.sp else 1)
    each = (count * _products(shape, layout, seq, kind) for kind, count in shape.blocks().items())
    sent = stream if layout.stages > 1 else Fraction(0)
    return Overlap(sent, sum(each, Fraction(0)) / layout.stages * (1 + backward))


def expert(
    shape: ModelShape,
    layout: Layout,
    seq: int,
    *,
    backward: bool = False,
    itemsize: int = 2,
    node: int | None = None,
    two_step: bool = False,
) -> Overlap:
    """Rows to their experts and back, at an even load, and the products of these experts; tokens and top-k cancel.

    What is left is the experts' width: (ep − 1)/ep · bytes/(3·ffn) · FLOP/s over bytes/s with gated experts. With so
    many ranks of a group in each ``node``, only rows that leave the node count: top-k · (ep − node)/ep of a token or,
    in ``two_step`` dispatch, one for each other node with any of its experts (node-limited routing bounds these:
    DeepSeek-V3, arXiv 2412.19437, section 2.1.2). Raises ConfigError for a model without experts and for a ``node``
    that does not divide ep.
    """
    moe, ep, size = _experts_of(shape), layout.ep, 1 if node is None else node
    if ep % size:
        raise ConfigError(f"node must divide ep = {ep}, got {node}")
    rows = moe.top_k * Fraction(ep - size, ep)
    if two_step:
        rows = (ep // size - 1) * (1 - missed(moe, ep // size))
    sent = Fraction(2 * rows * _tokens(layout, seq) * shape.hidden * itemsize, layout.apart)
    width = (3 if shape.gated else 2) * moe.ffn * moe.top_k
    flops = Fraction(2 * _tokens(layout, seq) * shape.hidden * width, layout.tp)
    return Overlap(sent, flops * (1 + backward))


#: Groups of ranks that exchange messages; those of ``edp`` have the same experts.
GROUPS = ("tp", "cp", "dp", "pp", "ep", "edp")


def across_nodes(cluster: Cluster, layout: Layout, axis: str) -> int:
    """Of a group along ``axis`` that goes over nodes, how many ranks are in the first; 0 where all of them are."""
    if axis not in GROUPS:
        raise ConfigError(unknown("axis", axis, GROUPS))
    groups = groups_of(layout, 0)
    group = groups.get("replicas", groups["dp"]) if axis == "dp" else groups[axis] or (0,)
    inside = sum(rank < cluster.gpus_per_node for rank in group)
    return 0 if inside == len(group) else inside


def group_bandwidth(cluster: Cluster, layout: Layout, axis: str) -> float:
    """Bytes/s that each GPU sends to the others of its group along ``axis``, one of `GROUPS`.

    NVLink where the group fits in a node. Between nodes, a ring has an adapter for each of its ranks in a node (dp, edp,
    tp), and is no faster than NVLink brings to them; hops and all-to-alls have one each (cp, pp, ep). ``dp`` is all
    replicas, those of cp included.
    """
    if not (inside := across_nodes(cluster, layout, axis)):
        return cluster.intra_bandwidth
    adapters = 1 if axis in ("cp", "pp", "ep") else inside
    return min(adapters * cluster.inter_bandwidth, cluster.intra_bandwidth)


def _tokens(layout: Layout, seq: int) -> int:
    return layout.micro_batch * layout.padded(seq) // layout.cp


def _kind(shape: ModelShape) -> Kind:
    """The kind of the block that is looked at: one with experts, where there are any."""
    return list(shape.blocks())[-1]


def _products(shape: ModelShape, layout: Layout, seq: int, kind: Kind | None = None) -> Fraction:
    """FLOPs of a block's products with weights in forward, on one rank; router and latents count as divided by tp."""
    terms = block_flops(shape, kind or _kind(shape), _tokens(layout, seq), seq)
    products = [terms[name] for name in terms if name not in (*ATTENTION_CORE, "states")]
    return Fraction(sum(products), layout.tp)


def _copied(shape: ModelShape, layout: Layout, experts: bool | None) -> list[tuple[int, int]]:
    """Parameters of a block on one rank, and how many ranks have the same: those of experts apart."""
    replicas, found = layout.dp * layout.cp, {False: 0, True: 0}
    for weight in block_weights(shape, layout, _kind(shape)):
        found[weight.expert] += weight.elements
    copies = {False: (found[False], replicas), True: (found[True], replicas * layout.apart // layout.ep)}
    return [pair for expert, pair in copies.items() if experts in (None, expert)]


def _crossings(shape: ModelShape, layout: Layout) -> tuple[int, int, int]:
    """Features of a token that enter a block's regions, that leave them, and that backward gathers again."""
    into, out = (sum(widths) for widths in crossings(shape, _kind(shape)))
    routed = shape.hidden if _kind(shape).experts and not layout.etp else 0
    beside = shape.mla.rope_dim if shape.mla else 0  # the key that heads share
    return into + routed + beside, out + routed, into


def _experts_of(shape: ModelShape) -> MoE:
    if shape.moe is None:
        raise ConfigError(f"{shape.name or 'this model'} has no experts for expert parallelism")
    return shape.moe
