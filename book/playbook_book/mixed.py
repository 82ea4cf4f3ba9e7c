"""Training in FP16 with the three tricks that make it work, each of which can be left out, and AdamW on BF16 weights.

The tricks are those of Micikevicius et al. 2017 (arXiv 1710.03740, section 3): weights that the optimizer updates in
fp32, a loss that is scaled, and sums in fp32. FP16 is emulated: numbers are rounded to it, by a cast there and back, and
computed with in fp32. That gives the numbers of a tensor core, which multiplies in FP16 and adds up in fp32; a CPU's own
FP16 is slow.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw as adamw_

from playbook._checks import unknown
from playbook.errors import ConfigError
from playbook.model.linear import Products, linear_layers
from playbook.model.transformer import Transformer
from playbook.parallel.engine import Engine
from playbook.precision.casts import round_to
from playbook.shapes import ModelShape
from playbook.training.data import TokenBatches, load_corpus
from playbook.training.loss_scale import LossScale
from playbook.training.optimizer import adamw, warmup_cosine

#: Elements that a tensor core multiplies before it rounds a sum to FP16 (mma.m16n8k16 with FP16 accumulators).
CHUNK = 16


def half(x: Tensor) -> Tensor:
    """x rounded to FP16, in fp32; what is too large becomes infinite."""
    return x.half().float()


class HalfProducts(Products):
    """Products of FP16 matrices whose result is in FP16; sums are in fp32, or with ``wide`` false in FP16 as well."""

    def __init__(self, wide: bool = True):
        self.wide = wide

    def output(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """x·Wᵀ + b: (…, in), (out, in), (out,) -> (…, out)."""
        y = self.product(x.flatten(0, -2), weight.t()).unflatten(0, x.shape[:-1])
        return y if bias is None else half(y + half(bias))

    def input_gradient(self, dy: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
        """dy·W: (n, out), (out, in) -> (n, in)."""
        dx = self.product(dy, weight)
        return dx if onto is None else onto.add_(dx)

    def weight_gradient(self, dy: Tensor, x: Tensor, onto: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """dyᵀ·x: (n, out), (n, in) -> (out, in)."""
        dw = self.product(dy.t(), x)
        return dw if onto is None else onto.add_(dw)

    def product(self, a: Tensor, b: Tensor) -> Tensor:
        """a·b: (n, k), (k, m) -> (n, m)."""
        a, b = half(a), half(b)
        if self.wide:
            return half(a @ b)
        total = torch.zeros(len(a), b.shape[1])
        rounded = total.half()
        for k in range(0, len(b), CHUNK):
            total.addmm_(a[:, k : k + CHUNK], b[k : k + CHUNK])
            total.copy_(rounded.copy_(total))
        return total


def half_sum(x: Tensor, chunk: int = CHUNK) -> Tensor:
    """The sum of all numbers of x in FP16: ``chunk`` of them at a time exactly, then rounded; sums of sums alike."""
    x = half(x.flatten())
    while x.numel() > 1:
        x = half(F.pad(x, (0, -x.numel() % chunk)).view(-1, chunk).sum(-1))
    return x.sum()


@dataclass(frozen=True)
class Tricks:
    """Which of the three are there: fp32 master weights, a dynamic loss scale, sums in fp32."""

    master: bool = True
    scaling: bool = True
    sums: bool = True

    def __str__(self) -> str:
        names = {"master": "master weights", "scaling": "loss scaling", "sums": "fp32 sums"}
        return " + ".join(name for key, name in names.items() if getattr(self, key)) or "pure FP16"


@dataclass(frozen=True)
class Setting:
    """A run. Sizes are samples and tokens; the loss is divided by ``global_tokens``, those of the batch of which the
    samples are one micro-batch. The others are taken to give the same gradients.
    """

    shape: str | ModelShape = "tiny"
    steps: int = 200
    samples: int = 4
    seq: int = 64
    lr: float = 3e-6
    global_tokens: int = 2**26
    first_scale: float = 2.0**32
    window: int = 100
    seed: int = 0


@dataclass
class Trace:
    """What a run has shown, step by step: losses, scales, whether the step was skipped, the share of elements of the
    blocks' weight gradients that are 0, and the share of weights that an update left as they were."""

    losses: list[float] = field(default_factory=list)
    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    zeros: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)

    def final(self, steps: int = 20) -> float:
        """The mean loss of the last steps."""
        return sum(self.losses[-steps:]) / steps


