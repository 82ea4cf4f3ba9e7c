"""A model cut into stages of a pipeline: a rank has some blocks, the first stage the embedding, the last the head.

What a rank has is the whole model with holes, so that a parameter has the same name wherever it is, and whatever works on
a model (tensor parallelism, ZeRO, checkpoints) works on a part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from playbook.layout.stages import StageRanks, split
from playbook.model.attention import Positions
from playbook.model.transformer import Block, Transformer
from playbook.parallel.mesh import Mesh
from playbook.parallel.placement import Placements

#: Names of the two ends of a model, whose weights may be tied.
EMBEDDING, HEAD = "embedding.weight", "head.weight"


class MissingBlock(nn.Module):
    """In the place of a block that another rank has."""


@dataclass(frozen=True, eq=False)
class Stage:
    """Consecutive blocks of ``model``; the first stage begins with the embedding, the last one ends with the loss."""

    model: Transformer
    index: int
    blocks: range
    first: bool
    last: bool

    def forward(self, x: Tensor, rotary: Sequence[Any], positions: Positions = None) -> Tensor:
        """Tokens (b, s) of the first stage, or the residual stream (b, s, h) -> the residual stream behind the stage."""
        if self.first:
            x = self.model.embed(x, positions)
        for i in self.blocks:
            x = self.model.run_block(self.model.blocks[i], x, *rotary)
        return x

    def parameters(self) -> dict[str, nn.Parameter]:
        """Those of the stage by name, in the order of the model."""
        parts = [f"blocks.{i}." for i in self.blocks]
        parts += ["embedding.", "position_embedding."] * self.first + ["final_norm.", "head."] * self.last
        found = self.model.named_parameters(remove_duplicate=False)
        return {name: p for name, p in found if name.startswith(tuple(parts))}


def cut_stages(
    model: Transformer,
    mesh: Mesh,
    placements: Placements,
    stage_ranks: StageRanks,
    sizes: Sequence[int] | None = None,
) -> tuple[dict[int, Stage], Placements]:
    """Leave this rank of the axis pp its stages of ``model``, by their index, and say where parameters are now.

    ``stage_ranks`` has the rank of each stage, once for each direction in which the pipeline runs; ``sizes`` are
    blocks of each stage. Raises LayoutError for a model that cannot be cut so.
    """
    held = {s for line in stage_ranks for s, rank in enumerate(line) if rank == mesh.index("pp")}
    stages = keep_stages(model, held, len(stage_ranks[0]), sizes)
    return stages, _where(model, mesh, placements, stage_ranks)


def keep_stages(
    model: Transformer, held: Collection[int], depth: int, sizes: Sequence[int] | None = None
) -> dict[int, Stage]:
    """Leave of ``model`` the stages ``held`` of ``depth``; the rest is given up."""
    cuts = split(len(model.blocks), depth, sizes)
    stages = {i: Stage(model, i, cuts[i], i == 0, i == depth - 1) for i in sorted(held)}
    mine = {block for stage in stages.values() for block in model.recompute_first(stage.blocks)}
    for i in range(len(model.blocks)):
        if i not in mine:
            model.blocks[i] = MissingBlock()
    gone = [] if 0 in held else ["embedding", "position_embedding"]
    gone += [] if depth - 1 in held else ["final_norm", "head"]
    for name in gone:
        setattr(model, name, None)
    if len(held) < depth:
        model.register_forward_pre_hook(_refuse)
    return stages


def _where(model: Transformer, mesh: Mesh, placements: Placements, stage_ranks: StageRanks) -> Placements:
    """Placements of what is left of a model. Two stages write to the gradient of a tied table; where a pipeline runs in
    both directions, ranks at mirrored places have the same stages."""
    layout, bidirectional = mesh.layout, len(stage_ranks) > 1
    first, last = stage_ranks[0][0], stage_ranks[0][-1]
    apart = bool(model.shape.tied) and first != last and not bidirectional
    if apart:
        mesh.add("ends", [(line[first], line[last]) for line in layout.groups("pp")])
    replicas = (mesh.add("mirrored", layout.mirrored()),) if bidirectional else ("dp", "cp")
    found = {}
    for name, _ in model.named_parameters():
        whole_name = EMBEDDING if model.shape.tied and name == HEAD else name
        tied = apart and whole_name == EMBEDDING
        copies = {"pp": 2 if tied or bidirectional else 1}
        both = "ends" if tied else None
        found[name] = replace(placements[whole_name], copies=copies, replicas=replicas, tied=both)
    return found


def _refuse(*_: Any) -> None:
    raise RuntimeError(
        "this rank has some stages of the model: run stages, or an engine's accumulate, not the model"
    )


def own_blocks(model: nn.Module) -> list[tuple[int, Block]]:
    """The blocks that this rank has, with their numbers in the whole model."""
    blocks: Any = model.blocks
    return [(i, block) for i, block in enumerate(blocks) if not isinstance(block, MissingBlock)]
