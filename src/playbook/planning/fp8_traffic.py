"""What ranks tell each other of scales: the largest magnitude of a tensor of which several have a part, 4 bytes each.

Where a whole tensor has one scale, they must agree on it before they quantise (``model/fp8.py``): for the tensors that
tensor parallelism cuts, for all tokens of context parallelism, for the experts of a layer. With delayed scaling that is
done in the first step alone; after each step, ranks tell each other the magnitudes of all tensors in one message.

ZeRO-3 gathers weights in FP8 (``parallel/fp8_gathers.py``): for that, ranks agree on the scales of all groups, once a
step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from playbook.layout import AXES
from playbook.planning.messages import FP32, Message, Sender, message_in
from playbook.planning.weights import BucketRange, Weight, in_share
from playbook.precision.recipes import FP8Recipe
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class Shared:
    """Of linear layers in a part of a block, how many inputs, outputs' gradients and weights ranks have in parts."""

    inputs: int = 0
    gradients: int = 0
    weights: int = 0

    def __add__(self, other: Shared) -> Shared:
        return Shared(
            self.inputs + other.inputs, self.gradients + other.gradients, self.weights + other.weights
        )


def _attention(shape: ModelShape, sp: bool) -> Shared:
    """Over tensor-parallel ranks: with sp what enters is a rank's own tokens; of latents both sides are."""
    if shape.mla is None:
        return Shared(1 + sp, 3, 4)
    down = 1 + bool(shape.mla.q_rank)  # layers that are not cut
    return Shared(1 + sp * (1 + down), 2 + sp * down, 3)


def _mlp(shape: ModelShape, sp: bool) -> Shared:
    columns = 1 + bool(shape.gated)
    return Shared(1 + sp, columns, columns + 1)


def _of_tokens(shape: ModelShape) -> Shared:
    """Attention over ranks that have other tokens: all inputs, all gradients."""
    latents = 1 + bool(shape.mla.q_rank) if shape.mla else 0
    return Shared(2 + latents, 1 + (3 if shape.mla is None else 2 + latents))


def by_axis(shape: ModelShape, kind: str, sp: bool) -> dict[str, Shared]:
    """What a block has of each, by the axis whose ranks have parts of it."""
    columns = 1 + bool(shape.gated)
    whole = Shared(2, columns + 1)  # of an MLP, over ranks that have other tokens
    if kind == "dense":
        return {"tp": _attention(shape, sp) + _mlp(shape, sp), "cp": _of_tokens(shape) + whole}
    shared = bool(shape.moe and shape.moe.shared_experts)
    tp, cp = _attention(shape, sp) + Shared(1, columns, columns + 1), _of_tokens(shape) + whole
    if shared:
        tp, cp = tp + _mlp(shape, sp), cp + whole
    return {"tp": tp, "cp": cp, "ep": Shared(2, columns + 1, columns + 1)}


def scales(here: Sender, first: bool) -> Iterator[Message]:
    """All messages of scales in a step; ``first``: in a run's first."""
    recipe, layout = here.recipe.fp8, here.layout
    if recipe is None:
        return
    if layout.zero == 3 and recipe.turns:
        for one in here.sets:
            count = sum(_groups(weight, recipe) for unit in one.units for weight in unit.weights)
            yield message_in("dp", "all_reduce", count, FP32, one.group, "scales")
    if not recipe.history or first:
        groups = {"tp": (layout.tp, here.at["tp"]), "cp": (layout.cp, here.at["cp"]), "ep": here.ep}
        for (axis, phase), count in _told(here).items() if not recipe.groups.rows else ():
            yield message_in(axis, "all_reduce", 1, FP32, groups[axis], phase, count)
    told = AXES if len(here.where) > 1 else ("dp", "cp", "tp")  # mirrored ranks have the same stages
    axes = [axis for axis in AXES if axis in told and getattr(layout, axis) > 1]
    if recipe.history and axes:
        label = axes[0] if len(axes) == 1 else "dp" if set(axes) == {"dp", "cp"} else "world"
        yield message_in(label, "all_reduce", 3 * layers(here.shape), FP32, here.over(axes), "scales")


def _told(here: Sender) -> Counter[tuple[str, str]]:
    """Magnitudes of single tensors, by axis and phase."""
    layout, found = here.layout, Counter[tuple[str, str]]()
    experts = here.expert_passes, len(here.expert_layers)
    blocks = sum(map(len, here.blocks.values()))
    each = {"moe": experts, "dense": (here.block_passes - experts[0], blocks - experts[1])}
    again = layout.recompute == "full"
    for kind, (passes, count) in each.items():
        for axis, shared in by_axis(here.shape, kind, layout.sp).items():
            found[axis, "forward"] += shared.inputs * passes
            found[axis, "backward"] += (shared.inputs * again + shared.gradients) * passes
            if layout.zero < 3:  # a copy of the weight stays for the step
                found[axis, "forward"] += shared.weights * count
            else:
                found[axis, "scales"] += shared.weights * count  # with which they are gathered
    return found


def _groups(weight: Weight, recipe: FP8Recipe) -> int:
    """Scales of a weight, of linear layers alone; one is that of all experts."""
    if weight.matrix is None:
        return 0
    rows, columns = weight.matrix
    if recipe.weights.rows is None:
        return 1
    down, across = recipe.weights.size(weight.matrix)
    return weight.elements // (rows * columns) * -(-rows // down) * -(-columns // across)


def gathered_bytes(bucket: BucketRange, ranks: int, size: int, recipe: FP8Recipe | None) -> int:
    """Bytes of a bucket when it is gathered, its elements having ``size`` bytes, those of linear layers in FP8 one.

    A rank sends as many elements of the others as the one that has most of them, and codes in whole 8 bytes.
    """
    if recipe is None or not recipe.turns or not any(weight.matrix for weight in bucket.unit.weights):
        return len(bucket) * size
    shares = (in_share(bucket, ranks, rank) for rank in range(ranks))
    others = max(sum(count for weight, count in share if not weight.matrix) for share in shares)
    return ranks * (others * size + -(-len(bucket) // ranks // 8) * 8)


def layers(shape: ModelShape) -> int:
    """Linear layers in the blocks of a model, those of all experts of a block being one."""
    columns = 1 + bool(shape.gated)
    attention = 4 + bool(shape.mla and shape.mla.q_rank) if shape.mla else 4
    mlp = {"dense": columns + 1, "moe": columns + 1}
    if shape.moe and shape.moe.shared_experts:
        mlp["moe"] *= 2
    return sum(count * (attention + mlp[kind]) for kind, count in shape.blocks().items())
