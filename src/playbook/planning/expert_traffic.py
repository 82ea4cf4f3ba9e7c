"""What a rank sends for its experts: rows there and back, and what routers tell each other.

How many rows travel, and where to, is decided by routers while a run goes on. `Routed` is what
``instruments.expert_load.ExpertRoutes`` counts of it; without a count the load is taken to be even. The files that send
the messages are ``parallel/expert.py`` and ``model/moe.py``. Standard library only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from playbook.errors import ConfigError
from playbook.planning.flops import parts_again
from playbook.planning.messages import FP32, INT64, Message, Sender, message_in
from playbook.shapes import MoE


@dataclass(frozen=True)
class Routed:
    """Where the tokens of an expert-parallel group went in one layer and one micro-batch, the same on all its ranks.

    ``rows[a][b]`` of the choices of rank a's tokens are experts of rank b: so many rows travel from a to b.
    ``tokens[a][n]`` of rank a's tokens have experts in node n: two steps send each of them there once.
    """

    rows: tuple[tuple[int, ...], ...]
    tokens: tuple[tuple[int, ...], ...]


#: By block, from 0 on in the whole model, what was routed in each micro-batch that this rank took through it.
Routing = Mapping[int, Sequence[Routed]]


def even(here: Sender) -> Routed:
    """An even load: each rank's rows fall on the others' experts as evenly as whole rows can, the first get one more.

    For two steps, a token's choices are as likely in one node as in any other, and a mean is rounded up. Of the experts'
    capacity, tokens take what an even load leaves them.
    """
    moe, (ranks, _) = _moe(here), here.ep
    each, more = divmod(_taken(here, moe), ranks)
    rows = tuple(each + (rank < more) for rank in range(ranks))
    nodes = ranks // (here.layout.node or ranks)
    tokens = math.ceil(here.tokens // here.layout.apart * (1 - missed(moe, nodes)))
    return Routed((rows,) * ranks, ((min(tokens, sum(rows)),) * nodes,) * ranks)


def _taken(here: Sender, moe: MoE) -> int:
    """Of the choices of a rank's tokens, those within the capacity of experts (``model.moe.Router``)."""
    chosen = here.tokens // here.layout.apart * moe.top_k
    if moe.capacity is None:
        return chosen
    sample = here.tokens * here.layout.cp // here.layout.micro_batch
    room = math.ceil(moe.capacity * sample * moe.top_k / moe.experts)
    return min(
        chosen,
        math.ceil(Fraction(here.layout.micro_batch * room * moe.experts, here.layout.cp * here.layout.apart)),
    )


