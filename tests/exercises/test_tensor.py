"""Wrong answers that readers of the chapter on tensor parallelism may well give, and what they are told."""

import pytest
import torch
import torch.nn.functional as F

from playbook.parallel.regions import f, f_star
from playbook_book.exercises import grade

STREAM = 8192 * 8192 * 2


# ---- tensor.qkv


def shard(weight, heads, kv_heads, rank, ranks):
    d = len(weight) // (heads + 2 * kv_heads)
    q, k, v = weight.split([n * d for n in (heads, kv_heads, kv_heads)])
    each = max(1, kv_heads // ranks) * d
    first = rank * kv_heads // ranks * d
    return torch.cat([q.chunk(ranks)[rank], k[first : first + each], v[first : first + each]])


def equal_parts_of_all_rows(weight, heads, kv_heads, rank, ranks):
    return weight.chunk(ranks)[rank]


def no_copies(weight, heads, kv_heads, rank, ranks):
    d = len(weight) // (heads + 2 * kv_heads)
    parts = weight.split([n * d for n in (heads, kv_heads, kv_heads)])
    return torch.cat([part[rank * len(part) // ranks :][: len(part) // ranks] for part in parts])


def all_keys_and_values(weight, heads, kv_heads, rank, ranks):
    d = len(weight) // (heads + 2 * kv_heads)
    q, kv = weight.split([heads * d, 2 * kv_heads * d])
    return torch.cat([q.chunk(ranks)[rank], kv])


def copies_in_turn(weight, heads, kv_heads, rank, ranks):
    if ranks <= kv_heads:
        return shard(weight, heads, kv_heads, rank, ranks)
    d = len(weight) // (heads + 2 * kv_heads)
    q, k, v = weight.split([n * d for n in (heads, kv_heads, kv_heads)])
    head = rank % kv_heads * d
    return torch.cat([q.chunk(ranks)[rank], k[head : head + d], v[head : head + d]])


# ---- tensor.block


def block(x, scale, gate, up, down, group):
    y = f(F.rms_norm(x, x.shape[-1:], scale), group)
    return x + f_star((F.silu(y @ gate.T) * (y @ up.T)) @ down.T, group)


def planted(x, scale, gate, up, down, group):
    y = F.rms_norm(x, x.shape[-1:], scale)
    return x + f_star((F.silu(f(y, group) @ gate.T) * (y @ up.T)) @ down.T, group)


def no_entry(x, scale, gate, up, down, group):
    y = F.rms_norm(x, x.shape[-1:], scale)
    return x + f_star((F.silu(y @ gate.T) * (y @ up.T)) @ down.T, group)


def entered_twice(x, scale, gate, up, down, group):
    y = F.rms_norm(x, x.shape[-1:], scale)
    return x + f_star((F.silu(f(y, group) @ gate.T) * (f(y, group) @ up.T)) @ down.T, group)


def entered_before_the_residual(x, scale, gate, up, down, group):
    x = f(x, group)
    y = F.rms_norm(x, x.shape[-1:], scale)
    return x + f_star((F.silu(y @ gate.T) * (y @ up.T)) @ down.T, group)


def residual_summed(x, scale, gate, up, down, group):
    y = f(F.rms_norm(x, x.shape[-1:], scale), group)
    return f_star(x + (F.silu(y @ gate.T) * (y @ up.T)) @ down.T, group)


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("bytes", 80 * 2 * STREAM * 2 * 7 / 8, "count forward and backward"),
        ("bytes", 80 * 8 * STREAM / 8, "around a ring each rank sends tp − 1"),
        ("bytes", 80 * 8 * STREAM / 8 / 2, "in elements; count bytes"),
        ("bytes", 80 * 4 * STREAM * 2, "nobody sends its own chunk"),
        ("bytes", 80 * 4 * STREAM, "what there is to be summed"),
        ("bytes", 4 * STREAM * 2 * 7 / 8, "that is one block"),
        ("bytes", 1, "1 is too small. Count the all-reduces"),
        ("qkv", equal_parts_of_all_rows, "rank 0 has the first rows of the matrix"),
        ("qkv", no_copies, "8 query and 2 key/value heads on 4 ranks: rank 0 should have shape (12, 10)"),
        ("qkv", all_keys_and_values, "on 2 ranks: rank 0 should have shape (18, 10), and has (30, 10)"),
        ("qkv", copies_in_turn, "on 4 ranks: query heads 2, 3, 4, 5 do not give what they give on one rank"),
        ("qkv", lambda *_: None, "and has NoneType"),
        ("block", planted, "output, gate, up, down are right; gradients that are off: x by"),
        ("block", no_entry, "gradients that are off: x by"),
        ("block", entered_twice, "backward makes 2 all-reduces"),
        ("block", entered_before_the_residual, "gradients that are off: x by"),
        ("block", residual_summed, "the output on 3 ranks is not that of one process"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"tensor.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


@pytest.mark.parametrize(
    ("name", "answer"), [("bytes", 80 * 4 * STREAM * 2 * 7 / 8), ("qkv", shard), ("block", block)]
)
def test_right_answers_are_right(name, answer):
    verdict = grade(f"tensor.{name}", answer)
    assert verdict.right, verdict.text
