"""``playbook mesh``: the ranks of a layout by node, or one of them: its groups, what it holds, what it sends."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any

from playbook._checks import check_int
from playbook._json import to_json
from playbook.commands.flags import add_fields, layout_of
from playbook.errors import LayoutError
from playbook.figures.units import format_count
from playbook.layout import AXES, CUT_OUT, Layout
from playbook.planning.rank_view import RankView, rank_view
from playbook.planning.recipes import RECIPES
from playbook.shapes import ModelShape, load

GB = 10**9
#: Flags of a layout.
FIELDS = ("micro_batch", "grad_acc", "stage_layers")
#: Ranks of the largest mesh: several times the largest cluster, looked at in seconds.
MOST_RANKS = 2**18
#: Nodes that are drawn: the first ones of a larger mesh, and the last.
DRAWN = 4
STATES = ("parameters", "gradients", "optimizer", "activations", "total")


def add(commands: Any) -> None:
    p = commands.add_parser(
        "mesh",
        help="the ranks of a layout: groups, what each holds, what it sends",
        description="The mesh of a layout by node or, with --rank, one rank of it: its groups, what it holds, and the "
        "bytes that it sends in a step inside its node and to other nodes.",
    )
    flag = p.add_argument
    flag("--model", default="llama3-8b", metavar="M", help="preset, TOML, config.json or inline JSON")
    flag("--layout", default="", metavar="dp=8,tp=2,…", help="dp tp pp cp ep vpp sp zero schedule grad_acc")
    flag("--rank", type=int, metavar="N", help="one rank (default: the mesh)")
    flag("--per-node", type=int, default=8, metavar="N", help="ranks in a node; they fill nodes in order")
    add_fields(p, Layout, FIELDS)
    flag("--seq", type=int, metavar="N", help="tokens per sample (default: the model's max_seq)")
    flag("--precision", default="bf16-mixed", help=", ".join(RECIPES))
    flag("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Look and print."""
    shape, layout = load(args.model), layout_of(args, FIELDS)
    check_int("per_node", args.per_node, LayoutError)
    check_int("dp * cp * tp * pp", layout.world_size, LayoutError, most=MOST_RANKS)
    seq = shape.max_seq if args.seq is None else args.seq

    def view(rank: int) -> RankView:
        known = {"rank": rank, "recipe": args.precision, "ranks_per_node": args.per_node}
        return rank_view(shape, layout, seq, **known)

    if args.rank is not None:
        found = view(args.rank)
        text = _of_rank(shape, layout, found, args.per_node)
        print(to_json(found.to_json()) if args.json else "\n".join(text))
        return 0
    firsts = [view(layout.rank(pp=place)) for place in range(layout.pp)]
    if args.json:
        print(to_json(_mesh(layout, firsts, args.per_node)))
    else:
        print("\n".join(_of_mesh(shape, layout, firsts, args.per_node)))
    return 0


# --- One rank


