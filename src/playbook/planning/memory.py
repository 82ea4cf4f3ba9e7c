"""The memory of every rank of a training run, predicted: parameters, gradients, optimizer states, activations.

On one device the prediction equals what a run really allocates, to the byte (tests compare it with the instruments of
``playbook.training.measure``); the parallel techniques are held to the same test as the book builds them. The classical
results are special cases: N = hv + L(12h² + 13h) + 2h parameters, 16 or 20 bytes for each, L·s·b·h·(34 + 5as/h) bytes of
activations (Korthikanti et al. 2022, arXiv 2205.05198), ZeRO's table (Rajbhandari et al. 2020, arXiv 1910.02054).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from playbook.errors import ConfigError, LayoutError
from playbook.layout import Layout
from playbook.planning.in_flight import chunks_in_flight, split_layers
from playbook.planning.parameters import StateCounts, stage_parameters
from playbook.planning.recipes import Recipe, load_recipe
from playbook.planning.saved import block_terms, embedding_terms, head_terms, symbols
from playbook.planning.terms import Term, total
from playbook.shapes import ModelShape

#: Bytes of one gradient bucket in data parallelism (PyTorch's default, 25 MB).
BUCKET = 25 * 2**20


@dataclass(frozen=True)
class Part:
    """One part of a stage's activations: ``terms`` of one micro-batch, ``times`` of which are alive at the peak."""

    name: str
    terms: tuple[Term, ...]
    times: float

    @property
    def bytes(self) -> int:
        return round(total(self.terms) * self.times)


@dataclass(frozen=True)
class StageMemory:
    """Bytes on one rank of a pipeline stage, at the moment when most is alive."""

    stage: int
    layers: int
    in_flight: float
    parameters: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int
    parts: tuple[Part, ...] = field(repr=False, default=())
    counts: StateCounts | None = field(repr=False, default=None)

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers

    def to_json(self) -> dict[str, Any]:
        """The object of ``playbook memory --json``."""
        return {
            "stage": self.stage,
            "layers": self.layers,
            "in_flight": self.in_flight,
            "params": self.parameters,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "buffers": self.buffers,
            "total": self.total,
        }


@dataclass(frozen=True)
class MemoryReport:
    """Every stage of a layout; ranks of one stage hold the same number of bytes."""

    stages: tuple[StageMemory, ...]

    @property
    def peak(self) -> int:
        """Bytes of the fullest rank."""
        return max(stage.total for stage in self.stages)

    def to_json(self) -> dict[str, Any]:
        return {"stages": [stage.to_json() for stage in self.stages], "peak": self.peak}


def predict(
    shape: ModelShape,
    layout: Layout | None = None,
    *,
    seq: int,
    recipe: str | Recipe = "bf16-mixed",
    attention: str = "sdpa",
    offload: bool = False,
    bucket: int = BUCKET,
    device: str = "cuda",
) -> MemoryReport:
    """Bytes per rank of training ``shape`` under ``layout`` with ``seq`` tokens per sample.

    ``layout`` also says the micro-batch, how many of them a step accumulates, and what is recomputed. ``attention`` is
    "sdpa" (flash kernels) or "reference" (scores in memory); ``offload`` keeps master weights and moments in CPU memory;
    ``bucket`` is the size of a communication bucket; ``device`` the kernels whose statistics are counted. Raises
    LayoutError or ConfigError, in one sentence, for what cannot run.
    """
    layout, recipe = layout or Layout(), load_recipe(recipe)
    _check(shape, layout, seq, attention, device)
    values = symbols(shape, layout, seq, recipe, device)
    written = "reference" if attention == "reference" or (shape.dropout and device == "cpu") else "sdpa"
    cuts = split_layers(shape.layers, layout.pp, layout.vpp)
    blocks = {
        sparse: tuple(
            block_terms(shape, values, recompute=layout.recompute, attention=written, sparse=sparse)
        )
        for sparse in shape.blocks()
    }
    stages = []
    for stage in range(layout.pp):
        held = shape.blocks(cuts[stage :: layout.pp])
        layers = sum(held.values())
        parts, alive = _activations(shape, layout, stage, held, blocks, values)
        counts = stage_parameters(shape, layout, stage, held)
        states = _states(counts, layout, recipe, offload)
        buffers = _buffers(counts, layout, recipe, bucket, layers)
        activations = sum(part.bytes for part in parts)
        stages.append(StageMemory(stage, layers, alive, *states, activations, buffers, tuple(parts), counts))
    return MemoryReport(tuple(stages))


