"""What ranks tell each other of scales: the largest magnitude of a tensor of which several have a part, 4 bytes each.

Where a whole tensor has one scale, they must agree on it before they quantise (``model/fp8.py``): for the tensors that
tensor parallelism cuts, for all tokens of context parallelism, for the experts of a layer. With delayed scaling that is
done in the first step alone; after each step, ranks tell each other the magnitudes of all tensors in one message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from dataclasses import dataclass

from playbook.block import Kind, linears
from playbook.layout import AXES
from playbook.layout.flat import Bucket
from playbook.planning.flops import parts_again
from playbook.planning.messages import FP32, Message, Sender, message_in
from playbook.planning.weights import Weight, WeightSlot
from playbook.precision.recipes import FP8Recipe
from playbook.registry import lab
from playbook.shapes import ModelShape


@dataclass(frozen=True)
class Shared:
    """Of linear layers in a part of a block, how many inputs, outputs' gradients and weights ranks have in parts."""

    inputs: int = 0
    gradients: int = 0
    weights: int = 0


def by_axis(
    shape: ModelShape, kind: Kind, sp: bool, parts: Container[str] = parts_again(["full"])
) -> dict[str, Shared]:
    """What these ``parts`` of a block have of each, by the axis whose ranks have parts of it: of what tensor parallelism
    cuts (with sp also what is a rank's own tokens), of tokens that context-parallel ranks have, of experts on other
    ranks."""
    rows = [row for row in linears(shape, kind) if row.part in parts]
    routed = [row for row in rows if row.part == "experts"]
    others = [row for row in rows if row.part != "experts"]
    cut = {row.input for row in rows if row.cut == "row"} | {row.input for row in others if sp}
    gradients = [row for row in rows if row.cut == "column" or (sp and not row.cut)]
    found = {
        "tp": Shared(len(cut), len(gradients), sum(bool(row.cut) for row in rows)),
        "cp": Shared(len({row.input for row in rows}), len(rows)),
    }
    return found | (
        {"ep": Shared(len({row.input for row in routed}), len(routed), len(routed))} if routed else {}
    )


def scales(here: Sender, first: bool) -> Iterator[Message]:
    """All messages of scales in a step; ``first``: in a run's first."""
    recipe, layout = here.recipe.fp8, here.layout
    assert recipe is not None
    if recipe.dtype == "fp4":
        yield from lab("fp4", "told")(here)
        return
    if layout.zero == 3 and recipe.turns:
        for one in here.sets:
            count = sum(_groups(weight, recipe) for unit in one.units for weight in unit.weights)
            yield message_in("dp", "all_reduce", count, FP32, one.shards, "scales")
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
    for kind, (count, passes) in here.kinds.items():
        for axis, shared in by_axis(
            here.shape, kind, layout.sp, parts_again(kind.again(layout.again))
        ).items():
            found[axis, "backward"] += shared.inputs * passes
        for axis, shared in by_axis(here.shape, kind, layout.sp).items():
            found[axis, "forward"] += shared.inputs * passes
            found[axis, "backward"] += shared.gradients * passes
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


def gathered_bytes(here: Sender, bucket: Bucket[WeightSlot]) -> int:
    """Bytes of a bucket when ZeRO-3 gathers it: codes of linear layers, a byte each, and all else as it is kept.

    A rank sends as many elements of the others as the one that has most of them, and codes in whole 8 bytes.
    """
    recipe, size = here.recipe.fp8, here.recipe.states.parameters
    if not (recipe and recipe.turns) or not any(slot.weight.matrix for slot in bucket.slots):
        return len(bucket) * size
    ranks = bucket.vector.ranks
    shares = (bucket.segments(rank) for rank in range(ranks))
    others = max(sum(len(part) for part in share if not part.slot.weight.matrix) for share in shares)
    return ranks * (others * size + -(-len(bucket) // ranks // 8) * 8)


def layers(shape: ModelShape) -> int:
    """Linear layers in the blocks of a model, those of all experts of a block being one."""
    return sum(count * len(linears(shape, kind)) for kind, count in shape.blocks().items())
