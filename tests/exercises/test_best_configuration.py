"""Wrong answers that readers of the chapter on the best configuration may well give, and what they are told."""

import math
from functools import cache

import pytest

from playbook_book.exercises import grade


def balanced(seconds, room):
    @cache
    def best(block, stage):
        """The slowest of the stages from here, and their sizes."""
        if stage == len(room):
            return (0.0, ()) if block == len(seconds) else (math.inf, ())
        found = []
        for size in range(min(room[stage], len(seconds) - block) + 1):
            slowest, sizes = best(block + size, stage + 1)
            found.append((max(slowest, sum(seconds[block : block + size])), (size, *sizes)))
        return min(found)

    return list(best(0, 0)[1])


def without_room(seconds, room):
    return balanced(seconds, [len(seconds)] * len(room))


def even(seconds, room):
    each, more = divmod(len(seconds), len(room))
    return [each + (stage < more) for stage in range(len(room))]


def greedy(seconds, room):
    """Fill up to the mean, stage by stage."""
    sizes, block = [], 0
    mean = sum(seconds) / len(room)
    for stage, limit in enumerate(room):
        size, after = 0, sum(room[stage + 1 :])
        while block < len(seconds) and size < limit:
            if sum(seconds[block - size : block + 1]) > mean and size and len(seconds) - block <= after:
                break
            size, block = size + 1, block + 1
        sizes.append(size)
    return sizes


def planted(stages, micro_batches):
    return (micro_batches + len(stages) - 1) * max(stages)


def mended(stages, micro_batches):
    return max(sum(stages[:i]) + micro_batches * one for i, one in enumerate(stages))


def all_once(stages, micro_batches):
    return sum(stages) + (micro_batches - 1) * max(stages)


def both(stages, micro_batches):
    return sum(stages) + micro_batches * max(stages)


def mean(stages, micro_batches):
    return micro_batches * sum(stages) / len(stages)


def softmax(logits):
    return [math.exp(value) / sum(map(math.exp, logits)) for value in logits]


def learned(logits, taken, advantage, rate):
    return [
        value + rate * advantage * ((i == taken) - chance)
        for i, (value, chance) in enumerate(zip(logits, softmax(logits), strict=True))
    ]


def downhill(logits, taken, advantage, rate):
    return learned(logits, taken, -advantage, rate)


def only_the_option(logits, taken, advantage, rate):
    return [value + rate * advantage * (i == taken) for i, value in enumerate(logits)]


def of_the_probability(logits, taken, advantage, rate):
    return learned(logits, taken, advantage * softmax(logits)[taken], rate)


def the_step_alone(logits, taken, advantage, rate):
    new = learned(logits, taken, advantage, rate)
    return [a - b for a, b in zip(new, logits, strict=True)]


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("luck", 299, "that is with replacement"),
        ("luck", 257, "almost: with one fewer"),
        ("luck", 100, "two searches of three"),
        ("luck", 91, "that is the mean"),
        ("luck", 950, "here are ten"),
        ("luck", 95, "do not add up"),
        ("luck", 500, "500 is too large. What is the chance"),
        ("room", without_room, "blocks, and room for"),
        ("room", even, "the slowest stage takes 4, but 3 is possible"),
        ("room", greedy, "is possible"),
        ("room", lambda seconds, room: [len(seconds)], "expected 2 whole numbers, one for each stage"),
        ("room", lambda seconds, room: [0] * len(room), "are not a cut of 4 blocks"),
        ("bound", planted, "the bound is 15, but the step takes 13"),
        (
            "bound",
            all_once,
            "stages of 4, 1, 1, 1 and 8 micro-batches: the bound is 35, but the step takes 32",
        ),
        ("bound", both, "the bound is 6, but the step takes 5"),
        ("bound", lambda stages, micro_batches: 0.0, "so loose a bound prunes little"),
        ("bound", mean, "so loose a bound prunes little"),
        ("bound", lambda stages, micro_batches: None, "expected seconds, got None"),
        ("policy", downhill, "downhill"),
        ("policy", only_the_option, "lose what this one gains"),
        ("policy", of_the_probability, "not of its logarithm"),
        (
            "policy",
            lambda logits, taken, advantage, rate: learned(logits, taken, advantage, 1),
            "rate is missing",
        ),
        (
            "policy",
            lambda logits, taken, advantage, rate: learned(logits, taken, 1, rate),
            "advantage is missing",
        ),
        ("policy", the_step_alone, "that is the step alone"),
        ("policy", lambda logits, taken, advantage, rate: [0.0], "expected 2 new logits"),
        ("policy", lambda logits, taken, advantage, rate: logits, "a step along the gradient"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"best-configuration.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"), [("luck", 258), ("room", balanced), ("bound", mended), ("policy", learned)]
)
def test_right_answers_are_right(name, answer):
    verdict = grade(f"best-configuration.{name}", answer)
    assert verdict.right, verdict.text


def test_a_bound_of_the_slowest_stage_alone_is_one_too():
    assert grade("best-configuration.bound", lambda stages, count: count * max(stages)).right
