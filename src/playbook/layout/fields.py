"""What a layout says: its fields, and what the options of its techniques can be. Standard library only.

`KINDS` is the one table of schedules that have a name. Layouts, memory, traffic and training read it, and so do the
generators of ``schedules/``, which make the actions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from playbook._checks import told, unknown
from playbook.errors import ConfigError, PlaybookError

if TYPE_CHECKING:
    from playbook.schedules.actions import Schedule

#: How replicas without ZeRO add up gradients, the naive way first.
DATA_PARALLEL = ("naive", "overlapped", "bucketed")
#: How messages and products of tensor parallelism share the time: one after the other, side by side, or in chunks.
TENSOR_OVERLAP = ("none", "async", "chunked")
#: When ZeRO-1 and 2 fetch the parameters that other ranks have updated.
GATHER = ("after", "lazily")
#: What updates weights: Adam element by element, or Muon, which needs a matrix whole.
OPTIMIZERS = ("adamw", "muon")
#: How ranks make such a matrix whole: each for itself, one for all, or one for as many as there are ranks at once.
MUON = ("gather", "owner", "all-to-all")
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
#: What is computed a second time in the backward pass: nothing, the attention core, or whole blocks.
RECOMPUTE = ("none", "selective", "full")
#: Or modules, by Megatron-LM's names, joined by +; "offload", also beside "full": what is kept waits in CPU memory.
MODULES = ("core_attn", "mlp", "moe", "shared_experts", "layernorm", "moe_act", "mla_up_proj", "offload")
#: How queries reach the keys of other ranks: around a ring, gathered, or tokens swapped for heads.
CONTEXT = ("ring", "gather", "ulysses")


@cache
def recomputed(text: str, error: type[PlaybookError] = ConfigError) -> frozenset[str]:
    """The modules that a ``recompute`` names, or "full", in how many blocks whatsoever. Raises ``error`` for others."""
    said, colon, blocks = text.partition(":")
    if colon and (not blocks.isdecimal() or said == "none"):
        raise error(f"recompute is {text!r}: behind the colon goes a number of blocks, as in full:4")
    names = frozenset([] if said == "none" else {"selective": "core_attn"}.get(said, said).split("+"))
    for name in [] if names - {"offload"} == {"full"} else sorted(names - set(MODULES)):
        raise error(unknown("recompute", name, MODULES if "+" in text else (*RECOMPUTE, *MODULES)))
    return names


def blocks_again(recompute: str) -> int | None:
    """The number of blocks in a ``recompute``, as "full:4" has it."""
    return int(recompute.partition(":")[2]) if ":" in recompute else None


@dataclass(frozen=True)
class Kind:
    """What a schedule asks of a pipeline of pp ranks.

    A rank has ``chunks`` of the model's stages: one, the two that face each other across a V, or (0) as many as ``vpp``
    says, taken in turns. ``bidirectional``: half of the micro-batches enter at the other end, where the ranks have the
    stages in reverse order, so that a rank has one of either order. ``least`` is (a, b): it takes a·pp + b
    micro-batches a step to fill the pipeline, and the schedule cannot do without.
    """

    chunks: int = 1
    bidirectional: bool = False
    least: tuple[int, int] = (0, 1)


#: Pipeline schedules by name. Sources are in ``schedules/``.
KINDS: dict[str, Kind] = {
    "naive": Kind(),
    "afab": Kind(),
    "1f1b": Kind(),
    "interleaved": Kind(chunks=0),
    "breadth-first": Kind(chunks=0),
    "zb-h1": Kind(least=(1, 0)),
    "zb-h2": Kind(least=(2, -1)),
    "zb-v": Kind(chunks=2, least=(2, -1)),
    "dualpipe": Kind(bidirectional=True, least=(2, 0)),
    "dualpipev": Kind(chunks=2, least=(2, 0)),
}
SCHEDULES = tuple(KINDS)


@dataclass(frozen=True)
class Fields:
    """What `Layout` is made of, and what the checks of its techniques are asked about."""

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = told(
        0, "ranks that share each expert's matrices: those of tp (0), or 1, as in Megatron-LM", least=0
    )
    vpp: int = 1
    sp: bool = False
    zero: int = told(0, least=0)
    replicate: int = told(1, "replicas of ZeRO's shards (HSDP): it shards over dp / replicate ranks")
    recompute: str = told(
        "none",
        f"what is computed again: {', '.join(RECOMPUTE)}, or modules: {', '.join(MODULES)}; "
        "full:4 does so in the first 4 blocks of each stage alone; offload has what is kept in CPU memory",
        metavar="mlp+moe",
    )
    schedule: str = told(
        "1f1b",
        "the order of passes in a pipeline; as a flag also a file, as `playbook schedule --json` prints it",
        choices=SCHEDULES,
    )
    micro_batch: int = told(1, "samples per forward pass")
    grad_acc: int = told(1, "micro-batches per step")
    context: str = told("ring", "how attention reaches tokens of other cp ranks", choices=CONTEXT)
    placement: str | None = told(
        None, "a cp rank's tokens: zigzag, contiguous, documents, greedy (default: what fits)"
    )
    tensor_overlap: str = told("async", "how tp messages hide; chunked needs sp", choices=TENSOR_OVERLAP)
    data_parallel: str = told(
        "bucketed",
        "how replicas add gradients: naive, overlapped or bucketed (all-reduce says this, too); or what sends less: "
        "local:H, slowmo:H, diloco:H (H steps alone, then an average), gossip:TOPOLOGY (an average with neighbours), "
        "powersgd:r, topk:share (compressed, with error feedback); with ,start=K whole gradients for K steps first",
        metavar="HOW",
    )
    bucket: int = told(BUCKET, "size of a gradient bucket", unit="MiB")
    first_bucket: int = told(FIRST_BUCKET, "size of the first one", unit="MiB")
    gather: str = told("after", "when ZeRO-1 and 2 fetch updated parameters", choices=GATHER)
    reshard: bool = told(True, "ZeRO-3 forgets a block's weights between forward and backward")
    prefetch: bool = told(True, "ZeRO-3 fetches the next block's weights while one runs")
    dispatch: str = told("all-to-all", "how tokens reach experts of other ep ranks", choices=DISPATCH)
    node: int | None = told(None, "for two steps: how many neighbours of an ep group are in a node")
    muon: str = told("all-to-all", "how ranks make Muon's matrices whole", choices=MUON)
    find_unused: bool = told(False, "some parameters get a gradient in one step and none in another")
    own_schedule: Schedule | None = None
    stage_layers: tuple[int, ...] | None = told(None, "layers of each stage (default: even)", metavar="3,5")

    @property
    def again(self) -> frozenset[str]:
        """The modules that backward computes again, or "full"."""
        return recomputed(self.recompute)

    @property
    def blocks_again(self) -> int | None:
        """Of each stage so many blocks, the first ones, are computed again (Megatron-LM's "block"); None is all."""
        return blocks_again(self.recompute)

    @property
    def apart(self) -> int:
        """Over how many ranks of tp the tokens of a block are routed apart: all, where experts are whole (``etp``)."""
        return self.tp if self.etp else 1

    def padded(self, seq: int) -> int:
        """Tokens of a sample of ``seq`` once it can be sharded evenly; what is added counts in no loss.

        Context-parallel ranks have two parts each (of a zigzag), and with sp a rank's tokens are sharded once more.
        """
        parts = math.lcm(2 * self.cp if self.cp > 1 else 1, self.cp * (self.tp if self.sp else 1))
        return -(-seq // parts) * parts