def _of_rank(shape: ModelShape, layout: Layout, view: RankView, per_node: int) -> Iterator[str]:
    yield f"rank {view.rank} of {layout.world_size:,} in node {view.node} ({_title(shape, layout, per_node)})"
    if view.groups:
        yield f"\n{'group':10}{'index':>7}{'size':>8}{'nodes':>8}  ranks"
    for name, group in view.groups.items():
        nodes = len({rank // per_node for rank in group})
        yield f"{name:10}{group.index(view.rank):>7,}{len(group):>8,}{nodes:>8,}  {_ranks(group)}"
    if view.neighbours:
        yield f"{'sends activations and their gradients to':32}  {_ranks(view.neighbours)}"
    yield "\nholds"
    for stage, blocks in zip(view.stages, view.blocks, strict=True):
        yield f"  stage {stage}: {_blocks(blocks)}{_ends(layout, stage)}"
    if view.experts:
        yield f"  experts {_run(view.experts)} of {shape.moe.experts if shape.moe else 0} in each block with experts"
    parameters, updates = format_count(view.parameters), format_count(view.memory.counts.shard)
    yield f"  {parameters} parameters, and the optimizer's states of {updates}"
    numbers = {"parameters": view.memory.parameters, **{n: getattr(view.memory, n) for n in STATES[1:]}}
    yield "  GB: " + ", ".join(f"{name} {_gb(size)}" for name, size in numbers.items())
    yield from _sent(view)


def _sent(view: RankView) -> Iterator[str]:
    if not view.sent:
        yield "\nsends nothing"
        return
    yield f"\n{'bytes sent in a step':22}{'inside the node':>20}{'to other nodes':>20}"
    for axis, sent in view.sent.items():
        name = "several axes (world)" if axis == "world" else axis
        yield f"{name:22}{sent.within:>20,}{sent.across:>20,}"


def _blocks(blocks: Sequence[int]) -> str:
    return f"block{'s' * (len(blocks) > 1)} {_run(blocks)}" if blocks else "no block"


def _ends(layout: Layout, stage: int) -> str:
    ends = [("the embedding", stage == 0), ("the head", stage == layout.stages - 1)]
    return "".join(f", {name}" for name, here in ends if here)


def _run(numbers: Sequence[int]) -> str:
    return f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"


def _ranks(group: Sequence[int]) -> str:
    """0, 1, 2 or, where there are many, 0, 4, 8, …, 60."""
    shown = [*map(str, group)] if len(group) <= 8 else [*map(str, group[:3]), "…", str(group[-1])]
    return ", ".join(shown)


# --- The mesh


def _of_mesh(shape: ModelShape, layout: Layout, firsts: Sequence[RankView], per_node: int) -> Iterator[str]:
    ranks = layout.world_size
    yield f"{ranks:,} rank{'s' * (ranks > 1)} ({_title(shape, layout, per_node)})"
    yield from _picture(layout, per_node)
    axes = _axes(layout, per_node)
    if axes:
        yield f"\n{'axis':8}{'ranks of a group':>18}{'groups':>10}{'nodes of a group':>18}"
    for name, axis in axes.items():
        least, most = axis["nodes"]
        nodes = f"{least:,}" if least == most else f"{least:,} to {most:,}"
        yield f"{name:8}{axis['size']:>18,}{axis['groups']:>10,}{nodes:>18}"
    head = f"{'GB sent in a step: inside':>28}{'to other nodes':>16}"
    yield f"\n{'first rank of':16}{'blocks':>8}{'parameters':>12}{'GB':>8}{head}"
    for view in firsts:
        within, across = (
            sum(getattr(s, level) for s in view.sent.values()) for level in ("within", "across")
        )
        stages = f"stage{'s' * (len(view.stages) > 1)} {' '.join(map(str, view.stages))}"
        count, memory = format_count(view.parameters), _gb(view.memory.total)
        yield f"{stages:16}{sum(map(len, view.blocks)):>8}{count:>12}{memory:>8}{_gb(within):>28}{_gb(across):>16}"


def _picture(layout: Layout, per_node: int) -> Iterator[str]:
    """For each node its ranks, and below each its index on every axis."""
    long = [axis for axis in (*AXES, "ep") if getattr(layout, axis) > 1]
    nodes, width = -(-layout.world_size // per_node), max(3, len(str(layout.world_size)) + 1)
    shown = [*range(nodes)] if nodes <= DRAWN else [*range(DRAWN - 1), nodes - 1]
    for before, node in zip([-1, *shown], shown, strict=False):
        if node > before + 1:
            yield f"… {node - before - 1:,} more nodes"
        ranks = range(node * per_node, min(layout.world_size, (node + 1) * per_node))
        yield f"\nnode {node:<5} rank" + "".join(f"{rank:{width}}" for rank in ranks)
        places = [_place(layout, rank) for rank in ranks]
        for axis in long:
            yield f"{axis:>15}" + "".join(f"{place[axis]:{width}}" for place in places)


def _place(layout: Layout, rank: int) -> dict[str, int]:
    at = layout.coordinates(rank)
    place = (at["cp"] + layout.cp * at["dp"]) * layout.apart + at["tp"] * layout.etp
    return {**at, "ep": place % layout.ep}


def _axes(layout: Layout, per_node: int) -> dict[str, dict[str, Any]]:
    """Of each axis the size of its groups, how many there are, and the fewest and most nodes that one is in."""
    found = {}
    for name in (*AXES, *CUT_OUT):
        groups = layout.groups(name)
        parts = layout.replicate if name in ("shard", "replicate") else layout.ep
        if len(groups[0]) > 1 and (name in AXES or parts > 1):
            nodes = [len({rank // per_node for rank in group}) for group in groups]
            found[name] = {"size": len(groups[0]), "groups": len(groups), "nodes": [min(nodes), max(nodes)]}
    return found


def _mesh(layout: Layout, firsts: Sequence[RankView], per_node: int) -> dict[str, Any]:
    ranks = layout.world_size
    size = {"layout": str(layout), "ranks": ranks, "nodes": -(-ranks // per_node), "per_node": per_node}
    return {**size, "axes": _axes(layout, per_node), "stages": [view.to_json() for view in firsts]}


def _title(shape: ModelShape, layout: Layout, per_node: int) -> str:
    return f"{shape.name or 'model'}, {str(layout) or 'one device'}, {per_node} per node"


def _gb(size: float) -> str:
    return f"{size / GB:.4g}"
