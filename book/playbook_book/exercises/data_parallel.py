"""Exercises of the chapter on data parallelism."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, exercise, number


@number(
    "data-parallel.bytes",
    "bytes that a rank sends in a step of GPT-2 on eight ranks",
    praise="2(N − 1)/N bytes for each byte of gradients, once a step however many micro-batches",
    otherwise="Look at the ring again: who sends how many chunks?",
)
def bytes_of_a_step() -> tuple[float, dict[float, str]]:
    from playbook.planning.communication import ring_bytes_sent
    from playbook.shapes import load

    n = load("gpt2").num_parameters
    sent = ring_bytes_sent("all_reduce", n, 4, 8, rank=0)
    return sent, {
        4 * sent: "that is for all-reducing after every micro-batch; with no_sync only the last one sends",
        sent / 2: "half: an all-reduce goes around the ring twice",
        sent / 4: "count bytes: an fp32 gradient has four",
        4 * n: "that is what there is to be summed, not what is sent",
        8 * n: "almost: in each phase a rank sends all chunks but one",
    }


answers("data-parallel.bytes", right=[2 * 7 / 8 * 4 * 124_439_808])


@exercise("data-parallel.scale", "function", "the loss whose summed gradients are those of the mean token")
def scale(write: Callable[..., Any]) -> str:
    from playbook import launch

    for counts in ([4, 4, 4], [1, 9, 2]):
        got = launch.run(_scaled, write, counts, ranks=3, backend="gloo")[0].value
        right = sum(range(1, sum(counts) + 1)) / sum(counts)
        if abs(got - 3 * right) < 1e-5:
            raise NotYet("three times too large on three ranks: gradients are summed, not averaged")
        if abs(got - right) > 1e-5:
            equal = (
                "ranks with equally many tokens"
                if counts[0] == counts[1]
                else "a rank with fewer tokens than another"
            )
            raise NotYet(f"the gradient is not that of the mean over all tokens for {equal}")
    return "the mean over all tokens, whichever rank has them"


def _scaled(write: Callable[..., Any], counts: list[int]) -> float:
    """In a rank: the gradient of w, summed over ranks, for tokens whose losses are w·1, w·2, …"""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group

    with process_group() as world:
        first = sum(counts[: world.rank])
        w = torch.ones((), requires_grad=True)
        loss = torch.stack([w * (first + i + 1) for i in range(counts[world.rank])]).sum()

        def add(value: Any) -> torch.Tensor:
            total = torch.as_tensor(float(value))
            dist.all_reduce(total)
            return total

        write(loss, counts[world.rank], add).backward()
        assert w.grad is not None
        dist.all_reduce(w.grad)
        return w.grad.item()


answers(
    "data-parallel.scale",
    right=[lambda loss_sum, count, add: loss_sum / add(count)],
    wrong={
        "for ranks with equally many tokens": lambda loss_sum, count, add: loss_sum,
        "three times too large on three ranks": lambda loss_sum, count, add: loss_sum / count,
        "for a rank with fewer tokens than another": lambda loss_sum, count, add: loss_sum / count / add(1),
    },
)


@exercise("data-parallel.accumulate", "repair", "an all-reduce in the wrong place when gradients accumulate")
def accumulate(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for micro_batches in (1, 2, 3):
        got, right = launch.run(_accumulated, mended, micro_batches, ranks=3, backend="gloo")[0].value
        if got is None:
            raise NotYet(f"with {micro_batches} micro-batches the ranks end with different gradients")
        if abs(got / right - 1) > 1e-5:
            one = (
                "right with one micro-batch a step; with two" if micro_batches > 1 else "with one micro-batch"
            )
            raise NotYet(f"{one}, the gradient's norm is {got / right:.2f} times that of one process")
    return "the gradient of one process, however many micro-batches"


def _accumulated(mended: Callable[..., Any], micro_batches: int) -> tuple[float | None, float]:
    """In a rank: the norm of its gradient (None where ranks differ), and that of one process with all the samples."""
    import torch
    import torch.distributed as dist

    from playbook.launch import process_group

    with process_group() as world:
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3)
        samples = torch.randn(world.size, micro_batches, 4, 5)
        model(samples.flatten(0, 2)).square().sum().backward()
        right = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).norm()
        model.zero_grad()
        losses = (lambda x=x: model(x).square().sum() for x in samples[world.rank])
        mended(model, losses, dist.all_reduce)
        mine = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        all_of_them = [torch.empty_like(mine) for _ in range(world.size)]
        dist.all_gather(all_of_them, mine)
        same = all(torch.equal(mine, other) for other in all_of_them)
        return (mine.norm().item() if same else None), right.item()


def _accumulate(model, losses, all_reduce, *, each=False, last=True, afresh=False):
    """Sends after ``each`` micro-batch, or after the ``last``."""
    for loss in losses:
        if afresh:
            model.zero_grad()
        loss().backward()
        for p in model.parameters() if each else ():
            all_reduce(p.grad)
    for p in model.parameters() if last else ():
        all_reduce(p.grad)


answers(
    "data-parallel.accumulate",
    right=[_accumulate],
    wrong={
        "with two, the gradient's norm is 2.": partial(_accumulate, each=True, last=False),
        "the ranks end with different gradients": partial(_accumulate, last=False),
        "with two, the gradient's norm is 0.": partial(_accumulate, afresh=True),
    },
)
