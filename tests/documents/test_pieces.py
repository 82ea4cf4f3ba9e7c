"""Packed documents over ranks: every pair of a document once, as many tokens for each rank, work that is even."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout.test_tokens import pairs_of

from playbook.documents.pieces import GREEDY_PIECES, Documents
from playbook.errors import ConfigError
from playbook.layout.tokens import OF_DOCUMENTS, PLACEMENT, TokenRanges

KINDS = (*PLACEMENT, *OF_DOCUMENTS)


def packed(kind: str, lengths: list[int], ranks: int) -> Documents:
    """Of these lengths; the last document makes the row one that the ranks can share."""
    rest = -sum(lengths) % (2 * ranks)
    lengths = [*lengths, rest] if rest else lengths
    return Documents(kind, sum(lengths), ranks, lengths=tuple(lengths))


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(KINDS), st.lists(st.integers(1, 23), min_size=1, max_size=7), st.integers(1, 5))
def test_every_pair_of_a_document_is_computed_once(kind, lengths, ranks):
    documents = packed(kind, lengths, ranks)
    own = [[token for part in documents.ranges(rank) for token in part] for rank in range(ranks)]
    assert {len(mine) for mine in own} == {documents.seq // ranks}
    assert sorted(token for mine in own for token in mine) == list(range(documents.seq))
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        mine: Counter[tuple[int, int]] = Counter()
        for source in range(ranks):
            for block in documents.blocks(rank, source):
                pairs = pairs_of(block, own[rank], own[source])
                assert len(pairs) == block.pairs
                mine.update(pairs)
        assert documents.work(rank) == mine.total() == len(mine)
        found += mine
    of = [i for i, n in enumerate(documents.lengths) for _ in range(n)]
    assert found == Counter((q, k) for q in range(documents.seq) for k in range(q + 1) if of[q] == of[k])


def test_one_document_is_a_sample():
    for kind, ranks in ((kind, ranks) for kind in PLACEMENT for ranks in (1, 2, 4)):
        one, sample = Documents(kind, 48, ranks, lengths=(48,)), TokenRanges(kind, 48, ranks)
        assert [one.ranges(rank) for rank in range(ranks)] == [sample.ranges(rank) for rank in range(ranks)]
    zigzag, by_document = TokenRanges("zigzag", 48, 4), Documents("documents", 48, 4, lengths=(48,))
    assert [by_document.ranges(rank) for rank in range(4)] == [zigzag.ranges(rank) for rank in range(4)]


def test_what_is_cut_by_documents_is_even_and_what_ignores_them_is_not():
    draw = random.Random(0)
    for _ in range(20):
        lengths = [min(40_000, int(draw.lognormvariate(6.5, 1.5)) + 1) for _ in range(60)]
        work = {kind: [packed(kind, lengths, 8).work(rank) for rank in range(8)] for kind in KINDS}
        above = {kind: max(each) * 8 / sum(each) for kind, each in work.items()}
        # A rank has in each document a token more than another, or two; and no rank a whole piece more than it has to.
        longest = max(lengths)
        assert max(work["documents"]) - min(work["documents"]) <= 2 * sum(lengths)
        assert above["greedy"] < 1.1
        assert above["documents"] < 1.02
        assert above["contiguous"] > above["greedy"]
        assert above["zigzag"] > above["documents"], longest


def test_a_greedy_rank_has_few_pieces():
    documents = Documents("greedy", 4096, 4, lengths=(4096,))
    assert {len(pieces) for pieces in documents.pieces} == {GREEDY_PIECES}


@pytest.mark.parametrize("lengths", [(5, 6), (12, 0), (-1, 13), ()])
def test_documents_fill_their_row(lengths):
    with pytest.raises(ConfigError, match="positive and fill seq=12"):
        Documents("documents", 12, 2, lengths=lengths)


def test_ranks_share_tokens_evenly():
    with pytest.raises(ConfigError, match="seq is 10, but must be a multiple of 4 ranks"):
        Documents("documents", 10, 4, lengths=(10,))
