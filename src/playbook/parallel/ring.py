"""A ring of ranks: what is sent to the next while what came from the one before is worked on."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.layout.tokens import source_of


class Ring:
    """Messages around the ranks of ``group``, in their order: rank r sends to r + 1 and receives from r − 1."""

    def __init__(self, group: dist.ProcessGroup):
        self.group, self.rank, self.ranks = group, group.rank(), group.size()
        ranks = dist.get_process_group_ranks(group)
        self._next, self._before = (
            ranks[(self.rank + 1) % self.ranks],
            ranks[(self.rank - 1) % self.ranks],
        )
        self._works: list[dist.Work] = []

    def source(self, step: int) -> int:
        """Whose message is here after so many steps, if every rank began with its own."""
        return source_of(self.rank, step, self.ranks)

    def pass_on(self, tensor: Tensor) -> Tensor:
        """Start to send ``tensor`` (contiguous) and to receive one like it, which is there after `arrive`.

        Neither may be written to before that."""
        coming = torch.empty_like(tensor)
        self._works += dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, self._next, self.group),
                dist.P2POp(dist.irecv, coming, self._before, self.group),
            ]
        )
        return coming

    def arrive(self) -> None:
        """Wait for all that was started."""
        for work in self._works:
            work.wait()
        self._works.clear()
