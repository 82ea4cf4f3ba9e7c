"""Exercises of the chapter on the best configuration."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from random import Random
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


def _chance(asked: int, layouts: int, good: int) -> float:
    """That none of ``asked`` different layouts is a good one."""
    return math.comb(layouts - good, asked) / math.comb(layouts, asked)


@number(
    "best-configuration.luck",
    "evaluations of a random search that finds a good layout",
    praise="a quarter of the space: ten good layouts in a thousand are hard to hit blindly",
    otherwise="What is the chance that all n evaluations miss, the second given that the first did?",
    tolerance=1e-4,
)
def luck() -> tuple[float, dict[float, str]]:
    layouts, good, sure = 1000, 10, 0.95
    right = next(n for n in range(1, layouts) if 1 - _chance(n, layouts, good) >= sure)
    again = math.ceil(math.log(1 - sure) / math.log(1 - good / layouts))
    return right, {
        again: "that is with replacement: this search never asks for the same layout twice",
        right - 1: "almost: with one fewer than enough, the chance is just below 95 %",
        100: "on average every 100th layout is good, but that many evaluations find one in two searches of three",
        (layouts + 1) / (good + 1): "that is the mean; half of the searches, nearly, take longer",
        sure * layouts: "95 % of the layouts are needed to be 95 % sure of ONE of them; here are ten",
        sure * layouts / good: "the chances of several evaluations do not add up: two may both hit",
    }


Balance = Callable[[list[float], list[int]], Sequence[int]]


@exercise("best-configuration.room", "function", "the best cut of blocks into stages that have limited room")
def room(write: Balance) -> str:
    rng = Random(0)
    cases = [
        ([1.0, 1.0, 1.0, 1.0], [2, 2]),
        ([3.0, 1.0, 1.0, 1.0], [4, 4]),
        ([1.0, 1.0, 1.0, 3.0], [1, 2, 3]),
    ]
    for _ in range(25):
        count = rng.randint(3, 8)
        stages = rng.randint(1, min(4, count))
        limits = [rng.randint(1, count) for _ in range(stages)]
        limits[-1] += max(0, count - sum(limits))
        cases.append(([float(rng.randint(1, 9)) for _ in range(count)], limits))
    for seconds, limits in cases:
        case = f"blocks of {_listed(seconds)} on stages with room for {_listed(limits)}"
        sizes = write(list(seconds), list(limits))
        _check_sizes(sizes, seconds, limits, case)
        best = min(_slowest(seconds, cut) for cut in _cuts(len(seconds), limits))
        found = _slowest(seconds, sizes)
        if found > best + 1e-9:
            raise NotYet(
                f"{case}: with {_listed(sizes)} the slowest stage takes {found:g}, but {best:g} is possible"
            )
    return "the slowest stage is as fast as room allows"


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _check_sizes(sizes: Any, seconds: list[float], limits: list[int], case: str) -> None:
    if (
        not isinstance(sizes, list | tuple)
        or len(sizes) != len(limits)
        or not all(isinstance(n, int) for n in sizes)
    ):
        raise NotYet(f"{case}: expected {len(limits)} whole numbers, one for each stage, got {sizes!r}")
    if sum(sizes) != len(seconds) or min(sizes) < 0:
        raise NotYet(f"{case}: {_listed(sizes)} are not a cut of {len(seconds)} blocks")
    for stage, (size, limit) in enumerate(zip(sizes, limits, strict=True)):
        if size > limit:
            raise NotYet(f"{case}: stage {stage} has {size} blocks, and room for {limit}")


def _cuts(count: int, limits: Sequence[int]) -> list[tuple[int, ...]]:
    if len(limits) == 1:
        return [(count,)] if count <= limits[0] else []
    return [
        (size, *rest) for size in range(min(count, limits[0]) + 1) for rest in _cuts(count - size, limits[1:])
    ]


def _slowest(seconds: Sequence[float], sizes: Sequence[int]) -> float:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return max(sum(seconds[end - size : end]) for size, end in zip(sizes, ends, strict=True))


def _balanced(seconds: list[float], room: list[int]) -> list[int]:
    @cache
    def best(block: int, stage: int) -> tuple[float, tuple[int, ...]]:
        """The slowest of the stages from here, and their sizes."""
        if stage == len(room):
            return (0.0 if block == len(seconds) else math.inf), ()
        found = []
        for size in range(min(room[stage], len(seconds) - block) + 1):
            slowest, sizes = best(block + size, stage + 1)
            found.append((max(slowest, sum(seconds[block : block + size])), (size, *sizes)))
        return min(found)

    return list(best(0, 0)[1])


def _evenly(seconds: list[float], room: list[int]) -> list[int]:
    each, more = divmod(len(seconds), len(room))
    return [each + (stage < more) for stage in range(len(room))]


answers(
    "best-configuration.room",
    right=[_balanced],
    wrong={
        "blocks, and room for": lambda seconds, room: _balanced(seconds, [len(seconds)] * len(room)),
        "the slowest stage takes 4, but 3 is possible": _evenly,
        "expected 2 whole numbers, one for each stage": lambda seconds, room: [len(seconds)],
        "are not a cut of 4 blocks": lambda seconds, room: [0] * len(room),
    },
)


@exercise("best-configuration.bound", "repair", "a bound that is above the time it should be below")
def bound(mended: Callable[[list[float], int], float]) -> str:
    from playbook.layout import Layout
    from playbook.schedules import makespan

    rng, prunes = Random(1), 0
    cases = [([1.0, 1.0], 4), ([1.0, 3.0], 4), ([4.0, 1.0, 1.0, 1.0], 8)]
    cases += [
        ([rng.choice([1.0, 2.0, 6.0]) for _ in range(rng.choice([1, 2, 4, 8]))], rng.choice([4, 8, 32]))
        for _ in range(30)
    ]
    for stages, count in cases:
        if len(stages) == 1:
            truth = stages[0] * count
        else:
            layout = Layout(pp=len(stages), grad_acc=count)
            thirds = tuple(one / 3 for one in stages)
            truth = max(makespan.ends(layout, thirds, thirds, thirds, 0.0, False))
        found = mended(list(stages), count)
        case = f"stages of {_listed(stages)} and {count} micro-batches"
        if not isinstance(found, int | float) or not math.isfinite(found):
            raise NotYet(f"{case}: expected seconds, got {found!r}")
        if found > truth + 1e-9:
            raise NotYet(
                f"{case}: the bound is {found:g}, but the step takes {truth:g}: the search may drop the fastest"
            )
        prunes += found >= 0.8 * truth
    if prunes < len(cases) * 0.75:
        raise NotYet(
            f"never above the step, but near it in {prunes} of {len(cases)} cases: so loose a bound prunes little"
        )
    return "below every step, and close enough to prune"


answers(
    "best-configuration.bound",
    right=[
        lambda stages, count: max(sum(stages[:i]) + count * one for i, one in enumerate(stages)),
        lambda stages, count: count * max(stages),
    ],
    wrong={
        "the bound is 15, but the step takes 13": (
            lambda stages, count: (count + len(stages) - 1) * max(stages)
        ),
        "stages of 4, 1, 1, 1 and 8 micro-batches: the bound is 35, but the step takes 32": (
            lambda stages, count: sum(stages) + (count - 1) * max(stages)
        ),
        "the bound is 6, but the step takes 5": lambda stages, count: sum(stages) + count * max(stages),
        "near it in 0 of 33 cases: so loose a bound prunes little": lambda stages, count: 0.0,
        "so loose a bound prunes little": lambda stages, count: count * sum(stages) / len(stages),
        "expected seconds, got None": lambda stages, count: None,
    },
)
