"""Exercises of the chapter on five dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


@number(
    "five-dimensions.neighbour",
    "the rank to which a rank of Llama 3 sends its activations",
    praise="pp comes right after tp, so the next stage is tp ranks further: in the next node",
    otherwise="Find its coordinates first: divide by the sizes, the fastest axis first",
    tolerance=1e-9,
)
def neighbour() -> tuple[float, dict[float, str]]:
    # Of (tp, cp, pp, dp) = (8, 1, 16, 128), the fastest first, rank 5001 is at (1, 0, 1, 39).
    rank, tp, pp, dp = 5001, 8, 16, 128
    return rank + tp, {
        rank + tp * dp: "that is the order of this book, in which data parallelism comes before the pipeline",
        rank + tp * pp: "that rank has the same stage and other samples: a neighbour on dp",
        rank - tp: "that is where activations come from",
        rank + 1: "that rank has other columns of the same layers: a neighbour on tp",
        rank + pp: "16 is the number of stages; how far apart they are is the product of the faster axes",
    }


@exercise(
    "five-dimensions.experts",
    "function",
    "the ranks that share experts with a rank, and those that copy its own",
)
def experts(write: Callable[..., Any]) -> str:
    from playbook.layout import Layout

    cases = (
        "tp=2,cp=2,dp=2,pp=2,ep=4",
        "tp=2,cp=2,dp=4,pp=2,ep=2",
        "dp=4,ep=2",
        "tp=2,cp=3,dp=4,pp=2,ep=6",
    )
    for text in cases:
        layout = Layout.parse(text)
        sizes = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
        for rank in range(layout.world_size):
            given = write(rank, dict(sizes), layout.ep)
            where = f"rank {rank} of {text}"
            if not isinstance(given, list | tuple) or len(given) != 2:
                raise NotYet(f"{where}: expected two lists, the ranks of ep and those of edp, got {given!r}")
            for axis, ranks in zip(("ep", "edp"), given, strict=True):
                _check_group(layout, axis, rank, list(ranks), where)
    return "ep are neighbours among the ranks of dp × cp, edp those at the same place of each ep group"


def _check_group(layout: Any, axis: str, rank: int, got: list[int], where: str) -> None:
    right = next(group for group in layout.groups(axis) if rank in group)
    if sorted(got) == list(right):
        return
    said = f"{where}: for {axis} got {got}"
    if rank not in got:
        raise NotYet(f"{said}, in which the rank itself is not")
    if len(got) != len(right):
        raise NotYet(f"{said}, but {axis} has {len(right)} ranks here")
    apart = {
        name
        for other in got
        for name, index in layout.coordinates(other).items()
        if index != layout.coordinates(rank)[name]
    }
    if wrong := sorted(apart - {"dp", "cp"}):
        raise NotYet(f"{said}: these differ along {' and '.join(wrong)}, and may along dp and cp alone")
    raise NotYet(f"{said}: as many as there are, but not the right ones of its dp × cp group")


def _groups(rank: int, sizes: dict[str, int], ep: int) -> tuple[list[int], list[int]]:
    tp, same = sizes["tp"], sizes["cp"] * sizes["dp"]
    column, rest = rank % tp, rank // tp
    place, stage = rest % same, rest // same
    ranks = [column + tp * (i + same * stage) for i in range(same)]
    return ranks[place // ep * ep :][:ep], ranks[place % ep :: ep]


answers(
    "five-dimensions.experts",
    right=[_groups],
    wrong={
        "these differ along tp": lambda rank, sizes, ep: _groups(rank, sizes | {"tp": 1}, ep),
        "for ep got [0], but ep has 4 ranks": lambda *given: _groups(*given)[::-1],
        "as many as there are, but not the right ones of its dp × cp group": (
            lambda rank, sizes, ep: _groups(rank, sizes, sizes["cp"] * sizes["dp"] // ep)[::-1]
        ),
        "for edp got [0, 2, 4, 6], but edp has 1 ranks here": (
            lambda rank, sizes, ep: (_groups(rank, sizes, ep)[0], _groups(rank, sizes, 1)[1])
        ),
        "in which the rank itself is not": (
            lambda rank, *given: [[r for r in group if r != rank] for group in _groups(rank, *given)]
        ),
        "expected two lists": lambda *given: _groups(*given)[0],
    },
)


@exercise("five-dimensions.gradients", "repair", "gradients of experts that are averaged like all others")
def gradients(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for ep, what in ((1, "without expert parallelism"), (2, "with ep = 2"), (4, "with ep = 4")):
        found = launch.run(_averaged, mended, ep, ranks=4, backend="gloo").values
        for name in ("router", "experts"):
            off = max(rank[name][0] for rank in found)
            if off > 1e-5:
                lead = {1: "", 2: "right without expert parallelism; ", 4: "right for ep = 1 and 2; "}[ep]
                ratio = found[0][name][1]
                exact = abs(ratio - round(ratio * 4) / 4) < 1e-4 and max(r[name][2] for r in found) < 1e-4
                how = f"{ratio:g} times that of one process" if exact else f"off by {off:.0%} of its norm"
                raise NotYet(f"{lead}{what} the gradient of the {name} is {how}")
    return "the gradient of one process for the router and every expert, for ep = 1, 2 and 4"


def _averaged(mended: Callable[..., Any], ep: int) -> dict[str, tuple[float, float, float]]:
    """In a rank: by part, how far its gradient is off that of one process, the ratio of their norms, and how far from a
    multiple of it. Each rank's loss is the mean over its own tokens, as many as on any other."""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group
    from playbook.layout import Layout

    with process_group() as world:
        torch.manual_seed(0)
        layout, each = Layout(dp=world.size, ep=ep), 4 // ep
        edp = [dist.new_group(list(group)) for group in layout.groups("edp")][world.rank % ep]
        router, experts = torch.randn(4, 6), torch.randn(4, 6, 6)
        tokens = torch.randn(world.size, 8, 6)
        whole = [router.clone().requires_grad_(), experts.clone().requires_grad_()]
        _loss(tokens.flatten(0, 1), *whole).mean().backward()
        right = [_gradient(w) for w in whole]
        # What the two all-to-alls bring together: gradients of this rank's experts by all tokens of its ep group.
        own = tokens[world.rank // ep * ep :][:ep]
        local = [router.clone().requires_grad_(), experts.clone().requires_grad_()]
        _loss(tokens[world.rank], local[0], experts).mean().backward()
        sum(_loss(x, router, local[1]).mean() for x in own).backward()
        first = world.rank % ep * each
        mine = [_gradient(local[0]), _gradient(local[1])[first : first + each].clone()]
        wanted = [right[0], right[1][first : first + each]]
        mended([mine[0]], [mine[1]], dist.group.WORLD, edp)
        found = {}
        for name, got, want in zip(("router", "experts"), mine, wanted, strict=True):
            size = want.norm()
            ratio = float(got.norm() / size)
            off, shape = (got - want).norm() / size, (got - ratio * want).norm() / size
            found[name] = (float(off), ratio, float(shape))
        dist.barrier()
        return found


def _gradient(weight: Any) -> Any:
    return weight.grad


def _loss(x: Any, router: Any, experts: Any) -> Any:
    """Of each token: a small mixture in which all experts take part, so that nothing depends on a choice."""
    import torch

    weights = (x @ router.T).softmax(-1)
    return torch.einsum("te,eij,tj->ti", weights, experts, x).square().mean(-1)


def _reduced(
    dense: Any,
    experts: Any,
    replicas: Any,
    edp: Any,
    *,
    over=lambda replicas, edp: (replicas, edp),
    by=lambda replicas, edp: replicas,
) -> None:
    import torch.distributed as dist

    for gradients, group in zip((dense, experts), over(replicas, edp), strict=True):
        for gradient in gradients:
            dist.all_reduce(gradient, group=group)
            gradient /= by(replicas, edp).size()


answers(
    "five-dimensions.gradients",
    right=[_reduced],
    wrong={
        "right without expert parallelism; with ep = 2 the gradient of the experts": (
            partial(_reduced, over=lambda replicas, edp: (replicas, replicas))
        ),
        "is 2 times that of one process": partial(_reduced, by=lambda replicas, edp: edp),
        "the gradient of the router is off": partial(_reduced, over=lambda replicas, edp: (edp, edp)),
    },
)
