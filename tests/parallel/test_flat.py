"""Vectors of many tensors: every element is in one slot, one bucket, and one rank's share."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from playbook.errors import ConfigError
from playbook.parallel.flat import FlatOrder, GradientHooks, backward_order

shapes = st.lists(st.lists(st.integers(1, 7), min_size=1, max_size=3), min_size=1, max_size=8)


def parameters(sizes) -> list[tuple[str, nn.Parameter]]:
    return [(f"p{i}", nn.Parameter(torch.randn(*size))) for i, size in enumerate(sizes)]


@given(shapes, st.integers(1, 9), st.integers(1, 200), st.none() | st.integers(1, 50), st.booleans())
def test_buckets_and_shares_cover_every_element_once(sizes, ranks, size, first, separate):
    named = parameters(sizes)
    order = FlatOrder([[p] for p in named] if separate else [named], ranks)
    numel = sum(p.numel() for _, p in named)
    assert numel <= order.length < numel + ranks * (len(named) if separate else 1)
    buckets = order.buckets(size, first)
    assert [b.start for b in buckets] + [order.length] == [0] + [b.stop for b in buckets]
    assert all(len(b) % ranks == 0 for b in buckets)
    assert all(len(b) * 4 <= max(size, 4 * ranks) for b in buckets[1:])
    assert len(buckets[0]) * 4 <= max(first or size, 4 * ranks)
    owned = torch.zeros(order.length, dtype=torch.int)
    for rank in range(ranks):
        shares = torch.zeros(order.length // ranks, dtype=torch.int)
        for bucket in buckets:
            for segment in bucket.segments(rank):
                segment.of(owned).add_(1)
                segment.of_shards(shares).add_(1)
        assert shares.max() <= 1
    real = torch.zeros(order.length, dtype=torch.int)
    for slot in order.slots:
        slot.view(real).add_(1)
    assert torch.equal(owned, real)  # padding belongs to nobody
    assert real.sum() == numel


def test_parameters_of_two_dtypes_are_refused():
    named = [("a", nn.Parameter(torch.zeros(2))), ("b", nn.Parameter(torch.zeros(2, dtype=torch.bfloat16)))]
    with pytest.raises(ConfigError, match=r"one dtype.* a has torch.float32, b has torch.bfloat16"):
        FlatOrder([named])
    with pytest.raises(ConfigError, match="there are none"):
        FlatOrder([[]])


class Chain(nn.Module):
    def __init__(self, count: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))
        self.unused = nn.Parameter(torch.zeros(5))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return x.sum()


def test_buckets_complete_in_order_while_backward_still_runs():
    model, log = Chain(4), []
    order = FlatOrder([backward_order(model)])
    hooks = GradientHooks(
        order.buckets(48), lambda slot: log.append(slot.name), lambda bucket: log.append(bucket.index)
    )
    model(torch.ones(2, 3)).backward()
    last = len(hooks.buckets) - 1  # it waits for what is never used
    assert [entry for entry in log if isinstance(entry, int)] == list(range(last))
    hooks.finish()
    assert [entry for entry in log if isinstance(entry, int)] == [b.index for b in hooks.buckets]
    hooks.skip(slot for slot in order.slots if slot.name == "unused")
    log.clear()
    with hooks.paused():
        model(torch.ones(2, 3)).backward()
    assert not [entry for entry in log if isinstance(entry, int)]
    log.clear()
    model(torch.ones(2, 3)).backward()
    assert log.index(0) < log.index("layers.0.weight")
    numbers = [entry for entry in log if isinstance(entry, int)]
    assert numbers == sorted(numbers)


def test_a_gradient_that_comes_in_two_parts_is_refused():
    model = Chain(1)
    GradientHooks(FlatOrder([backward_order(model)]).cut(), lambda slot: None, lambda bucket: None)
    model(torch.ones(1, 3)).backward()
    with pytest.raises(ConfigError, match=r"'layers.0.\w+' got its gradient in two parts"):
        model(torch.ones(1, 3)).backward()
