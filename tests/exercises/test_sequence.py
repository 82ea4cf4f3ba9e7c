"""Wrong answers that readers of the chapter on sequence parallelism may well give, and what they are told."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from playbook.parallel.sequence import g, g_star
from playbook_book.exercises import grade

STREAM = 8192 * 4096 * 2


# ---- sequence.sums


def needs_sum(name, sp):
    if "q_norm" in name or "k_norm" in name:
        return True
    whole = "norm" in name or name.startswith("position") or name.endswith(("out.bias", "down.bias"))
    return sp and whole


# ---- sequence.step


def forward(x, target, scale, up, down, group):
    y = F.rms_norm(x, x.shape[-1:], scale)
    z = x + g_star(F.gelu(g(y, group) @ up.T) @ down.T, group)
    return (z - target).square().sum()


def update(parameters, lr):
    with torch.no_grad():
        for p in parameters:
            p -= lr * p.grad
            p.grad = None


def step(x, target, scale, up, down, group, lr):
    loss = forward(x, target, scale, up, down, group)
    loss.backward()
    dist.all_reduce(scale.grad, group=group)
    update((scale, up, down), lr)
    return loss.item()


def planted(x, target, scale, up, down, group, lr):
    loss = forward(x, target, scale, up, down, group)
    loss.backward()
    update((scale, up, down), lr)
    return loss.item()


def everything_summed(x, target, scale, up, down, group, lr):
    loss = forward(x, target, scale, up, down, group)
    loss.backward()
    for p in (scale, up, down):
        dist.all_reduce(p.grad, group=group)
    update((scale, up, down), lr)
    return loss.item()


def averaged(x, target, scale, up, down, group, lr):
    loss = forward(x, target, scale, up, down, group)
    loss.backward()
    dist.all_reduce(scale.grad, group=group)
    scale.grad /= dist.get_world_size(group)
    update((scale, up, down), lr)
    return loss.item()


def weights_of_rank_0(x, target, scale, up, down, group, lr):
    loss = planted(x, target, scale, up, down, group, lr)
    dist.broadcast(scale.detach(), 0, group=group)
    return loss


def gradients_kept(x, target, scale, up, down, group, lr):
    loss = forward(x, target, scale, up, down, group)
    loss.backward()
    dist.all_reduce(scale.grad, group=group)
    with torch.no_grad():
        for p in (scale, up, down):
            p -= lr * p.grad
    return loss.item()


def total_loss_on_every_rank(x, target, scale, up, down, group, lr):
    loss = torch.tensor(step(x, target, scale, up, down, group, lr))
    dist.all_reduce(loss, group=group)
    return loss.item()


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", 4 * STREAM * 7 / 8, "that is the forward pass"),
        ("bytes", 6 * STREAM * 7 / 8, "that is the backward pass"),
        ("bytes", 8 * STREAM * 7 / 8, "as with tp alone"),
        ("bytes", 20 * STREAM * 7 / 8, "only an all-reduce is two"),
        ("bytes", 10 * STREAM, "nobody sends its own part"),
        ("bytes", 5 * STREAM * 7 / 8, "count bytes"),
        ("bytes", 10 * STREAM / 8, "a rank sends tp − 1 of them"),
        ("bytes", 1, "1 is too small. Count the messages"),
        ("sums", lambda name, sp: "norm" in name, "with tp and sp, of 22 gradients 3 are left a partial sum"),
        ("sums", lambda name, sp: "norm" in name, "Norms are not all that is replicated"),
        ("sums", lambda name, sp: True, "11 are summed though ranks have it right"),
        ("sums", lambda name, sp: needs_sum(name, True), "with tp alone"),
        ("sums", lambda name, sp: sp and needs_sum(name, sp), "Not all that is replicated lies outside"),
        ("sums", lambda name, sp: needs_sum(name, sp) or name.endswith("up.bias"), "1 is summed though"),
        ("step", planted, "Loss and matrices of step 1 are right; the ranks' copies of scale then differ by"),
        ("step", everything_summed, "its update of up and down is off by"),
        ("step", averaged, "but their update is 0.33 times as long"),
        ("step", weights_of_rank_0, "copies of scale agree after step 1, but their update is"),
        ("step", gradients_kept, "right up to step 1. The loss of step 2 is right; its update"),
        ("step", total_loss_on_every_rank, "The loss of step 1 is off by 200.0%"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"sequence.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"), [("bytes", 10 * STREAM * 7 / 8), ("sums", needs_sum), ("step", step)]
)
def test_right_answers_are_right(name, answer):
    verdict = grade(f"sequence.{name}", answer)
    assert verdict.right, verdict.text
