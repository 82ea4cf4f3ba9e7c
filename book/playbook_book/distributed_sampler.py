"""Samples of a data set distributed over ranks, epoch by epoch: what `DistributedSampler` does, and can be resumed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.seeding import derive_seed


class Sampler:
    """Which samples a rank takes in a step, from ``length`` samples: its share of a shuffled epoch.

    Every epoch is a permutation drawn from (seed, epoch) alone, cut into batches of ``global_batch``; what is left over
    at its end waits for another epoch. Nothing has to be saved to resume at step n: ask for step n. Every sample is used
    at most once in an epoch; torch's DistributedSampler repeats some so that the shares come out even.

    Raises ConfigError when the ranks cannot have equal shares, ``rank`` is none of them, or ``length`` does not fill a
    batch.
    """

    def __init__(self, length: int, global_batch: int, rank: int = 0, ranks: int = 1, seed: int = 0):
        if not 0 <= rank < ranks:
            raise ConfigError(f"rank is {rank}, but must be from 0 to {ranks - 1}: there are {ranks} ranks")
        if global_batch < 1 or global_batch % ranks:
            raise ConfigError(f"global_batch is {global_batch}, but must be a multiple of the {ranks} ranks")
        if length < global_batch:
            raise ConfigError(f"length is {length} samples, but one batch needs global_batch={global_batch}")
        self.length, self.global_batch, self.seed = length, global_batch, seed
        self.rank, self.ranks = rank, ranks
        self._epoch: tuple[int, Any] = (-1, None)

    def indices(self, step: int) -> Tensor:
        """The samples of this rank in a step, (global_batch / ranks,) int64. Raises ConfigError for a step below 0."""
        if step < 0:
            raise ConfigError(f"step is {step}, but must be at least 0")
        epoch, place = divmod(step, self.length // self.global_batch)
        start = place * self.global_batch + self.rank * self.share
        return self._order(epoch)[start : start + self.share]

    @property
    def share(self) -> int:
        """Samples of one rank in a step."""
        return self.global_batch // self.ranks

    def _order(self, epoch: int) -> Tensor:
        if self._epoch[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self.seed, f"epoch {epoch}"))
            self._epoch = epoch, torch.randperm(self.length, generator=generator)
        return self._epoch[1]
