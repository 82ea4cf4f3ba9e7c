"""Wrong answers that readers of the chapter on five dimensions may well give, and what they are told."""

import math

import pytest

from playbook_book.exercises import grade


def mended_experts(rank, sizes, ep):
    tp, same = sizes["tp"], sizes["cp"] * sizes["dp"]
    column, rest = rank % tp, rank // tp
    place, stage = rest % same, rest // same
    ranks = [column + tp * (i + same * stage) for i in range(same)]
    return ranks[place // ep * ep :][:ep], ranks[place % ep :: ep]


def neighbours_of_all(rank, sizes, ep):
    first = rank // ep * ep
    return list(range(first, first + ep)), mended_experts(rank, sizes, ep)[1]


def swapped(rank, sizes, ep):
    return mended_experts(rank, sizes, ep)[::-1]


def every_other(rank, sizes, ep):
    ranks = sorted({r for i in range(64) for r in mended_experts(rank, sizes, 1)[1]})
    copies = len(ranks) // ep
    place = ranks.index(rank)
    return ranks[place % copies :: copies], ranks[place // copies * copies :][:copies]


def all_replicas(rank, sizes, ep):
    sharers, _ = mended_experts(rank, sizes, ep)
    return sharers, mended_experts(rank, sizes, 1)[1]


def without_itself(rank, sizes, ep):
    return tuple([r for r in group if r != rank] for group in mended_experts(rank, sizes, ep))


def one_list(rank, sizes, ep):
    return mended_experts(rank, sizes, ep)[0]


def planted_gradients(dense, experts, replicas, edp):
    import torch.distributed as dist

    for gradient in [*dense, *experts]:
        dist.all_reduce(gradient, group=replicas)
        gradient /= replicas.size()


def averaged_over_edp(dense, experts, replicas, edp):
    import torch.distributed as dist

    planted_gradients(dense, [], replicas, edp)
    for gradient in experts:
        dist.all_reduce(gradient, group=edp)
        gradient /= edp.size()


def not_divided(dense, experts, replicas, edp):
    import torch.distributed as dist

    planted_gradients(dense, [], replicas, edp)
    for gradient in experts:
        dist.all_reduce(gradient, group=edp)


def all_over_edp(dense, experts, replicas, edp):
    import torch.distributed as dist

    for gradient in [*dense, *experts]:
        dist.all_reduce(gradient, group=edp)
        gradient /= replicas.size()


def right_gradients(dense, experts, replicas, edp):
    import torch.distributed as dist

    planted_gradients(dense, [], replicas, edp)
    for gradient in experts:
        dist.all_reduce(gradient, group=edp)
        gradient /= replicas.size()


def summed(own, count):
    import torch
    import torch.distributed as dist

    total = torch.zeros(())
    for gradient, cut in own:
        total += gradient.square().sum() * count(cut)
    dist.all_reduce(total)
    return total.sqrt()


def planted_norm(own, sizes):
    return summed(own, lambda cut: 1)


def copies_along_tp_alone(own, sizes):
    return summed(own, lambda cut: 1 if "tp" in cut else 1 / sizes["tp"])


def divided_by_all(own, sizes):
    return summed(own, lambda cut: 1 / math.prod(sizes.values()))


def square_of_copies(own, sizes):
    return summed(own, lambda cut: math.prod(n for axis, n in sizes.items() if axis not in cut) ** -2)


def only_here(own, sizes):
    return sum(gradient.square().sum() for gradient, _ in own).sqrt()


def right_norm(own, sizes):
    return summed(own, lambda cut: 1 / math.prod(n for axis, n in sizes.items() if axis not in cut))


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("neighbour", 6025, "that is the order of this book"),
        ("neighbour", 5129, "a neighbour on dp"),
        ("neighbour", 4993, "where activations come from"),
        ("neighbour", 5002, "a neighbour on tp"),
        ("neighbour", 5017, "the product of the faster axes"),
        ("neighbour", 5000, "too small. Find its coordinates first"),
        ("experts", neighbours_of_all, "these differ along tp"),
        ("experts", swapped, "rank 0 of tp=2,cp=2,dp=2,pp=2,ep=4: for ep got [0], but ep has 4 ranks"),
        ("experts", every_other, "as many as there are, but not the right ones of its dp × cp group"),
        ("experts", all_replicas, "for edp got [0, 2, 4, 6], but edp has 1 ranks here"),
        ("experts", without_itself, "in which the rank itself is not"),
        ("experts", one_list, "expected two lists"),
        ("gradients", planted_gradients, "right without expert parallelism; with ep = 2 the gradient of the experts"),
        ("gradients", averaged_over_edp, "with ep = 2 the gradient of the experts is 2 times that of one process"),
        ("gradients", not_divided, "without expert parallelism the gradient of the experts is 4 times"),
        ("gradients", all_over_edp, "with ep = 2 the gradient of the router is off"),
        ("norm", planted_norm, "right for pp=4; with tp=4, the norm is 1."),
        ("norm", copies_along_tp_alone, "right for pp=4 and tp=4; with tp=2,dp=2, the norm is 1.414"),
        ("norm", divided_by_all, "with pp=4, the norm is 0.500"),
        ("norm", square_of_copies, "right for pp=4; with tp=4, the norm is 0."),
        ("norm", only_here, "with pp=4, the ranks get different norms"),
    ],
)  # fmt: skip
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"five-dimensions.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("neighbour", 5009),
        ("experts", mended_experts),
        ("gradients", right_gradients),
        ("norm", right_norm),
    ],
)
def test_right_answers_are_right(name, answer):
    assert grade(f"five-dimensions.{name}", answer).right
