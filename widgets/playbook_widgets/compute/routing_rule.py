"""How a router chooses experts, on lists of numbers, for text of which some experts get more than others.

The rule is that of ``model.moe.Router``, which has it on tensors; a test holds one to the other, choice by choice. A
sample's scores are a list of tokens with a score for each expert. Standard library only.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from operator import add

from playbook.shapes import MoE

#: Of each sample, of each token, the score of each expert.
Scores = list[list[list[float]]]
#: Of each sample, of each token, experts.
Choices = list[list[list[int]]]


def draw_scores(samples: int, tokens: int, experts: int, skew: float, seed: int) -> Scores:
    """Scores from 0 to 1, the same for the same arguments: a sigmoid of logistic noise plus an expert's popularity.

    Popularity falls with an expert's place as Zipf's law has it for words: the odds of a score are those of an even text
    times place^−skew, over their geometric mean. Which expert has which place is drawn, too.
    """
    rng = random.Random(f"{seed}/{experts}")
    order = sorted(range(experts), key=[rng.random() for _ in range(experts)].__getitem__)
    mean = sum(math.log(place) for place in range(1, experts + 1)) / experts
    against = [0.0] * experts
    for place, e in enumerate(order, 1):
        against[e] = math.exp(skew * (math.log(place) - mean))
    # sigmoid(log(u / (1 − u)) + popularity) without a logarithm for each score
    draw = rng.random
    return [
        [[u / (u + (1 - u) * odds) for odds in against for u in (draw(),)] for _ in range(tokens)]
        for _ in range(samples)
    ]


def choose(scores: Scores, bias: Sequence[float], sizes: MoE) -> Choices:
    """The ``top_k`` experts with the highest scores, biased, in the groups that may be chosen, for each token."""
    experts = range(sizes.experts)
    limited = sizes.top_groups < sizes.groups
    found: Choices = []
    for sample in scores:
        found.append([])
        for token in sample:
            biased = list(map(add, token, bias))
            candidates = _in_best_groups(biased, sizes) if limited else experts
            found[-1].append(sorted(candidates, key=biased.__getitem__, reverse=True)[: sizes.top_k])
    return found


def _in_best_groups(biased: Sequence[float], sizes: MoE) -> list[int]:
    """The experts of the ``top_groups`` groups whose best max(1, k/M) scores have the largest sums."""
    each, among = sizes.experts // sizes.groups, max(1, sizes.top_k // sizes.top_groups)
    groups = [range(first, first + each) for first in range(0, sizes.experts, each)]
    sums = [sum(sorted(biased[group.start : group.stop], reverse=True)[:among]) for group in groups]
    best = sorted(range(sizes.groups), key=sums.__getitem__, reverse=True)[: sizes.top_groups]
    return [e for group in best for e in groups[group]]


def room(sizes: MoE, tokens: int) -> int | None:
    """How many of a sample's ``tokens`` an expert takes; None where it takes all that come."""
    if sizes.capacity is None:
        return None
    most = math.ceil(sizes.capacity * tokens * sizes.top_k / sizes.experts)
    return most if most < tokens else None


def keep(chosen: Choices, scores: Scores, sizes: MoE) -> Choices:
    """``chosen`` without what is beyond an expert's capacity: of a sample, it keeps the best scores, unbiased."""
    most = room(sizes, len(scores[0]))
    if most is None:
        return chosen
    kept: Choices = []
    for sample, choices in zip(scores, chosen, strict=True):
        mine: list[list[float]] = [[] for _ in range(sizes.experts)]
        for token, experts in zip(sample, choices, strict=True):
            for e in experts:
                mine[e].append(token[e])
        least = [sorted(found)[-most] if len(found) > most else 0.0 for found in mine]
        kept.append([[e for e in experts if token[e] >= least[e]]
                     for token, experts in zip(sample, choices, strict=True)])  # fmt: skip
    return kept


def load_of(choices: Iterable[Iterable[Iterable[int]]], experts: int) -> list[int]:
    """Rows of each expert."""
    load = [0] * experts
    for sample in choices:
        for token in sample:
            for e in token:
                load[e] += 1
    return load


def updated(bias: Sequence[float], load: Sequence[int], rate: float) -> list[float]:
    """Biases after a step: up by ``rate`` for experts with fewer rows than the mean, down for those with more."""
    mean = sum(load) / len(load)
    return [b + rate * ((mean > rows) - (mean < rows)) for b, rows in zip(bias, load, strict=True)]
