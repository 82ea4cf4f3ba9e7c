"""Two lines in place of one: short and long messages, each with α and β of its own. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from playbook.collectives.links import AlphaBeta, Sample, errors, fit


@dataclass(frozen=True)
class Regimes:
    """α and β by the length of a message: ``links[i]`` for messages of less than ``limits[i]`` bytes, the last for the
    rest.

    Short and long messages often travel in different ways: NCCL has a protocol for each, and a message that does not
    fit into the processor's cache moves at the pace of the memory.
    """

    links: tuple[AlphaBeta, ...]
    limits: tuple[float, ...] = ()

    def time(self, bytes: float, messages: float = 1) -> float:
        """Seconds for ``messages`` in a row that carry ``bytes`` in all."""
        length = bytes / messages if messages else 0.0
        regime = sum(length >= limit for limit in self.limits)
        return self.links[regime].time(bytes, messages)


#: Samples that a line needs beside another one: two to fit it and one to leave out.
_LEAST = 3
#: By how much two lines must lower the squares: the best of many cuts follows noise a little, too.
_WORTH = 0.5


def fit_regimes(samples: Iterable[Sample]) -> Regimes:
    """One line, or two for short and for long messages where these predict clearly better what they have not seen.

    Each sample in turn is left out of the fit and predicted; two lines must halve the squares of these errors. (Errors
    of the samples that they were fitted to would always speak for two.) The two meet where they cross, if that is
    between the longest message of the one and the shortest of the other. Raises :class:`ConfigError` for fewer than two
    samples.
    """
    ordered = sorted(samples, key=_length)
    one = Regimes((fit(ordered),))
    if len(ordered) < 3:
        return one
    cuts = range(_LEAST, len(ordered) - _LEAST + 1)
    best = min(cuts, key=lambda cut: _left_out(ordered, cut), default=0)
    if _left_out(ordered, best) > _WORTH * _left_out(ordered, 0):
        return one
    return _two(ordered[:best], ordered[best:])


def _left_out(ordered: list[Sample], cut: int) -> float:
    """Sum of the squared errors of samples, each predicted from the others; no cut means one line.

    Errors of 0.1 % and less are none: where two candidates are that good, the simpler one is taken.
    """

    def line(i: int) -> AlphaBeta:
        side = ordered[:cut] if i < cut else ordered[cut:]
        return fit(sample for sample in side if sample is not ordered[i])

    return max(1e-6, sum(errors(line(i), [sample])[0] ** 2 for i, sample in enumerate(ordered)))


def _two(short: list[Sample], long: list[Sample]) -> Regimes:
    first, second = fit(short), fit(long)
    low, high = _length(short[-1]), _length(long[0])
    slope = first.beta - second.beta
    crossing = (second.alpha - first.alpha) / slope if slope else low
    return Regimes((first, second), (crossing if low < crossing <= high else math.sqrt(low * high),))


def _length(sample: Sample) -> float:
    return sample.bytes / sample.messages if sample.messages else 0.0