def missed(moe: MoE, nodes: int) -> Fraction:
    """How likely it is that none of a token's experts is in a given node, when all choices are equally likely.

    Groups of experts, of which a token chooses some first, count where they divide into nodes evenly, or nodes into them.
    """
    groups, top = moe.groups, moe.top_groups
    if groups % nodes and nodes % groups:
        groups = top = 1
    size, inside = moe.experts // groups, max(1, groups // nodes)  # experts of a group, groups of a node
    share = min(size, moe.experts // nodes)  # experts of a group in the node
    found = Fraction(0)
    for i in range(max(0, top - groups + inside), min(inside, top) + 1):  # chosen groups that are in the node
        likely = Fraction(math.comb(inside, i) * math.comb(groups - inside, top - i), math.comb(groups, top))
        choices = top * size
        found += likely * Fraction(math.comb(choices - i * share, moe.top_k), math.comb(choices, moe.top_k))
    return found


def experts(here: Sender, routing: Routing | None = None) -> Iterator[Message]:
    """All messages of this rank that blocks without experts do not send; ``routing`` as ``traffic``."""
    if here.expert_layers:
        yield from region(here)
        yield from dispatch(here, routing)
        yield from balance(here)


def region(here: Sender) -> Iterator[Message]:
    """Into routed experts that are cut over tensor-parallel ranks, and out again, beside no product.

    What enters is the router's as well: it is as wide as the residual stream. Recomputation repeats what forward sends.
    """
    if here.layout.tp == 1 or here.layout.etp:
        return
    sp, n = here.layout.sp, here.expert_passes
    # At the entry f or g, at the exit f* or g*: each has a message forward, or backward, or both.
    entry, leave = here.recipe.residual, here.recipe.compute
    forward = [("all_gather", entry), ("reduce_scatter", leave)] if sp else [("all_reduce", leave)]
    backward = [("reduce_scatter", entry), ("all_gather", leave)] if sp else [("all_reduce", entry)]
    again = "backward", forward, sum(_again(here).values())
    for phase, ways, count in (("forward", forward, n), again, ("backward", backward, n)):
        for collective, size in ways:
            yield here.tp(collective, here.stream, size, phase, count)


def dispatch(here: Sender, routing: Routing | None) -> Iterator[Message]:
    """Rows to the ranks of their experts and back, and gradients the same ways (`Layout.dispatch`)."""
    if here.layout.ep == 1:
        return
    again = _counted(here, routing, _again(here))
    for routed, count in _counted(here, routing, here.expert_layers).items():
        for message in PATHS[here.layout.dispatch](here, routed):
            yield replace(message, count=count)
            if message.phase == "forward" and again[routed]:
                yield replace(message, phase="backward", count=again[routed])


def _again(here: Sender) -> dict[int, int]:
    """Of the blocks with experts here those whose routers run again in backward, as `Sender.expert_layers`."""
    runs = "router" in parts_again(here.layout.again)
    return {layer: n for layer, n in here.expert_layers.items() if runs and layer in here.layers_again}


def _counted(here: Sender, routing: Routing | None, layers: Mapping[int, int]) -> Counter[Routed]:
    """How often what was routed in ``layers``. Raises ConfigError for a routing that is not of this rank and step."""
    if routing is None:
        return Counter({even(here): sum(layers.values())})
    told = {layer: len(each) for layer, each in routing.items()}
    if told != here.expert_layers:
        raise ConfigError(
            f"routing has so many micro-batches of each layer: {told}, but rank {here.rank} has {here.expert_layers}"
        )
    return Counter(one for layer in layers for one in routing[layer])


def _all_to_all(here: Sender, routed: Routed) -> Iterator[Message]:
    yield from _exchanged(here, routed.rows, here.ep[1], _moe(here).experts)


def _exchanged(here: Sender, rows: Sequence[Sequence[int]], place: int, experts: int) -> Iterator[Message]:
    """Ranks tell each other the rows for each of so many ``experts``; these go, and results come back."""
    row = here.shape.hidden * here.recipe.compute
    sent, got = rows[place], [line[place] for line in rows]
    yield message_in("ep", "all_to_all", experts, INT64, (len(rows), place), "forward")
    for phase, each in (
        ("forward", here.read_row),
        ("backward", row),
    ):  # gradients of results, then those of rows
        yield from (_rows(sent, place, each, phase), _rows(got, place, row, phase))


def _rows(to: Sequence[int], place: int, size: int, phase: str) -> Message:
    """An all-to-all with so many rows ``to`` each rank, of ``size`` bytes each; one's own stay."""
    total = sum(to)
    return Message("ep", "all_to_all", (total - to[place]) * size, 1, phase, total * size, len(to))


def _two_steps(here: Sender, routed: Routed) -> Iterator[Message]:
    """Tokens with their choices and weights to the same place of other nodes, rows of all that came there inside."""
    moe, (ranks, index), size = _moe(here), here.ep, here.layout.node or here.layout.ep
    nodes, (node, place) = ranks // size, divmod(index, size)
    sent, got = routed.tokens[index], [routed.tokens[n * size + place][node] for n in range(nodes)]
    counts = message_in("ep", "all_to_all", nodes, INT64, (nodes, node), "forward")
    row, weights = here.shape.hidden * here.recipe.compute, moe.top_k * FP32
    there = [(sent, here.read_row), (sent, moe.top_k * INT64), (sent, weights), (got, row)]
    back = [(sent, row), (got, row), (got, weights)]
    ways = [("forward", way) for way in there] + [("backward", way) for way in back]
    rows = (_rows(to, node, each, phase) for phase, (to, each) in ways)
    yield from (replace(message, apart=size) for message in (counts, *rows))
    inside = [
        [sum(routed.rows[n * size + a][node * size + b] for n in range(nodes)) for b in range(size)]
        for a in range(size)
    ]
    yield from _exchanged(here, inside, place, moe.experts // nodes)


def _gathered(here: Sender, routed: Routed) -> Iterator[Message]:
    """Everything to everybody: tokens, weights and choices. What the others' experts make of a rank's own is added up."""
    (ranks, _), tokens, size = here.ep, here.tokens // here.layout.apart, here.recipe.compute
    k = ranks * _moe(here).top_k * tokens
    rows, weights, chosen = (ranks * tokens * here.shape.hidden, size), (k, FP32), (k, INT64)
    for phase, collective, sent in (
        ("forward", "all_gather", (rows, weights, chosen)),
        ("forward", "reduce_scatter", (rows,)),
        ("backward", "all_gather", (rows,)),
        ("backward", "reduce_scatter", (rows, weights)),
    ):
        for elements, itemsize in sent:
            yield message_in("ep", collective, elements, itemsize, here.ep, phase)


#: By `Layout.dispatch`, what a rank sends for one layer and micro-batch, without recomputation.
PATHS = {"all-to-all": _all_to_all, "two-step": _two_steps, "gather": _gathered}


def balance(here: Sender) -> Iterator[Message]:
    """What routers tell each other, in fp32: scores where experts have a capacity, loads for losses and for biases.

    Scores and most loads are of samples, which context-parallel ranks share.
    """
    moe, layout, n = _moe(here), here.layout, here.expert_passes
    again, (axis, samples) = sum(_again(here).values()), here.routing("cp")
    if moe.capacity is not None:
        scores = layout.cp * here.tokens * moe.experts
        for phase, count in (("forward", n), ("backward", again)):
            yield message_in(axis, "all_gather", scores, FP32, samples, phase, count)
    if moe.balance_loss:  # once, where there is a graph
        loads = moe.experts * (layout.micro_batch if moe.balance_over == "sample" else 1)
        over = (axis, samples) if moe.balance_over != "global_batch" else here.routing("cp", "dp")
        for phase, count in (("forward", n - again), ("backward", again)):
            yield message_in(over[0], "all_reduce", loads, FP32, over[1], phase, count)
    axis, group = (
        here.routing("cp", "dp")
        if layout.etp
        else ("dp" if here.mirrored else here.samples_axis, here.replicas)
    )
    yield message_in(axis, "all_reduce", moe.experts, FP32, group, "load", len(here.expert_layers))


def _moe(here: Sender) -> MoE:
    assert here.shape.moe is not None
    return here.shape.moe
