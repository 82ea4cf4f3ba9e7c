"""Products in chunks: every message is asked for before a product begins, and waited for after it."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from playbook import launch
from playbook.parallel import chunked
from playbook.parallel.mesh import Ring


def order() -> tuple[list[str], list[str]]:
    """In a rank: what a gather in chunks does, one after another, and what a scatter does."""
    events: list[str] = []

    class Noted(Ring):
        def pass_on(self, tensor: Tensor) -> Tensor:
            events.append("asked")
            return super().pass_on(tensor)

        def arrive(self) -> None:
            sent = bool(self._works)
            super().arrive()
            if sent:
                events.append("arrived")

    with launch.process_group() as world:
        group, weight = dist.group.WORLD, torch.randn(16, 16)
        own, whole = torch.randn(1, 8, 16), torch.randn(1, 8 * world.size, 16)

        def product(x: Tensor) -> Tensor:
            events.append("product")
            return F.linear(x, weight)

        chunked.Ring = Noted  # in this process alone
        chunked.gather_matmul(own, [product], group)
        gathered = events[:]
        events.clear()
        chunked.matmul_scatter(lambda some: product(whole[:, some]), 8 * world.size, group)
        return gathered, events


def test_messages_in_chunks_travel_beneath_products(ranks):
    beneath = ["asked", "product", "arrived"]
    for gathered, scattered in ranks(order, ranks=3).values:
        assert gathered == [*beneath, *beneath, "product"]
        assert scattered == ["product", *beneath, *beneath]
