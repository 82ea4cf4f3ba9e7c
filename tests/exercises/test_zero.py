"""Wrong answers that readers of the chapter on ZeRO may well give, and what they are told."""

import pytest

from playbook_book.exercises import grade

WHOLE, ONCE = 8_030_261_248, 1_050_677_248  # of Llama 3 8B, and of its embedding, head and final norm
RIGHT = 8 * 2 * 15 / 16 * (3 * WHOLE - ONCE)


def mended(lengths, rank, world):
    each = (sum(lengths) + world - 1) // world
    return within(lengths, rank * each, (rank + 1) * each)


def within(lengths, first, last):
    found, begin = [], 0
    for length in lengths:
        start, stop = max(first, begin), min(last, begin + length)
        found.append((start - begin, stop - begin) if start < stop else None)
        begin += length
    return found


def rounded_down(lengths, rank, world):
    each = sum(lengths) // world
    return within(lengths, rank * each, (rank + 1) * each)


def rest_on_the_last(lengths, rank, world):
    each = sum(lengths) // world
    return within(lengths, rank * each, sum(lengths) if rank == world - 1 else (rank + 1) * each)


def evenly(lengths, rank, world):
    least, more = divmod(sum(lengths), world)
    first = rank * least + min(rank, more)
    return within(lengths, first, first + least + (rank < more))


def places_in_the_vector(lengths, rank, world):
    begins = [sum(lengths[:i]) for i in range(len(lengths))]
    return [
        span and (begin + span[0], begin + span[1])
        for begin, span in zip(begins, mended(lengths, rank, world), strict=True)
    ]


def each_parameter_by_itself(lengths, rank, world):
    return [mended([length], rank, world)[0] for length in lengths]


def last_element_too(lengths, rank, world):
    return [span and (span[0], span[1] - 1) for span in mended(lengths, rank, world)]


def everything(lengths, rank, world):
    return [(0, length) for length in lengths]


def only_what_there_is(lengths, rank, world):
    return [span for span in mended(lengths, rank, world) if span]


def whole_gradient(model):
    import torch

    return torch.cat([p.grad.flatten() for p in model.parameters()])


def planted(model, losses, shard, reduce_scatter):
    for loss in losses:
        loss().backward()
        reduce_scatter(shard, whole_gradient(model))
        model.zero_grad()


def added_to_the_last_step(model, losses, shard, reduce_scatter):
    for loss in losses:
        loss().backward()
        part = shard.clone()
        reduce_scatter(part, whole_gradient(model))
        shard += part
        model.zero_grad()


def averaged(model, losses, shard, reduce_scatter):
    right(model, losses, shard, reduce_scatter)
    shard /= len(losses)


def kept_whole_and_added(model, losses, shard, reduce_scatter):
    shard.zero_()
    for loss in losses:
        loss().backward()
        part = shard.clone()
        reduce_scatter(part, whole_gradient(model))
        shard += part


def stage_1(model, losses, shard, reduce_scatter):
    for loss in losses:
        loss().backward()
    reduce_scatter(shard, whole_gradient(model))
    model.zero_grad()


def stage_1_over_and_over(model, losses, shard, reduce_scatter):
    for loss in losses:
        loss().backward()
        reduce_scatter(shard, whole_gradient(model))


def sent_twice(model, losses, shard, reduce_scatter):
    reduce_scatter(shard.clone(), shard.repeat(3))
    right(model, losses, shard, reduce_scatter)


def right(model, losses, shard, reduce_scatter):
    shard.zero_()
    for loss in losses:
        loss().backward()
        part = shard.clone()
        reduce_scatter(part, whole_gradient(model))
        shard += part
        model.zero_grad()


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", RIGHT / 8, "that is one micro-batch"),
        ("bytes", RIGHT / 2, "a number in bf16 has two"),
        ("bytes", RIGHT * 16 / 15, "of the 16 shards of a collective, a rank sends 15"),
        ("bytes", 15 * 3 * WHOLE, "not every unit is gathered a second time"),
        ("bytes", 15 * 2 * WHOLE, "for weights that are kept from forward to backward"),
        (
            "bytes",
            15 * (2 * WHOLE - ONCE) + 15 / 8 * WHOLE,
            "no memory in which to accumulate whole gradients",
        ),
        ("bytes", 1e12, "1e+12 is too large. Which collectives are there"),
        ("owned", rounded_down, "2 of the 23 elements belong to no rank"),
        ("owned", rest_on_the_last, "the ranks own 7, 7, 9 elements; shards are of one size"),
        ("owned", evenly, "the ranks own 5, 5, 4, 4 elements; shards are of one size"),
        ("owned", places_in_the_vector, "6 to 8 of a parameter of 6 elements"),
        ("owned", each_parameter_by_itself, "a shard is not one piece of the vector"),
        ("owned", last_element_too, "belong to no rank"),
        ("owned", everything, "some elements belong to more than one rank"),
        ("owned", only_what_there_is, "expected a list of 2, an entry for each parameter"),
        ("accumulate", planted, "right with one micro-batch; with two micro-batches, the gradient's norm is"),
        (
            "accumulate",
            added_to_the_last_step,
            "with one micro-batch, right in the first step; in the second",
        ),
        ("accumulate", averaged, "with two micro-batches, the gradient's norm is 0.50 times"),
        ("accumulate", kept_whole_and_added, "with two micro-batches, the gradient's norm is"),
        ("accumulate", stage_1, "with two micro-batches a whole one is still in memory"),
        ("accumulate", stage_1_over_and_over, "and that is stage 1"),
        ("accumulate", sent_twice, "with one micro-batch a step there are 2 reduce-scatters"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"zero.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(("name", "answer"), [("bytes", RIGHT), ("owned", mended), ("accumulate", right)])
def test_right_answers_are_right(name, answer):
    assert grade(f"zero.{name}", answer).right
