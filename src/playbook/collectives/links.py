"""What a message costs: α seconds to arrive and β seconds for each of its bytes; and fitting both to measured times.

α–β is Hockney's model (1994, "The communication challenge for MPP: Intel Paragon and Meiko CS-2"). That a part of α keeps
nobody busy is from LogP (Culler et al. 1993). Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from playbook._checks import check_fields, check_positive
from playbook.errors import ConfigError


class Model(Protocol):
    """What says how long messages take."""

    def time(self, bytes: float, messages: float = 1) -> float:
        """Seconds for ``messages`` in a row that carry ``bytes`` in all."""
        ...


@dataclass(frozen=True)
class AlphaBeta:
    """``alpha`` seconds per message and ``beta`` seconds per byte.

    Of alpha, the message is ``flight`` seconds on its way while both ends are free for the next one: a latency is no
    occupancy. The rest keeps them busy, and so does every byte.
    """

    alpha: float = field(metadata={"least": 0})
    beta: float = field(metadata={"least": 0})
    flight: float = field(default=0.0, metadata={"least": 0})

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        if self.flight > self.alpha:
            raise ConfigError(f"flight must be at most alpha, {self.alpha:g}, got {self.flight:g}")

    @property
    def bandwidth(self) -> float:
        """Bytes per second of long messages."""
        return 1 / self.beta if self.beta else float("inf")

    def time(self, bytes: float, messages: float = 1) -> float:
        """Seconds for ``messages`` in a row that carry ``bytes`` in all."""
        return self.alpha * messages + self.beta * bytes


@dataclass(frozen=True)
class Sample:
    """A measured time, and what was on the critical path: bytes, in so many messages one after the other."""

    bytes: float = field(metadata={"least": 0})
    seconds: float
    messages: float = field(default=1, metadata={"least": 0})

    def __post_init__(self) -> None:
        check_fields(self, ConfigError)
        check_positive("seconds", self.seconds, ConfigError)


def fit(samples: Iterable[Sample]) -> AlphaBeta:
    """α and β that come nearest to the measured times in proportion: least squares of (predicted − measured)/measured.

    Sizes are spread over many powers of two; plain least squares would see the longest messages alone. Neither value
    is negative: where the best one would be, the other is fitted without it. Raises :class:`ConfigError` for fewer
    than two samples.
    """
    rows = [(s.messages / s.seconds, s.bytes / s.seconds) for s in samples]
    if len(rows) < 2:
        raise ConfigError(f"a fit needs at least 2 samples, got {len(rows)}")
    aa, bb = sum(a * a for a, _ in rows), sum(b * b for _, b in rows)
    ab, a1, b1 = sum(a * b for a, b in rows), sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant > 1e-12 * aa * bb:
        alpha, beta = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if alpha >= 0 and beta >= 0:
            return AlphaBeta(alpha, beta)
    # Of one value alone, the one that explains more.
    alone = [AlphaBeta(a1 / aa if aa else 0.0, 0.0), AlphaBeta(0.0, b1 / bb if bb else 0.0)]
    return min(alone, key=lambda f: sum((f.alpha * a + f.beta * b - 1) ** 2 for a, b in rows))


def ring(collective: str, ranks: int) -> tuple[int, float]:
    """Messages one after the other, and the part of K that they carry in all: around a ring of so many ranks, of an
    all-to-all to one rank after another; a send is one message. K is the bytes of the whole vector, as nccl-tests
    count them."""
    if collective == "send":
        return 1, 1.0
    rounds = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
    messages = rounds[collective] * (ranks - 1)
    return messages, messages / ranks


def errors(model: Model, samples: Iterable[Sample]) -> list[float]:
    """(predicted − measured)/measured of each sample."""
    return [model.time(s.bytes, s.messages) / s.seconds - 1 for s in samples]
