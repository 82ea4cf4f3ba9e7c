"""One training step taken apart: the model's boxes forward, then backward, one at a time, with the time of each.

``loss.backward()`` walks through the whole model at once. Here the chain rule is applied box by box: each gets the
gradient of its output and hands back the gradient of its input. The result is the same to the last bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from playbook.instruments.measure import synchronize
from playbook.model.transformer import Transformer


@dataclass
class Box:
    """A part of the model: its name, its modules, what it computes, and the seconds that took."""

    name: str
    modules: tuple[nn.Module, ...]
    run: Callable[[Tensor], Tensor]
    forward_s: float = 0.0
    backward_s: float = 0.0

    @property
    def parameters(self) -> int:
        """How many it trains: as many as it has gradients."""
        return sum(p.numel() for m in self.modules for p in m.parameters())


def boxes(model: Transformer, targets: Tensor) -> list[Box]:
    """The model as a row of boxes, from tokens to mean loss: embedding, each block, head with loss."""
    s = targets.shape[1]
    rotary = () if model.cos is None or model.sin is None else (model.cos[:s], model.sin[:s])

    def loss(x: Tensor) -> Tensor:
        logits = model.head(model.final_norm(x)).float()  # (b, s, vocab)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    embeddings = [m for m in (model.embedding, model.position_embedding) if m is not None]

    def through(block: nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: model.run_block(block, x, *rotary)

    return [
        Box("embedding", tuple(embeddings), model.embed),
        *(Box(f"block {i}", (block,), through(block)) for i, block in enumerate(model.blocks, 1)),
        Box("head", (model.final_norm, model.head), loss),
    ]


def step_by_boxes(row: list[Box], tokens: Tensor) -> Tensor:
    """Forward through ``row``, then backward. Fills ``.grad``; returns the loss."""
    passed, x = [], tokens
    for box in row:
        # Cut the graph here: a box knows no other, only what it is given.
        given = x.detach().requires_grad_(x.is_floating_point())
        box.forward_s, x = _timed(box.run, given)
        passed.append((box, given, x))
    gradient: Tensor | None = torch.ones_like(x)  # of the loss, by itself
    for box, given, made in reversed(passed):
        box.backward_s, _ = _timed(made.backward, gradient)
        gradient = given.grad
    return x.detach()


def _timed(function: Callable, x: Tensor | None) -> tuple[float, Tensor]:
    device = "cpu" if x is None else x.device
    synchronize(device)
    start = time.perf_counter()
    result = function(x)
    synchronize(device)
    return time.perf_counter() - start, result
