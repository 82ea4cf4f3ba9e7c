"""Recomputation changes memory and time, never a gradient."""

import pytest
import torch
from helpers import BLOCKS, GPT, gradients, relative_error, tokens
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from playbook.errors import ConfigError
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.layout import RECOMPUTE
from playbook.model.recompute import checkpoint
from playbook.model.transformer import Transformer
from playbook.planning.flops import step_flops
from playbook_book.instruments.measured import SavedActivations, count_flops
from playbook_book.segments import in_segments


def run(shape, recompute, attention, seed=0, **autocast):
    """Loss and gradients of one step, dropout seeded."""
    model = Transformer(shape, recompute=recompute, attention=attention)
    x, y = tokens(shape, 3, 11)
    torch.manual_seed(seed)
    with torch.autocast("cpu", enabled=bool(autocast), **autocast):
        total, _ = model.loss(x, y)
    total.backward()
    return total.item(), gradients(model)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("attention", ["reference", "sdpa"])
@pytest.mark.parametrize("recompute", ["selective", "full", "mlp"])
@pytest.mark.parametrize("block", BLOCKS)
def test_gradients_are_identical(block, recompute, attention, dropout):
    shape = BLOCKS[block].replace(dropout=dropout)
    loss, grads = run(shape, recompute, attention)
    expected_loss, expected = run(shape, "none", attention)
    assert loss == expected_loss
    assert relative_error(grads, expected) <= 1e-6


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_autocast_is_the_same_in_the_second_forward(recompute):
    a = run(GPT, recompute, "reference", dtype=torch.bfloat16)
    b = run(GPT, "none", "reference", dtype=torch.bfloat16)
    assert a[0] == b[0]
    assert relative_error(a[1], b[1]) <= 1e-6


def test_a_wrong_random_state_would_be_seen():
    """Without replaying the random state, dropout differs between the two forward passes: the test above can fail."""
    x = torch.ones(64, requires_grad=True)
    torch.manual_seed(0)
    y = checkpoint(lambda t: torch.dropout(t, 0.5, True), x, preserve_rng=False)
    y.sum().backward()
    assert not torch.equal(x.grad, y.detach())
    x.grad = None
    y = checkpoint(lambda t: torch.dropout(t, 0.5, True), x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_the_random_stream_goes_on_as_if_nothing_had_been_replayed():
    x = torch.ones(8, requires_grad=True)
    torch.manual_seed(0)
    y = checkpoint(lambda t: torch.dropout(t, 0.5, True), x)
    drawn = [torch.rand(1)]  # by who comes between forward and backward
    y.sum().backward()
    drawn.append(torch.rand(1))
    torch.manual_seed(0)
    torch.dropout(x, 0.5, True)
    assert drawn == [torch.rand(1), torch.rand(1)]


@pytest.mark.parametrize("block", BLOCKS)
def test_each_mode_saves_less_than_the_one_before(block):
    shape, saved = BLOCKS[block], []
    for mode in RECOMPUTE:
        model = Transformer(shape, attention="reference", recompute=mode)
        x, y = tokens(shape, 2, 32)
        with SavedActivations(model, (x, y)) as s:
            model.loss(x, y)
        saved.append(s.bytes)
    assert saved[0] > saved[1] > saved[2]


@pytest.mark.parametrize("mode", [*RECOMPUTE, "mlp", "core_attn+moe", "shared_experts", "full:1", "moe:1"])
@pytest.mark.parametrize("block", BLOCKS)
def test_flops_counted_are_those_predicted(block, mode):
    shape = BLOCKS[block]
    model = Transformer(shape, attention="reference", recompute=mode)
    x, y = tokens(shape, 2, 16)
    counted = count_flops(lambda: model.loss(x, y)[0].backward())
    assert counted == step_flops(shape, 2, 16, recompute=mode).hardware


def test_agrees_with_torch_checkpoint():
    layer = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8))
    results = []
    for f in (lambda x: checkpoint(layer, x), lambda x: torch_checkpoint(layer, x, use_reentrant=False)):
        layer.zero_grad()
        x = torch.linspace(-1, 1, 16).reshape(2, 8).requires_grad_()
        f(x).square().sum().backward()
        results.append({"x": x.grad, **gradients(layer)})
    assert relative_error(*results) == 0


def test_nothing_is_kept_without_gradients():
    with torch.no_grad():
        out = checkpoint(torch.sin, torch.ones(3, requires_grad=True))
    assert out.grad_fn is None


def test_nested_recomputation():
    x = torch.linspace(-1, 1, 5).requires_grad_()
    checkpoint(lambda t: checkpoint(torch.sin, t * 2).cos(), x).sum().backward()
    ours, x.grad = x.grad, None
    (x * 2).sin().cos().sum().backward()
    torch.testing.assert_close(ours, x.grad)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("block", BLOCKS)
def test_segments_change_no_gradient(block, size):
    shape = BLOCKS[block].replace(layers=3, dropout=0.2)
    x, y = tokens(shape, 2, 9)
    plain, cut = Transformer(shape), Transformer(shape)
    cut.blocks = in_segments(cut.blocks, size)
    losses = []
    for model in (plain, cut):
        torch.manual_seed(3)
        loss = model.loss(x, y)[0]
        loss.backward()
        losses.append(loss.item())
    assert losses[0] == losses[1]
    pairs = zip(plain.parameters(), cut.parameters(), strict=True)
    assert all(torch.allclose(a.grad, b.grad, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_peak_of_a_chain_is_lowest_at_the_square_root_of_its_length():
    peaks = {}
    for size in (1, 2, 4, 8, 16):
        chain = [torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh()) for _ in range(16)]
        model = torch.nn.Sequential(*in_segments(chain, size))
        x = torch.randn(64, 32, requires_grad=True)
        with MemoryTimeline(model) as timeline:
            model(x).sum().backward()
        peaks[size] = max(timeline.curves().bytes["activations"])
    assert min(peaks, key=peaks.__getitem__) == 4


def test_a_last_segment_may_be_shorter():
    sizes = [len(segment.blocks) for segment in in_segments([torch.nn.Tanh() for _ in range(7)], 3)]
    assert sizes == [3, 3, 1]
    with pytest.raises(ConfigError, match="size is 0"):
        in_segments([], 0)
