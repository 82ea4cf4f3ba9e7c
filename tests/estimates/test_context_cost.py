"""Bytes of context parallelism: known cases by hand, and what real ranks are counted to send."""

from __future__ import annotations

import itertools

import pytest
import torch
from playbook_widgets.compute.ring_steps import RingSetting, steps_of
from torch import Tensor

from playbook import launch
from playbook.collectives.links import AlphaBeta
from playbook.errors import ConfigError
from playbook.instruments.counting import CountBytes
from playbook.layout import Layout
from playbook.layout.fields import CONTEXT
from playbook.layout.tokens import TokenRanges
from playbook.parallel.context import GatherCore, RingCore, UlyssesCore
from playbook.shapes import load
from playbook_book.context_cost import context_traffic, hiding_tokens

SMALL = load("tiny").replace(heads=8, kv_heads=4, head_dim=6, hidden=48)
SEQ, RANKS = 32, 4


def counted() -> dict[tuple[str, int], list[int]]:
    """In a rank: bytes sent by each attention core, forward and backward, with numbers of four bytes and of two."""
    found = {}
    torch.set_num_threads(1)
    with launch.process_group():
        group = torch.distributed.group.WORLD
        cores = {
            "ring": RingCore(group, "zigzag"),
            "gather": GatherCore(group, "zigzag"),
            "ulysses": UlyssesCore(group, plain),
        }
        for (name, core), dtype in itertools.product(cores.items(), (torch.float32, torch.bfloat16)):
            q, k, v = (torch.randn(2, n, SEQ // RANKS, 6, dtype=dtype, requires_grad=True) for n in (8, 4, 4))
            with CountBytes({"cp": group}) as count:
                out = core(q, k, v)
                forward = count["cp"].total.sent
                out.sum().backward()
            found[name, dtype.itemsize] = [forward, count["cp"].total.sent - forward]
    return found


def plain(q: Tensor, k: Tensor, v: Tensor, p: float, training: bool, causal: bool) -> Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def test_bytes_are_those_of_real_ranks(ranks):
    layout = Layout(cp=RANKS, micro_batch=2)
    for found in ranks(counted, ranks=RANKS).values:
        assert {context for context, _ in found} == set(CONTEXT)
        for (context, itemsize), sent in found.items():
            told = context_traffic(SMALL, layout, SEQ, context, itemsize=itemsize)
            assert sent == [told.forward, told.backward], (context, itemsize)


@pytest.mark.parametrize("context", CONTEXT)
def test_the_steps_of_a_pass_send_as_much(context):
    placed = TokenRanges("contiguous" if context == "ulysses" else "zigzag", SEQ, RANKS)
    told = context_traffic(SMALL, Layout(cp=RANKS), SEQ, context)
    for backward, total in ((False, told.forward), (True, told.backward)):
        setting = RingSetting(SMALL, context, placed, SEQ, backward, 2, "h100-8", AlphaBeta(1e-6, 1e-9), 1e12)
        assert sum(step.sent for step in steps_of(setting)) == total


def test_ulysses_sends_less_from_some_number_of_ranks_on():
    """In bf16, forward and backward: from cp = (heads per key + 1)/2 on."""
    shape = load("llama3-8b")  # 4 query heads to a key
    for cp, cheaper in ((2, "ring"), (4, "ulysses"), (8, "ulysses")):
        sent = {c: context_traffic(shape, Layout(cp=cp), 8192, c).total for c in ("ring", "ulysses")}
        assert min(sent, key=lambda c: sent[c]) == cheaper, cp


def test_hiding_follows_the_papers_rule():
    shape = load("gpt3-175b")  # as many keys as queries
    assert hiding_tokens(shape, 312e12, 300e9, causal=False) == pytest.approx(312e12 / 300e9)
    assert hiding_tokens(shape, 312e12, 300e9) == pytest.approx(2 * 312e12 / 300e9)
    with pytest.raises(ConfigError, match="bandwidth"):
        hiding_tokens(shape, 1e12, 0)
    with pytest.raises(ConfigError, match="context"):
        context_traffic(shape, Layout(cp=2), 64, "star")
