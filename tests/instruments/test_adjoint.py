"""The borders of a region are transposed by their backward passes; and a border that is not is found out."""

import pytest
import torch
import torch.distributed as dist

from playbook import launch
from playbook.parallel.regions import f, f_star
from playbook.parallel.sequence import g, g_star
from playbook_book.instruments.adjoint import inner_products

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
