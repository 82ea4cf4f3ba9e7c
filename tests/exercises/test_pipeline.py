"""Wrong answers that readers of the chapter on pipelines may well give, and what they are told."""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from playbook.schedules.catalogue import make
from playbook.schedules.timeline import simulate
from playbook_book.exercises import grade


def passes(rank, table, block, tokens, targets, share):
    """One micro-batch through both stages."""
    stream = torch.empty(len(tokens), table.shape[1])
    if rank == 0:
        out = block(F.embedding(tokens, table))
        dist.send(out.detach(), 1)
        dist.recv(stream, 1)
        out.backward(stream)
    else:
        dist.recv(stream, 0)
        logits = block(stream.requires_grad_()) @ table.T
        (F.cross_entropy(logits, targets) * share).backward()
        dist.send(stream.grad, 0)


def planted(rank, table, block, batches):
    for tokens, targets in batches:
        passes(rank, table, block, tokens, targets, 1)


def after_each(rank, table, block, batches):
    for tokens, targets in batches:
        passes(rank, table, block, tokens, targets, 1)
        dist.all_reduce(table.grad)


def averaged(rank, table, block, batches):
    planted(rank, table, block, batches)
    dist.all_reduce(table.grad)
    table.grad /= 2


def divided(rank, table, block, batches):
    for tokens, targets in batches:
        passes(rank, table, block, tokens, targets, 1 / len(batches))
    dist.all_reduce(table.grad)


def right(rank, table, block, batches):
    planted(rank, table, block, batches)
    dist.all_reduce(table.grad)


WRONG_MESSAGES = {
    "free": lambda p, m, v, f, b, c: (p - 1) * (f + b) / v,
    "none hides": lambda p, m, v, f, b, c: (p - 1) * (f + b) / v + 2 * m * c,
    "one stage a rank": lambda p, m, v, f, b, c: (p - 1) * (f + b + 2 * c),
    "one direction": lambda p, m, v, f, b, c: (p - 1) * ((f + b) / v + c),
}


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("microbatches", 74, "a twentieth of the work, and not of the step"),
        ("microbatches", 209, "with one stage per rank"),
        ("microbatches", 220, "both are different here"),
        ("microbatches", 76, "waits for p − 1 others"),
        ("microbatches", 69, "still larger"),
        ("microbatches", 1000, "1,000 is too large. Waiting over working"),
        ("messages", WRONG_MESSAGES["free"], "hide behind nothing"),
        ("messages", WRONG_MESSAGES["none hides"], "the wait is too long"),
        ("messages", WRONG_MESSAGES["one stage a rank"], "is cut in 2"),
        ("messages", WRONG_MESSAGES["one direction"], "the wait is too short"),
        ("messages", lambda *sizes: None, "NoneType None"),
        ("tied", planted, "both blocks have the gradients of one process, but that of the table has"),
        ("tied", after_each, "right with one micro-batch; with three micro-batches, both blocks"),
        ("tied", averaged, "has 0.50 and 0.50 times the right norm"),
        ("tied", divided, "the gradient of rank 0's block has 0.33 times"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"pipeline.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_right_answers_are_those_of_simulations():
    assert grade("pipeline.microbatches", 70).right
    assert [simulate(make("interleaved", 12, m, 3)).bubble_fraction <= 0.05 for m in (69, 70)] == [
        False,
        True,
    ]
    assert grade("pipeline.messages", lambda p, m, v, f, b, c: (p - 1) * ((f + b) / v + 2 * c)).right
    assert grade("pipeline.tied", right).right
