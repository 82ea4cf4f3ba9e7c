"""Wrong answers that readers of the chapter on FlashAttention may well give, and what they are told."""

import math

import pytest
import torch

from playbook.kernels.flash_attention import requested_bytes, standard_bytes
from playbook.kernels.flash_backward import Blocks
from playbook_book.exercises import grade

SEQ = 8192
Q, K = (torch.empty(1, SEQ, heads, 128, dtype=torch.bfloat16, device="meta") for heads in (32, 8))
BLOCKS = Blocks(128, 128, 8, 2)
#: In 32 heads 64 programs each: 32 KiB of q, as much of o, 512 bytes of lse, all 4 MiB of k and v of a head.
RIGHT = 8_725_200_896
OWN, LSE = 2 * Q.nbytes, 4 * 32 * SEQ  # q and o; in all heads
LOG2E = 1 / math.log(2)


def combined(outs, lses):
    top = lses.amax(0).clamp(min=-1e30)
    weights = (lses - top).exp()
    total = weights.sum(0)
    lse = top + total.log()
    return (weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[:, None], lse.masked_fill(
        total == 0, -math.inf
    )


def unguarded(outs, lses):
    total = lses.logsumexp(0)
    return ((lses - total).exp()[..., None] * outs).sum(0), total


def mean(outs, lses):
    return outs.mean(0), lses.logsumexp(0)


def added(outs, lses):
    return outs.sum(0), lses.logsumexp(0)


def overflowing(outs, lses):
    weights = lses.exp()
    return (weights[..., None] * outs).sum(0) / weights.sum(0)[:, None], weights.sum(0).log()


def largest_lse(outs, lses):
    return combined(outs, lses)[0], lses.amax(0)


def parts_first(outs, lses):
    return combined(outs, lses)[0].T, lses.logsumexp(0)


def output_alone(outs, lses):
    return combined(outs, lses)[0]


def step(state, x, v, reference, rescale):
    """A block added relative to a reference; ``rescale`` says where the old sums are brought to it."""
    acc, total, m = state
    top = torch.maximum(m, x.amax(1, keepdim=True))
    grown = top - m > 8
    new = reference(m, top, grown)
    p = (x - new).exp()
    shrink = rescale(m, top, grown)
    return shrink * acc + p @ v, shrink * total + p.sum(1, keepdim=True), new


def where_grown(m, top, grown):
    return torch.where(grown, top, m)


def by_growth(m, top, grown):
    return torch.where(grown, (m - top).exp(), 1.0)


def right_lazy(state, x, v):
    return step(state, x, v, where_grown, by_growth)


def planted_lazy(state, x, v):
    acc, total, m = state
    top = torch.maximum(m, x.amax(1, keepdim=True))
    grown = top - m > 8
    shrink = torch.where(grown, (m - top).exp(), 1.0)
    p = (x - top).exp()
    return shrink * acc + p @ v, shrink * total + p.sum(1, keepdim=True), torch.where(grown, top, m)


def eager(state, x, v):
    return step(state, x, v, lambda m, top, grown: top, lambda m, top, grown: (m - top).exp())


def never(state, x, v):
    return step(
        state, x, v, lambda m, top, grown: torch.zeros_like(m), lambda m, top, grown: torch.ones_like(m)
    )


def top_is_kept(state, x, v):
    top = torch.maximum(state[2], x.amax(1, keepdim=True))
    return *right_lazy(state, x, v)[:2], top


def forward(found):
    def attend(q, k, v, scale):
        x = q @ k.T * (scale * LOG2E)
        m = x.amax(1, keepdim=True)
        p = (x - m).exp2()
        total = p.sum(1, keepdim=True)
        return p @ v / total, found(m, total, scale)

    return attend


def other_output(q, k, v, scale):
    return (q @ k.T * scale).exp2() @ v, (q @ k.T * scale).logsumexp(1, keepdim=True)


right_lse = forward(lambda m, total, scale: (m + total.log2()) / LOG2E)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", OWN + LSE + (RIGHT - OWN - LSE) / 4, "a program reads keys and values for its own head"),
        ("bytes", 2 * OWN + LSE, "how many programs need them"),
        ("bytes", OWN + K.nbytes * 2 + LSE, "the least that must come from memory"),
        ("bytes", requested_bytes(Q, K, K, causal=True, blocks=BLOCKS), "with a causal mask"),
        ("bytes", RIGHT / 32, "that is one head"),
        ("bytes", RIGHT / 2, "a number in bf16 has two bytes"),
        ("bytes", standard_bytes(Q, Q, Q), "with its scores in memory"),
        ("bytes", 1e6, "is too small. How many programs"),
        ("split", mean, "three parts: that is the mean of the parts"),
        ("split", added, "each was divided by its own denominator"),
        ("split", overflowing, "scores in the thousands: the output is not a number"),
        ("split", unguarded, "a query that sees no key anywhere: the output is not a number"),
        ("split", largest_lse, "the output is right, but its log-sum-exp is not"),
        ("split", parts_first, "the output has the shape (5, 4) and not (4, 5)"),
        ("split", output_alone, "expected a pair, the output and its log-sum-exp"),
        ("lazy", planted_lazy, "grows by 3 in each block: after block 2 the output is off by"),
        ("lazy", eager, "after block 2 the state's m is 3, and rescaling only where it must gives 0"),
        ("lazy", never, "the output is right; but after block 2 the state's m is 0"),
        ("lazy", top_is_kept, "the output is right; but after block 2 the state's m is 3"),
        ("lse", forward(lambda m, total, scale: m + total.log2()), "the weights of the first query sum to"),
        ("lse", forward(lambda m, total, scale: m + total.log()), "and dv is off by"),
        (
            "lse",
            forward(lambda m, total, scale: m / LOG2E + total.log2()),
            "the output is right; in backward",
        ),
        (
            "lse",
            forward(lambda m, total, scale: (m + total.log2()) / LOG2E / scale),
            "scale = 0.25: the output is right",
        ),
        ("lse", forward(lambda m, total, scale: ((m + total.log2()) / LOG2E)[:, 0]), "the shape (6,)"),
        ("lse", other_output, "now the output is wrong"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"flash-attention.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"), [("bytes", RIGHT), ("split", combined), ("lazy", right_lazy), ("lse", right_lse)]
)
def test_right_answers_are_right(name, answer):
    assert grade(f"flash-attention.{name}", answer).right
