"""Which ranks of a layout are one fault domain, and who takes part in a step: replicas, and quorums of them.

A *replica* (torchft: replica group) is all ranks that have the model once together: with hybrid sharding dp/replicate
shards, times tp, cp and pp; without ZeRO every index along dp. It has process groups of its own. What joins replicas is a
*quorum*: a number, the step that it begins with, and the replicas that are in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.shapes import ModelShape
from playbook.training.config import TrainConfig


@dataclass(frozen=True)
class Domains:
    """The replicas of ``layout``: its ranks are numbered as ever, those of each replica once more ``inside`` it."""

    layout: Layout

    @property
    def replicas(self) -> int:
        return self.layout.replicate if self.layout.zero else self.layout.dp

    @cached_property
    def inside(self) -> Layout:
        """The layout of one replica."""
        return self.layout.replace(dp=self.layout.dp // self.replicas, replicate=1)

    def place(self, rank: int) -> tuple[int, int]:
        """The replica of a rank, and its number inside."""
        return self._places[rank]

    def ranks(self, replica: int) -> list[int]:
        """The ranks of a replica, in the order of their numbers inside."""
        return self._ranks[replica]

    @cached_property
    def _places(self) -> list[tuple[int, int]]:
        found = []
        for rank in range(self.layout.world_size):
            at = self.layout.coordinates(rank)
            replica, at["dp"] = divmod(at["dp"], self.inside.dp)
            found.append((replica, self.inside.rank(**at)))
        return found

    @cached_property
    def _ranks(self) -> list[list[int]]:
        order = sorted(range(self.layout.world_size), key=self._places.__getitem__)
        each = self.inside.world_size
        return [order[start : start + each] for start in range(0, len(order), each)]

    def config(self, whole: TrainConfig) -> TrainConfig:
        """That of one replica, which has its share of the global batch."""
        return replace(whole, layout=self.inside, global_batch=whole.global_batch // self.replicas)


def check(shape: ModelShape, config: TrainConfig) -> None:
    """Raise LayoutError or ConfigError, one sentence, for a run whose replicas cannot stand in for each other."""
    layout = config.layout
    if layout.zero and layout.replicate < 2:
        raise LayoutError(
            f"replicate is 1, but with zero={layout.zero} and live recovery a lost shard must be on another replica, "
            f"too: make it 2 or more, a divisor of dp={layout.dp}"
        )
    if layout.dp < 2:
        raise LayoutError(f"dp is {layout.dp}, but live recovery needs another replica: make it 2 or more")
    if layout.method:
        raise ConfigError(
            f"data_parallel is {layout.method.text}, but live recovery adds up whole gradients: leave it out"
        )
    if shape.moe and shape.moe.balance_loss and shape.moe.balance_over == "global_batch":
        raise ConfigError(
            "balance_over is 'global_batch', but with live recovery forward passes of replicas do not wait for each "
            "other: make it 'sample'"
        )
    if config.device == "cuda":
        raise ConfigError("device is 'cuda', but live recovery rebuilds groups of gloo: make it cpu")


@dataclass(frozen=True)
class Quorum:
    """The replicas that take steps together from ``step`` on, until one of them is lost or another comes.

    ``sources`` says of those that come from whom they get their state. Numbers count up: groups are never used twice.
    """

    number: int
    step: int
    members: tuple[int, ...]
    sources: Mapping[int, int]

    def to_json(self) -> str:
        return json.dumps([self.number, self.step, self.members, list(self.sources.items())])

    @classmethod
    def read(cls, text: str | bytes) -> Quorum:
        number, step, members, sources = json.loads(text)
        return cls(number, step, tuple(members), dict(sources))
