"""What the library does in pieces that overlap or shard, done at once: the naive twins of parallel tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.model.ops import token_losses
from playbook.parallel.chunked import Product
from playbook.parallel.placement import Shard
from playbook.parallel.sequence import gather_tokens, scatter_tokens


def gather_matmul(
    own: Tensor, products: Sequence[Product], group: dist.ProcessGroup, keep: bool = False
) -> tuple[list[Tensor], Tensor | None]:
    """`chunked.gather_matmul`, one after the other: gather everything, then multiply."""
    whole = gather_tokens(own, group)
    return [product(whole) for product in products], whole if keep else None


def matmul_scatter(partial: Callable[[slice], Tensor], tokens: int, group: dist.ProcessGroup) -> Tensor:
    """`chunked.matmul_scatter`, one after the other: multiply everything, then add up."""
    return scatter_tokens(partial(slice(tokens)), group)


def gathered_losses(logits: Tensor, targets: Tensor, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """`tensor.vocab_losses` without the trick: every rank gets all logits, (n, vocab), and works out the same loss."""
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.detach().contiguous(), group=group)
    parts[group.rank()] = logits  # the way back of the gradient
    return token_losses(torch.cat(parts, 1)[:, : shard.size], targets)
