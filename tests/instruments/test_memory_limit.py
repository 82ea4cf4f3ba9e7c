"""A budget of bytes is kept to the byte, and what it refuses is refused as CUDA refuses it."""

import pytest
import torch
from helpers import LLAMA, tokens
from torch import nn

from playbook.instruments.memory_timeline import MemoryTimeline
from playbook.model.transformer import Transformer
from playbook_book.instruments.memory_limit import MemoryLimit


def train(limit, steps):
    """Losses of the steps that fit."""
    torch.manual_seed(0)
    model = Transformer(LLAMA, attention="reference")
    optimizer = torch.optim.AdamW(model.parameters())
    x, y = tokens(LLAMA, 2, 16)
    losses = []
    watch = MemoryLimit(limit, model, optimizer) if limit else MemoryTimeline(model, optimizer)
    with watch:
        for _ in range(steps):
            watch.mark("step")
            loss = model.loss(x, y)[0]
            loss.backward()
            losses.append(float(loss.detach()))
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return losses, watch.curves()


def test_the_limit_is_kept_to_the_byte():
    model = nn.Linear(4, 4)  # 80 bytes of parameters
    with MemoryLimit(80 + 400, model) as watch:
        a = torch.empty(100)
        assert watch.live_bytes == 480
        del a
        b = torch.empty(50)
        with pytest.raises(torch.OutOfMemoryError, match="204 bytes asked for, 280 of 480 in use"):
            torch.empty(51)
        del b


def test_a_step_fits_its_own_peak_and_nothing_less():
    losses, curves = train(None, 2)
    assert train(curves.peak, 2)[0] == losses
    with pytest.raises(torch.OutOfMemoryError):
        train(curves.peak - 1, 2)


def test_between_the_peaks_the_run_dies_in_step_2():
    first, second = (train(None, n)[1].peak for n in (1, 2))
    assert first < second
    limit = (first + second) // 2
    assert len(train(limit, 1)[0]) == 1
    with pytest.raises(torch.OutOfMemoryError):
        train(limit, 2)


def test_nothing_is_left_behind():
    model = nn.Linear(4, 4)
    x = torch.randn(8, 4)
    with pytest.raises(torch.OutOfMemoryError), MemoryLimit(100, model):
        model(x)
    with pytest.raises(torch.OutOfMemoryError), MemoryLimit(10, model):
        pass
    model(x).sum().backward()
    assert model.weight.grad is not None
    assert not model.weight._post_accumulate_grad_hooks
