"""The mesh: axes over ranks, a group for any subset of them, the same on every rank."""

import pytest
import torch
import torch.distributed as dist

from playbook import launch
from playbook.errors import LayoutError
from playbook.layout import Layout
from playbook.parallel.mesh import Mesh
from playbook_book.instruments.mesh_table import describe


def sums(layout: Layout, subsets: list[tuple[str, ...]]) -> dict:
    """In a rank: the ranks of each group, as the mesh says and as an all-reduce of powers of two finds them."""
    with launch.process_group():
        mesh = Mesh(layout)
        found = {}
        for axes in subsets:
            x = torch.tensor([1 << mesh.rank])
            dist.all_reduce(x, group=mesh.group(*axes))
            found[axes] = mesh.ranks(*axes), x.item(), mesh.size(*axes), mesh.index(*axes)
        return found


SUBSETS = [
    (),
    ("dp",),
    ("tp",),
    ("cp",),
    ("pp",),
    ("dp", "tp"),
    ("pp", "dp"),
    ("dp", "cp"),
    ("tp", "cp", "dp", "pp"),
]


@pytest.mark.parametrize("text", ["", "dp=3", "dp=2,tp=2", "pp=2,dp=2,tp=2", "cp=2,dp=3", "tp=4,zero=1"])
def test_groups_are_those_of_the_layout(ranks, text):
    layout = Layout.parse(text)
    for rank, found in enumerate(ranks(sums, layout, SUBSETS, ranks=layout.world_size).values):
        for axes, (members, total, size, index) in found.items():
            expected = next((g for g in layout.groups(*axes) if rank in g), ()) if axes else (rank,)
            assert members == expected
            assert total == sum(1 << r for r in members)
            assert size == len(members)
            assert members[index] == rank


def test_a_layout_of_another_size_than_the_launch(ranks):
    def work() -> str:
        with launch.process_group():
            with pytest.raises(LayoutError) as error:
                Mesh(Layout(dp=4, tp=2))
            return str(error.value)

    assert ranks(work, ranks=2)[1].value == (
        "layout 'dp=4,tp=2' has 8 ranks, but 2 were launched: make dp * cp * tp * pp equal to them"
    )


def test_an_unknown_axis(ranks):
    def work() -> str:
        with launch.process_group():
            with pytest.raises(LayoutError) as error:
                Mesh(Layout(dp=2)).group("dq")
            return str(error.value)

    assert "unknown axis 'dq'" in ranks(work, ranks=2)[0].value


def test_the_table_says_who_is_with_whom():
    text = describe(Layout(dp=2, tp=2), rank=2)
    assert text.splitlines() == [
        "4 ranks: dp 2 · tp 2",
        "rank  dp  tp  dp group  tp group",
        "   0   0   0       0,2       0,1",
        "   1   0   1       1,3       0,1",
        " → 2   1   0       0,2       2,3",
        "   3   1   1       1,3       2,3",
    ]
    assert describe(Layout()).splitlines() == ["1 ranks: one device", "rank", "   0"]
    assert "0,1,…,15" in describe(Layout(dp=16))
