"""Exercises of the chapter on FlashAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@exercise("flash-attention.bytes", "number", "bytes that forward asks for in one layer of Llama 3 8B")
def bytes_of_a_layer(answer: Any) -> str:
    heads, kv_heads, width, seq, block = 32, 8, 128, 8192, 128
    programs = seq // block  # of a head
    own, lse, keys = 2 * seq * 2 * width, 4 * seq, programs * seq * 2 * 2 * width
    right = heads * (own + keys + lse)
    hints = {
        heads * (own + lse) + kv_heads * keys: (
            "each query head has programs of its own, and a program reads keys and values for its own head alone"
        ),
        heads
        * (2 * own + lse): "that reads the keys and values of a head once; how many programs need them?",
        heads * (own + lse)
        + kv_heads * own: "that is the least that must come from memory, if caches keep all",
        heads * (own + lse + keys * (programs + 1) / (2 * programs)): "that is with a causal mask",
        heads * (own + lse + keys / 2): "keys and values: a program reads both",
        heads * (own / 2 + keys / 2): "a number in bf16 has two bytes",
        right / heads: "that is one head",
        heads
        * (
            own + lse + seq * keys / programs
        ): "that reads all keys for each query; a program has 128 of these",
        heads * (4 * 2 * seq * seq) + 2 * heads * own: "that is attention with its scores in memory",
    }
    number(answer, right, hints, otherwise="How many programs are there, and what does one of them read?")
    return "64 programs a head, and each of them reads all keys and values of its head"


@exercise(
    "flash-attention.split",
    "function",
    "partial outputs of many blocks of keys, combined by their log-sum-exps",
)
def split(write: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    outs = torch.randn(3, 4, 5, dtype=torch.float64, generator=made)
    lses = torch.randn(3, 4, dtype=torch.float64, generator=made)
    _combined(write, outs, lses, "three parts")
    _combined(write, outs[:1], lses[:1], "one part")
    _combined(write, outs, lses + 1000, "scores in the thousands")
    _combined(write, outs, lses - 1000, "scores far below zero")
    blind = lses.clone()
    blind[1, :2] = -math.inf
    seen = outs.masked_fill(blind.isneginf()[..., None], 0.0)
    _combined(write, seen, blind, "a part in which some queries see no key")
    blind[:, 3] = -math.inf
    _combined(
        write, seen.masked_fill(blind.isneginf()[..., None], 0.0), blind, "a query that sees no key anywhere"
    )
    return "any number of parts, in one step, whatever a query sees of them"


def _combined(write: Callable[..., Any], outs: Tensor, lses: Tensor, case: str) -> None:
    import torch

    total = lses.logsumexp(0)
    shares = (lses - total).exp().nan_to_num(0.0)
    right = (shares[..., None] * outs).sum(0)
    got = write(outs.clone(), lses.clone())
    if not isinstance(got, tuple | list) or len(got) != 2:
        raise NotYet(f"{case}: expected a pair, the output and its log-sum-exp, got {type(got).__name__}")
    out, lse = got
    for name, found, expected in (("output", out, right), ("log-sum-exp", lse, total)):
        shape = tuple(getattr(found, "shape", ()))
        if shape != tuple(expected.shape):
            raise NotYet(f"{case}: the {name} has the shape {shape} and not {tuple(expected.shape)}")
        if not isinstance(found, torch.Tensor) or found.isnan().any():
            raise NotYet(f"{case}: the {name} is not a number; what is −∞ − (−∞)?")
    if not torch.allclose(out, right):
        if torch.allclose(out, outs.mean(0)):
            raise NotYet(f"{case}: that is the mean of the parts, but one with larger scores counts for more")
        if torch.allclose(out, outs.sum(0)):
            raise NotYet(f"{case}: the parts are added as they are; each was divided by its own denominator")
        raise NotYet(
            f"{case}: the output is off by {float((out - right).norm() / right.norm()):.0%} of its norm"
        )
    if not torch.allclose(lse, total):
        raise NotYet(f"{case}: the output is right, but its log-sum-exp is not that of all keys")


@exercise(
    "flash-attention.lazy", "repair", "an accumulator that is rescaled only where the maximum grows by much"
)
def lazy(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    cases = {
        "the maximum falls from block to block": (0.0, -1.0, -2.0),
        "the maximum grows by 20 in each block": (0.0, 20.0, 40.0),
        "the maximum grows by 3 in each block": (0.0, 3.0, 6.0, 9.0, 12.0),
        "the maximum reaches 100,000": (0.0, 5.0, 100_000.0, 100_004.0),
    }
    for case, tops in cases.items():
        scores = [torch.rand(3, 4, generator=made) - 1 for _ in tops]
        for x, top in zip(scores, tops, strict=True):
            x += top - x.amax(1, keepdim=True)
        values = [torch.randn(4, 2, generator=made) for _ in tops]
        _lazily(mended, scores, values, case)
    return "the softmax, with a factor for the accumulator only where numbers would grow too large"


def _lazily(mended: Callable[..., Any], scores: list[Tensor], values: list[Tensor], case: str) -> None:
    import torch

    state = torch.zeros(3, 2), torch.zeros(3, 1), torch.full((3, 1), -math.inf)
    reference = -math.inf
    for i, (x, v) in enumerate(zip(scores, values, strict=True), 1):
        top = float(x.max())
        reference = top if top - reference > 8 else reference
        state = mended(state, x, v)
        acc, total, kept = state
        right = torch.cat(scores[:i], 1).double().softmax(1) @ torch.cat(values[:i]).double()
        off = float(((acc / total).double() - right).norm() / right.norm())
        if not off < 1e-4:  # nan is no less
            raise NotYet(f"{case}: after block {i} the output is off by {off:.0%} of its norm")
        if not torch.allclose(kept, torch.full_like(kept, reference)):
            found = float(kept[0])
            raise NotYet(
                f"{case}: the output is right; but after block {i} the state's m is {found:g}, "
                f"and rescaling only where it must gives {reference:g}"
            )


@exercise("flash-attention.lse", "repair", "a log-sum-exp that backward cannot use")
def lse_of_forward(mended: Callable[..., Any]) -> str:
    import torch

    made = torch.Generator().manual_seed(0)
    for scale in (1.0, 0.25):
        q, k, v, do = torch.randn(4, 6, 8, dtype=torch.float64, generator=made)
        scores = q @ k.T * scale
        out, lse = mended(q, k, v, scale)
        if not torch.allclose(out, scores.softmax(1) @ v):
            raise NotYet(f"scale = {scale}: now the output is wrong, which it was not before")
        if tuple(lse.shape) != (6, 1):
            raise NotYet(f"scale = {scale}: lse has the shape {tuple(lse.shape)} and not (6, 1)")
        p = (scores - lse).exp()
        off = float((p.T @ do - scores.softmax(1).T @ do).norm() / (scores.softmax(1).T @ do).norm())
        if not off < 1e-6:
            raise NotYet(
                f"scale = {scale}: the output is right; in backward, the weights of the first query sum to "
                f"{float(p[0].sum()):.3g}, and dv is off by {off:.0%} of its norm"
            )
    return "the output as before, and in backward weights that sum to 1"
