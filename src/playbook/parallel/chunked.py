"""A collective and the matrix product beside it, taken apart so that one hides behind the other ("async TP").

An all-gather is a ring of steps, and so is a reduce-scatter. What a step brings can be multiplied while the next one is
under way; what a step adds up can be computed just before (Wang et al. 2023, "Overlap communication with dependent
computation via decomposition in large deep learning models", ASPLOS). The same bytes travel, and the sums are the same
but for their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from playbook.parallel.ring import Ring
from playbook.parallel.sequence import gather_tokens, scatter_tokens

Weights = Sequence[tuple[Tensor, Tensor | None]]  # (out, in) and the bias, (out,) or none


def gather_matmul(
    own: Tensor, weights: Weights, group: dist.ProcessGroup, keep: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """x·Wᵀ + b of all tokens for every W, (b, s/t, in) -> (b, s, out) each, and x itself if ``keep``. No graph.

    A rank multiplies the tokens that it has while it passes them on and receives the next ones.
    """
    ring, (b, s, width) = Ring(group), own.shape
    outputs = [own.new_empty(b, ring.ranks * s, len(w)) for w, _ in weights]
    whole = own.new_empty(b, ring.ranks * s, width) if keep else None
    piece = own.contiguous()
    for step in range(ring.ranks):
        coming = ring.pass_on(piece) if step + 1 < ring.ranks else piece
        here = slice(ring.source(step) * s, (ring.source(step) + 1) * s)
        for output, (w, bias) in zip(outputs, weights, strict=True):
            output[:, here] = F.linear(piece, w, bias)
        if whole is not None:
            whole[:, here] = piece
        ring.arrive()
        piece = coming
    return outputs, whole


def add_products(inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """Σ x·Wᵀ for inputs x (b, s, in) and weights W (out, in): (b, s, out)."""
    total = F.linear(inputs[0], weights[0])
    for x, w in zip(inputs[1:], weights[1:], strict=True):
        total.flatten(0, -2).addmm_(x.flatten(0, -2), w.t())
    return total


def matmul_scatter(inputs: Sequence[Tensor], weights: Sequence[Tensor], group: dist.ProcessGroup) -> Tensor:
    """This rank's tokens of the sum over ranks of `add_products`: (b, s/t, out). No graph.

    The sum for each rank's tokens travels towards that rank; the addend is computed while it is on its way.
    """
    ring = Ring(group)
    s = inputs[0].shape[1] // ring.ranks
    coming: Tensor | None = None
    for step in range(ring.ranks):
        owner = ring.source(step + 1)  # the sum that leaves here now reaches its owner in the last step
        here = slice(owner * s, (owner + 1) * s)
        addend = add_products([x[:, here] for x in inputs], weights)
        ring.arrive()
        total = addend if coming is None else addend + coming
        if step + 1 < ring.ranks:
            coming = ring.pass_on(total)
    return total


def naive_gather_matmul(
    own: Tensor, weights: Weights, group: dist.ProcessGroup, keep: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """The same, one after the other: gather everything, then multiply."""
    whole = gather_tokens(own, group)
    return [F.linear(whole, w, bias) for w, bias in weights], whole if keep else None


def naive_matmul_scatter(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], group: dist.ProcessGroup
) -> Tensor:
    """The same, one after the other: multiply everything, then add up."""
    return scatter_tokens(add_products(inputs, weights), group)
