"""Wrong answers that readers of the chapter on expert parallelism may well give, and what they are told."""

import pytest
import torch
import torch.nn.functional as F

from playbook_book.exercises import grade

#: Tokens of a rank, experts of each, those elsewhere; width, bytes; there and back, forward and backward.
BYTES = 4096 * 8 * 63 // 64 * 7168 * 2 * 4


def right_splits(counts, rank):
    ranks, each = len(counts), len(counts[0]) // len(counts)
    own = slice(rank * each, (rank + 1) * each)
    return [sum(counts[rank][r * each :][:each]) for r in range(ranks)], [sum(row[own]) for row in counts]


def other_way_round(counts, rank):
    return right_splits(counts, rank)[::-1]


def of_each_expert(counts, rank):
    return counts[rank], [row[rank] for row in counts]


def without_its_own(counts, rank):
    return [[0 if r == rank else n for r, n in enumerate(one)] for one in right_splits(counts, rank)]


def every_other_expert(counts, rank):
    ranks = len(counts)
    return [sum(counts[rank][r::ranks]) for r in range(ranks)], [sum(row[rank::ranks]) for row in counts]


def the_same_from_all(counts, rank):
    sent, got = right_splits(counts, rank)
    return sent, [sum(got) // len(got)] * len(got)


def planted_router(x, weight, k):
    with torch.no_grad():
        scores = (x @ weight.T).softmax(-1)
        weights, chosen = scores.topk(k, -1)
    return chosen, weights / weights.sum(-1, keepdim=True)


def routed(x, weight, k, normalized=True, equal=False, sign=1):
    scores = (x @ weight.T).softmax(-1)
    weights, chosen = (sign * scores).topk(k, -1)
    weights = scores.gather(-1, chosen)
    if equal:
        weights = torch.ones_like(weights)
    return chosen, weights / weights.sum(-1, keepdim=True) if normalized else weights


def not_normalized(x, weight, k):
    return routed(x, weight, k, normalized=False)


def equal_weights(x, weight, k):
    return routed(x, weight, k, equal=True)


def the_worst(x, weight, k):
    return routed(x, weight, k, sign=-1)


def for_the_weights_alone(x, weight, k):
    return routed(x.detach(), weight, k)


def half_detached(x, weight, k):
    scores = (x @ weight.T).softmax(-1)
    weights, chosen = scores.topk(k, -1)
    return chosen, weights / weights.sum(-1, keepdim=True).detach()


def stepped(model, micro_batches, alpha, own=1.0, even=1.0):
    tokens = sum(targets.numel() for _, targets in micro_batches)
    for inputs, targets in micro_batches:
        logits, balance = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        (own * loss / tokens + even * alpha * balance).backward()


def planted_step(model, micro_batches, alpha):
    stepped(model, micro_batches, alpha)


def all_divided(model, micro_batches, alpha):
    stepped(model, micro_batches, alpha, 1 / len(micro_batches), 1 / len(micro_batches))


def without_it(model, micro_batches, alpha):
    stepped(model, micro_batches, alpha, even=0.0)


def of_the_last_alone(model, micro_batches, alpha):
    stepped(model, micro_batches[-1:], alpha)


def by_tokens(model, micro_batches, alpha):
    total = sum(targets.numel() for _, targets in micro_batches)
    for inputs, targets in micro_batches:
        logits, balance = model(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        ((loss + alpha * balance * targets.numel()) / total).backward()


def by_parts(model, micro_batches, alpha):
    stepped(model, micro_batches, alpha, even=1 / len(micro_batches))


def combined(rows, weights, order, there=True):
    n, k = weights.shape
    by_token = rows[order] if not there else torch.empty_like(rows).index_copy_(0, order, rows)
    return (by_token.view(n, k, -1) * weights[..., None]).sum(1)


def planted_combine(rows, weights, order):
    return combined(rows, weights, order, there=False)


def as_they_come(rows, weights, order):
    return combined(rows, weights, torch.arange(len(order)))


def plain_sum(rows, weights, order):
    return combined(rows, torch.ones_like(weights), order)


def weights_sorted(rows, weights, order):
    return combined(rows, weights.flatten()[order].view_as(weights), order)


def one_row_a_choice(rows, weights, order):
    return torch.empty_like(rows).index_copy_(0, order, rows * weights.flatten()[order, None])


def inverse(rows, weights, order):
    return combined(rows, weights, order.argsort().argsort())


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", BYTES * 64 / 63, "one row in 64 stays at home"),
        ("bytes", BYTES / 8, "as many rows as it has experts"),
        ("bytes", BYTES * 9 / 8, "the shared expert is on every rank"),
        ("bytes", BYTES / 4, "the way to the experts alone"),
        ("bytes", BYTES / 2, "half: results travel back"),
        ("bytes", BYTES * 2, "bf16 has two bytes"),
        ("bytes", BYTES * 58, "the whole model"),
        ("bytes", BYTES * 64, "what all ranks send together"),
        ("bytes", 7, "7 is too small. How many rows leave"),
        ("splits", other_way_round, "rank 0 of 2, 2 experts: what is sent and what comes are the wrong way"),
        ("splits", of_each_expert, "a number for each of 2 ranks, not for each expert"),
        ("splits", without_its_own, "rows for its own experts are in the list, too"),
        ("splits", every_other_expert, "each rank has neighbouring experts"),
        ("splits", the_same_from_all, "coming [1, 1], but these are 3 rows in 2 other parts"),
        ("splits", lambda counts, rank: 4, "return two lists"),
        ("router", planted_router, "but no gradient reaches its weights"),
        ("router", not_normalized, "add up to 0.96, and here to 1"),
        ("router", equal_weights, "token 0 weighs its experts 0.50 and 0.50: by their scores"),
        ("router", the_worst, "not the two best"),
        ("router", for_the_weights_alone, "but the tokens get none through their scores"),
        ("router", half_detached, "the gradient of the router's weights is off by"),
        ("balance", planted_step, "right with one micro-batch; with 2, the load-balancing loss counts 2.00 times"),
        ("balance", all_divided, "right with one micro-batch; with 2, the model's own loss counts 0.50 times"),
        ("balance", without_it, "with one micro-batch, the load-balancing loss counts 0.00 times"),
        ("balance", of_the_last_alone, "with 2, the gradient is"),
        ("balance", lambda model, micro_batches, alpha: None, "each micro-batch needs a backward pass"),
        ("combine", planted_combine, "right for 2 tokens, top-1; for 5 tokens, top-1, "),
        ("combine", as_they_come, "for 2 tokens, top-1, 2 of 2 sums"),
        ("combine", plain_sum, "for 2 tokens, top-1, 2 of 2 sums"),
        ("combine", weights_sorted, "for 2 tokens, top-1, 2 of 2 sums"),
        ("combine", one_row_a_choice, "for 4 tokens, top-2, the result must be a tensor of shape (4, 3)"),
    ],
)  # fmt: skip
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"expert.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text, verdict.text


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("bytes", BYTES),
        ("splits", right_splits),
        ("router", routed),
        ("balance", by_tokens),
        ("balance", by_parts),
        ("combine", combined),
        ("combine", inverse),
    ],
)
def test_right_answers(name, answer):
    assert grade(f"expert.{name}", answer).right, name
