"""The borders of a region are transposed by their backward passes; and a border that is not is found out."""

import pytest
import torch
import torch.distributed as dist

from playbook import launch
from playbook.parallel.regions import f, f_star
from playbook.parallel.sequence import g, g_star
from playbook_book.instruments.adjoint import inner_products
from playbook_book.instruments.chunk_trace import beneath, record_chunks

BORDERS = {
    "f": (f, True, False),
    "f*": (f_star, False, True),
    "g": (g, False, False),
    "g*": (g_star, False, False),
}


def forgets_others(x, group):
    """A gather that only knows where its own tokens came from."""
    parts = list(g(x.detach(), group).chunk(group.size(), 1))
    parts[group.rank()] = x
    return torch.cat(parts, 1)


def products():
    with launch.process_group():
        group, found = dist.group.WORLD, {}
        for name, (function, copied_in, copied_out) in BORDERS.items():
            copies = {"copied_in": copied_in, "copied_out": copied_out}
            found[name] = inner_products(function, group, (2, 4, 3), **copies)
        found["wrong"] = inner_products(forgets_others, group, (2, 4, 3))
        return found


def test_backward_is_the_transpose(ranks):
    for found in ranks(products, ranks=2).values:
        for name in BORDERS:
            assert found[name][0] == pytest.approx(found[name][1], rel=1e-12)
        assert found["wrong"][0] != pytest.approx(found["wrong"][1], rel=1e-3)


def order():
    torch.set_num_threads(1)
    with launch.process_group():
        return record_chunks(dist.group.WORLD, tokens=8, width=16, turns=1)


def test_messages_in_chunks_lie_beneath_products(ranks):
    """Of three ranks: two messages, each asked for before a product begins and waited for after it."""
    for spans, error in ranks(order, ranks=3).values:
        counts = {name: beneath(found) for name, found in spans.items()}
        assert counts == {
            "gather, then multiply": 0, "gather in chunks": 2, "multiply, then scatter": 0, "scatter in chunks": 2,
        }  # fmt: skip
        assert error < 1e-5