def _check(shape: ModelShape, layout: Layout, seq: int, attention: str, device: str) -> None:
    if isinstance(seq, bool) or not isinstance(seq, int) or seq < 1:
        raise ConfigError(f"seq is {seq!r}, but must be a whole number of at least 1")
    if attention not in ("sdpa", "reference"):
        raise ConfigError(f"attention is {attention!r}, but must be one of sdpa, reference")
    if device not in ("cpu", "cuda"):
        raise ConfigError(f"device is {device!r}, but must be cpu or cuda")
    layout.check(shape, seq=seq)
    if layout.schedule == "interleaved" and layout.grad_acc % layout.pp:
        raise LayoutError(
            f"grad_acc is {layout.grad_acc}, but the interleaved schedule needs a multiple of pp={layout.pp}"
        )


def _activations(
    shape: ModelShape,
    layout: Layout,
    stage: int,
    held: dict[bool, int],
    blocks: dict[bool, tuple[Term, ...]],
    values: dict[str, int],
) -> tuple[list[Part], float]:
    """What a rank of the stage keeps when most micro-batches are in flight, and how many of them that is.

    With several chunks per rank, ``chunks_in_flight`` counts chunks, each a ``vpp``-th of the stage's blocks.
    """
    alive = chunks_in_flight(layout.schedule, layout.pp, layout.vpp, layout.grad_acc, stage) / layout.vpp
    parts = []
    for sparse, terms in blocks.items():
        name = "blocks with experts" if sparse else "blocks"
        if layers := held.get(sparse):
            parts.append(Part(f"{layers} {name}", terms, layers * alive))
    # Embedding and head are run once per micro-batch, in the first and in the last chunk.
    once = max(1.0, alive) if layout.vpp == 1 else min(alive, float(layout.grad_acc))
    if stage == 0 and (embedding := embedding_terms(shape, values)):
        parts.insert(0, Part("embedding", tuple(embedding), once))
    if stage == layout.pp - 1:
        parts.append(
            Part("head and loss", tuple(head_terms(values)), once if layout.pp == 1 else max(1.0, alive))
        )
    return parts, alive


def _states(counts: StateCounts, layout: Layout, recipe: Recipe, offload: bool) -> tuple[int, int, int]:
    """Bytes of parameters, gradients and optimizer states: ZeRO cuts them over the replicas, in this order of stages."""
    whole, shard = counts.local, counts.shard
    each = recipe.states
    parameters = each.parameters * (shard if layout.zero >= 3 else whole)
    gradients = each.gradients * (shard if layout.zero >= 2 else whole)
    optimizer = (each.master + each.optimizer) * (shard if layout.zero >= 1 else whole)
    return parameters, gradients, 0 if offload else optimizer


def _buffers(counts: StateCounts, layout: Layout, recipe: Recipe, bucket: int, layers: int) -> int:
    """Bytes that communication works in: one gradient bucket when there are replicas; under ZeRO-3 also the gathered
    parameters of the block that runs and of the one being fetched."""
    if layout.dp * layout.cp == 1:
        return 0
    size = min(bucket, counts.local * recipe.states.gradients)
    if layout.zero == 3:
        size += min(2, layers) * counts.largest_block * recipe.states.parameters
    return size
