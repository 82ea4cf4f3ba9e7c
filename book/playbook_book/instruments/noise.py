"""How noisy a gradient is: the gradient noise scale of McCandlish et al. 2018 (arXiv 1812.06162), measured.

The gradient of a batch is an average over its samples, each of which points somewhere else. With G the average over all
text and Σ the covariance between samples, a batch of B has on average a squared gradient norm of

    |G_B|² = |G|² + tr Σ / B        (their equation 2.7 and appendix A.1)

signal and noise. They are equal at B = tr Σ / |G|², the *simple noise scale*: below it twice the batch is nearly twice
as good a step, far above it twice the batch is the same step for twice the price.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from playbook.errors import ConfigError
from playbook.model.transformer import Transformer


@dataclass(frozen=True)
class GradientNoise:
    """What was measured: ``norms[B]`` is the mean of |G_B|² over all batches of B neighbouring samples."""

    norms: dict[int, float]

    @property
    def samples(self) -> int:
        """All the samples: the largest batch."""
        return max(self.norms)

    @property
    def variance(self) -> float:
        """tr Σ: the variance of one sample's gradient, summed over all parameters; unbiased."""
        return (self.norms[1] - self.norms[self.samples]) / (1 - 1 / self.samples)

    @property
    def signal(self) -> float:
        """|G|², without the noise that is left in the largest batch; unbiased, so it can come out below zero."""
        return self.norms[self.samples] - self.variance / self.samples

    @property
    def scale(self) -> float:
        """tr Σ / |G|² in samples; infinite where the signal drowned."""
        return self.variance / self.signal if self.signal > 0 else float("inf")


def gradient_noise(model: Transformer, inputs: Tensor, targets: Tensor) -> GradientNoise:
    """Gradients of each sample of (B, s), and of batches of 2, 4, … B of them, for the price of B small backward passes.

    Pairs are added like the games of a knockout tournament, so that log₂ B gradients exist at a time, not B. Leaves
    ``.grad`` as it was. Raises ConfigError unless B is a power of two, at least 2: batches that divide one another.
    """
    count = len(inputs)
    if count < 2 or count & (count - 1):
        raise ConfigError(f"the batch has {count} samples, but must have a power of two, at least 2")
    found: dict[int, list[float]] = {}

    def added(low: int, high: int) -> Tensor:
        """Sum of the gradients of samples low … high − 1; notes the norm of their mean."""
        if high - low == 1:
            total = _sample_gradient(model, inputs[low:high], targets[low:high])
        else:
            middle = (low + high) // 2
            total = added(low, middle).add_(added(middle, high))
        mean = total / (high - low)
        found.setdefault(high - low, []).append(float(mean.square().sum()))
        return total

    added(0, count)
    return GradientNoise({b: sum(found[b]) / len(found[b]) for b in sorted(found)})


def _sample_gradient(model: Transformer, x: Tensor, y: Tensor) -> Tensor:
    """The gradient of the mean loss, all parameters end to end, in fp64: (number of parameters,)."""
    total, tokens = model.loss(x, y)
    parameters = [p for p in model.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(total / tokens, parameters)
    return torch.cat([g.flatten() for g in gradients]).double()
