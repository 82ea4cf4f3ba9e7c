"""The naive twin of the loss over a sharded vocabulary."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.model.ops import token_losses
from playbook.parallel.placement import Shard


def gathered_losses(logits: Tensor, targets: Tensor, shard: Shard, group: dist.ProcessGroup) -> Tensor:
    """`tensor.vocab_losses` without the trick: every rank gets all logits, (n, vocab), and works out the same loss."""
    parts = [torch.empty_like(logits) for _ in range(group.size())]
    dist.all_gather(parts, logits.detach().contiguous(), group=group)
    parts[group.rank()] = logits  # the way back of the gradient
    return token_losses(torch.cat(parts, 1)[:, : shard.size], targets)
