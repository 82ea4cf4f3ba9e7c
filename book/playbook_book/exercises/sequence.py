"""Exercises of the chapter on sequence parallelism."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number


@number(
    "sequence.bytes",
    "bytes that a rank sends in a step for one block of Llama 3 8B",
    praise="four trips around the ring forward and six backward, each of (t − 1)/t of the stream",
    otherwise="Count the messages of a block in the table.",
)
def bytes_of_a_block() -> tuple[float, dict[float, str]]:
    from playbook.planning.communication import ring_bytes_sent
    from playbook.shapes import load

    stream = 8192 * load("llama3-8b").hidden
    trip = ring_bytes_sent("all_gather", stream, 2, 8, rank=0)
    return 10 * trip, {
        4 * trip: "that is the forward pass",
        6 * trip: "that is the backward pass",
        8 * trip: "as with tp alone. In backward something is gathered once more",
        20 * trip: "an all-gather is one trip around the ring; only an all-reduce is two",
        10 * 2 * stream: "nobody sends its own part the last time around",
        5 * trip: "count bytes: bf16 has two",
        10 * trip / 7: "that is one shard for each message; around a ring a rank sends tp − 1 of them",
    }


answers("sequence.bytes", right=[10 * 8192 * 4096 * 2 * 7 / 8])


@exercise("sequence.sums", "function", "which gradients are partial sums over the tensor-parallel ranks")
def sums(rule: Callable[..., Any]) -> str:
    for sp, truth in _partial().items():
        where = "with tp and sp" if sp else "with tp alone"
        wrong = {name: needs for name, needs in truth.items() if bool(rule(name, sp)) != needs}
        missing, extra = sum(wrong.values()), len(wrong) - sum(wrong.values())
        if wrong:
            about = [
                f"{missing} {'is' if missing == 1 else 'are'} left a partial sum" if missing else "",
                f"{extra} {'is' if extra == 1 else 'are'} summed though ranks have it right" if extra else "",
            ]
            clue = _clue(wrong, sp)
            raise NotYet(
                f"{where}, of {len(truth)} gradients {' and '.join(filter(None, about))}"
                + (f". {clue}" if clue else "")
            )
    return "whatever is replicated, where a rank has seen only its tokens or only its heads"


def _clue(wrong: dict[str, bool], sp: bool) -> str:
    if any(needs and "norm" not in name for name, needs in wrong.items()):
        return "Norms are not all that is replicated"
    if not sp and any(wrong.values()):
        return "Not all that is replicated lies outside the regions"
    return ""


@cache
def _partial() -> dict[bool, dict[str, bool]]:
    """With and without sp: whether the gradient of each parameter is a partial sum, as a live engine has it."""
    from playbook import launch

    return launch.run(_placements, ranks=2, backend="gloo")[0].value


def _placements() -> dict[bool, dict[str, bool]]:
    """In a rank: for a GPT with biases, learned positions, and norms of queries and keys."""
    from functools import partial

    from playbook.launch import process_group
    from playbook.layout import Layout
    from playbook.model.transformer import Transformer
    from playbook.parallel.mesh import Mesh
    from playbook.parallel.parallelize import parallelize
    from playbook.shapes import load
    from playbook.training.optimizer import adamw

    shape, found = load("tiny-gpt2").replace(layers=1, qk_norm=True), {}
    make = partial(adamw, lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    for sp in (True, False):
        with process_group():
            mesh = Mesh(Layout(tp=2, sp=sp))
            engine = parallelize(Transformer(shape, device=mesh.device), mesh, make)
            found[sp] = {name: bool(place.partial) for name, place in engine.placements.items()}
    return found


def _needs_sum(name, sp):
    if "q_norm" in name or "k_norm" in name:
        return True
    whole = "norm" in name or name.startswith("position") or name.endswith(("out.bias", "down.bias"))
    return sp and whole


answers(
    "sequence.sums",
    right=[_needs_sum],
    wrong={
        "3 are left a partial sum. Norms are not all that is replicated": lambda name, sp: "norm" in name,
        "11 are summed though ranks have it right": lambda name, sp: True,
        "with tp alone": lambda name, sp: _needs_sum(name, True),
        "Not all that is replicated lies outside": lambda name, sp: sp and _needs_sum(name, sp),
        "1 is summed though": lambda name, sp: _needs_sum(name, sp) or name.endswith("up.bias"),
    },
)


@exercise("sequence.step", "repair", "a step whose loss is right and whose ranks drift apart")
def step(mended: Callable[..., Any]) -> str:
    from playbook import launch

    for i, found in enumerate(launch.run(_steps, mended, ranks=3, backend="gloo")[0].value, 1):
        before = f"right up to step {i - 1}. " if i > 1 else ""
        if found["loss"] > 1e-5:
            raise NotYet(f"{before}The loss of step {i} is off by {found['loss']:.1%}")
        if found["matrices"] > 1e-5:
            raise NotYet(
                f"{before}The loss of step {i} is right; its update of up and down is off by {found['matrices']:.0%}"
            )
        if found["apart"] > 1e-6:
            raise NotYet(
                f"{before}Loss and matrices of step {i} are right; "
                f"the ranks' copies of scale then differ by up to {found['apart']:.2f}"
            )
        if found["scale"] > 1e-4:
            raise NotYet(
                f"{before}The ranks' copies of scale agree after step {i}, but their update is "
                f"{found['ratio']:.2f} times as long as that of one process, and off by {found['scale']:.0%}"
            )
    return "losses and weights of one process after three steps, and the same on all ranks"


def _steps(mended: Callable[..., Any]) -> list[dict[str, float]]:
    """In a rank: by step, how far loss and updates are from one process, and the ranks' copies from each other."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from playbook.launch import process_group
    from playbook_book.instruments.parity import relative_error

    lr, found = 0.02, []
    with process_group() as world:
        torch.manual_seed(0)
        group, n, rank = dist.group.WORLD, world.size, world.rank
        whole = [torch.ones(8), 0.4 * torch.randn(12, 8), 0.4 * torch.randn(8, 12)]
        mine = [whole[0].clone(), whole[1].chunk(n, 0)[rank].clone(), whole[2].chunk(n, 1)[rank].clone()]
        for p in (*whole, *mine):
            p.requires_grad_()
        for _ in range(3):
            x, target = torch.randn(2, 6, 8), torch.randn(2, 6, 8)
            start = [p.detach().clone() for p in whole]
            scale, up, down = whole
            z = x + F.gelu(F.rms_norm(x, x.shape[-1:], scale) @ up.T) @ down.T
            right = (z - target).square().sum()
            gradients = torch.autograd.grad(right, whole)
            with torch.no_grad():
                for p, gradient in zip(whole, gradients, strict=True):
                    p -= lr * gradient
            own = (t.chunk(n, 1)[rank].clone() for t in (x, target))
            loss = torch.as_tensor(float(mended(*own, *mine, group, lr)))
            dist.all_reduce(loss)
            copies = [torch.empty(8) for _ in range(n)]
            dist.all_gather(copies, mine[0].detach())
            updates = [p.detach() - q for p, q in zip(whole, start, strict=True)]
            cut = [updates[1].chunk(n, 0)[rank], updates[2].chunk(n, 1)[rank]]
            was = [start[1].chunk(n, 0)[rank], start[2].chunk(n, 1)[rank]]
            far = torch.tensor(
                [relative_error(p.detach() - q, u) for p, q, u in zip(mine[1:], was, cut, strict=True)]
            )
            dist.all_reduce(far, dist.ReduceOp.MAX)
            moved = copies[0] - start[0]
            found.append(
                {
                    "loss": abs(loss.item() / right.item() - 1),
                    "matrices": far.max().item(),
                    "apart": max((copy - copies[0]).abs().max().item() for copy in copies),
                    "scale": relative_error(moved, updates[0]),
                    "ratio": (moved.norm() / updates[0].norm()).item(),
                }
            )
    return found


