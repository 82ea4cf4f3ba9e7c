"""Methods that look for the fastest layout. Each asks an evaluator for seconds until it has enough, or until it knows.

`exhaustive` and `bounds` end with a proof that nothing is faster. The others see no more than the seconds of what they
ask for: they could search for anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from playbook.layout import Layout
from playbook_book.searching.landscape import Evaluator, Point

Method = Callable[[Evaluator, Random], None]
#: Proposals in a row that bring nothing new, after which a method stops: it has gone round in circles.
PATIENCE = 200


def exhaustive(ask: Evaluator, rng: Random) -> None:
    """Every layout, in the order in which they are listed."""
    for layout in ask.landscape.layouts.values():
        ask(layout)


def at_random(ask: Evaluator, rng: Random) -> None:
    """Every layout in random order: random search without replacement (Bergstra and Bengio 2012)."""
    layouts = list(ask.landscape.layouts.values())
    rng.shuffle(layouts)
    for layout in layouts:
        ask(layout)


def bounds(ask: Evaluator, rng: Random) -> None:
    """Best first (branch and bound): in the order of lower bounds, until the next bound is beyond the best found."""
    planner, capacity = ask.landscape.planner, ask.landscape.problem.capacity
    least = {layout: planner.bound(layout, layout.recompute) for layout in ask.landscape.layouts.values()}
    best = math.inf
    for layout in sorted(least, key=least.__getitem__):
        if least[layout] >= best:
            return
        if planner.least(layout) <= capacity:
            best = min(best, ask(layout))


def one_at_a_time(ask: Evaluator, rng: Random) -> None:
    """The three steps by hand: what needs least memory, then better options, choice after choice (coordinate descent).

    A round in which no choice gets better is the end: a local optimum, or the global one.
    """
    points = list(ask.landscape.layouts)
    here = min(points, key=lambda point: ask.landscape.planner.least(ask.landscape.layouts[point]))
    before, now = math.inf, ask(ask.landscape.layouts[here])
    while now < before:
        before = now
        for i, options in enumerate(ask.landscape.options):
            for option in options:
                there = (*here[:i], option, *here[i + 1 :])
                found = ask.at(there)
                if found is not None and found < now:
                    here, now = there, found


def evolution(ask: Evaluator, rng: Random, population: int = 12, sample: int = 4) -> None:
    """Regularized evolution (Real et al. 2019): the best of a few has a mutated child; the oldest is removed."""
    points = list(ask.landscape.layouts)
    alive = [(ask.at(point), point) for point in rng.sample(points, min(population, len(points)))]
    idle = 0
    while idle < PATIENCE:
        parent = min(rng.sample(alive, min(sample, len(alive))), key=_seconds)[1]
        child, before = mutated(parent, ask, rng), len(ask.history)
        alive = [*alive[1:], (ask.at(child), child)]
        idle = 0 if len(ask.history) > before else idle + 1


def _seconds(one: tuple[float | None, Point]) -> float:
    return math.inf if one[0] is None else one[0]


def mutated(point: Point, ask: Evaluator, rng: Random) -> Point:
    """A point that can run and has another option in one choice, or, the more often that fails, in several."""
    changes, options = 1.0, ask.landscape.options
    while True:
        child = list(point)
        for i in rng.sample(range(len(child)), min(len(child), int(changes))):
            child[i] = rng.choice(options[i])
        if tuple(child) != point and tuple(child) in ask.landscape.layouts:
            return tuple(child)
        changes += 0.05
        if changes > 40:  # there is only this one
            return point


def policy_gradient(ask: Evaluator, rng: Random, batch: int = 8, rate: float = 0.2) -> None:
    """REINFORCE (Williams 1992): a softmax for each choice, whose logits follow the rewards of what was sampled.

    The reward is the place among the layouts of a batch: a layout that does not fit comes last, however far it is off.
    """
    policy = Policy(ask, np.random.default_rng(rng.getrandbits(32)))
    idle = 0
    while idle < PATIENCE and (taken := policy.samples(batch)):
        before = len(ask.history)
        seconds = [ask(layout) for one in taken if (layout := policy.layout(one))]
        policy.learn(taken, places(seconds), rate)
        idle = 0 if len(ask.history) > before else idle + batch


def places(seconds: Sequence[float]) -> Any:
    """Rewards from 1 for the fastest down to 0 for the slowest; equal ones share theirs, and what is infinite has 0."""
    each = np.array(seconds)
    slower = (each[:, None] < each[None, :]).sum(1)
    return np.where(np.isfinite(each), (slower + 1) / len(each), 0.0)


class Policy:
    """Independent choices, each a softmax of its own logits. What cannot run is sampled again."""

    def __init__(self, ask: Evaluator, generator: np.random.Generator):
        self.ask, self.generator = ask, generator
        self.logits = [np.zeros(len(options)) for options in ask.landscape.options]

    def layout(self, taken: tuple[int, ...]) -> Layout | None:
        """What the options with these indices make, None where that cannot run."""
        options = zip(self.ask.landscape.options, taken, strict=True)
        return self.ask.landscape.layouts.get(tuple(of[i] for of, i in options))

    def samples(self, count: int) -> list[tuple[int, ...]]:
        """Points that can run: for each the index of an option in every choice. Empty where the policy has none."""
        found: list[tuple[int, ...]] = []
        for _ in range(50):
            columns = [
                np.searchsorted(softmax(logits).cumsum()[:-1], self.generator.random(8 * count)).tolist()
                for logits in self.logits
            ]
            found += [taken for taken in zip(*columns, strict=True) if self.layout(taken)]
            if len(found) >= count:
                return found[:count]
        return found

    def learn(self, taken: Sequence[tuple[int, ...]], rewards: Any, rate: float) -> None:
        """One step along Σ (reward − mean reward) ∇ log probability."""
        advantages = rewards - rewards.mean()
        for logits, indices in zip(self.logits, zip(*taken, strict=True), strict=True):
            chance, step = softmax(logits), np.zeros_like(logits)
            for i, advantage in zip(indices, advantages, strict=True):
                step -= advantage * chance
                step[i] += advantage
            logits += rate * step


def softmax(logits: Any) -> Any:
    powers = np.exp(logits - logits.max())
    return powers / powers.sum()


METHODS: dict[str, Method] = {
    "exhaustive": exhaustive,
    "bounds": bounds,
    "random": at_random,
    "one at a time": one_at_a_time,
    "evolution": evolution,
    "policy gradient": policy_gradient,
}
#: Methods whose end is a proof, and those that depend on a seed.
PROVES = ("exhaustive", "bounds")
SEEDED = ("random", "evolution", "policy gradient")
