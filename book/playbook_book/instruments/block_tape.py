"""What every block of a model does during a step, and what it holds: forward, forward again, backward."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from playbook.instruments.measure import synchronize
from playbook.instruments.memory_timeline import MemoryTimeline
from playbook_book.segments import RecomputedBlocks


@dataclass
class Pass:
    """One pass through one block. ``start`` and ``end`` are seconds since the tape began."""

    kind: str  # "forward", "again" (a forward pass inside backward) or "backward"
    block: int
    start: float
    end: float = 0.0
    fingerprint: float = 0.0  # sum of the output (of the gradient, in a backward pass)


class BlockTape:
    """Notes every pass through a block of ``model`` while the ``with`` statement runs, in the order in which they end.

        with BlockTape(model) as tape:
            model.loss(x, y)[0].backward()
        [(p.kind, p.block) for p in tape.passes]

    A pass belongs to the second forward when a backward pass is running.
    """

    def __init__(self, model: nn.Module):
        self.model, self.blocks = model, _blocks(model)
        self.device = next(model.parameters()).device
        self.passes: list[Pass] = []
        self._open: dict[tuple[str, int], Pass] = {}

    def __enter__(self) -> BlockTape:
        self._handles = []
        for i, block in enumerate(self.blocks):
            self._handles.append(block.register_forward_pre_hook(self._entering(i)))
            self._handles.append(block.register_forward_hook(self._leaving(i)))
        self._origin = self._now()
        return self

    def __exit__(self, *error: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _now(self) -> float:
        synchronize(self.device)
        return time.perf_counter()

    def _begin(self, kind: str, block: int) -> None:
        self._open[kind, block] = Pass(kind, block, self._now() - self._origin)

    def _finish(self, kind: str, block: int, result: Tensor) -> None:
        noted = self._open.pop((kind, block))
        noted.end, noted.fingerprint = self._now() - self._origin, float(result.detach().double().sum())
        self.passes.append(noted)

    def _entering(self, i: int) -> Callable[..., None]:
        return lambda *_: self._begin(_kind(), i)

    def _leaving(self, i: int) -> Callable[..., None]:
        def hook(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            self._finish(_kind(), i, output)
            if output.requires_grad:  # the pass that builds the graph: backward will come back here
                output.register_hook(lambda _: self._begin("backward", i))
                given[0].register_hook(lambda gradient: self._finish("backward", i, gradient))

        return hook


def _blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks of the model, also those in segments."""
    top: Any = model.blocks
    return [
        block for part in top for block in (part.blocks if isinstance(part, RecomputedBlocks) else [part])
    ]


def _kind() -> str:
    return "again" if torch._C._current_graph_task_id() != -1 else "forward"


@dataclass(frozen=True)
class HeldActivations:
    """Bytes of activations alive after each birth or death of any storage.

    ``kept[i]`` is what the forward pass of block ``i`` left, ``other`` what the rest of the model did, ``again`` what a
    second forward pass brought back. Backward begins at event ``turn``.
    """

    kept: list[list[int]]
    other: list[int]
    again: list[int]
    turn: int

    @property
    def peak(self) -> int:
        return max(sum(at) for at in zip(*self.kept, self.other, self.again, strict=True))


def held_activations(model: nn.Module, loss: Callable[[], Tensor]) -> HeldActivations:
    """Run ``loss().backward()`` and note which block's activations are alive when."""
    blocks = _blocks(model)
    with MemoryTimeline(model) as timeline:

        def marks(label: str) -> Callable[..., None]:
            return lambda *_: timeline.mark(label) if _kind() == "forward" else None

        handles = [block.register_forward_pre_hook(marks(str(i))) for i, block in enumerate(blocks)]
        handles.append(blocks[-1].register_forward_hook(marks("after")))
        value = loss()
        timeline.mark("backward")
        value.backward()
        del value
        for handle in handles:
            handle.remove()
    return _attributed(timeline, len(blocks))


def _attributed(timeline: MemoryTimeline, blocks: int) -> HeldActivations:
    """Every activation to the block during whose forward pass it was born, or to the second forward pass."""
    events = len(timeline.curves().total)
    rows = {label: [0] * events for label in [*map(str, range(blocks)), "before", "after", "backward"]}
    for a in timeline.allocations:
        if a.category == "activations":
            label = next((name for event, name in reversed(timeline.marks) if event < a.born), "before")
            for event in range(a.born, events if a.died is None else a.died):
                rows[label][event] += a.bytes
    other = [sum(at) for at in zip(rows["before"], rows["after"], strict=True)]
    turn = next(event for event, name in timeline.marks if name == "backward")
    return HeldActivations([rows[str(i)] for i in range(blocks)], other, rows["backward"], turn)
