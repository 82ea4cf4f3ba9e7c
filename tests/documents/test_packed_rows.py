"""What the chapter on packed documents counts of rows, against counts of one token and one pair after another."""

from __future__ import annotations

import pytest

from playbook.documents.packing import Stretch
from playbook.documents.pieces import Documents
from playbook_book.packed_rows import (
    as_they_come,
    busiest,
    by_best_fit,
    cut_by_windows,
    long_tailed,
    mean_over_tokens,
    needed,
    pairs,
    placed,
)

ROW = (7, 20, 1, 12)


def test_rows_are_full_and_have_every_document():
    lengths = [6, 5, 4, 3, 2]
    assert as_they_come(lengths, 10) == [(6, 4), (5, 4, 1), (3, 2, 5)]  # what is left is the last document
    assert by_best_fit(lengths, 10) == [(6, 4), (5, 3, 2)]
    drawn = long_tailed(50_000, most=4_000)
    assert max(drawn) <= 4_000
    assert 50_000 <= sum(drawn) < 54_000
    assert drawn == long_tailed(50_000, most=4_000) != long_tailed(50_000, most=4_000, seed=1)


def test_pairs_and_means_are_those_of_tokens():
    own = [n for n in ROW for _ in range(n)]  # of each token, the tokens of its document
    assert mean_over_tokens(ROW) == pytest.approx(sum(own) / len(own))
    assert pairs(ROW) == sum(query + 1 for n in ROW for query in range(n))


def test_windows_cut_documents_that_have_tokens_on_both_sides():
    documents = [Stretch(0, 10), Stretch(12, 9), Stretch(21, 9), Stretch(31, 25)]
    assert [cut_by_windows([one], 10) for one in documents] == [0, 1, 0, 1]
    assert cut_by_windows(documents, 10) == 2


def of_tokens(documents: Documents) -> tuple[float, float]:
    """The busiest rank over the mean, and the share of other ranks' keys that a rank needs, token by token."""
    begins = [sum(documents.lengths[:i]) for i, n in enumerate(documents.lengths) for _ in range(n)]
    own = [{token for part in documents.ranges(rank) for token in part} for rank in range(documents.ranks)]
    seen = [{(q, k) for q in mine for k in range(begins[q], q + 1)} for mine in own]
    work = [len(each) for each in seen]
    keys = sum(len({k for _, k in each} - mine) for each, mine in zip(seen, own, strict=True))
    return max(work) * len(own) / sum(work), keys / (documents.seq * (documents.ranks - 1))


@pytest.mark.parametrize("kind", ["contiguous", "zigzag", "documents", "greedy"])
def test_work_and_keys_are_those_of_tokens(kind):
    for row in (ROW, (40,), (1,) * 40, (24, 16)):
        documents = placed(row, 4)[kind]
        assert (busiest(documents), needed(documents)) == pytest.approx(of_tokens(documents))


def test_a_zigzag_of_one_document_needs_three_quarters_of_all_keys():
    assert needed(placed((64,), 4)["zigzag"]) == pytest.approx(3 / 4)
