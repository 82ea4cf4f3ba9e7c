"""Gradients of replicas sent while backward goes on: how long a step takes, and what of the sending it does not hide.

Backward completes gradients evenly, byte after byte, in the order of the messages; a message is sent when all of it is
there and the one before it is through, for collectives of one group queue up. What is not through when backward ends is
exposed. That is the timeline of DDP (Li et al. 2020, arXiv 2006.15704, section 3.2.3). Standard library only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playbook._checks import check_int, check_positive
from playbook.errors import ConfigError


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step: ``compute`` is its forward and backward passes, ``sending`` all messages one after the other,
    ``exposed`` what of these comes when backward is over."""

    compute: float
    sending: float
    exposed: float

    @property
    def total(self) -> float:
        return self.compute + self.exposed

    @property
    def hidden(self) -> float:
        """Share of the sending that is hidden; 1 where nothing is sent."""
        return 1 - self.exposed / self.sending if self.sending else 1.0

    @property
    def efficiency(self) -> float:
        """Throughput of a GPU, as a share of what it has alone."""
        return self.compute / self.total


def replicas_step(
    forward: float,
    backward: float,
    messages: Sequence[int],
    seconds: Callable[[int], float],
    *,
    overlap: bool = True,
) -> StepTime:
    """A step of one micro-batch, of ``forward`` and ``backward`` seconds.

    ``messages`` are bytes in the order of backward, ``seconds`` what an all-reduce of so many bytes takes. Without
    ``overlap`` the first is sent when backward is over.
    """
    whole, ready, done, sending = sum(messages), 0.0, 0.0, 0.0
    for size in messages:
        ready += backward * size / whole
        took = seconds(size)
        done = max(done, ready if overlap else backward) + took
        sending += took
    return StepTime(forward + backward, sending, max(0.0, done - backward))


def side_by_side(compute: float, sending: float, lost: float = 0.0) -> float:
    """Seconds that both take together, where messages slow computation down by the share ``lost`` of its speed.

    DeepSeek-V3 gives them 20 of 132 multiprocessors (arXiv 2412.19437, section 3.2.2).
    """
    if not 0 <= lost < 1:
        raise ConfigError(f"lost must be at least 0 and below 1, got {lost!r}")
    return max(sending, compute + lost * sending)


def cut(total: int, size: int, first: int | None = None) -> list[int]:
    """``total`` bytes in buckets of at most ``size``, the first one of at most ``first``."""
    for field, value in (("total", total), ("size", size), ("first", first or size)):
        check_int(field, value, ConfigError)
    buckets = [min(total, first or size)]
    while (left := total - sum(buckets)) > 0:
        buckets += [size] * (left // size) or [left]
    return buckets


def data_parallel_ratio(
    tokens: float,
    replicas: int,
    *,
    peak_flops: float,
    bandwidth: float,
    gradient_bytes: int = 2,
) -> float:
    """Time to all-reduce all gradients over time to compute them; below 1 the sending can be hidden.

    Of Ψ parameters an all-reduce sends 2(N − 1)/N bytes for each byte of gradients from every rank, and backward takes
    4Ψ FLOPs for each of the ``tokens`` of a GPU: Ψ cancels, and so does the size of a bucket, for both are of the whole
    model. ``bandwidth`` is bytes/s that a GPU sends.
    """
    check_positive("tokens", tokens, ConfigError)
    share = (check_int("replicas", replicas, ConfigError) - 1) / replicas
    return (2 * share * gradient_bytes / bandwidth) / (4 * tokens / peak_flops)
