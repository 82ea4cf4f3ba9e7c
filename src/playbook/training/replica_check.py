"""Whether replicas are still equal: a sum of bits a rank, compared with those of the ranks that should have the same.

Hardware that computes wrong without a word, or an update that one rank missed, shows nowhere in a loss that is averaged
over ranks. After the same updates replicas have the same weights bit for bit, so that a single number tells (Llama 3,
2024, section 3.3.4, reports six interruptions by silent data corruption in 54 days).
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from playbook.errors import ConfigError
from playbook.training.trainer import Trainer


class ReplicaError(RuntimeError):
    """Weights of a rank are not those of its replicas."""


class ReplicaCheck:
    """A log of a run (``trainer.Log``) that compares the weights of replicas after every so many steps: one on each rank.

    ``before_saves`` steps are checked, too, so that no checkpoint has weights that differ, and after a step that was not
    made: an update with numbers that are none would make all replicas equal again. With ZeRO-3 nothing is held
    twice along dp and cp, and there is nothing to compare.
    """

    def __init__(self, every: int, trainer: Trainer, before_saves: int | None = None):
        if every < 1:
            raise ConfigError(f"check_replicas is {every}, but must be at least 1")
        self.every, self.trainer, self.before_saves = every, trainer, before_saves

    def start(self, header: dict[str, Any]) -> None:
        """A run begins."""

    def step(self, record: dict[str, Any]) -> None:
        """Compare, if it is time. Raises ReplicaError. Collective."""
        done = self.trainer.step_count
        saved = self.before_saves and done % self.before_saves == 0
        last = done == self.trainer.config.steps
        if done % self.every == 0 or saved or last or record["skipped"]:  # a bit can make a loss infinite
            check_replicas(self.trainer)

    def close(self, outcome: str) -> None:
        """Nothing is open."""


@torch.no_grad()
def check_replicas(trainer: Trainer) -> None:
    """Raise ReplicaError, on every rank, where the weights of some ranks differ that should have the same. Collective."""
    if trainer.mesh is None:
        return
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, _sums(trainer))
    ranks_of: dict[int, dict[int, list[int]]] = {}
    for rank, sums in enumerate(every):
        for elements, total in sums.items():
            ranks_of.setdefault(elements, {}).setdefault(total, []).append(rank)
    faults = [sorted(found.values(), key=len) for found in ranks_of.values() if len(found) > 1]
    if not faults:
        return
    *fewer, most = faults[0]
    odd = sorted(rank for ranks in fewer for rank in ranks)
    raise ReplicaError(
        f"after step {trainer.step_count - 1} weights of {_ranks(odd)} are not those of {_ranks(most)}, though all "
        "made the same updates"
        + (": which of the two is right cannot be told" if len(odd) == len(most) else "")
    )


def _sums(trainer: Trainer) -> dict[int, int]:
    """The sum of the bits of this rank's weights, in a few lots; each lot by a number that says which elements it has."""
    engine = trainer.engine
    lots: dict[Any, list[tuple[Any, Tensor]]] = {}
    for one in engine.sets:
        one.wait()
        for name, p in [] if one.gathers_weights else one.parameters:
            at = engine.placements[name]
            elements = at.name, tuple((cut.dim, cut.start, cut.stop) for cut in at.shards)
            lots.setdefault((at.replicas, tuple(cut.axis for cut in at.shards), at.tied), []).append(
                (elements, p)
            )
    found: dict[int, int] = {}
    for lot in lots.values():
        which = zlib.crc32(repr(sorted(key for key, _ in lot)).encode())
        found[which] = int(torch.stack([_bits(p) for _, p in lot]).sum().item())
    return found


def _ranks(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _bits(tensor: Tensor) -> Tensor:
    """Sum of a tensor's bit patterns: another one for any one bit that is flipped."""
    same_size = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.detach().contiguous().view(same_size).sum(dtype=torch.int64)
