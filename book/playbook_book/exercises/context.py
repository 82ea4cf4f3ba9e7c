"""Exercises of the chapter on context parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, function, number


@number(
    "context.bytes",
    "bytes that a rank sends around the ring in a step of Llama 3 70B",
    praise="(c − 1) hops of K and V in forward; in backward the same again, and fp32 gradients behind them",
    otherwise="Who sends whose keys, how often, and in which dtype?",
)
def bytes_of_a_step() -> tuple[float, dict[float, str]]:
    from playbook.layout import Layout
    from playbook.shapes import load
    from playbook_book.context_cost import context_traffic

    shape, ranks = load("llama3-70b"), 16
    sent = shape.layers * float(context_traffic(shape, Layout(cp=ranks), 2**17).total)
    of_queries = sent * shape.heads / shape.n_kv_heads
    return sent, {
        of_queries: "as many heads as the queries have; keys and values have fewer",
        sent * ranks: "a message holds the keys and values of one rank's tokens, not those of the sample",
        sent * ranks / (ranks - 1): "almost: nobody needs the keys once all ranks have seen them",
        sent / 4: "that is the forward pass; backward sends, too",
        sent / 2: (
            "half: either the values are missing, which travel with the keys, or their gradients in backward"
        ),
        sent * 3 / 4: (
            "three quarters: either forward is missing, or gradients are counted in bf16: sums travel in fp32"
        ),
        sent / shape.layers: "that is one layer",
    }


#: Layers, hops, tokens of a rank, key heads, width of a head; keys and values; bytes of forward and backward.
answers("context.bytes", right=[80 * 15 * 8192 * 8 * 128 * 2 * (2 + 2 + 4)])


def _not_right(got: Any, right: int) -> str:
    if isinstance(got, bool) or not isinstance(got, int | float):
        return f"{got} is not a number of pairs"
    return f"{got} is too {'many' if got > right else 'few'} pairs"


@function(
    "context.stripes",
    "pairs of a query and a key of a rank whose tokens are in stripes",
    cases=[(seq, ranks, rank) for seq, ranks in ((8, 2), (24, 4), (60, 3)) for rank in range(ranks)],
    case="rank {2} of {1}, {0} tokens".format,
    praise="each rank's share of the mask, pair by pair",
    otherwise=_not_right,
)
def stripes(seq: int, ranks: int, rank: int) -> int:
    return sum(query + 1 for query in range(rank, seq, ranks))


def _counted(seq, ranks, rank):
    own = seq // ranks
    return own * (rank + 1) + ranks * own * (own - 1) // 2


answers(
    "context.stripes",
    right=[_counted],
    wrong={
        "that is one pair too few for each query: a token sees itself, too": (
            lambda seq, ranks, rank: sum(range(rank, seq, ranks))
        ),
        "that is the mean of all ranks, as in a zigzag; in stripes they differ": (
            lambda seq, ranks, rank: seq * (seq + 1) // 2 // ranks
        ),
        "that is its work in the contiguous placement": (
            lambda seq, ranks, rank: sum(range(rank * seq // ranks + 1, (rank + 1) * seq // ranks + 1))
        ),
        "that is the work of the rank at the other end": (
            lambda seq, ranks, rank: _counted(seq, ranks, ranks - 1 - rank)
        ),
    },
)


@exercise("context.positions", "repair", "a zigzag whose second part has the positions of its neighbour")
def positions(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for ranks in (1, 2, 3):
        parts = [_positions_of(mended, ranks, rank) for rank in range(ranks)]
        loss, gradient = launch.run(_against_one_process, parts, ranks=ranks, backend="gloo")[0].value
        if gradient > 1e-4:
            where = {
                1: "on one rank",
                2: "right on one rank; on two",
                3: "right on one rank and two; on three",
            }
            raise NotYet(
                f"{where[ranks]}, the loss agrees with one process to {loss} digits, "
                f"but the gradient is off by {gradient:.0%} of its norm"
            )
    return "the loss and the gradient of one process, on one rank, two and three"


_SEQ = 48


def _positions_of(mended: Callable[..., Any], ranks: int, rank: int) -> list[int]:
    import torch

    found = [int(p) for p in torch.as_tensor(mended(_SEQ, ranks, rank)).flatten()]
    where = f"rank {rank} of {ranks}, {_SEQ} tokens:"
    if len(found) != _SEQ // ranks:
        raise NotYet(f"{where} {len(found)} positions for {_SEQ // ranks} tokens")
    for position in found:
        if not 0 <= position < _SEQ:
            raise NotYet(f"{where} there is no position {position}")
    return found


def _against_one_process(parts: list[list[int]]) -> tuple[int, float]:
    """In a rank: digits to which the loss is that of one process, and how far the gradient is off, over its norm."""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group
    from playbook.model.transformer import Transformer
    from playbook.parallel.context import RankTokens, share_context
    from playbook.shapes import load

    sizes = {"layers": 2, "hidden": 32, "heads": 4, "kv_heads": 2, "head_dim": 8, "ffn": 64, "max_seq": _SEQ}
    with process_group() as world:
        text = torch.randint(256, (2, _SEQ + 1), generator=torch.Generator().manual_seed(0))
        inputs, targets = text[:, :-1], text[:, 1:]
        alone, model = (_sharp(Transformer(load("tiny").replace(**sizes))) for _ in range(2))
        loss, count = alone.loss(inputs, targets)
        (loss / count).backward()
        group = dist.new_group()
        assert isinstance(group, dist.ProcessGroup)
        share_context(model, group, "ring")
        own = RankTokens("zigzag", _SEQ, world.size).positions(world.rank)
        mine, _ = model.loss(inputs[:, own], targets[:, own], torch.tensor(parts[world.rank]))
        (mine / count).backward()
        total, gradient, right = mine.detach(), _flat(model), _flat(alone)
        dist.all_reduce(total)
        dist.all_reduce(gradient)
        off = abs(float(total / loss.detach()) - 1)
        return math.floor(-math.log10(max(off, 1e-7))), float((gradient - right).norm() / right.norm())


def _sharp(model: Any) -> Any:
    """The model with attention that tells positions apart, as one of a trained model does."""
    import torch

    with torch.no_grad():
        for block in model.blocks:
            block.attention.q.weight.mul_(40)
    return model


def _flat(model: Any) -> Any:
    import torch

    return torch.cat([p.grad.flatten() for p in model.parameters()])


def _zigzag(seq, ranks, rank, *, second=lambda ranks, rank: 2 * ranks - 1 - rank):
    part = seq // (2 * ranks)
    return [i * part + at for i in (rank, second(ranks, rank)) for at in range(part)]


def _mirrored(seq, ranks, rank):
    first = _zigzag(seq, ranks, rank)[: seq // (2 * ranks)]
    return first + [seq - 1 - at for at in first]


answers(
    "context.positions",
    right=[_zigzag],
    wrong={
        "agrees with one process to 4 digits": partial(_zigzag, second=lambda ranks, rank: rank + 1),
        "right on one rank; on two, ": lambda seq, ranks, rank: range(seq // ranks),
        "on one rank, ": _mirrored,
        "there is no position 48": partial(_zigzag, second=lambda ranks, rank: 2 * ranks - rank),
        "24 positions for 48 tokens": lambda seq, ranks, rank: range(seq // (2 * ranks)),
    },
)
