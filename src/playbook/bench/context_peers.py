"""Context parallelism as it is written in an afternoon: gather keys and values, and let torch's attention do the rest.

PyTorch's own context parallelism needs CUDA; this needs nothing, and is what it has to be better than.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_tensor_autograd


class GatheredSDPA:
    """An attention core, as `model.ops.Ops.attention`: this rank's queries, the keys and values of all ranks.

    Ranks have contiguous parts of the tokens. ``sliced``: keys that none of the queries sees are left out.
    """

    def __init__(self, group: dist.ProcessGroup, sliced: bool):
        self.group, self.sliced = group, sliced

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, p: float = 0.0, training: bool = False, causal: bool = True
    ) -> Tensor:
        s, mask = q.shape[2], None
        start = self.group.rank() * s
        k, v = (all_gather_tensor_autograd(t.contiguous(), 2, self.group) for t in (k, v))
        if causal and self.sliced:
            k, v = k[:, :, : start + s], v[:, :, : start + s]
        if causal:
            keys = torch.arange(k.shape[2], device=q.device)
            mask = torch.arange(start, start + s, device=q.device)[:, None] >= keys  # (s/c, s)
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=p if training else 0.0, enable_gqa=q.shape[1] != k.shape[1]
        )
