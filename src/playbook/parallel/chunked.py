"""A collective and the matrix product beside it, taken apart so that one hides behind the other ("async TP").

An all-gather is a ring of steps, and so is a reduce-scatter. What a step brings can be multiplied while the next one is
under way; what a step adds up can be computed just before (Wang et al. 2023, "Overlap communication with dependent
computation via decomposition in large deep learning models", ASPLOS). The same bytes travel, and the sums are the same
but for their order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch.distributed as dist
from torch import Tensor

from playbook.parallel.mesh import Ring

#: What is multiplied: some tokens (b, s, in) -> (b, s, out).
Product = Callable[[Tensor], Tensor]


def gather_matmul(
    own: Tensor, products: Sequence[Product], group: dist.ProcessGroup, keep: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """Every product of all tokens, (b, s/t, in) -> (b, s, out) each, and the tokens themselves if ``keep``. No graph.

    A rank multiplies the tokens that it has while it passes them on and receives the next ones.
    """
    ring, (b, s, width) = Ring(group), own.shape
    outputs: list[Tensor] = []
    whole = own.new_empty(b, ring.ranks * s, width) if keep else None
    piece = own.contiguous()
    for step in range(ring.ranks):
        coming = ring.pass_on(piece) if step + 1 < ring.ranks else piece
        here = slice(ring.source(step) * s, (ring.source(step) + 1) * s)
        for i, product in enumerate(products):
            part = product(piece)
            if step == 0:
                outputs.append(part.new_empty(b, ring.ranks * s, part.shape[-1]))
            outputs[i][:, here] = part
        if whole is not None:
            whole[:, here] = piece
        ring.arrive()
        piece = coming
    return outputs, whole


def matmul_scatter(partial: Callable[[slice], Tensor], tokens: int, group: dist.ProcessGroup) -> Tensor:
    """This rank's tokens of the sum over ranks of a partial sum (b, tokens, out): (b, tokens/t, out). No graph.

    ``partial`` computes a slice of the tokens. The sum for each rank's tokens travels towards that rank; this rank's
    part of it is computed while it is on its way.
    """
    ring = Ring(group)
    s = tokens // ring.ranks
    coming: Tensor | None = None
    for step in range(ring.ranks):
        owner = ring.source(step + 1)  # the sum that leaves here now reaches its owner in the last step
        here = partial(slice(owner * s, (owner + 1) * s))
        ring.arrive()
        total = here if coming is None else here + coming
        if step + 1 < ring.ranks:
            coming = ring.pass_on(total)
    return total
