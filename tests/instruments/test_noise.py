"""The noise scale equals the one computed from all per-sample gradients at once."""

import pytest
import torch
from helpers import GPT, tokens

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer
from playbook_book.instruments.noise import GradientNoise, gradient_noise
from playbook_book.instruments.parity import gradient_vector


def per_sample(model, x, y) -> torch.Tensor:
    rows = []
    for i in range(len(x)):
        model.zero_grad()
        total, count = model.loss(x[i : i + 1], y[i : i + 1])
        (total / count).backward()
        rows.append(gradient_vector(model).double())
    model.zero_grad()
    return torch.stack(rows)


def test_norms_and_variance_are_those_of_the_stacked_gradients():
    model = Transformer(GPT)
    x, y = tokens(GPT, 8, 12)
    noise = gradient_noise(model, x, y)
    rows = per_sample(model, x, y)
    assert list(noise.norms) == [1, 2, 4, 8]
    for batch, norm in noise.norms.items():
        means = rows.view(-1, batch, rows.shape[1]).mean(1)
        assert norm == pytest.approx(float(means.square().sum(1).mean()), rel=1e-5)
    variance = float(rows.var(0, correction=1).sum())
    assert noise.variance == pytest.approx(variance, rel=1e-5)
    assert noise.signal == pytest.approx(float(rows.mean(0).square().sum()) - variance / 8, rel=1e-5)


def test_estimates_of_known_noise_are_unbiased():
    """Gaussian gradients around a known mean: signal 4, variance 10 · 9."""
    generator = torch.Generator().manual_seed(0)
    mean = torch.zeros(10, dtype=torch.float64)
    mean[0] = 2.0
    signals, variances = [], []
    for _ in range(400):
        rows = mean + 3 * torch.randn(16, 10, generator=generator, dtype=torch.float64)
        norms = {b: float(rows.view(-1, b, 10).mean(1).square().sum(1).mean()) for b in (1, 4, 16)}
        noise = GradientNoise(norms)
        signals.append(noise.signal)
        variances.append(noise.variance)
    assert sum(signals) / 400 == pytest.approx(4.0, abs=0.5)
    assert sum(variances) / 400 == pytest.approx(90.0, rel=0.02)


def test_gradients_that_were_there_stay():
    model = Transformer(GPT)
    x, y = tokens(GPT, 2, 6)
    model.loss(x, y)[0].backward()
    before = gradient_vector(model)
    gradient_noise(model, x, y)
    assert torch.equal(before, gradient_vector(model))


def test_signal_that_drowned_is_infinite_noise():
    assert GradientNoise({1: 8.0, 2: 3.0}).scale == float("inf")


@pytest.mark.parametrize("count", [1, 3, 6])
def test_sizes_that_do_not_halve_are_refused(count):
    x, y = tokens(GPT, count, 4)
    with pytest.raises(ConfigError, match=f"{count} samples"):
        gradient_noise(Transformer(GPT), x, y)
