"""The figures of ranks that talk draw what the plans say."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex

from playbook.collectives.links import AlphaBeta
from playbook.figures import PALETTE, display
from playbook_book.collective_costs import simulate
from playbook_book.collectives.network import Network
from playbook_book.collectives.plans import ALGORITHMS, plan
from playbook_book.figures.collectives import (
    TITLES,
    conversations,
    reduction,
    space_time,
    transcript,
)
from playbook_book.replay import replay


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def words(axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_every_collective_but_the_barrier_has_a_panel():
    assert set(TITLES) == set(ALGORITHMS) - {"barrier"}
    figure = conversations(3)
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(TITLES.values())
    assert "reduce-scatter" in display(figure, alt="x").svg


@pytest.mark.parametrize(
    ("collective", "before", "after"),
    [
        ("broadcast", ["a₀ a₁", ""], ["a₀ a₁", "a₀ a₁"]),
        ("reduce", ["a₀ a₁", "b₀ b₁"], ["Σ₀ Σ₁", "b₀ b₁"]),
        ("all_reduce", ["a₀ a₁", "b₀ b₁"], ["Σ₀ Σ₁", "Σ₀ Σ₁"]),
        ("gather", ["a₀", "b₁"], ["a₀ b₁", "b₁"]),
        ("all_gather", ["a₀", "b₁"], ["a₀ b₁", "a₀ b₁"]),
        ("scatter", ["a₀ a₁", ""], ["a₀", "a₁"]),
        ("reduce_scatter", ["a₀ a₁", "b₀ b₁"], ["Σ₀", "Σ₁"]),
        ("all_to_all", ["a₀ a₁", "b₀ b₁"], ["a₀ b₀", "a₁ b₁"]),
    ],
)
def test_a_panel_shows_what_each_rank_has_before_and_after(collective, before, after):
    axes = conversations(2).axes[list(TITLES).index(collective)]
    cells = [text for text in axes.texts if text.get_text() and not text.get_text().startswith("rank")]
    middle = 2.5  # between the two grids of a panel of two ranks
    rows = {
        side: [
            " ".join(t.get_text() for t in cells if round(-t.get_position()[1]) == rank and side(t))
            for rank in (0, 1)
        ]
        for side in (
            lambda t: t.get_position()[0] < middle,
            lambda t: t.get_position()[0] > middle,
        )
    }
    assert list(rows.values()) == [before, after]


def test_more_ranks_than_hues_are_refused():
    with pytest.raises(ValueError, match="ranks must be 2 to 6, a hue each, got 7"):
        conversations(7)


@pytest.mark.parametrize(("collective", "algorithm"), [("all_reduce", "ring"), ("reduce_scatter", "ring")])
def test_a_transcript_has_a_panel_for_each_state_with_its_contributions(collective, algorithm):
    p = plan(collective, algorithm, ranks=4, elements=4)
    figure = transcript(p)
    drawn = [axes for axes in figure.axes if axes.get_title(loc="left")]
    states = replay(p)
    assert len(drawn) == p.steps + 1 == len(states)
    for axes, held in zip(drawn, states, strict=True):
        numbers = [text.get_text() for text in axes.texts if text.get_ha() == "center"]
        assert numbers == [str(len(contributions) or "") for row in held for contributions in row]
    framed = [p for p in drawn[1].patches if p.get_linewidth() == 1.5]
    assert len(framed) == 4  # a chunk has arrived everywhere
    complete = [p for p in drawn[-1].patches if to_hex(p.get_facecolor()) == PALETTE["optimizer"]]
    assert len(complete) == (16 if collective == "all_reduce" else 4)


def test_a_reduction_writes_the_partial_sums():
    values = [0.1, -0.2, -0.3, 0.5, -0.6, -0.1, 0.2, 0.3]
    said = words(reduction(plan("reduce", "binomial", ranks=8, elements=8), values).axes[0])
    numbers = [word for word in said if word and word[0] in "+−"]
    assert numbers[:8] == ["+0.1", "−0.2", "−0.3", "+0.5", "−0.6", "−0.1", "+0.2", "+0.3"]
    assert numbers[8:] == ["−0.1", "+0.2", "−0.7", "+0.5", "+0.1", "−0.2", "−0.1"]


def test_lanes_turn_strong_when_their_rank_has_everything():
    slow = Network.uniform(AlphaBeta(0, 1e-6))
    tree, row = (
        simulate(plan("broadcast", name, ranks=4, elements=1_000_000), slow) for name in ("binomial", "naive")
    )
    figure = space_time({"tree": tree, "in turn": row})
    strong = [
        [line.get_xdata()[0] for line in axes.lines if line.get_linewidth() > 2] for axes in figure.axes
    ]
    assert strong[0] == pytest.approx([0, 2, 1, 2])
    assert strong[1] == pytest.approx([0, 1, 2, 3])
    assert figure.axes[0].get_title(loc="left") == "tree"
