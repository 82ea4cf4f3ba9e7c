"""The timeline is checked against sizes known by hand, and against torch's own tracker."""

import torch
from helpers import LLAMA, tokens
from torch import nn

from playbook.instruments.memory_timeline import CATEGORIES, MemoryTimeline, peak_bytes
from playbook.model.transformer import Transformer
from playbook_book.instruments.measured import SavedActivations


def one_step(shape=LLAMA, steps=1):
    model = Transformer(shape, attention="reference")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = tokens(shape, 2, 16)
    with MemoryTimeline(model, optimizer) as timeline:
        for _ in range(steps):
            timeline.mark("forward")
            loss = model.loss(x, y)[0]
            timeline.mark("backward")
            loss.backward()
            del loss
            timeline.mark("optimizer")
            optimizer.step()
            optimizer.zero_grad()
    return model, timeline


def test_births_and_deaths_by_hand():
    model = nn.Linear(4, 4)
    with MemoryTimeline(model) as timeline:
        a = torch.empty(10)
        b = torch.empty(20)
        view = a[2:5]
        del a
        c = b * 2
        del b, view, c
    total = timeline.curves().total
    base = (4 * 4 + 4) * 4
    # two parameters are born; then a, b, c; then b, a (with its last view) and c die
    assert total == [0, 64, base, base + 40, base + 120, base + 200, base + 120, base + 80, base]


def test_categories_of_a_training_step():
    model, timeline = one_step(steps=2)
    curves = timeline.curves()
    n = 4 * LLAMA.num_parameters
    rotary = model.cos.untyped_storage().nbytes() * 2
    assert max(curves.bytes["parameters"]) == n + rotary
    assert max(curves.bytes["gradients"]) == n
    assert curves.bytes["gradients"][-1] == 0
    counters = 4 * len(list(model.parameters()))
    assert max(curves.bytes["optimizer"]) == 2 * n + counters
    assert curves.bytes["optimizer"][-1] == 2 * n + counters
    assert [label for _, label in curves.marks] == ["forward", "backward", "optimizer"] * 2


def test_the_second_step_starts_with_the_optimizer_states_the_first_lacked():
    _, timeline = one_step(steps=2)
    curves = timeline.curves()
    starts = [i for i, label in curves.marks if label == "forward"]
    at = [{c: curves.bytes[c][i] for c in CATEGORIES} for i in starts]
    assert at[0]["optimizer"] == 0
    assert at[1]["optimizer"] > 0


def test_activations_before_backward_are_what_autograd_saves():
    model, timeline = one_step()
    curves = timeline.curves()
    i = next(i for i, label in curves.marks if label == "backward")
    x, y = tokens(LLAMA, 2, 16)
    with SavedActivations(model, (x, y)) as saved:
        model.loss(x, y)
    assert curves.bytes["activations"][i] == saved.bytes
    assert curves.bytes["activations"][-1] == 0


def test_no_curve_is_ever_negative():
    _, timeline = one_step(steps=2)
    assert all(value >= 0 for values in timeline.curves().bytes.values() for value in values)


def test_the_peak_agrees_with_torchs_own_tracker():
    from torch.distributed._tools.mem_tracker import MemTracker

    def step(model, optimizer):
        x, y = tokens(LLAMA, 2, 16)
        model.loss(x, y)[0].backward()
        optimizer.step()
        optimizer.zero_grad()

    model = Transformer(LLAMA, attention="reference")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    tracker = MemTracker()
    tracker.track_external(model, optimizer)
    with tracker:
        step(model, optimizer)
    theirs = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]["Total"]
    model = Transformer(LLAMA, attention="reference")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    with peak_bytes(model, optimizer) as ours:
        step(model, optimizer)
    assert abs(ours.bytes - theirs) / theirs < 0.01
    assert sum(ours.categories.values()) == ours.bytes


def test_memory_freed_by_recomputation_shows_in_the_peak():
    peaks = []
    for recompute in ("none", "full"):
        model = Transformer(LLAMA.replace(layers=6), attention="reference", recompute=recompute)
        x, y = tokens(LLAMA, 4, 32)
        with peak_bytes(model) as peak:
            model.loss(x, y)[0].backward()
        peaks.append(peak.bytes)
    assert peaks[1] < 0.6 * peaks[0]


def test_a_storage_that_gives_its_memory_back_and_takes_it_again():
    """What ZeRO-3 does with weights: bytes are counted while they are there, and one storage is several allocations."""
    from playbook.parallel.zero3 import resize_storage

    model, whole = nn.Linear(1, 1, bias=False), torch.zeros(100)
    view = whole[:50]
    resize_storage(whole, 0)
    with MemoryTimeline(model) as timeline:
        for _ in range(2):
            resize_storage(whole, 400)
            whole.fill_(1.0)
            assert view.sum() == 50
            resize_storage(whole, 0)
    curves = timeline.curves()
    assert max(curves.bytes["parameters"]) == 4 + 400
    assert curves.bytes["parameters"][-1] == 4
    assert sum(a.bytes == 400 for a in timeline.allocations) == 2


def test_gradients_that_were_there_can_die():
    """Tensors that are named at the start are not held: last step's gradients go when they are forgotten."""
    model = nn.Linear(10, 10, bias=False)
    model(torch.ones(1, 10)).sum().backward()
    with peak_bytes(model, tensors={"gradients": [model.weight.grad]}) as peak:
        model.zero_grad(set_to_none=True)
        x = torch.ones(100)
    assert peak.bytes == 800  # weights, and one of the other two
    assert len(x) == 100


def test_a_storage_may_die_while_curves_are_made():
    """As garbage collection has it: the history ends where the curves are asked for."""

    class Collecting(list):
        def __iter__(self):
            kept.clear()
            return super().__iter__()

    with MemoryTimeline(nn.Linear(1, 1)) as timeline:
        kept = [torch.zeros(256)]
    timeline.allocations = Collecting(timeline.allocations)
    assert timeline.curves().total[-1] >= 1024
    assert timeline.curves().total[-1] < 1024  # and then it is part of it
