"""Exercises of the chapter on five dimensions."""

from __future__ import annotations

import math
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


@exercise("five-dimensions.norm", "repair", "a gradient norm that counts copies")
def norm(mended: Callable[..., Any]) -> str:
    from playbook import launch

    right_for: list[str] = []
    for text in ("pp=4", "tp=4", "tp=2,dp=2", "tp=2,pp=2"):
        ratios = launch.run(_norm, mended, text, ranks=4, backend="gloo").values
        if max(ratios) - min(ratios) > 1e-4:
            raise NotYet(f"{_lead(right_for)}{text}, the ranks get different norms")
        if abs(ratios[0] - 1) > 1e-4:
            raise NotYet(f"{_lead(right_for)}{text}, the norm is {ratios[0]:.3f} times that of one process")
        right_for.append(text)
    return "the norm of one process, however many ranks have a copy"


def _lead(right_for: list[str]) -> str:
    return f"right for {' and '.join(right_for)}; with " if right_for else "with "


def _norm(mended: Callable[..., Any], text: str) -> float:
    """In a rank: the norm that the reader's function finds, over that of one process."""
    import torch

    from playbook.launch import process_group
    from playbook.layout import AXES, Layout

    with process_group() as world:
        layout, generator = Layout.parse(text), torch.Generator().manual_seed(0)
        at = layout.coordinates(world.rank)
        whole = torch.zeros(())
        own: list[tuple[Any, tuple[str, ...]]] = []
        for stage in range(layout.pp):
            matrix, scale = (torch.randn(shape, generator=generator) for shape in ((8, 6), (6,)))
            whole += matrix.square().sum() + scale.square().sum()
            if stage == at["pp"]:
                own = [(matrix.chunk(layout.tp)[at["tp"]], ("tp", "pp")), (scale, ("pp",))]
        sizes = {axis: getattr(layout, axis) for axis in AXES}
        return float(mended(own, sizes)) / float(whole.sqrt())


def _summed(own: Any, sizes: dict[str, int], *, power=-1, along=("tp", "dp", "pp")) -> Any:
    import torch
    import torch.distributed as dist

    total = torch.zeros(())
    for gradient, cut in own:
        total += (
            gradient.square().sum() * math.prod(sizes[axis] for axis in along if axis not in cut) ** power
        )
    dist.all_reduce(total)
    return total.sqrt()


answers(
    "five-dimensions.norm",
    right=[_summed],
    wrong={
        "right for pp=4; with tp=4, the norm is 1.": partial(_summed, power=0),
        "right for pp=4 and tp=4; with tp=2,dp=2, the norm is 1.414": partial(_summed, along=["tp"]),
        "with pp=4, the norm is 0.500": lambda own, sizes: _summed([(g, ()) for g, _ in own], sizes),
        "right for pp=4; with tp=4, the norm is 0.": partial(_summed, power=-2),
        "with pp=4, the ranks get different norms": (
            lambda own, sizes: sum(gradient.square().sum() for gradient, _ in own).sqrt()
        ),
    },
)
