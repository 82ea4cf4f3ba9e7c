"""Methods on the same problems: how many evaluations they take to come within 1 % of the optimum, and their regret."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from playbook.hardware import load as load_cluster
from playbook.planning.job import Job
from playbook.planning.search import Problem, Space
from playbook.shapes import load
from playbook_book.searching.landscape import Enough, Evaluator, Landscape
from playbook_book.searching.methods import METHODS, SEEDED

#: Models with two numbers of GPUs each, and samples a step: twenty problems.
MODELS = (
    ("llama3.2-1b", (8, 32)),
    ("llama3-8b", (16, 64)),
    ("llama2-13b", (16, 64)),
    ("qwen3-30b-a3b", (32, 64)),
    ("llama3-70b", (64, 128)),
)
BATCHES = (128, 512)
#: What they choose from, small enough to simulate all of it.
SMALL = Space(
    cp=(1,), pp=(1, 2, 4, 8), ep=(1, 8), zero=(0, 1, 3), recompute=("none", "full"), vpp=(2,), micro_batch=(1, 2, 4)
)  # fmt: skip


def problems() -> Iterator[tuple[str, Problem]]:
    """Twenty problems on H100s, with their names."""
    for model, counts in MODELS:
        for gpus in counts:
            for batch in BATCHES:
                cluster = load_cluster("h100-8").with_gpus(gpus)
                yield (
                    f"{model}, {gpus} GPUs, batch {batch}",
                    Problem(Job(load(model), seq=4096), cluster, batch),
                )


@dataclass(frozen=True)
class Trial:
    """One method on one problem with one seed: after each evaluation, how much slower the best so far is than the
    optimum; and how many layouts there were."""

    method: str
    problem: str
    seed: int
    regrets: tuple[float, ...]
    layouts: int

    def evaluations(self, share: float = 0.01) -> float:
        """Evaluations until the best is within ``share`` of the optimum; infinite where it never was."""
        return next((n for n, regret in enumerate(self.regrets, 1) if regret <= share), math.inf)

    def regret(self, after: int) -> float:
        """Regret after so many evaluations, or at the end where it ended before; infinite where nothing fitted."""
        return self.regrets[min(after, len(self.regrets)) - 1] if self.regrets else math.inf


def trial(method: str, name: str, landscape: Landscape, seed: int = 0, budget: int | None = None) -> Trial:
    """Run a method once."""
    ask = Evaluator(landscape, budget)
    with contextlib.suppress(Enough):
        METHODS[method](ask, Random(seed))
    return Trial(method, name, seed, tuple(ask.regrets()), len(landscape.layouts))


def trials(
    landscapes: Iterable[tuple[str, Landscape]], seeds: Sequence[int] = range(5), budget: int | None = None
) -> list[Trial]:
    """Every method on every problem; those that depend on a seed once for each."""
    return [
        trial(method, name, landscape, seed, budget)
        for name, landscape in landscapes
        for method in METHODS
        for seed in (seeds if method in SEEDED else seeds[:1])
    ]
