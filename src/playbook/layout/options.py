"""How the techniques of a layout are carried out: one set of options, from the command line to ``parallelize``."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING

from playbook._checks import check_fields
from playbook.errors import ConfigError
from playbook.layout.tokens import CONTEXT, placement_of

if TYPE_CHECKING:
    from playbook.decentralized.methods import Method
    from playbook.schedules.actions import Schedule

#: How replicas without ZeRO add up gradients, the naive way first.
DATA_PARALLEL = ("naive", "overlapped", "bucketed")
#: How messages and products of tensor parallelism share the time: one after the other, side by side, or in chunks.
TENSOR_OVERLAP = ("none", "async", "chunked")
#: When ZeRO-1 and 2 fetch the parameters that other ranks have updated.
GATHER = ("after", "lazily")
#: How tokens reach experts on other ranks: all go to all ranks (the naive way), each row to the rank of its expert, or
#: each token to the nodes of its experts first.
DISPATCH = ("gather", "all-to-all", "two-step")
#: Bytes of a gradient bucket, and of the first one: PyTorch's own.
BUCKET = 25 * 2**20
FIRST_BUCKET = 2**20
#: Elements that the optimizer of a 16-bit model updates at a time: their gradients exist in fp32 for that long.
OPTIMIZER_CHUNK = 2**24
#: What AdamW's first and second moment are kept in, by name: all fp32, as DeepSeek-V3, or as FP8-LM.
MOMENTS = {"fp32": ("fp32", "fp32"), "bf16": ("bf16", "bf16"), "fp8": ("e4m3", "fp16")}
#: What the masters of 16-bit weights can be kept in.
MASTERS = ("fp32", "fp16", "bf16")


@dataclass(frozen=True)
class ParallelOptions:
    """Options of the techniques; those of a technique that a layout does not use mean nothing.

    ``context`` is how attention reaches the tokens of other context-parallel ranks, ``placement`` (contiguous, zigzag;
    None is what fits) which tokens each has. ``tensor_overlap`` is how tensor-parallel messages hide behind products,
    ``data_parallel`` how replicas without ZeRO add gradients, in buckets of ``bucket`` bytes, the first one of
    ``first_bucket`` (``all-reduce`` says this, too), or a method that sends less (``decentralized/methods.py``).
    ``gather`` says when ZeRO-1 and 2 fetch updated parameters; with ``reshard`` ZeRO-3 forgets a block's weights between
    forward and backward, with ``prefetch`` it fetches the next one's while one runs. ``dispatch`` is how tokens travel
    to experts of other ranks; for two steps ``node`` says how many neighbours of an expert-parallel group are in one
    node.
    ``find_unused`` is for models in which a parameter gets a gradient in one step and none in another. ``schedule`` is a
    pipeline's, in place of the one that the layout names, and ``stage_layers`` are the layers of each of its stages, in
    place of an even split. Raises ConfigError for values that are never right.
    """

    context: str = field(default="ring", metadata={"choices": CONTEXT})
    placement: str | None = None
    tensor_overlap: str = field(default="async", metadata={"choices": TENSOR_OVERLAP})
    data_parallel: str = "bucketed"
    bucket: int = BUCKET
    first_bucket: int = FIRST_BUCKET
    gather: str = field(default="after", metadata={"choices": GATHER})
    reshard: bool = True
    prefetch: bool = True
    dispatch: str = field(default="all-to-all", metadata={"choices": DISPATCH})
    node: int | None = None
    find_unused: bool = False
    schedule: Schedule | None = None
    stage_layers: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        if self.data_parallel == "all-reduce":
            object.__setattr__(self, "data_parallel", "bucketed")
        _ = self.method, self.placed  # they say what is wrong

    @property
    def method(self) -> Method | None:
        """What takes the place of adding up whole gradients; None for ``DATA_PARALLEL``, which does. ConfigError else."""
        if self.data_parallel in DATA_PARALLEL:
            return None
        return import_module("playbook.decentralized.methods").parse(self.data_parallel)

    @property
    def placed(self) -> str:
        """Which tokens of a sample each context-parallel rank has, filled in."""
        return placement_of(self.context, self.placement)
