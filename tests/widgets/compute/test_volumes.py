"""The formula of the busiest rank, against the messages of every plan."""

import pytest
from playbook_widgets.compute.volumes import busiest_rank_sends

from playbook_book.collectives.plans import ALGORITHMS, plan
from playbook_book.collectives.plans.catalogue import ROOTED

ALL = [(collective, name) for collective, algorithms in ALGORITHMS.items() for name in algorithms]
#: Where some ranks are folded away, what the others send follows no simple formula.
OF_A_POWER_OF_TWO = {("all_gather", "recursive_doubling"), ("all_reduce", "halving_doubling")}


@pytest.mark.parametrize(("collective", "algorithm"), ALL, ids=".".join)
def test_the_formula_is_what_the_busiest_rank_sends(collective, algorithm):
    for ranks in range(2, 18):
        size = ranks * 840
        for root in {0, ranks // 2, ranks - 1} if collective in ROOTED else {0}:
            for per_node in divisors(ranks) if algorithm == "two_level" else [None]:
                whole = plan(
                    collective, algorithm, ranks=ranks, elements=size, root=root, ranks_per_node=per_node
                )
                volume = busiest_rank_sends(collective, algorithm, ranks, size, per_node)
                if volume is None:
                    assert (collective, algorithm) in OF_A_POWER_OF_TWO
                    assert ranks & (ranks - 1)
                else:
                    assert volume.bytes == max(whole.bytes_sent(rank) for rank in range(ranks)), volume.text
                    assert volume.text


def divisors(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]
