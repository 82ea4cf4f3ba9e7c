"""What four bits change of a plan: which layouts have whole blocks, copies of weights, scales that ranks agree on.

Standard library only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from playbook.block import Kind, evaluate, linears, symbols
from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.layout.tokens import placement_of
from playbook.planning.flops import parts_again
from playbook.planning.fp8_traffic import by_axis
from playbook.planning.messages import FP32, Message, Sender, message_in
from playbook.planning.terms import Make, Term
from playbook.precision.four_bits import FP4Recipe
from playbook.shapes import ModelShape


def check(shape: ModelShape, layout: Layout, seq: int, recipe: FP4Recipe) -> None:
    """Raise LayoutError, a sentence, unless each rank has whole blocks, and those of one device.

    ConfigError where the recipe leaves no block of the model in four bits.
    """
    wide, name = recipe.wide_blocks(shape.layers), recipe.name.partition(",")[0]
    values = symbols(shape, layout.tp, layout.ep, layout.etp)
    for kind in shape.blocks(wide=wide):
        for row in linears(shape, kind) if not kind.wide else ():
            for side, width in (("outputs", row.rows), ("inputs", row.columns)):
                if (size := evaluate(width, values)) % recipe.block:
                    on = f" on each of tp={layout.tp} ranks" if row.cut and layout.tp > 1 else ""
                    raise LayoutError(
                        f"{row.part} {row.name} has {size} {side}{on}, but {name} has blocks of {recipe.block}: "
                        "make it a multiple"
                    )
    tokens, what = _tokens(layout, seq)
    if tokens % recipe.block:
        raise LayoutError(
            f"{what} is {tokens}, but {name} has blocks of {recipe.block} tokens: make it a multiple"
        )
    if shape.moe and layout.world_size > 1:
        _check_experts(layout, name)


def _tokens(layout: Layout, seq: int) -> tuple[int, str]:
    """Tokens that follow one another on a rank as on one device, in words."""
    here = layout.padded(seq) // layout.cp
    if layout.sp:
        return here // layout.tp, f"seq={seq} over cp={layout.cp} and tp={layout.tp} ranks with sp"
    if layout.cp == 1:
        return layout.micro_batch * here, f"micro_batch={layout.micro_batch} times seq={seq}"
    parts = 2 if placement_of(layout.context, layout.placement) == "zigzag" else 1
    return here // parts, f"seq={seq} in {parts} parts for each of cp={layout.cp} ranks"


def _check_experts(layout: Layout, name: str) -> None:
    """Blocks along the tokens are rows of one expert, in the order of the global batch."""
    for given, why in (
        (layout.cp > 1 and f"cp={layout.cp}", "an expert's rows come from parts of samples"),
        (layout.etp > 0 and f"etp={layout.etp}", "an expert's rows come from parts of samples"),
        (layout.ep > 1 and layout.dispatch != "all-to-all" and f"dispatch={layout.dispatch}",
         "rows come in another order"),
        (layout.ep > 1 and layout.schedule.startswith("dualpipe") and f"schedule={layout.schedule}",
         "two passes take turns, and what is rounded at random must know which it is of"),
    ):  # fmt: skip
        if given:
            raise LayoutError(f"{given} cannot be had with {name} and experts: {why}; leave it out")


def copies(shape: ModelShape, kind: Kind, recipe: FP4Recipe, make: Make) -> list[Term]:
    """Copies of a block's weights in four bits, made once a step; two of each where blocks are not square."""
    terms, block, sides = [], recipe.block, 1 if recipe.square else 2
    for row in linears(shape, kind):
        name = f"{row.part}, " * row.part.endswith("experts") + row.name
        size = f"{sides}*{row.number}*({row.rows})*({row.columns})"
        terms.append(make("weights in FP4", name, f"{size}//2"))
        scales = f"{size}//{block * (block if recipe.square else 1)}"
        if recipe.whole_scale:
            scales += f" + {4 * sides}*{row.number}"
        terms.append(make("weights in FP4", f"scales of {name}", scales))
    return terms


def told(here: Sender) -> Iterator[Message]:
    """Magnitudes of tensors that ranks agree on, 4 bytes each: of a weight one, of what is multiplied by a Hadamard
    matrix for dW two in one message, before and after. What comes to experts is kept as it is, and has one."""
    recipe, layout, found = here.recipe.fp8, here.layout, Counter[tuple[str, str, int]]()
    if not isinstance(recipe, FP4Recipe) or not recipe.whole_scale:
        return
    both, whole = 2 if recipe.hadamard else 1, frozenset(parts_again(["full"]))
    for kind, (count, passes) in here.kinds.items():
        if kind.wide:
            continue
        again = parts_again(kind.again(layout.again))
        for parts, numbers in ((whole - {"experts"}, both), (whole & {"experts"}, 1)):
            for axis, shared in by_axis(here.shape, kind, layout.sp, parts).items():
                found[axis, "forward", numbers] += shared.inputs * passes
                found[axis, "forward", 1] += shared.weights * count
                found[axis, "backward", both] += shared.gradients * passes
            for axis, shared in by_axis(here.shape, kind, layout.sp, parts & again).items():
                found[axis, "backward", numbers] += shared.inputs * passes
    groups = {"tp": (layout.tp, here.at["tp"]), "cp": (layout.cp, here.at["cp"]), "ep": here.ep}
    for (axis, phase, numbers), count in found.items():
        yield message_in(axis, "all_reduce", numbers, FP32, groups[axis], phase, count)


def by_precision(here: Sender) -> list[Sender]:
    """The rank with its blocks in four bits alone, and with the others alone."""
    found = []
    for wide in (False, True):
        part = Sender(here.job.at(wide), here.rank)
        vars(part)["kinds"] = {kind: counts for kind, counts in here.kinds.items() if kind.wide is wide}
        found.append(part)
    return found
