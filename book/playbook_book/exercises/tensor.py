"""Exercises of the chapter on tensor parallelism."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number


@number(
    "tensor.bytes",
    "bytes that a rank sends in a step for the blocks of Llama 3 70B",
    praise="four all-reduces in each block, each of them 2(t − 1)/t of the residual stream",
    otherwise="Count the all-reduces of a block first.",
)
def bytes_of_a_step() -> tuple[float, dict[float, str]]:
    from playbook.planning.communication import ring_bytes_sent
    from playbook.shapes import load

    shape, tp = load("llama3-70b"), 8
    stream = 8192 * shape.hidden * 2
    sent = 4 * shape.layers * ring_bytes_sent("all_reduce", stream // 2, 2, tp, rank=0)
    return sent, {
        sent / 2: "half: count forward and backward, and bf16 has two bytes",
        sent / 7: "that is eight shards a block; around a ring each rank sends tp − 1 for every one of them",
        sent / 14: "that is eight shards a block, in elements; count bytes, and what a ring sends",
        sent * 8 / 7: "almost: nobody sends its own chunk the last time around",
        4 * shape.layers * stream: "that is what there is to be summed; a ring sends nearly twice that",
        sent / shape.layers: "that is one block",
    }


answers("tensor.bytes", right=[4 * 80 * 2 * 7 / 8 * 8192 * 8192 * 2])


@exercise("tensor.qkv", "function", "a rank's rows of a fused projection to queries, keys and values")
def qkv(write: Callable[..., Any]) -> str:
    import torch

    d, h, tokens = 3, 10, 5
    for heads, kv_heads, ranks in ((4, 4, 2), (8, 4, 2), (8, 4, 4), (8, 2, 4), (8, 2, 8)):
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn((heads + 2 * kv_heads) * d, h, generator=generator)
        x = torch.randn(tokens, h, generator=generator)
        own = [write(weight.clone(), heads, kv_heads, rank, ranks) for rank in range(ranks)]
        here = f"{heads} query and {kv_heads} key/value heads on {ranks} ranks"
        mine = heads // ranks, max(1, kv_heads // ranks)
        rows = (mine[0] + 2 * mine[1]) * d
        for rank, part in enumerate(own):
            if not isinstance(part, torch.Tensor) or part.shape != (rows, h):
                got = tuple(part.shape) if isinstance(part, torch.Tensor) else type(part).__name__
                raise NotYet(f"{here}: rank {rank} should have shape {(rows, h)}, and has {got}")
        if torch.equal(own[0], weight[:rows]) and torch.equal(own[-1], weight[-rows:]):
            raise NotYet(f"{here}: rank 0 has the first rows of the matrix, which all belong to queries")
        found = torch.cat([_heads(x, part, *mine) for part in own])
        differs = (found - _heads(x, weight, heads, kv_heads)).abs().amax((1, 2)) > 1e-5
        if differs.any():
            wrong = ", ".join(str(head) for head in differs.nonzero().flatten().tolist())
            raise NotYet(f"{here}: query heads {wrong} do not give what they give on one rank")
    return "every query head reads the keys and values it reads on one rank, copies included"


def _heads(x: Any, weight: Any, heads: int, kv_heads: int) -> Any:
    """What each query head gives: (tokens, h) and ((heads + 2·kv_heads)·d, h) -> (heads, tokens, d)."""
    import torch.nn.functional as F

    q, k, v = (
        (x @ weight.T)
        .unflatten(1, (heads + 2 * kv_heads, -1))
        .transpose(0, 1)
        .split((heads, kv_heads, kv_heads))
    )
    k, v = (one.repeat_interleave(heads // kv_heads, 0) for one in (k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def _read(many, rank, ranks):
    """The first of ``many`` key heads that a rank's queries read, and how many of them they read."""
    return rank * many // ranks, max(1, many // ranks)


def _own(weight, heads, kv_heads, rank, ranks, *, keys=_read):
    import torch

    d = len(weight) // (heads + 2 * kv_heads)
    q, k, v = weight.split([n * d for n in (heads, kv_heads, kv_heads)])
    first, many = keys(kv_heads, rank, ranks)
    return torch.cat([q.chunk(ranks)[rank], *(one[first * d : (first + many) * d] for one in (k, v))])


