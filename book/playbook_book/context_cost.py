"""What context parallelism sends for one layer, as a formula, and whether it can be hidden. Standard library only.

A rank has seq / cp tokens of every sample: their queries, keys and values. Gradients that are added up on their way
travel in fp32. ``planning/traffic.py`` has the messages of a whole step; a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from playbook._checks import check_positive, unknown
from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.layout.fields import CONTEXT
from playbook.shapes import ModelShape

FP32 = 4


@dataclass(frozen=True)
class ContextTraffic:
    """Bytes that each rank sends to the others of its cp group for one layer and one micro-batch."""

    forward: Fraction
    backward: Fraction

    @property
    def total(self) -> Fraction:
        return self.forward + self.backward


def context_traffic(
    shape: ModelShape, layout: Layout, seq: int, context: str = "ring", itemsize: int = 2
) -> ContextTraffic:
    """Traffic of one layer with ``context`` = ring, gather or ulysses; what recomputation repeats is left out.

    Ring (Liu et al. 2023, arXiv 2310.01889): K and V of a rank make cp − 1 hops, in backward again, and their gradients
    as many. Gather (Llama 3, arXiv 2407.21783, section 3.3.2): the same bytes as an all-gather, and a reduce-scatter of
    the gradients. Ulysses (Jacobs et al. 2023, arXiv 2309.14509): of q, k, v and the output, (cp − 1)/cp change hands,
    and so do their gradients. Raises ConfigError for an unknown ``context``.
    """
    cp, tp = layout.cp, layout.tp
    tokens = layout.micro_batch * layout.padded(seq) // cp
    kv_heads = max(1, shape.n_kv_heads // tp) * tokens
    if context in ("ring", "gather"):
        sent = Fraction((cp - 1) * kv_heads * 2 * shape.qk_dim)  # values are padded to the width of keys
        return ContextTraffic(sent * itemsize, sent * (itemsize + FP32))
    if context != "ulysses":
        raise ConfigError(unknown("context", context, CONTEXT))
    heads = shape.heads // tp * tokens
    swapped = Fraction((heads + kv_heads) * (shape.qk_dim + shape.v_dim) * (cp - 1), cp) * itemsize
    return ContextTraffic(swapped, swapped)


def hiding_tokens(
    shape: ModelShape, peak_flops: float, bandwidth: float, *, itemsize: int = 2, causal: bool = True
) -> float:
    """Tokens of a sample that a rank needs so that a hop of the ring takes no longer than the block computed meanwhile.

    A block of t queries and t keys is 2·(d_qk + d_v)·heads·t² FLOPs, half of them under a causal mask in zigzag; its keys
    and values are (d_qk + d_v)·kv_heads·t elements. So t grows as FLOP/s over bytes/s, and falls with the query heads
    that share a key (the rule c ≥ F/B of Liu et al. 2023, section 3, is the one of no mask and no sharing in 16 bits).
    Tensor parallelism divides both sides. ``peak_flops`` are FLOP/s that are really reached, ``bandwidth`` bytes/s.
    """
    check_positive("peak_flops", peak_flops, ConfigError)
    check_positive("bandwidth", bandwidth, ConfigError)
    flops_per_pair = 2 * shape.heads / (2 if causal else 1)
    return peak_flops / bandwidth * shape.n_kv_heads * itemsize / flops_per_pair
