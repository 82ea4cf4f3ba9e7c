"""Which blocks go to which stage of a pipeline, so that the slowest stage is as fast as can be.

Stages are unequal where an embedding, a head, or dense blocks beside mixtures of experts take other times than a block.
The rank of the slowest stage works for every micro-batch, while the pipeline fills and drains once: with many
micro-batches the slowest stage decides how long a step takes. Dynamic and integer programming find an optimum; a test
holds both to trying all cuts. PipeDream (Narayanan et al. 2019, section 3.1) and Alpa (Zheng et al. 2022) cut by dynamic
programming.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, combinations_with_replacement, pairwise

from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.layout.stages import split
from playbook.planning.search import Problem


@dataclass(frozen=True)
class Blocks:
    """Seconds of a micro-batch, forward and backward, in each block, and in what comes before and after them."""

    seconds: tuple[float, ...]
    before: float = 0.0
    after: float = 0.0

    def __post_init__(self) -> None:
        if any(not 0 <= value < math.inf for value in (*self.seconds, self.before, self.after)):
            raise LayoutError(
                f"seconds of blocks must be finite and at least 0, got {(*self.seconds, self.before, self.after)}"
            )

    def stages(self, sizes: tuple[int, ...]) -> list[float]:
        """Seconds of each stage, of so many blocks. Raises LayoutError unless ``sizes`` add up to all blocks."""
        found = [
            sum(self.seconds[i] for i in blocks) for blocks in split(len(self.seconds), len(sizes), sizes)
        ]
        found[0] += self.before
        found[-1] += self.after
        return found


@dataclass(frozen=True)
class Cut:
    """Blocks of each stage, the seconds of the slowest, and how many stages or cuts were weighed to find it."""

    sizes: tuple[int, ...]
    seconds: float
    weighed: int


def even(blocks: Blocks, stages: int) -> Cut:
    """As many blocks for every stage, as far as that goes: what a layout has unless it is told otherwise."""
    _check(blocks, stages)
    return _cut(blocks, tuple(map(len, split(len(blocks.seconds), stages))), 1)


def brute_force(blocks: Blocks, stages: int) -> Cut:
    """All cuts, L + 1 over p − 1 of them for L blocks on p stages, of which only the first and the last may be empty."""
    _check(blocks, stages)
    count, best, weighed = len(blocks.seconds), None, 0
    for places in combinations_with_replacement(range(count + 1), stages - 1):
        sizes = tuple(b - a for a, b in pairwise((0, *places, count)))
        if 0 in sizes[1:-1]:
            continue
        weighed += 1
        slowest = max(blocks.stages(sizes))
        if best is None or slowest < best.seconds:
            best = Cut(sizes, slowest, 0)
    assert best is not None
    return Cut(best.sizes, best.seconds, weighed)


def dynamic(blocks: Blocks, stages: int) -> Cut:
    """Dynamic programming: the best cut of the first n blocks into s stages is made of one into s − 1.

    best(s, n) is the least over k of max(best(s − 1, k), seconds of a stage of blocks k to n): p·L²/2 stages to weigh.
    """
    _check(blocks, stages)
    count, sums = len(blocks.seconds), list(accumulate(blocks.seconds, initial=0.0))
    best = [blocks.before + total for total in sums]  # of the first n blocks on one stage
    cuts: list[list[int]] = []  # for each further stage and n, where it begins
    weighed = count + 1
    for stage in range(1, stages):
        last = stage == stages - 1
        least, more = 0 if last else 1, blocks.after if last else 0.0
        now, begins = [math.inf] * (count + 1), [0] * (count + 1)
        for n in [count] if last else range(count + 1):
            for k in range(n - least + 1):
                weighed += 1
                slowest = max(best[k], sums[n] - sums[k] + more)
                if slowest < now[n]:
                    now[n], begins[n] = slowest, k
        best = now
        cuts.append(begins)
    ends = [count]
    for begins in reversed(cuts):
        ends.append(begins[ends[-1]])
    ends.append(0)
    return _cut(blocks, tuple(b - a for a, b in pairwise(reversed(ends))), weighed)


def integer(blocks: Blocks, stages: int) -> Cut:
    """The same as an integer program, solved by HiGHS: x(i, s) is 1 where block i is in stage s.

    Minimise T, where no stage takes longer than T, each block is in one stage, and the next block in the same stage or a
    later one. Raises LayoutError where scipy is missing.
    """
    _check(blocks, stages)
    try:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        raise LayoutError("integer programs need scipy: pip install scipy") from None
    count, unit = len(blocks.seconds), max(*blocks.seconds, blocks.before, blocks.after) or 1.0
    x = np.eye(count * stages).reshape(count, stages, -1)  # x[i, s] picks one variable
    x = np.pad(x, ((0, 0), (0, 0), (0, 1)))  # the last one is T
    in_one = x.sum(1)
    stage_of = np.tensordot(np.arange(stages), x, (0, 1))
    time = np.tensordot(np.array(blocks.seconds) / unit, x, (0, 0))
    time[:, -1] = -1.0  # seconds of a stage less T
    ends = np.zeros(stages)
    ends[0], ends[-1] = ends[0] + blocks.before / unit, ends[-1] + blocks.after / unit
    whole = np.append(np.ones(count * stages), 0.0)
    constraints = [
        LinearConstraint(in_one, 1, 1),
        LinearConstraint(time, -np.inf, -ends),
        LinearConstraint(x.sum(0)[1:-1], 1, np.inf),  # no stage inside is empty
    ]
    if count > 1:
        constraints.append(LinearConstraint(stage_of[1:] - stage_of[:-1], 0, np.inf))
    upper = np.append(np.ones(count * stages), np.inf)
    result = milp(
        np.eye(len(whole))[-1], constraints=[c for c in constraints if len(c.A)], integrality=whole,
        bounds=Bounds(0, upper), options={"mip_rel_gap": 1e-9},
    )  # fmt: skip
    assert result.x is not None, result.message
    sizes = np.rint(result.x[:-1]).reshape(count, stages).sum(0).astype(int)
    return _cut(blocks, tuple(sizes.tolist()), int(result.mip_node_count or 0))


def _cut(blocks: Blocks, sizes: tuple[int, ...], weighed: int) -> Cut:
    return Cut(sizes, max(blocks.stages(sizes)), weighed)


def _check(blocks: Blocks, stages: int) -> None:
    if not 1 <= stages <= len(blocks.seconds):
        raise LayoutError(f"stages must be between 1 and the {len(blocks.seconds)} blocks, got {stages}")


PARTITIONS: dict[str, Callable[[Blocks, int], Cut]] = {
    "even": even,
    "brute force": brute_force,
    "dynamic programming": dynamic,
    "integer programming": integer,
}


def blocks_of(problem: Problem, layout: Layout) -> Blocks:
    """The predicted seconds of each block, of the embedding, and of head and loss on a rank of ``layout``."""
    times = problem.run(layout).times
    kinds = [problem.shape.kind(layer) for layer in range(problem.shape.layers)]
    before, after = times.ends
    return Blocks(tuple(times.blocks[kind].seconds for kind in kinds), before.seconds, after.seconds)
