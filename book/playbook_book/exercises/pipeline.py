"""Exercises of the chapter on pipeline parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from playbook_book.exercises.exercise import NotYet, exercise, number


@exercise(
    "pipeline.microbatches", "number", "the fewest micro-batches for a bubble of a twentieth of the step"
)
def microbatches(answer: Any) -> str:
    p, v, most = 12, 3, 0.05
    work = most / (1 - most)  # waiting over working, of that fraction of the step
    right = math.ceil((p - 1) / (v * work))
    hints: dict[float, str] = {
        math.ceil((p - 1) / (v * most)): "that makes the bubble a twentieth of the work, and not of the step",
        math.ceil((p - 1) / work): "that many would do with one stage per rank; these ranks have three",
        math.ceil((p - 1) / most): "one stage per rank, and a twentieth of the work: both are different here",
        math.ceil(p / (v * work)): "a rank waits for p − 1 others",
        right - 1: "almost: with so many the bubble is still larger",
    }
    number(
        answer, right, hints, otherwise="Waiting over working is one ratio, waiting over the step another."
    )
    return "waiting over working may be 1/19, and three stages a rank divide it by three"


#: p, m, v, f, b, c.
_CASES = (
    (2, 8, 2, 1, 2, 0.1),
    (4, 16, 2, 2, 2, 0.05),
    (4, 16, 4, 1, 2, 0.02),
    (8, 32, 2, 1, 2, 0.1),
)


@exercise("pipeline.messages", "function", "how long a rank waits under breadth first if messages take time")
def messages(write: Callable[..., Any]) -> str:
    from playbook.schedules.catalogue import make
    from playbook.schedules.timeline import Times, simulate

    for p, m, v, f, b, c in _CASES:
        line = simulate(make("breadth-first", p, m, v), Times(f / v, b / v, 0, c))
        right, said = line.makespan - line.ideal, write(p, m, v, f, b, c)
        if isinstance(said, bool) or not isinstance(said, int | float):
            raise NotYet(f"the function returns a number, and this is {type(said).__name__} {said!r}")
        if abs(said - right) < 1e-9:
            continue
        case = f"p = {p}, m = {m}, v = {v}, f = {f}, b = {b}, c = {c}"
        if abs(said - write(p, m, v, f, b, 0)) < 1e-12:
            raise NotYet(f"for {case} a simulated rank waits longer: some messages hide behind nothing")
        if abs(said - (p - 1) * (f + b + 2 * c)) < 1e-9:
            raise NotYet(f"for {case} that is all forward, all backward: a rank's part is cut in {v}")
        size = "long" if said > right else "short"
        raise NotYet(f"for {case} the wait is too {size}: count the messages during which a rank has no work")
    return "what simulated ranks wait, in all cases"


@exercise("pipeline.tied", "repair", "an embedding and a head on two ranks that are one weight")
def tied(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for count in (1, 3):
        ranks = launch.run(_tied, mended, count, ranks=2, backend="gloo").values
        batches = "one micro-batch" if count == 1 else "three micro-batches"
        where = f"with {batches}" if count == 1 else f"right with one micro-batch; with {batches}"
        blocks, tables = [block for block, _ in ranks], [table for _, table in ranks]
        for rank, off in enumerate(blocks):
            if abs(off - 1) > 1e-4:
                raise NotYet(
                    f"{where}, the gradient of rank {rank}'s block has {off:.2f} times the norm of one process's"
                )
        if any(abs(off - 1) > 1e-4 for off in tables):
            said = " and ".join(f"{off:.2f}" for off in tables)
            raise NotYet(
                f"{where}, both blocks have the gradients of one process, but that of the table has {said} times "
                "the right norm on ranks 0 and 1"
            )
    return "one weight, one gradient, the same on both ranks"


def _tied(mended: Callable[..., Any], count: int) -> tuple[float, float]:
    """In a rank: the gradients of its block and of its copy of the table, by how much they are one process's.

    The number is the ratio of the norms, or less where the directions differ, too.
    """
    import torch
    import torch.nn.functional as F

    from playbook.launch import process_group

    with process_group() as world:
        torch.manual_seed(0)
        table = torch.nn.Parameter(torch.randn(11, 6))
        blocks = [torch.nn.Linear(6, 6) for _ in range(2)]
        batches = list(torch.randint(11, (count, 2, 5)).unbind())
        pairs = [(batch[0], batch[1]) for batch in batches]
        for tokens, targets in pairs:
            logits = blocks[1](blocks[0](F.embedding(tokens, table))) @ table.T
            F.cross_entropy(logits, targets).backward()
        right = [_gradient(blocks[world.rank].weight), _gradient(table)]
        for parameter in (table, *(p for block in blocks for p in block.parameters())):
            parameter.grad = None
        mended(world.rank, table, blocks[world.rank], pairs)
        mine = [_gradient(blocks[world.rank].weight), _gradient(table)]
        return _alike(mine[0], right[0]), _alike(mine[1], right[1])


def _gradient(parameter: Any) -> Any:
    """A copy of it; zeros where there is none."""
    return parameter.detach() * 0 if parameter.grad is None else parameter.grad.detach().clone()


def _alike(mine: Any, right: Any) -> float:
    """The ratio of the norms; where they are equal and the gradients are not, how far these point the same way."""
    ratio = float(mine.norm() / right.norm())
    same = float((mine * right).sum() / (mine.norm() * right.norm() + 1e-12))
    return ratio if abs(ratio - 1) > 1e-4 else same
