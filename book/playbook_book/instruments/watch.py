"""Hooks on a live model: what goes in and comes out at each place of it, and which messages start there.

Forward, a message belongs to the module that runs. Backward, to the module whose output just got its gradient: PyTorch
then runs what had computed that output, and nothing else in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from playbook.instruments.counting import CollectiveEvent, CountBytes

Size = tuple[int, ...]
Spot = tuple[int | None, str]  # the block, None outside of blocks; the region
AFTER: Spot = (None, "after backward")


class Watch:
    """While it is entered: ``sizes`` going in and out by place, local ``weights``, and ``events`` by place and pass.

    ``count`` must be entered as well; messages of tp and cp are kept, those about the model's weights are not.
    """

    def __init__(self, model: Any, count: CountBytes):
        self.model, self.count, self.seen = model, count, 0
        self.sizes: dict[Spot, tuple[Size, Size]] = {}
        self.weights: dict[Spot, Size] = {}
        self.events: dict[tuple[Spot, str], list[CollectiveEvent]] = {}
        self.here: tuple[Spot, str] | None = None
        self._input: tuple[Tensor, Spot] | None = None

    def at(self, place: Spot, phase: str) -> None:
        """From now on, what is sent belongs to ``place``."""
        new, self.seen = self.count.events[self.seen :], len(self.count.events)
        if self.here is not None:
            self.events.setdefault(self.here, []).extend(e for e in new if e.group in ("tp", "cp"))
        self.here = place, phase

    def __enter__(self) -> Watch:
        self._stack = contextlib.ExitStack()
        model = self.model
        for place, module in _modules(model):
            weight = getattr(module, "weight", None)
            if weight is not None:
                self.weights[place] = tuple(weight.shape)
            self._stack.callback(module.register_forward_pre_hook(partial(self._begin, place)).remove)
            self._stack.callback(module.register_forward_hook(partial(self._end, place)).remove)
        for i, block in enumerate(model.blocks):
            for owner, names in ((block.attention, ("q", "k", "v")), (block.mlp, ("gate", "up"))):
                self._watch_all(i, [(name, getattr(owner, name)) for name in names])
            attend = self._around((i, "attention core"), block.attention.core)
            self._stack.enter_context(_replaced(block.attention, "core", attend))
            hook = block.register_forward_hook(lambda _, __, out, i=i: self._same((i, "residual 2"), out))
            self._stack.callback(hook.remove)
        loss = self._around((None, "loss"), model.token_losses)
        self._stack.enter_context(_replaced(model, "token_losses", loss))
        return self

    def __exit__(self, *error: Any) -> None:
        self.at((None, ""), "")
        self._input = None
        self._stack.close()

    def _watch_all(self, i: int, named: list[tuple[str, Any]]) -> None:
        """Layers that read one tensor (``model.linear.linears``): what enters them has one border."""
        layers = [(name, layer) for name, layer in named if layer is not None]
        places: list[Spot] = [(i, name) for name, _ in layers]
        for place, (_, layer) in zip(places, layers, strict=True):
            self.weights[place] = tuple(layer.weight.shape)
        first, before = layers[0][1], layers[0][1].forward_all

        def forward_all(found: Any, x: Tensor) -> Iterator[Tensor]:
            self.at(places[0], "forward")
            for place, out in zip(places, before(found, x), strict=True):
                self._note(place, x, out, places[0])
                yield out

        if len(layers) > 1:
            self._stack.enter_context(_replaced(first, "forward_all", forward_all))
        else:
            self._stack.callback(first.register_forward_pre_hook(partial(self._begin, places[0])).remove)
            self._stack.callback(first.register_forward_hook(partial(self._end, places[0])).remove)

    def _begin(self, place: Spot, module: Any, inputs: tuple[Tensor, ...]) -> None:
        (x,) = inputs
        if self._input is None or self._input[0] is not x:
            self._input = x, place
        self.at(self._input[1], "forward")  # layers that read one tensor have one border
        if place[1] == "norm 2":
            self._same((place[0], "residual 1"), x)

    def _end(self, place: Spot, module: Any, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        assert self._input is not None
        self._note(place, inputs[0], out, self._input[1])

    def _note(self, place: Spot, x: Tensor, out: Tensor, border: Spot) -> None:
        self.sizes[place] = tuple(x.shape), tuple(out.shape)
        if (
            out.requires_grad
        ):  # called when the gradient is complete and what computed ``out`` is about to run
            out.register_hook(lambda _: self.at(border, "backward"))

    def _same(self, place: Spot, x: Tensor) -> None:
        self.sizes[place] = tuple(x.shape), tuple(x.shape)

    def _around(self, place: Spot, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(x: Tensor, *args: Any, **named: Any) -> Tensor:
            self.at(place, "forward")
            out = function(x, *args, **named)
            self._note(place, x, out, place)
            return out

        return run


def _modules(model: Any) -> Iterator[tuple[Spot, nn.Module]]:
    yield (None, "embedding"), model.embedding
    for i, block in enumerate(model.blocks):
        attention, mlp = block.attention, block.mlp
        yield (i, "out"), attention.out
        yield from (((i, name), getattr(block, name.replace(" ", ""))) for name in ("norm 1", "norm 2"))
        yield (i, "down"), mlp.down
    yield (None, "final norm"), model.final_norm
    yield (None, "head"), model.head


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    had, before = name in vars(owner), getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if had:
            setattr(owner, name, before)
        else:  # a method of its class
            delattr(owner, name)
