"""The instruments are checked against bytes and FLOPs that can be counted by hand, and against torch's own."""

from functools import partial

import pytest
import torch
from helpers import BLOCKS, GPT, LLAMA, tokens
from torch import nn

from playbook.instruments.measure import count_traffic, operations
from playbook.model.transformer import Transformer
from playbook.planning.flops import forward_flops, step_flops
from playbook_book.instruments.measured import (
    SavedActivations,
    compare_times,
    count_flops,
    gradient_bytes,
    optimizer_bytes,
    parameter_bytes,
    seconds_in_turns,
)


class Two(nn.Module):
    """Two linear layers with a GELU between: what backward needs is known exactly."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x):
        return self.b(torch.nn.functional.gelu(self.a(x)))


def test_saved_bytes_of_a_small_network_by_hand():
    model, x = Two(), torch.randn(5, 8)
    with SavedActivations(model, (x,)) as saved:
        model(x)
    # a needs its input x (not counted: it is the model's), GELU its input, b its input.
    assert saved.bytes == 5 * 16 * 4 + 5 * 16 * 4
    assert saved.by_module() == {"": 5 * 16 * 4, "b": 5 * 16 * 4}
    assert [t.kind for t in saved.tensors] == ["input", "activation", "activation"]


def test_a_storage_counts_once():
    model, x = nn.Linear(4, 4), torch.randn(3, 4, requires_grad=True)
    with SavedActivations(model) as saved:
        y = x * 2
        (y * y.view(3, 4) + y.T.sum() * y).sum()
    assert saved.bytes == 3 * 4 * 4 + 4  # y once, and the scalar


def test_autocast_copies_of_weights_are_no_activations():
    model, x = Two(), torch.randn(5, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), SavedActivations(model, (x,)) as saved:
        model(x)
    copies = [t for t in saved.tensors if t.kind == "weight copy"]
    # a's input needs no gradient, so only b's weight is kept for backward.
    assert sum(t.bytes for t in copies) == 16 * 4 * 2
    assert saved.bytes == 5 * 8 * 2 + 5 * 16 * 2 + 5 * 16 * 2  # x in bf16, GELU's input, b's input


def test_measuring_changes_no_gradient():
    x, y = tokens(GPT, 2, 9)
    plain, watched = Transformer(GPT), Transformer(GPT)
    plain.loss(x, y)[0].backward()
    with SavedActivations(watched, (x, y)):
        loss = watched.loss(x, y)[0]
    loss.backward()
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), watched.parameters(), strict=True)
    )
    assert not watched._forward_hooks


def test_an_exception_leaves_no_hook_behind():
    model = Two()
    with pytest.raises(RuntimeError), SavedActivations(model):
        model(torch.randn(5, 7))
    assert not model._forward_pre_hooks
    assert not model._forward_hooks
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t):
        model(torch.randn(5, 8))


@pytest.mark.parametrize("block", BLOCKS)
def test_states_have_the_bytes_of_the_parameters(block):
    shape = BLOCKS[block]
    model = Transformer(shape)
    optimizer = torch.optim.AdamW(model.parameters())
    assert gradient_bytes(model) == optimizer_bytes(optimizer) == 0
    x, y = tokens(shape, 2, 9)
    model.loss(x, y)[0].backward()
    optimizer.step()
    assert parameter_bytes(model) == gradient_bytes(model) == 4 * shape.num_parameters
    assert optimizer_bytes(optimizer) == 8 * shape.num_parameters


@pytest.mark.parametrize("block", BLOCKS)
def test_counted_flops_are_the_formula(block):
    shape = BLOCKS[block]
    model = Transformer(shape, attention="reference")
    x, y = tokens(shape, 3, 16)
    assert count_flops(lambda: model.loss(x, y)) == sum(forward_flops(shape, 3, 16).values())
    assert count_flops(lambda: model.loss(x, y)[0].backward()) == step_flops(shape, 3, 16).model


def test_times_are_medians_of_turns():
    order = []
    times = compare_times({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, repeats=3)
    assert order == ["a", "b"] * 4
    assert times.keys() == {"a", "b"}
    assert all(0 < t < 1 for t in times.values())


def test_turns_go_forth_and_back_and_the_first_do_not_count():
    order = []
    steps = {name: partial(order.append, name) for name in "abc"}
    times = seconds_in_turns(steps, 3, warm_up=1, reverse=True)
    assert "".join(order) == "abccbaabccba"
    assert [len(seconds) for seconds in times.values()] == [3, 3, 3]


def test_a_slower_function_is_seen_to_be_slower():
    a, b = torch.randn(64, 64), torch.randn(768, 768)
    times = compare_times({"small": lambda: a @ a, "large": lambda: b @ b}, repeats=3)
    assert times["large"] > times["small"]


def test_bf16_parameters_save_half():
    x, y = tokens(LLAMA, 2, 16)
    saved = {}
    for dtype in (torch.float32, torch.bfloat16):
        model = Transformer(LLAMA, attention="reference", dtype=dtype)
        with SavedActivations(model, (x, y)) as s:
            model.loss(x, y)
        saved[dtype] = sum(v for name, v in s.by_module().items() if name.startswith("blocks"))
    assert 0.49 < saved[torch.bfloat16] / saved[torch.float32] < 0.6  # statistics stay in fp32


@pytest.mark.parametrize("block", BLOCKS)
def test_a_model_on_the_meta_device_saves_the_same_bytes(block):
    x, y = tokens(BLOCKS[block], 2, 16)
    saved = []
    for device in ("cpu", "meta"):
        model = Transformer(BLOCKS[block], attention="reference", device=device)
        with SavedActivations(model, (x, y)) as s:
            model.loss(x.to(device), y.to(device))
        saved.append(s.by_module(1)["blocks"])
    assert saved[0] == saved[1]


def test_a_model_of_any_size_is_built_on_the_meta_device():
    model = Transformer("llama3-8b", device="meta")
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248


def test_flash_attention_computes_its_scores_twice():
    model = Transformer(LLAMA, attention="sdpa")
    x, y = tokens(LLAMA, 3, 16)
    step = step_flops(LLAMA, 3, 16)
    assert count_flops(lambda: model.loss(x, y)) == step.forward
    scores = forward_flops(LLAMA, 3, 16)["attention scores"]
    assert count_flops(lambda: model.loss(x, y)[0].backward()) == step.model + scores


def test_traffic_by_hand():
    a, b = torch.ones(4, 8), torch.ones(8, 2)
    assert count_traffic(lambda: a @ b) == 4 * (4 * 8 + 8 * 2 + 4 * 2)
    # The reshape copies, the views do not.
    assert count_traffic(lambda: a.t().reshape(4, 8).view(32)) == 4 * 2 * 32
    assert count_traffic(lambda: a.add_(1)) == 4 * 2 * 32
    assert count_traffic(lambda: b[:1].expand(50, 2) + 0) == 4 * (16 + 100)  # the storage once, not 50 times
    assert count_traffic(lambda: torch.empty(1000)) == 0
    assert count_traffic(lambda: a * a) == 4 * 2 * 32  # read once
    assert count_traffic(lambda: a.copy_(b.view(4, 4).repeat(1, 2))) == 4 * (
        16 + 32 + 2 * 32
    )  # a itself is not read


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_operations_one_by_one(device):
    """Cross-entropy: a softmax that reads and writes all logits, and a loss that picks one of each row."""
    z = torch.zeros(8, 100, device=device, requires_grad=True)
    targets = torch.zeros(8, dtype=torch.long, device=device)
    found: list[torch.Tensor] = []
    forward = operations(lambda: found.append(torch.nn.functional.cross_entropy(z, targets, reduction="sum")))
    backward = operations(lambda: torch.autograd.grad(found[0], z))
    assert [(one.name, one.read, one.written) for one in forward] == [
        ("_log_softmax", 3200, 3200),
        ("nll_loss_forward", 8 * 8, 8),  # targets; a loss and a weight
    ]
    assert [one.name for one in backward] == ["ones_like", "nll_loss_backward", "_log_softmax_backward_data"]
    assert [one.bytes for one in backward[1:]] == [3200 + 8 * 8 + 8, 3 * 3200]


def test_a_flash_kernel_moves_less_than_the_formula_written_out():
    x, y = tokens(LLAMA, 2, 40)
    moved = {}
    for attention in ("reference", "sdpa"):
        model = Transformer(LLAMA, attention=attention)
        moved[attention] = count_traffic(lambda model=model: model.loss(x, y)[0].backward())
    assert moved["sdpa"] < moved["reference"]


@pytest.mark.parametrize("block", BLOCKS)
def test_under_autocast_layers_that_share_an_input_share_its_copy(block):
    shape = BLOCKS[block]
    x, y = tokens(shape, 2, 16)
    model = Transformer(shape)
    with torch.autocast("cpu", dtype=torch.bfloat16), SavedActivations(model, (x, y)) as saved:
        model.loss(x, y)
    copies = [
        t for t in saved.tensors if t.module.startswith("blocks.0") and t.module.split(".")[-1] in "qkv"
    ]
    assert [t.bytes for t in copies if t.kind == "activation"] == [2 * 2 * 16 * shape.hidden]
