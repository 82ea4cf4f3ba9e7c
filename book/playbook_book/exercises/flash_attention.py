"""Exercises of the chapter on FlashAttention."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from playbook_book.exercises.exercise import NotYet, answers, answers_made, exercise, number

if TYPE_CHECKING:
    from torch import Tensor


@number(
    "flash-attention.bytes",
    "bytes that forward asks for in one layer of Llama 3 8B",
    praise="64 programs a head, and each of them reads all keys and values of its head",
    otherwise="How many programs are there, and what does one of them read?",
)
def bytes_of_a_layer() -> tuple[float, dict[float, str]]:
    heads, kv_heads, width, seq, block = 32, 8, 128, 8192, 128
    programs = seq // block  # of a head
    once = 2 * seq * 2 * width  # q and o, or k and v
    own, keys = once + 4 * seq, programs * once
    right, least, causal = heads * (own + keys), heads * own, keys * (programs + 1) / (2 * programs)
    return right, {
        least + kv_heads * keys: (
            "each query head has programs of its own, and a program reads keys and values for its own head alone"
        ),
        least + heads * once: "that reads the keys and values of a head once; how many programs need them?",
        least + kv_heads * once: "that is the least that must come from memory, if caches keep all",
        least + heads * causal: "that is with a causal mask",
        least + heads * keys / 2: "keys and values: a program reads both",
        heads * (once / 2 + keys / 2): "a number in bf16 has two bytes",
        right / heads: "that is one head",
        least + heads * seq * once: "that reads all keys for each query; a program has 128 of these",
        heads * (4 * 2 * seq * seq + 2 * once): "that is attention with its scores in memory",
    }


@answers_made("flash-attention.bytes")
def _counted() -> tuple[list[Any], dict[str, Any]]:
    import torch

    from playbook.kernels.flash_attention import requested_bytes, standard_bytes
    from playbook.kernels.flash_backward import Blocks

    q, k = (torch.empty(1, 8192, heads, 128, dtype=torch.bfloat16, device="meta") for heads in (32, 8))
    asked = partial(requested_bytes, q, k, k, blocks=Blocks(128, 128, 8, 2))
    return [asked(causal=False)], {
        "that is with a causal mask": asked(causal=True),
        "that is attention with its scores in memory": standard_bytes(q, q, q),
    }


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


def _weighed(
    outs: Tensor, lses: Tensor, *, relative_to=lambda lses: lses.amax(0).clamp(min=-1e30)
) -> tuple[Tensor, Tensor]:
    top = relative_to(lses)
    weights = (lses - top).exp()
    total = weights.sum(0)
    return (weights[..., None] * outs).sum(0) / total.clamp(min=1e-30)[:, None], top + total.log()


answers(
    "flash-attention.split",
    right=[_weighed],
    wrong={
        "three parts: that is the mean of the parts": lambda outs, lses: (outs.mean(0), lses.logsumexp(0)),
        "each was divided by its own denominator": lambda outs, lses: (outs.sum(0), lses.logsumexp(0)),
        "scores in the thousands: the output is not a number": (
            partial(_weighed, relative_to=lambda lses: 0 * lses[0])
        ),
        "a query that sees no key anywhere: the output is not a number": (
            partial(_weighed, relative_to=lambda lses: lses.amax(0))
        ),
        "the output is right, but its log-sum-exp is not": (
            lambda outs, lses: (_weighed(outs, lses)[0], lses.amax(0))
        ),
        "the output has the shape (5, 4) and not (4, 5)": (
            lambda outs, lses: (_weighed(outs, lses)[0].T, lses.logsumexp(0))
        ),
        "expected a pair, the output and its log-sum-exp": lambda outs, lses: _weighed(outs, lses)[0],
    },
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


def _attended(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    lse=lambda m, total, scale: (m + total.log2()) * math.log(2),
) -> tuple[Tensor, Tensor]:
    x = q @ k.T * (scale / math.log(2))
    m = x.amax(1, keepdim=True)
    p = (x - m).exp2()
    total = p.sum(1, keepdim=True)
    return p @ v / total, lse(m, total, scale)


answers(
    "flash-attention.lse",
    right=[_attended],
    wrong={
        "scale = 1.0: the output is right;": partial(_attended, lse=lambda m, total, _: m + total.log2()),
        "the weights of the first query sum to": partial(_attended, lse=lambda m, total, _: m + total.log()),
        "scale = 0.25: the output is right": (
            partial(_attended, lse=lambda m, total, scale: (m + total.log2()) * math.log(2) / scale)
        ),
        "the shape (6,)": partial(_attended, lse=lambda m, total, _: (m + total.log2())[:, 0]),
        "now the output is wrong": lambda q, k, v, scale: _attended(q, k, v * scale / 2, scale),
    },
)
