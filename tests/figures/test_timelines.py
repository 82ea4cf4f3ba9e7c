"""The timelines draw what the traces say: where each box lies, what is hidden and what is not."""

from __future__ import annotations

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgba

from playbook.figures import display
from playbook.instruments.trace import Event, Lane, Trace
from playbook_book.figures.timelines import LOOKS, timelines


@pytest.fixture(autouse=True)
def _no_figure_left():
    yield
    plt.close("all")


def step(start: float = 0.0, sent: str = "all_reduce") -> Trace:
    """A forward block from 0 to 10 ms and a backward one to 30; messages from 20 to 40, awaited from 30 on; then 5 ms of
    update. A number that ranks exchange comes first."""
    rows = [
        ("forward", 0, 0, 10, "F", {}),
        ("block 0 forward", 0, 0, 10, "F", {"part": "block 0", "pass": "forward"}),
        ("backward", 0, 10, 20, "B", {}),
        ("block 0 backward", 0, 10, 20, "B", {"part": "block 0", "pass": "backward"}),
        ("wait", 0, 30, 10, "idle", {}),
        ("optimizer", 0, 40, 5, "optimizer", {}),
        ("all_reduce", 1, -4, 2, "communication", {"bytes": 8}),
        (sent, 1, 20, 20, "communication", {"bytes": 4000}),
    ]  # fmt: skip
    lanes = [Lane("compute"), Lane("communication", "stream")]
    return Trace(lanes, [Event(n, lane, start + 1e3 * t, 1e3 * d, c, a) for n, lane, t, d, c, a in rows])


def bars(axes, row: int) -> list[tuple[float, float, str]]:
    """Start and end (ms) of the bars in a row, and their looks."""
    names = {to_rgba(*look): name for name, look in LOOKS.items()}
    found = [p for p in axes.patches if round(p.get_y() + p.get_height() / 2) == -row]
    return sorted(
        (round(1e3 * p.get_x()), round(1e3 * (p.get_x() + p.get_width())), names[p.get_facecolor()])
        for p in found
    )


def rows(axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


def test_blocks_waits_and_messages_lie_where_they_were():
    (axes,) = timelines({"overlapped": step()}).axes
    assert rows(axes) == ["compute", "all-reduce"]
    assert bars(axes, 0) == [
        (0, 10, "forward"), (10, 30, "backward"), (30, 40, "waiting"), (40, 45, "optimizer"),
    ]  # fmt: skip
    assert bars(axes, 1) == [(20, 30, "messages, hidden"), (30, 40, "messages, exposed")]
    assert axes.get_title(loc="left") == "overlapped"
    assert axes.get_title(loc="right") == "20 ms of messages, 50% hidden"
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["0", "0"]


def test_variants_begin_together_and_ranks_keep_their_axis():
    pair = {"first": step(), "second": step(start=7000, sent="all_gather")}
    aligned, kept = timelines(pair).axes, timelines(pair, align=False).axes
    assert [bars(axes, 0)[0][0] for axes in aligned] == [0, 0]
    assert [bars(axes, 0)[0][0] for axes in kept] == [0, 7]
    assert rows(aligned[1]) == ["compute", "all-gather"]
    assert aligned[0].get_xlim() == aligned[1].get_xlim() == pytest.approx((0, 0.045))
    assert kept[0].get_xlim() == pytest.approx((0, 0.052))


def test_the_legend_names_what_is_drawn_and_nothing_else():
    alone = step().keep({i: e for i, e in enumerate(step().events) if e.lane == 0 and e.name != "wait"})
    figure = timelines({"one device": alone})
    assert figure.axes[0].get_title(loc="right") == "no messages"
    assert rows(figure.axes[0]) == ["compute"]
    assert [text.get_text() for text in figure.legends[0].texts] == ["forward", "backward", "optimizer"]
    assert "no messages" in display(figure, alt="x").svg


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="at least one trace"):
        timelines({})