answers(
    "tensor.qkv",
    right=[_own],
    wrong={
        "rank 0 has the first rows of the matrix": (
            lambda weight, heads, kv_heads, rank, ranks: weight.chunk(ranks)[rank]
        ),
        "8 query and 2 key/value heads on 4 ranks: rank 0 should have shape (12, 10)": partial(
            _own, keys=lambda many, rank, ranks: (rank * many // ranks, many // ranks)
        ),
        "(18, 10), and has (30, 10)": partial(_own, keys=lambda many, rank, ranks: (0, many)),
        "on 4 ranks: query heads 2, 3, 4, 5 do not give what they give on one rank": partial(
            _own,
            keys=lambda many, rank, ranks: (rank % many, 1) if many < ranks else _read(many, rank, ranks),
        ),
        "and has NoneType": lambda *_: None,
    },
)


@exercise("tensor.block", "repair", "a gated MLP whose gradients are right only up to its entry")
def block(mended: Callable[..., Any]) -> str:
    from playbook import launch

    errors, in_backward = launch.run(_block, mended, ranks=3, backend="gloo")[0].value
    wrong = {name: error for name, error in errors.items() if error > 1e-5}
    if "output" in wrong:
        raise NotYet(f"the output on 3 ranks is not that of one process: off by {wrong['output']:.0%}")
    if wrong:
        off = ", ".join(f"{name} by {error:.0%}" for name, error in wrong.items())
        fine = ", ".join(name for name in errors if name not in wrong)
        raise NotYet(f"on 3 ranks {fine} are right; gradients that are off: {off}")
    if in_backward != 1:
        raise NotYet(
            f"every gradient is right, but backward makes {in_backward} all-reduces where one is enough"
        )
    return "output and gradients of one process, with one all-reduce forward and one backward"


def _block(mended: Callable[..., Any]) -> tuple[dict[str, float], int]:
    """In a rank: how far the output and each gradient are off, at most over ranks; all-reduces of backward."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from playbook.instruments.counting import CountBytes
    from playbook.launch import process_group
    from playbook_book.instruments.parity import relative_error

    with process_group() as world:
        torch.manual_seed(0)
        sizes = {"x": (5, 8), "scale": (8,), "gate": (12, 8), "up": (12, 8), "down": (8, 12)}
        whole = {name: torch.randn(*size).requires_grad_() for name, size in sizes.items()}
        x, scale, gate, up, down = whole.values()
        y = F.rms_norm(x, x.shape[-1:], scale)
        right = x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T
        ahead = torch.randn(right.shape)
        right.backward(ahead)

        def own(name: str, tensor: torch.Tensor) -> torch.Tensor:
            cut = {"gate": 0, "up": 0, "down": 1}.get(name)
            return tensor if cut is None else tensor.chunk(world.size, cut)[world.rank]

        mine = {name: own(name, t.detach()).clone().requires_grad_() for name, t in whole.items()}
        z = mended(*mine.values(), dist.group.WORLD)
        errors = [relative_error(z.detach(), right.detach())]
        with CountBytes({"tp": dist.group.WORLD}) as count:
            z.backward(ahead)
        for name, t in mine.items():
            grad, wanted = t.grad, whole[name].grad
            assert wanted is not None
            found = torch.zeros_like(t) if grad is None else grad
            errors.append(relative_error(found, own(name, wanted)))
        most = torch.tensor(errors)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        in_backward = sum(event.kind == "all_reduce" for event in count.events)
        return dict(zip(("output", *whole), most.tolist(), strict=True)), in_backward


@answers_made("tensor.block")
def _blocks() -> tuple[list[Any], dict[str, Any]]:
    from torch.nn.functional import rms_norm, silu

    from playbook.parallel.regions import f, f_star

    def entered(*paths, sums_all=False):
        """A block in which the ``paths`` "gate" and "up" enter the region, or "both" at once."""

        def block(x, scale, gate, up, down, group):
            y = rms_norm(x, x.shape[-1:], scale)
            y = f(y, group) if "both" in paths else y
            of_gate, of_up = (f(y, group) if path in paths else y for path in ("gate", "up"))
            out = (silu(of_gate @ gate.T) * (of_up @ up.T)) @ down.T
            return f_star(x + out, group) if sums_all else x + f_star(out, group)

        return block

    return [entered("both")], {
        "output, gate, up, down are right; gradients that are off: x by": entered("gate"),
        "gradients that are off: x by": entered(),
        "backward makes 2 all-reduces": entered("gate", "up"),
        "the output on 3 ranks is not that of one process": entered("both", sums_all=True),
    }
