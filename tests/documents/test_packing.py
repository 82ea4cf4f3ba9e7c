"""Rows of packed documents: nothing is lost or mixed, and their loss is that of the documents alone."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from parallel_runs import SMALL

from playbook.documents.attention import own_documents
from playbook.documents.packing import PackedBatches, best_fit, documents_of
from playbook.errors import ConfigError, DataError
from playbook.layout import Layout
from playbook.model.ops import IGNORE
from playbook.model.transformer import Transformer
from playbook.training.config import TrainConfig
from playbook.training.data import Corpus, load_corpus
from playbook.training.trainer import make_trainer

TEXT = b"\n\na first one,\nof two lines\n\n\n\nsecond\n\nx\n\n\na third that is longer than a row\nand ends"


def corpus(text: bytes) -> Corpus:
    return Corpus("text", torch.frombuffer(bytearray(text), dtype=torch.uint8))


@given(
    st.binary(min_size=1, max_size=200).map(lambda raw: bytes(b"\nab"[b % 3] for b in raw)),
    st.integers(1, 20),
)
@settings(max_examples=100, deadline=None)
def test_documents_end_where_a_line_is_empty(text, most):
    """Against Python's own split: each token but newlines between documents is an input once, or the last of the text."""
    found = documents_of(corpus(text), most)
    whole = [part.lstrip(b"\n") for part in text.split(b"\n\n")]
    pieces = b"".join(text[start : start + length] for start, length in found)
    wanted = b"".join(part for part in whole if part)
    last = text[-1:] if text.strip(b"\n") and text[-1:] != b"\n" else b""  # it has no target
    assert (pieces + last).replace(b"\n", b"") == wanted.replace(b"\n", b"")
    assert all(1 <= length <= most for _, length in found)
    assert all(a.start + a.length <= b.start for a, b in pairwise(found))


def test_the_end_of_a_document_is_its_last_target():
    first, *_, last = documents_of(corpus(TEXT), 1000)
    assert TEXT[first.start + 1 : first.start + first.length + 1] == b" first one,\nof two lines\n"
    assert (
        TEXT[last.start + 1 : last.start + last.length + 1] == b" third that is longer than a row\nand ends"
    )
    assert len(documents_of(corpus(TEXT), 10)) == 3 + 1 + 1 + 5


@given(st.lists(st.integers(1, 50), max_size=60))
@settings(max_examples=100, deadline=None)
def test_best_fit_has_every_document_once(lengths):
    rows = best_fit(lengths, 50)
    assert Counter(i for row in rows for i in row) == Counter(range(len(lengths)))
    filled = sorted(sum(lengths[i] for i in row) for row in rows)
    assert all(used <= 50 for used in filled)
    assert len(filled) < 2 or filled[0] + filled[1] > 50  # two rows that fit in one would not both be there
    # Best-fit decreasing takes at most 11/9 of the best number of rows and one (Johnson 1973).
    assert len(rows) <= 11 / 9 * -(-sum(lengths) // 50) + 1 or max(lengths) > 50 / 3


def test_best_fit_takes_the_fullest_row_with_room():
    assert best_fit([6, 5, 4, 3, 2], 10) == [[0, 2], [1, 3, 4]]


def test_every_row_comes_before_any_comes_again():
    batches = PackedBatches(corpus(TEXT * 3), 3, 16, seed=1)
    steps = len(batches.rows)  # three turns of all rows
    drawn = Counter(tuple(row.tolist()) for step in range(steps) for row in batches.batch(step)[0])
    assert sum(drawn.values()) == 3 * steps
    assert all(n % 3 == 0 for n in drawn.values())
    assert not all(torch.equal(batches.batch(0)[0], batches.batch(step)[0]) for step in range(1, steps))


def test_ranks_have_the_rows_of_the_global_batch():
    batches = PackedBatches(load_corpus(), 4, 64)
    x, y, lengths = batches.batch(3)
    for rank in range(2):
        a, b, some = batches.batch(3, rank, 2)
        assert torch.equal(a, x[2 * rank : 2 * rank + 2])
        assert torch.equal(b, y[2 * rank : 2 * rank + 2])
        assert some == lengths[2 * rank : 2 * rank + 2]
    with pytest.raises(ConfigError, match="multiple of 3 ranks"):
        batches.batch(0, 0, 3)


@pytest.mark.parametrize("shape", ["gpt", "llama", "experts"])
def test_the_loss_is_that_of_documents_alone(shape):
    """And so are the gradients, with what routers add, which is of a whole micro-batch, left out."""
    model = Transformer(SMALL[shape].replace(vocab=256, max_seq=64), seed=1)
    for router in [m for m in model.modules() if hasattr(m, "loss_scale")]:
        router.loss_scale = None
    batches = PackedBatches(load_corpus(), 4, 48)
    inputs, targets, lengths = batches.batch(0)
    xs, ys, where = own_documents(inputs, targets, lengths, 2)
    assert xs.shape == (2, 96)
    packed = sum(model.loss(xs[i : i + 1], ys[i : i + 1], where[i])[0] for i in range(2))
    packed.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    alone = torch.zeros(())
    for x, y, row in zip(inputs, targets, lengths, strict=True):
        for a, b in zip(x.split(row), y.split(row), strict=True):
            if (b != IGNORE).any():
                loss = model.loss(a[None], b[None])[0]
                loss.backward()
                alone += loss.detach()
    torch.testing.assert_close(packed.detach(), alone, rtol=1e-6, atol=0)
    for name, p in model.named_parameters():
        torch.testing.assert_close(found[name], p.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_run_is_the_same_by_the_formula_and_in_any_micro_batch():
    given = {"steps": 3, "seq": 40, "global_batch": 4, "documents": "packed", "device": "cpu"}
    configs = [
        TrainConfig(**given),
        TrainConfig(**given, micro_batch=1),
        TrainConfig(**given, micro_batch=2, attention="reference", recompute="full"),
    ]
    shape = SMALL["llama"].replace(vocab=256, max_seq=64)
    runs = [[r.loss for r in make_trainer(shape, load_corpus(), config).run()] for config in configs]
    for run in runs[1:]:
        assert run == pytest.approx(runs[0], rel=1e-5)
    joined = TrainConfig(**{**given, "documents": "joined"})
    assert [r.loss for r in make_trainer(shape, load_corpus(), joined).run()] != pytest.approx(
        runs[0], rel=1e-3
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"documents": "rows"}, "documents must be one of joined, packed"),
        (
            {"documents": "packed", "fp8": "nvfp4", "layout": Layout(cp=2)},
            "packed and cp=2, but fp8=nvfp4 has blocks of neighbouring tokens",
        ),
        ({"documents": "packed", "compile": True}, "compile is on, but blocks of packed documents"),
        (
            {"layout": Layout(cp=2, placement="greedy")},
            "documents are joined: make them packed, or take zigzag",
        ),
        ({"documents": "packed", "layout": Layout(placement="greedy")}, "placement is 'greedy', but cp is 1"),
    ],
)
def test_what_does_not_go_together(options, words):
    with pytest.raises(ConfigError, match=words):
        TrainConfig(**options)


def test_dropout_and_empty_texts_are_refused():
    config = TrainConfig(documents="packed", seq=16, global_batch=2, device="cpu")
    shape = SMALL["gpt"].replace(vocab=256, dropout=0.1, max_seq=64)
    with pytest.raises(ConfigError, match=r"documents are packed, but .* has dropout=0.1"):
        make_trainer(shape, load_corpus(), config)
    with pytest.raises(DataError, match="has no document"):
        PackedBatches(corpus(b"\n" * 40), 2, 16)
