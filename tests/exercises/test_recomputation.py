"""Wrong answers that readers of the chapter on recomputation may well give, and what they are told."""

import pytest
import torch
from torch.autograd import Function

from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.model.recompute import checkpoint, in_segments
from playbook_book.exercises import grade
from playbook_book.exercises.recomputation import _peak


def every_input_all_the_time(entering, inside, size):
    starts = range(0, len(inside), size)
    return sum(entering[::size]) + max(sum(inside[i : i + size]) for i in starts)


def inputs_of_all_blocks(entering, inside, size):
    return sum(entering) + max(sum(inside[i : i + size]) for i in range(0, len(inside), size))


def formula(entering, inside, size):
    return len(inside) / size * entering[0] + size * inside[0]


def no_insides(entering, inside, size):
    return sum(entering[::size])


def last_segment(entering, inside, size):
    return sum(entering[::size]) + sum(inside[-size:])


class Planted(Function):
    """The checkpoint of the exercise: no state of the generator is kept."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.function = function
        ctx.save_for_backward(x)
        with torch.no_grad():
            return function(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            ctx.function(x).backward(gradient)
        return None, x.grad


class NotGivenBack(Planted):
    """Replays the masks, and leaves the generator where the replay ended."""

    @staticmethod
    def forward(ctx, function, x):
        ctx.state = torch.get_rng_state()
        return Planted.forward(ctx, function, x)

    @staticmethod
    def backward(ctx, gradient):
        torch.set_rng_state(ctx.state)
        return Planted.backward(ctx, gradient)


class NotedTooLate(Planted):
    """Notes the state behind the first pass, not before it."""

    @staticmethod
    def forward(ctx, function, x):
        out = Planted.forward(ctx, function, x)
        ctx.state = torch.get_rng_state()
        return out

    @staticmethod
    def backward(ctx, gradient):
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(ctx.state)
            return Planted.backward(ctx, gradient)


class OneSeed(Planted):
    """A fixed seed in both passes: the same masks everywhere."""

    @staticmethod
    def forward(ctx, function, x):
        torch.manual_seed(7)
        return Planted.forward(ctx, function, x)

    @staticmethod
    def backward(ctx, gradient):
        torch.manual_seed(7)
        return Planted.backward(ctx, gradient)


def no_checkpoint(function, x):
    return function(x)


def cut_off(function, x):
    return function(x.detach())


@pytest.mark.parametrize(
    ("name", "answer", "hint"),
    [
        ("mfu", 140 / 312, "that is the HFU"),
        ("mfu", 140 / 312 * 4 / 3, "MFU is below HFU"),
        ("mfu", 140 / 312 * 2 / 3, "how many parts are computed"),
        ("mfu", 140 / 312 / 4, "what the repetition takes"),
        ("mfu", 105, "a share of the peak"),
        ("mfu", 105e12, "a share of the peak"),
        ("mfu", 33.65, "not in per cent"),
        ("mfu", 0.5, "0.5 is too large. Which of the four parts"),
        ("peak", formula, "right with eight blocks alike, two to a segment; with eight blocks alike, three"),
        ("peak", inputs_of_all_blocks, "two to a segment, 1.11 times the peak"),
        ("peak", every_input_all_the_time, "three to a segment, 1.02 times the peak"),
        ("peak", last_segment, "three to a segment"),
        ("peak", no_insides, "one to a segment, 0.32 times the peak"),
        ("peak", lambda *_: None, "this is NoneType"),
        (
            "dropout",
            (Planted.forward, Planted.backward),
            "right without dropout; with dropout, the loss is right, and the gradient",
        ),
        ("dropout", NotedTooLate.apply, "the loss is right, and the gradient"),
        ("dropout", NotGivenBack.apply, "the next step would draw masks that were used before"),
        ("dropout", OneSeed.apply, "with dropout, the loss is not that of the plain step"),
        ("dropout", no_checkpoint, "times the bytes of the inputs"),
        ("dropout", cut_off, "gets no gradient"),
    ],
)
def test_wrong_answers_get_their_hint(name, answer, hint):
    verdict = grade(f"recomputation.{name}", answer)
    assert not verdict.right
    assert hint in verdict.text


def test_the_librarys_checkpoint_passes():
    assert grade("recomputation.dropout", checkpoint).right


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("widths", [[64] * 6, [8, 16, 32, 64, 128], [128, 64, 32, 16, 8], [8, 8, 256, 8, 8]])
def test_the_walk_is_what_a_step_allocates(widths, size):
    """A block of width w takes 8 numbers to w and to 8 again; autograd keeps what enters and the tanh."""
    rows = 16
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(8, w), torch.nn.Tanh(), torch.nn.Linear(w, 8)) for w in widths
    ]
    model = torch.nn.Sequential(*in_segments(blocks, size))
    x = torch.randn(rows, 8, requires_grad=True)
    with MemoryTimeline(model) as timeline:
        model(x).sum().backward()
    measured = max(timeline.curves().bytes["activations"])
    # Inside a block: the tanh's output, and its result, which is the next block's input.
    predicted = _peak([4 * rows * 8] * len(widths), [4 * rows * (w + 8) for w in widths], size)
    assert abs(measured - predicted) <= 2 * 4 * rows * max(widths)
