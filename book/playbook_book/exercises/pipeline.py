"""Exercises of the chapter on pipeline parallelism."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, function, number


@number(
    "pipeline.microbatches",
    "the fewest micro-batches for a bubble of a twentieth of the step",
    praise="waiting over working may be 1/19, and three stages a rank divide it by three",
    otherwise="Waiting over working is one ratio, waiting over the step another.",
)
def microbatches() -> tuple[float, dict[float, str]]:
    from playbook.schedules.catalogue import make
    from playbook.schedules.timeline import simulate

    p, v, most = 12, 3, 0.05
    work = most / (1 - most)  # waiting over working, of that fraction of the step
    right = next(m for m in range(60, 80) if simulate(make("interleaved", p, m, v)).bubble_fraction <= most)
    return right, {
        math.ceil((p - 1) / (v * most)): "that makes the bubble a twentieth of the work, and not of the step",
        math.ceil((p - 1) / work): "that many would do with one stage per rank; these ranks have three",
        math.ceil((p - 1) / most): "one stage per rank, and a twentieth of the work: both are different here",
        math.ceil(p / (v * work)): "a rank waits for p − 1 others",
        right - 1: "almost: with so many the bubble is still larger",
    }


def _another_wait(given: Any, wanted: float) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float):
        return f"the function returns a number, and this is {type(given).__name__} {given!r}"
    size = "long" if given > wanted else "short"
    return f"the wait is too {size}: count the messages during which a rank has no work"


@function(
    "pipeline.messages",
    "how long a rank waits under breadth first if messages take time",
    cases=((2, 8, 2, 1, 2, 0.1), (4, 16, 2, 2, 2, 0.05), (4, 16, 4, 1, 2, 0.02), (8, 32, 2, 1, 2, 0.1)),
    case="for p = {}, m = {}, v = {}, f = {}, b = {}, c = {}".format,
    praise="what simulated ranks wait, in all cases",
    otherwise=_another_wait,
)
def messages(p: int, m: int, v: int, f: float, b: float, c: float) -> float:
    from playbook.schedules.catalogue import make
    from playbook.schedules.timeline import Times, simulate

    line = simulate(make("breadth-first", p, m, v), Times(f / v, b / v, 0, c))
    return line.makespan - line.ideal


def _wait(p: int, m: int, v: int, f: float, b: float, c: float, *, hops=2, parts=None) -> float:
    return (p - 1) * ((f + b) / (parts or v) + hops * c)


answers(
    "pipeline.messages",
    right=[_wait],
    wrong={
        "a simulated rank waits longer: some messages hide behind nothing": partial(_wait, hops=0),
        "that is all forward, all backward: a rank's part is cut in v": partial(_wait, parts=1),
        "the wait is too short: gradients travel, too, and a rank waits for them": partial(_wait, hops=1),
    },
)


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


def _step(rank: int, table: Any, block: Any, batches: Any, *, share=1.0, summed="last", copies=1) -> None:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    for i, (tokens, targets) in enumerate(batches, 1):
        stream = torch.zeros(len(tokens), table.shape[1], requires_grad=True)
        if rank == 0:
            out = block(F.embedding(tokens, table))
            dist.send(out.detach(), 1)
            dist.recv(stream.detach(), 1)
            out.backward(stream)
        else:
            dist.recv(stream.detach(), 0)
            (F.cross_entropy(block(stream) @ table.T, targets) * share).backward()
            dist.send(stream.grad, 0)  # type: ignore[arg-type]
        if summed == "each" or (summed == "last" and i == len(batches)):
            dist.all_reduce(table.grad)
    table.grad /= copies


answers(
    "pipeline.tied",
    right=[_step],
    wrong={
        "with one micro-batch, both blocks have the gradients of one process, but": partial(_step, summed=""),
        "right with one micro-batch; with three micro-batches, both blocks": partial(_step, summed="each"),
        "has 0.50 and 0.50 times the right norm": partial(_step, copies=2),
        "the gradient of rank 0's block has 0.33 times": partial(_step, share=1 / 3),
    },
)