@answers_made("sequence.step")
def _steps_of_a_reader() -> tuple[list[Any], dict[str, Any]]:
    import torch
    import torch.distributed as dist
    from torch.nn.functional import gelu, rms_norm

    from playbook.parallel.sequence import g, g_star

    def one(x, target, scale, up, down, group, lr, *, summed=1, averaged=False, forgets=True, sent=False):
        """The first so many gradients are ``summed``; the scale of rank 0 may be ``sent`` in place of that."""
        y = rms_norm(x, x.shape[-1:], scale)
        z = x + g_star(gelu(g(y, group) @ up.T) @ down.T, group)
        loss = (z - target).square().sum()
        loss.backward()
        for p in (scale, up, down)[:summed]:
            dist.all_reduce(p.grad, group=group)
        if averaged:
            scale.grad /= dist.get_world_size(group)
        with torch.no_grad():
            for p in (scale, up, down):
                p -= lr * p.grad
                p.grad = None if forgets else p.grad
        if sent:
            dist.broadcast(scale.detach(), 0, group=group)
        return loss.item()

    def all_losses(*given):
        loss = torch.tensor(one(*given))
        dist.all_reduce(loss, group=given[5])
        return loss.item()

    return [one], {
        "right; the ranks' copies of scale then differ by": partial(one, summed=0),
        "its update of up and down is off by": partial(one, summed=3),
        "but their update is 0.33 times as long": partial(one, averaged=True),
        "copies of scale agree after step 1, but their update is": partial(one, summed=0, sent=True),
        "right up to step 1. The loss of step 2 is right; its update": partial(one, forgets=False),
        "The loss of step 1 is off by 200.0%": all_losses,
    }
