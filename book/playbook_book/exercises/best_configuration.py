"""Exercises of the chapter on the best configuration."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


def _chance(asked: int, layouts: int, good: int) -> float:
    """That none of ``asked`` different layouts is a good one."""
    return math.comb(layouts - good, asked) / math.comb(layouts, asked)


@exercise("best-configuration.luck", "number", "evaluations of a random search that finds a good layout")
def luck(answer: Any) -> str:
    layouts, good, sure = 1000, 10, 0.95
    right = next(n for n in range(1, layouts) if 1 - _chance(n, layouts, good) >= sure)
    again = math.ceil(math.log(1 - sure) / math.log(1 - good / layouts))
    hints = {
        again: "that is with replacement: this search never asks for the same layout twice",
        right - 1: "almost: with one fewer than enough, the chance is just below 95 %",
        layouts
        / good: "on average every 100th layout is good, but that many evaluations find one in two searches of three",
        (layouts + 1) / (good + 1): "that is the mean; half of the searches, nearly, take longer",
        sure * layouts: "95 % of the layouts are needed to be 95 % sure of ONE of them; here are ten",
        sure * layouts / good: "the chances of several evaluations do not add up: two may both hit",
    }
    number(
        answer, right, hints, tolerance=1e-4,
        otherwise="What is the chance that all n evaluations miss, the second given that the first did?",
    )  # fmt: skip
    return "a quarter of the space: ten good layouts in a thousand are hard to hit blindly"


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


Learn = Callable[[list[float], int, float, float], Sequence[float]]


@exercise("best-configuration.policy", "function", "one step of REINFORCE")
def policy(write: Learn) -> str:
    cases = [([0.0, 0.0], 0, 1.0, 0.5), ([0.0, 0.0, 0.0], 2, -0.5, 0.3), ([1.0, -2.0, 0.5, 0.5], 1, 0.7, 1.0)]
    for logits, taken, advantage, rate in cases:
        case = f"logits {_listed(logits)}, option {taken}, advantage {advantage:g}"
        found = [float(value) for value in write(copy.copy(logits), taken, advantage, rate)]
        if len(found) != len(logits):
            raise NotYet(f"{case}: expected {len(logits)} new logits, got {found!r}")
        powers = [math.exp(value) for value in logits]
        chances = [power / sum(powers) for power in powers]
        slope = [(i == taken) - chance for i, chance in enumerate(chances)]
        right = [value + rate * advantage * each for value, each in zip(logits, slope, strict=True)]
        if _close(found, right):
            continue
        for wrong, hint in _wrong_steps(logits, chances, slope, taken, advantage, rate):
            if _close(found, wrong):
                raise NotYet(f"{case}: {hint}")
        raise NotYet(
            f"{case}: got {_listed(found)}, expected a step along the gradient of the log-probability of the option"
        )
    return "what was better than the mean becomes likelier, and the sum of the logits stays"


def _wrong_steps(
    logits: list[float], chances: list[float], slope: list[float], taken: int, advantage: float, rate: float
) -> list[tuple[list[float], str]]:
    def step(direction: Sequence[float], by: float) -> list[float]:
        return [value + by * each for value, each in zip(logits, direction, strict=True)]

    only = [float(i == taken) for i in range(len(logits))]
    of_chance = [chances[taken] * each for each in slope]
    return [
        (step(slope, -rate * advantage), "that goes downhill: a good option becomes less likely"),
        (step(only, rate * advantage), "the other options lose what this one gains: each logit has a gradient"),
        (step(of_chance, rate * advantage), "the gradient of the probability, not of its logarithm"),
        (step(slope, advantage), "the learning rate is missing"),
        (step(slope, rate), "the advantage is missing: a bad option must become less likely"),
        ([advantage * rate * each for each in slope], "that is the step alone: return the new logits"),
    ]  # fmt: skip


def _close(found: Sequence[float], right: Sequence[float]) -> bool:
    return all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(found, right, strict=True))
