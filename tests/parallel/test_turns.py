"""Two passes side by side: who computes when, what random numbers they draw, and what a pipeline's pairs do with it."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from playbook import launch
from playbook.layout import Layout
from playbook.model.recompute import checkpoint
from playbook.parallel.mesh import Mesh
from playbook.parallel.turns import Turns
from playbook.shapes import load
from playbook.training.config import TrainConfig
from playbook.training.data import load_corpus
from playbook.training.trainer import make_trainer
from playbook_book.instruments.pair_trace import PairTrace


def in_turn(turns: Turns, said: list[str], name: str, times: int) -> None:
    for i in range(times):
        said.append(f"{name}{i}")
        turns.hand_over()
    said.append(f"{name} ends")


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        (2, 2, "a0 b0 a1 b1 a ends b ends"),
        (0, 2, "a ends b0 b1 b ends"),
        (3, 0, "a0 b ends a1 a2 a ends"),
        (1, 3, "a0 b0 a ends b1 b2 b ends"),
    ],
)
def test_each_computes_until_it_would_wait(first, second, order):
    turns, said = Turns(), []
    for _ in range(20):  # it is always the same
        said.clear()
        turns.run(lambda: in_turn(turns, said, "a", first), lambda: in_turn(turns, said, "b", second))
        assert " ".join(said) == order


def test_alone_nobody_hands_over():
    turns = Turns()
    turns.hand_over()
    assert turns.now is None


def test_the_first_stays_in_its_thread_and_the_second_always_has_the_same():
    turns, found = Turns(), []
    for _ in range(3):
        turns.run(lambda: found.append(threading.get_ident()), lambda: found.append(threading.get_ident()))
    assert set(found[::2]) == {threading.get_ident()}
    assert len(set(found[1::2])) == 1


class Operations(TorchDispatchMode):
    """An instrument: how many operations it sees."""

    seen = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("fails", [False, True])
def test_instruments_see_both(fails):
    """And in the second thread nothing later."""
    turns, x = Turns(), torch.zeros(1)

    def adds() -> None:
        x.add(1)
        turns.hand_over()
        x.add(1)
        if fails:
            raise ValueError("lost")

    with Operations() as outer, Operations() as inner:
        try:
            turns.run(lambda: in_turn(turns, [], "a", 1), adds)
        except ValueError:
            assert fails
    assert (outer.seen, inner.seen) == (2, 2)
    turns.run(lambda: None, lambda: (x.add(1), None)[1])
    assert (outer.seen, inner.seen) == (2, 2)


@pytest.mark.parametrize("who", ["first", "second"])
def test_an_error_of_one_comes_after_the_end_of_the_other(who):
    turns, said = Turns(), []

    def fails() -> None:
        turns.hand_over()
        raise ValueError("lost")

    def goes_on() -> None:
        in_turn(turns, said, "x", 3)

    with pytest.raises(ValueError, match="lost"):
        turns.run(*((fails, goes_on) if who == "first" else (goes_on, fails)))
    assert said[-1] == "x ends"
    said.clear()
    turns.run(lambda: in_turn(turns, said, "a", 1), lambda: in_turn(turns, said, "b", 1))
    assert said == ["a0", "b0", "a ends", "b ends"]


def test_a_pass_draws_what_it_would_draw_alone():
    """Backward draws dropout masks a second time where activations are recomputed: those of its own forward pass."""
    turns = Turns()

    class Drops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.dropout(self.linear(x), 0.5)
            turns.hand_over()
            return nn.functional.dropout(x, 0.5)

    def gradients(side_by_side: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model, x = Drops(), torch.randn(4, 16, requires_grad=True)
        y = checkpoint(model, x)
        made: list[torch.Tensor] = []

        def forward() -> None:
            made.append(checkpoint(model, x.detach().requires_grad_()))

        def backward() -> None:
            y.sum().backward()

        if side_by_side:
            turns.run(forward, backward)
        else:
            forward()
            backward()
        return [*made, x.grad, *(p.grad for p in model.parameters()), torch.randn(3)]

    for alone, beside in zip(gradients(False), gradients(True), strict=True):
        torch.testing.assert_close(beside, alone, rtol=0, atol=0)


def watched(schedule: str, dispatch: str) -> tuple[list[float], list[float], list[tuple[int, int]], list]:
    """In a rank: losses and norms of two steps one after the other, and side by side; of the second of those what was
    hidden in each pair, and its trace."""
    with launch.process_group():
        layout = Layout.parse(f"pp=2,dp=2,ep=2,schedule={schedule},grad_acc=4")
        layout = layout.replace(dispatch=dispatch, node=1 if dispatch == "two-step" else None)
        shape = load("tiny-moe").replace(layers=4, hidden=64)
        config = TrainConfig(steps=2, global_batch=8, micro_batch=1, seq=16, layout=layout)
        alone, trainer = (make_trainer(shape, load_corpus(), config, Mesh(layout)) for _ in range(2))
        alone.engine.pipeline.turns = None
        expected = [alone.step() for _ in range(2)]
        pipeline, steps = trainer.engine.pipeline, [trainer.step()]
        with PairTrace(pipeline.turns) as found:
            steps.append(trainer.step())
        overlapped = sum(rank == pipeline.rank for rank, _ in pipeline.schedule.overlapped)
        assert len(found.pairs) == overlapped > 0
        both = [
            [value for step in some for value in (step.loss, step.grad_norm)] for some in (expected, steps)
        ]
        return *both, found.hidden(), [found.of(pair) for pair in range(overlapped)]


@pytest.mark.parametrize(("dispatch", "trips"), [("all-to-all", 2), ("two-step", 6)])
@pytest.mark.parametrize(("schedule", "layers"), [("dualpipe", 2), ("dualpipev", 1)])
def test_rows_of_one_travel_while_the_other_computes(ranks, schedule, layers, dispatch, trips):
    """Every layer of a stage sends rows there and back, in two steps also what they chose, its weights, and the legs
    inside the node; backward sends gradients of all but the choices, so that it may end before forward's last trip."""
    for expected, found, hidden, pairs in ranks(watched, schedule, dispatch, ranks=4).values:
        assert found == expected  # to the last bit
        backward = (trips - (dispatch == "two-step")) * layers
        assert set(hidden) <= {(trips * layers, backward), (max(backward + 1, trips * layers - 1), backward)}
        for spans in (pair[name] for pair in pairs for name in ("forward", "backward")):
            assert {span.kind for span in spans} == {"compute", "message"}
            assert all(0 <= span.start <= span.end for span in spans)
