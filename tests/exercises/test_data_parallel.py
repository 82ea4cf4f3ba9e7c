"""Wrong answers that readers of the chapter on data parallelism may well give, and what they are told."""

import pytest

from playbook_book.exercises import grade

PARAMETERS = 124_439_808


def no_division(loss_sum, count, add):
    return loss_sum


def own_mean(loss_sum, count, add):
    return loss_sum / count


def mean_of_means(loss_sum, count, add):
    return loss_sum / count / add(1)


def averaged(loss_sum, count, add):
    return loss_sum / add(count) * add(1)


def planted(model, losses, all_reduce):
    for loss in losses:
        loss().backward()
        for p in model.parameters():
            all_reduce(p.grad)


def never(model, losses, all_reduce):
    for loss in losses:
        loss().backward()


def last_micro_batch_alone(model, losses, all_reduce):
    for loss in losses:
        model.zero_grad()
        loss().backward()
    for p in model.parameters():
        all_reduce(p.grad)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", 4 * 2 * 7 / 8 * 4 * PARAMETERS, "with no_sync only the last one sends"),
        ("bytes", 7 / 8 * 4 * PARAMETERS, "goes around the ring twice"),
        ("bytes", 2 * 7 / 8 * PARAMETERS, "an fp32 gradient has four"),
        ("bytes", 4 * PARAMETERS, "what there is to be summed"),
        ("bytes", 8 * PARAMETERS, "a rank sends all chunks but one"),
        ("bytes", 1, "1 is too small. Look at the ring again"),
        ("scale", no_division, "for ranks with equally many tokens"),
        ("scale", own_mean, "three times too large on three ranks"),
        ("scale", mean_of_means, "for a rank with fewer tokens than another"),
        ("scale", averaged, "three times too large on three ranks"),
        ("accumulate", planted, "right with one micro-batch a step; with two, the gradient's norm is"),
        ("accumulate", never, "the ranks end with different gradients"),
        ("accumulate", last_micro_batch_alone, "right with one micro-batch a step; with two"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"data-parallel.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text
