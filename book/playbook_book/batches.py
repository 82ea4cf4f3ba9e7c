"""Batch sizes of published training runs, in tokens, and the optimizer steps they come to.

Batches grow during training: in jumps (PaLM, Llama 3) or gradually (GPT-3, DeepSeek-V3). A run is a row of stages; in one
the batch is constant, or grows in a straight line over the tokens seen. Standard library only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from playbook.errors import ConfigError


@dataclass(frozen=True)
class BatchPhase:
    """``tokens`` tokens of training at ``batch`` tokens per step, or from ``batch`` up to ``end`` tokens per step."""

    tokens: float
    batch: float
    end: float | None = None

    def __post_init__(self) -> None:
        for name in ("tokens", "batch", "end"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} of a stage must be above 0, got {value!r}")

    @property
    def last(self) -> float:
        """Tokens per step when the stage ends."""
        return self.batch if self.end is None else self.end

    @property
    def steps(self) -> float:
        """Optimizer steps: the integral of d(tokens) / batch, which a straight line makes a logarithm."""
        if self.last == self.batch:
            return self.tokens / self.batch
        return self.tokens * math.log(self.last / self.batch) / (self.last - self.batch)


@dataclass(frozen=True)
class BatchSchedule:
    """A run: its stages in order, the tokens of one sample at the end, and where that is published."""

    name: str
    stages: tuple[BatchPhase, ...]
    seq: int
    source: str = field(repr=False)

    @property
    def tokens(self) -> float:
        """Tokens of the whole run."""
        return sum(stage.tokens for stage in self.stages)

    @property
    def steps(self) -> float:
        """Optimizer steps of the whole run."""
        return sum(stage.steps for stage in self.stages)

    @property
    def last_batch(self) -> float:
        """Tokens per step at the end."""
        return self.stages[-1].last

    def corners(self) -> Iterator[tuple[float, float]]:
        """(tokens seen, tokens per step) at both ends of every stage, to draw the schedule as straight lines."""
        seen = 0.0
        for stage in self.stages:
            yield seen, stage.batch
            seen += stage.tokens
            yield seen, stage.last


def optimizer_steps(tokens: float, samples: int, seq: int) -> float:
    """Steps to see ``tokens`` tokens with batches of ``samples`` samples of ``seq`` tokens."""
    return BatchPhase(tokens, samples * seq).steps


M, B, T = 1e6, 1e9, 1e12
_PALM = 2048 * 512  # samples of 2,048 tokens: "1M tokens"

RUNS: dict[str, BatchSchedule] = {
    run.name: run
    for run in (
        # The paper gives its models together a ramp of 4 to 12 billion tokens; the largest has the longest, we assume.
        BatchSchedule(
            "GPT-3 175B",
            (BatchPhase(12 * B, 0.032 * M, 3.2 * M), BatchPhase(288 * B, 3.2 * M)),
            2048,
            "arXiv 2005.14165, table 2.1 and appendix B",
        ),
        BatchSchedule(
            "PaLM 540B",
            (
                BatchPhase(50_000 * _PALM, _PALM),
                BatchPhase(65_000 * 2 * _PALM, 2 * _PALM),
                BatchPhase(140_000 * 4 * _PALM, 4 * _PALM),
            ),
            2048,
            "arXiv 2204.02311, section 5: batch doubled at steps 50k and 115k of 255k",
        ),
        BatchSchedule("Llama 1 65B", (BatchPhase(1.4 * T, 4 * M),), 2048, "arXiv 2302.13971, table 2"),
        BatchSchedule("Llama 2 70B", (BatchPhase(2 * T, 4 * M),), 4096, "arXiv 2307.09288, table 1"),
        BatchSchedule(
            "Llama 3.1 405B",
            (
                BatchPhase(0.252 * B, 4 * M),
                BatchPhase(2.87 * T - 0.252 * B, 8 * M),
                BatchPhase(15.6 * T - 2.87 * T, 16 * M),
            ),
            8192,
            "arXiv 2407.21783, sections 1 and 3.4.1",
        ),
        # The report says "gradually"; the straight line is our reading.
        BatchSchedule(
            "DeepSeek-V3",
            (BatchPhase(469 * B, 3072 * 4096, 15360 * 4096), BatchPhase(14.8 * T - 469 * B, 15360 * 4096)),
            4096,
            "arXiv 2412.19437, section 4.2",
        ),
    )
}
