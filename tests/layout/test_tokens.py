"""The geometry of context parallelism against the mask itself, pair by pair."""

from __future__ import annotations

from collections import Counter

import pytest

from playbook.errors import ConfigError
from playbook.layout.tokens import PLACEMENT, MaskBlock, TokenRanges, placement_of, source_of
from playbook.parallel.context import RankTokens

CASES = [(kind, ranks, causal) for kind in PLACEMENT for ranks in (1, 2, 3, 4, 8) for causal in (True, False)]
SEQ = 48


def pairs_of(block: MaskBlock, queries: list[int], keys: list[int]) -> list[tuple[int, int]]:
    """Positions of each query and key of a block."""
    return [
        (queries[i], keys[j])
        for i in range(block.q_start, block.q_stop)
        for j in range(block.k_start, block.k_stop)
        if not block.causal or j <= i
    ]


@pytest.mark.parametrize(("kind", "ranks", "causal"), CASES)
def test_every_pair_that_may_be_seen_is_computed_once(kind, ranks, causal):
    ranges = TokenRanges(kind, SEQ, ranks, causal)
    own = [[token for part in ranges.ranges(rank) for token in part] for rank in range(ranks)]
    assert sorted(token for mine in own for token in mine) == list(range(SEQ))
    found: Counter[tuple[int, int]] = Counter()
    for rank in range(ranks):
        before = found.total()
        for step in range(ranks):
            source = source_of(rank, step, ranks)
            for block in ranges.blocks(rank, source):
                pairs = pairs_of(block, own[rank], own[source])
                assert len(pairs) == block.pairs
                found.update(pairs)
        assert ranges.work(rank) == found.total() - before
    assert found == Counter((q, k) for q in range(SEQ) for k in range(SEQ) if k <= q or not causal)


def test_the_placement_of_tensors_is_the_same():
    for kind, ranks, causal in CASES:
        placement, ranges = RankTokens(kind, SEQ, ranks, causal), TokenRanges(kind, SEQ, ranks, causal)
        for rank in range(ranks):
            wanted = [token for part in ranges.ranges(rank) for token in part]
            assert placement.positions(rank).tolist() == wanted
            assert placement.work(rank) == ranges.work(rank)


def test_zigzag_is_even_and_contiguous_is_not():
    for seq in (64, 8192, 131_072):
        work = {kind: [TokenRanges(kind, seq, 4).work(rank) for rank in range(4)] for kind in PLACEMENT}
        assert len(set(work["zigzag"])) == 1
        balance = max(work["contiguous"]) * 4 / sum(work["contiguous"])
        assert balance == pytest.approx(1.75, abs=2 / seq)  # the limit is 7/4


def test_what_placement_fits():
    assert [placement_of(context, None) for context in ("ring", "gather", "ulysses")] == [
        "zigzag",
        "zigzag",
        "contiguous",
    ]
    assert placement_of("ring", "contiguous") == "contiguous"
    for context, placement, words in (
        ("rings", None, "unknown context 'rings'; did you mean ring"),
        ("ring", "striped", "unknown placement 'striped'"),
        ("ulysses", "zigzag", "placement is 'zigzag', but context='ulysses'"),
    ):
        with pytest.raises(ConfigError, match=words):
            placement_of(context, placement)