class HalfRun:
    """A model trained as ``tricks`` say; None trains in fp32."""

    def __init__(self, tricks: Tricks | None, setting: Setting):
        self.tricks, self.setting, self.trace = tricks, setting, Trace()
        self.model = Transformer(setting.shape, seed=setting.seed)
        self.batches = TokenBatches(load_corpus(), setting.samples, setting.seq, setting.seed)
        self.weights = [p for p in self.model.parameters() if p.requires_grad]
        #: Micro-batches in a global batch.
        self.copies = setting.global_tokens // (setting.samples * setting.seq)
        scaled = tricks is not None and tricks.scaling
        self.scale = LossScale(setting.first_scale, setting.window) if scaled else LossScale(1.0, None)
        if tricks is not None:
            for layer in linear_layers(self.model):
                layer.products = HalfProducts(tricks.sums)
            if not tricks.master:
                self._round_weights()
        make = partial(adamw, lr=setting.lr, betas=(0.9, 0.95), weight_decay=0.1)
        self.engine = Engine.on_one_device(self.model, make)

    def run(self) -> Trace:
        """All steps."""
        for step in range(self.setting.steps):
            self.step(step)
        return self.trace

    def step(self, step: int) -> None:
        """Gradients of a micro-batch, those of the others, and an update unless something overflowed."""
        x, y = self.batches.batch(step)
        self._set_lr(step)
        self.engine.zero_grad()
        scale = self.scale.value
        loss = self.engine.accumulate(x, y, len(x), loss_scale=scale / self.copies)
        norm = self._add_the_others()
        before = [p.detach().clone() for p in self.weights]
        t = self.trace
        t.losses.append(loss.item())
        t.scales.append(scale)
        t.zeros.append(self._zeros())
        clipped = self.engine.clip(1.0, scale)
        t.skipped.append(not self.scale.update(norm if norm is not None else clipped.item()))
        if not t.skipped[-1]:
            self.engine.step()
            if self.tricks is not None and not self.tricks.master:
                self._round_weights()
            t.lost.append(_same(before, self.weights))

    def _add_the_others(self) -> float | None:
        """The gradient of the global batch, and its norm where that is a sum in FP16."""
        gradients = [p.grad for p in self.weights if p.grad is not None]
        torch._foreach_mul_(gradients, float(self.copies))
        if self.tricks is None or self.tricks.sums:
            return None
        for gradient in gradients:
            gradient.copy_(half(gradient))
        return math.sqrt(half_sum(torch.stack([half_sum(g.square()) for g in gradients])).item())

    def _zeros(self) -> float:
        matrices = [p.grad for p in self.model.blocks.parameters() if p.dim() > 1 and p.grad is not None]
        return sum(int((g == 0).sum()) for g in matrices) / sum(g.numel() for g in matrices)

    @torch.no_grad()
    def _round_weights(self) -> None:
        for p in self.weights:
            p.copy_(half(p))

    def _set_lr(self, step: int) -> None:
        s = self.setting
        lr = warmup_cosine(step, peak=s.lr, minimum=s.lr / 10, warmup=max(1, s.steps // 20), steps=s.steps)
        for group in self.engine.optimizers[0].param_groups:
            group["lr"] = lr


def _same(before: list[Tensor], after: Iterable[Tensor]) -> float:
    pairs = list(zip(before, after, strict=True))
    return sum(int((a == b).sum()) for a, b in pairs) / sum(a.numel() for a, _ in pairs)


def train_half(tricks: Tricks | None, **setting: Any) -> Trace:
    """A run in FP16 with these tricks, or in fp32 with None; ``setting`` are fields of `Setting`."""
    return HalfRun(tricks, Setting(**setting)).run()


# ---- weights in BF16

ROUNDINGS = ("nearest", "stochastic", "kahan", "master")


class Bf16AdamW(torch.optim.Optimizer):
    """AdamW on BF16 weights, with moments in fp32, and four ways to keep what an update changes below a weight's ulp.

    ``rounding`` is "nearest", which keeps nothing of it; "stochastic", up with the probability of the rest; "kahan",
    which keeps the rest in a second BF16 number and adds it to the next update (Zamirai et al. 2020, arXiv 2010.06192,
    section 3); or "master", an fp32 copy. Parameters may be of BF16, or of fp32 that hold BF16's numbers.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | list[dict],
        lr: float,
        rounding: str = "nearest",
        seed: int = 0,
        **options,
    ):
        if rounding not in ROUNDINGS:
            raise ConfigError(unknown("rounding", rounding, ROUNDINGS))
        super().__init__(params, torch.optim.AdamW([torch.zeros(1)], lr=lr, **options).defaults)
        self.rounding, self.generator = rounding, torch.Generator().manual_seed(seed)
        for p in (p for group in self.param_groups for p in group["params"]):
            if rounding == "master":
                self.state[p]["master"] = p.detach().to(torch.float32, copy=True)
            p.data.copy_(p.detach().bfloat16())

    @torch.no_grad()
    def step(self, closure=None):
        """Update in fp32, then round each weight to BF16."""
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            options = {k: group[k] for k in ("lr", "weight_decay", "eps", "maximize")}
            for p in (p for p in group["params"] if p.grad is not None):
                state, wide = self.state[p], self._wide(p)
                if "step" not in state:
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(wide), torch.zeros_like(wide)
                    state["step"] = torch.zeros(())
                first, second = [state["exp_avg"]], [state["exp_avg_sq"]]
                more = {"amsgrad": False, "beta1": beta1, "beta2": beta2, **options}
                adamw_([wide], [p.grad.float()], first, second, [], [state["step"]], **more)
                self._keep(p, wide)

    def _wide(self, p: Tensor) -> Tensor:
        """The weight with all that is known of it, in fp32."""
        state = self.state[p]
        if self.rounding == "master":
            return state["master"]
        rest = state.get("rest")
        return p.float().clone() if rest is None else p.float() + rest.float()

    def _keep(self, p: Tensor, wide: Tensor) -> None:
        if self.rounding == "stochastic":
            p.copy_(round_to(wide, "bf16", generator=self.generator))
            return
        p.copy_(wide.bfloat16())
        if self.rounding == "kahan":
            self.state[p]["rest"] = (wide - p.float()).bfloat16()


def train_bf16(rounding: str, **setting: Any) -> Trace:
    """A run with weights in BF16; products are those of fp32, so that how weights are rounded is all that differs."""
    run = HalfRun(None, Setting(**setting))
    options: dict[str, Any] = {"lr": run.setting.lr, "betas": (0.9, 0.95), "weight_decay": 0.1}
    run.engine.sets[0].optimize(
        lambda weights: Bf16AdamW([w for w, _ in weights], rounding=rounding, **options)
    )
    return run.run()
