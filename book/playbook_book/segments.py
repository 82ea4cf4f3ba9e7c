"""A chain of blocks in segments, each of which keeps its input alone (Chen et al. 2016, arXiv 1604.06174, section 4)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

from playbook.errors import ConfigError
from playbook.model.recompute import checkpoint


class RecomputedBlocks(nn.Module):
    """Neighbouring blocks under one checkpoint: what enters the first of them is all that is kept."""

    def __init__(self, blocks: Iterable[nn.Module], preserve_rng: bool = True):
        super().__init__()
        self.blocks, self.preserve_rng = nn.ModuleList(blocks), preserve_rng

    def forward(self, x: Tensor, *others: Tensor) -> Tensor:
        return checkpoint(self._run, x, *others, preserve_rng=self.preserve_rng)

    def _run(self, x: Tensor, *others: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, *others)
        return x


def in_segments(blocks: Iterable[nn.Module], size: int, *, preserve_rng: bool = True) -> nn.ModuleList:
    """``blocks`` as segments of ``size`` (the last may be shorter): Chen et al. 2016, section 4.

        model.blocks = in_segments(model.blocks, 2)

    Memory is one input per segment, and the insides of the one segment that backward is at. The parameters are the same
    objects under longer names. Raises ConfigError for a size below 1.
    """
    if size < 1:
        raise ConfigError(f"size is {size}, but a segment needs at least 1 block")
    chain = list(blocks)
    return nn.ModuleList(
        RecomputedBlocks(chain[i : i + size], preserve_rng) for i in range(0, len(chain), size)
    )
