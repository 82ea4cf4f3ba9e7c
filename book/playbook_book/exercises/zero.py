"""Exercises of the chapter on ZeRO."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


@number(
    "zero.bytes",
    "bytes that a rank sends in a step of stage 3 with eight micro-batches",
    praise="every micro-batch gathers twice and reduces once, whatever its size",
    otherwise="Which collectives are there in one micro-batch, and of what?",
)
def bytes_of_a_step() -> tuple[float, dict[float, str]]:
    from playbook.shapes import load

    llama = load("llama3-8b")
    parts = llama.parameters()
    whole = llama.num_parameters
    again = whole - parts["embedding"] - parts["head"] - parts["final norm"]
    per_element = 2 * 15 / 16
    sent = 8 * per_element * (2 * whole + again)
    return sent, {
        sent / 8: "that is one micro-batch, and stage 3 gathers and reduces in each of them",
        sent / 2: "count bytes: a number in bf16 has two",
        sent * 16 / 15: "almost: of the 16 shards of a collective, a rank sends 15",
        8 * per_element * 3 * whole: "almost: not every unit is gathered a second time",
        8 * per_element * 2 * whole: "that is for weights that are kept from forward to backward",
        per_element * (8 * (whole + again) + whole): (
            "stage 3 has no memory in which to accumulate whole gradients: it reduces them in every micro-batch"
        ),
    }


Ranges = Sequence[tuple[int, int] | None]


@exercise("zero.owned", "function", "the elements of each parameter that a rank owns in a flat vector")
def owned(write: Callable[..., Any]) -> str:
    for lengths, world in (([6, 6], 3), ([10, 4, 7, 2], 3), ([5, 9, 4], 4), ([3], 4)):
        case = f"parameters of {', '.join(map(str, lengths))} elements on {world} ranks"
        ranges = [_checked(write(list(lengths), rank, world), lengths, case) for rank in range(world)]
        owners = Counter(
            (i, element)
            for one in ranges
            for i, span in enumerate(one)
            for element in range(*(span or (0, 0)))
        )
        if missing := sum(lengths) - len(owners):
            raise NotYet(f"{case}: {missing} of the {sum(lengths)} elements belong to no rank")
        if any(count > 1 for count in owners.values()):
            raise NotYet(f"{case}: some elements belong to more than one rank")
        sizes = [sum(stop - start for start, stop in filter(None, one)) for one in ranges]
        each = -(-sum(lengths) // world)
        if sizes != [max(0, min(each, sum(lengths) - rank * each)) for rank in range(world)]:
            raise NotYet(
                f"{case}: the ranks own {', '.join(map(str, sizes))} elements; shards are of one size, "
                "and padding comes at the end of the vector alone"
            )
        begins = [sum(lengths[:i]) for i in range(len(lengths))]
        for rank, one in enumerate(ranges):
            if any(span and begins[i] + span[0] < rank * each for i, span in enumerate(one)):
                raise NotYet(
                    f"{case}: each element has one owner, but a shard is not one piece of the vector"
                )
    return "one piece of the vector for each rank, wherever a parameter ends"


def _checked(given: Any, lengths: Sequence[int], case: str) -> Ranges:
    if not isinstance(given, list | tuple) or len(given) != len(lengths):
        raise NotYet(f"{case}: expected a list of {len(lengths)}, an entry for each parameter, got {given!r}")
    for span, length in zip(given, lengths, strict=True):
        if span is None:
            continue
        start, stop = span
        if not 0 <= start < stop <= length:
            raise NotYet(
                f"{case}: {start} to {stop} of a parameter of {length} elements; count from its own first "
                "element to one past the last, and give None where there is nothing"
            )
    return given


def _by_rank(lengths: list[int], rank: int, world: int) -> Ranges:
    each = -(-sum(lengths) // world)
    return _cut(lengths, rank * each, (rank + 1) * each)


def _cut(lengths: list[int], first: int, last: int) -> Ranges:
    found, begin = [], 0
    for length in lengths:
        start, stop = max(first, begin), min(last, begin + length)
        found.append((start - begin, stop - begin) if start < stop else None)
        begin += length
    return found


def _rounded_down(lengths: list[int], rank: int, world: int) -> Ranges:
    each = sum(lengths) // world
    return _cut(lengths, rank * each, (rank + 1) * each)


def _rest_on_the_last(lengths: list[int], rank: int, world: int) -> Ranges:
    each = sum(lengths) // world
    return _cut(lengths, rank * each, sum(lengths) if rank == world - 1 else (rank + 1) * each)


def _evenly(lengths: list[int], rank: int, world: int) -> Ranges:
    least, more = divmod(sum(lengths), world)
    first = rank * least + min(rank, more)
    return _cut(lengths, first, first + least + (rank < more))


def _places_in_the_vector(lengths: list[int], rank: int, world: int) -> Ranges:
    begins, own = [sum(lengths[:i]) for i in range(len(lengths))], _by_rank(lengths, rank, world)
    return [span and (begin + span[0], begin + span[1]) for begin, span in zip(begins, own, strict=True)]


def _each_parameter_by_itself(lengths: list[int], rank: int, world: int) -> Ranges:
    return [_by_rank([length], rank, world)[0] for length in lengths]


def _all_but_the_last(lengths: list[int], rank: int, world: int) -> Ranges:
    return [span and (span[0], span[1] - 1) for span in _by_rank(lengths, rank, world)]


def _everything(lengths: list[int], rank: int, world: int) -> Ranges:
    return [(0, length) for length in lengths]


def _only_what_there_is(lengths: list[int], rank: int, world: int) -> Ranges:
    return [span for span in _by_rank(lengths, rank, world) if span]


answers(
    "zero.owned",
    right=[_by_rank],
    wrong={
        "2 of the 23 elements belong to no rank": _rounded_down,
        "the ranks own 7, 7, 9 elements; shards are of one size": _rest_on_the_last,
        "the ranks own 5, 5, 4, 4 elements; shards are of one size": _evenly,
        "6 to 8 of a parameter of 6 elements": _places_in_the_vector,
        "a shard is not one piece of the vector": _each_parameter_by_itself,
        "belong to no rank": _all_but_the_last,
        "some elements belong to more than one rank": _everything,
        "expected a list of 2, an entry for each parameter": _only_what_there_is,
    },
)


@exercise("zero.accumulate", "repair", "stage 2 that forgets all micro-batches but the last")
def accumulate(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for micro_batches, count in enumerate(("one micro-batch", "two micro-batches", "three micro-batches"), 1):
        steps = launch.run(_accumulated, mended, micro_batches, ranks=3, backend="gloo")[0].value
        for step, (off, ratio, sent, whole) in enumerate(steps):
            if off > 1e-5:
                when = "right with one micro-batch; " if micro_batches > 1 and not step else ""
                when += f"with {count}" + (", right in the first step; in the second" if step else "")
                raise NotYet(f"{when}, the gradient's norm is {ratio:.2f} times that of one process")
            if whole:
                raise NotYet(
                    f"the gradient is right; but with {count} a whole one is still in memory when the next "
                    "micro-batch begins, and that is stage 1"
                )
            if sent != micro_batches:
                raise NotYet(
                    f"the gradient is right; but with {count} a step there are {sent} reduce-scatters"
                )
    return "the gradient of one process, step after step, and never a whole one kept"


def _accumulated(mended: Callable[..., Any], micro_batches: int) -> list[tuple[float, float, int, bool]]:
    """In a rank: of two steps, how far the gradient is off, its norm over that of one process, how many reduce-scatters
    there were, and whether a micro-batch found a whole gradient of the one before."""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group
    from playbook.parallel.mesh import all_gather, reduce_scatter

    with process_group() as world:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        samples = torch.randn(2, world.size, micro_batches, 4, 5)
        shard, sent, whole = torch.zeros(6), 0, False

        def loss(of_micro_batch: torch.Tensor) -> torch.Tensor:
            nonlocal whole
            whole |= any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
            return model(of_micro_batch).square().sum()

        def count(own: torch.Tensor, vector: torch.Tensor) -> None:
            nonlocal sent
            sent += 1
            reduce_scatter(own, vector.contiguous())

        found = []
        for of_step in samples:
            model.zero_grad()
            model(of_step.flatten(0, 2)).square().sum().backward()
            right = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            model.zero_grad()
            sent, whole = 0, False
            mended(model, [lambda x=x: loss(x) for x in of_step[world.rank]], shard, count)
            got = torch.empty_like(right)
            all_gather(got, shard.detach())
            off = (got - right).norm() / right.norm()
            found.append((off.item(), (got.norm() / right.norm()).item(), sent, whole))
        dist.barrier()
        return found


def _accumulate(
    model: Any, losses: Any, shard: Any, reduce_scatter: Any, afresh=True, forgets=True, averaged=False
) -> None:
    import torch

    if afresh:
        shard.zero_()
    for loss in losses:
        loss().backward()
        part = shard.clone()
        reduce_scatter(part, torch.cat([p.grad.flatten() for p in model.parameters()]))
        shard += part
        if forgets:
            model.zero_grad()
    if averaged:
        shard /= len(losses)


def _one_by_one(model: Any, losses: Any, shard: Any, reduce_scatter: Any) -> None:
    for loss in losses:
        _accumulate(model, [loss], shard, reduce_scatter)


def _stage_1(model: Any, losses: Any, shard: Any, reduce_scatter: Any) -> None:
    for loss in losses[:-1]:
        loss().backward()
    _accumulate(model, losses[-1:], shard, reduce_scatter)


def _sent_twice(model: Any, losses: Any, shard: Any, reduce_scatter: Any) -> None:
    reduce_scatter(shard.clone(), shard.repeat(3))
    _accumulate(model, losses, shard, reduce_scatter)


answers(
    "zero.accumulate",
    right=[_accumulate],
    wrong={
        "right with one micro-batch; with two micro-batches, the gradient's norm is": _one_by_one,
        "with one micro-batch, right in the first step; in the second": partial(_accumulate, afresh=False),
        "with two micro-batches, the gradient's norm is 0.50 times": partial(_accumulate, averaged=True),
        "with two micro-batches, the gradient's norm is 1.": partial(_accumulate, forgets=False),
        "with two micro-batches a whole one is still in memory": _stage_1,
        "with one micro-batch a step there are 2 reduce-scatters": _sent_twice,
    },
)
