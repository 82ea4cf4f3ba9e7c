"""A device of any size: training on it runs out of memory exactly where it would on a real one of that size."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from playbook.instruments.memory_timeline import MemoryTimeline


class MemoryLimit(MemoryTimeline):
    """A timeline that allows ``limit`` bytes to be alive at once, and raises what CUDA raises when one is asked for more.

    The storages are the real ones of a real step; only the budget is ours. It knows neither fragmentation nor a kernel's
    own workspace, so a real device of that size gives up a little earlier. After the exception the recording ends at the
    allocation that was one too many. Raises ``torch.OutOfMemoryError``.
    """

    def __init__(self, limit: int, model: nn.Module, optimizer: torch.optim.Optimizer | None = None):
        super().__init__(model, optimizer)
        self.limit = limit

    def _note(self, t: Tensor, category: str | None = None) -> None:
        before = self.live_bytes
        super()._note(t, category)
        if self.live_bytes > max(before, self.limit):
            raise torch.OutOfMemoryError(
                f"Out of memory: {self.live_bytes - before:,} bytes asked for, {before:,} of {self.limit:,} in use"
            )

    @property
    def live_bytes(self) -> int:
        """Bytes alive now."""
        return sum(allocation.bytes for allocation in self._live.values())
