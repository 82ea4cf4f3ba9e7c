"""Linear layers whose three products are computed in four bits, as a recipe says (``precision/four_bits.py``).

    y = x·Wᵀ      x and W in blocks along the inputs
    dx = dy·W     dy and W in blocks along the outputs; dy is rounded at random
    dW = dyᵀ·x    dy and x, both times a Hadamard matrix, in blocks along the tokens; dy is rounded at random

x is quantised along the tokens when it is there: that, two numbers in a byte, is all that is kept of it for backward. Of
experts, whose rows come in any number, it is kept as y reads it, and quantised once more. Tensor cores are emulated:
numbers are dequantised, products and sums are in fp32. Noise belongs to where a number stands (`precision.fp4.Noise`),
which layers learn from ``Transformer.begins``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from playbook.errors import ConfigError
from playbook.model.fp8 import AmaxHistory
from playbook.model.linear import GroupedLinear, Products, counts_of, linear_layers
from playbook.model.transformer import Transformer
from playbook.precision.four_bits import FP4Recipe
from playbook.precision.fp4 import LARGEST, FourBits, Noise, by_columns, by_rows, quantize_fp4, turned
from playbook.precision.recipes import load_fp8

#: A weight in blocks for y, and for dx.
Copies = tuple[FourBits, FourBits]


@dataclass(frozen=True)
class Taken4:
    """An input in four bits: ``rows`` for y, ``columns`` for dW, where they are here; ``dtype`` is what was quantised."""

    rows: FourBits | None
    columns: FourBits | None
    dtype: torch.dtype


class FP4(Products):
    """The products of a ``layer`` of ``model``; layers that read one tensor quantise it once (``taken``).

    The scale of a whole tensor is that of all ranks which have a part of it (`over`). Experts have `FP4Experts`.
    """

    #: Whether x is kept as dW reads it.
    keeps_columns = True

    def __init__(
        self, recipe: FP4Recipe, model: Transformer, layer: str, seed: int, history: AmaxHistory, taken: Any
    ):
        self.recipe, self._model, self._taken = recipe, model, taken
        self.history: AmaxHistory = history
        self._seed, self._layer, self._device = seed, layer, history.now.device
        self._groups: dict[str, list[dist.ProcessGroup]] = {"x": [], "dy": [], "weight": []}
        self._gradients = WeakTensorKeyDictionary()
        self._columns: dist.ProcessGroup | None = None  # whose ranks have other columns of dy
        self._tokens: list[dist.ProcessGroup] = []  # other tokens
        self._experts: dist.ProcessGroup | None = None  # other experts
        self._here = 0  # experts of this rank
        self._dtype = self._weight_dtype = torch.float32
        self._remembers = True
        self._copies: tuple[tuple[int, int, int], list[Copies]] | None = None
        self._largest_weight: tuple[int, Tensor | None] | None = None

    def over(self, group: dist.ProcessGroup, *tensors: str) -> None:
        for what in tensors:
            self._groups[what].append(group)
        if set(tensors) == {"weight", "dy"}:
            self._columns = group
        elif set(tensors) == {"x", "dy"}:
            self._tokens.append(group)
        elif len(tensors) == 3:
            self._experts = group

    def remember_no_weight(self) -> None:
        self._remembers = False

    # ---- inputs

    def take(self, x: Tensor) -> Taken4:  # type: ignore[override]
        """x (…, in) in four bits, as rows (n, in)."""
        self._dtype = x.dtype
        if x not in self._taken:
            rows, columns = x.flatten(0, -2), None
            inside = turned(rows, self.recipe) if self.keeps_columns else None
            row, column = self._agreed("x", rows, inside)
            if inside is not None:
                columns = by_columns(inside, self.recipe, column)
            self._taken[x] = Taken4(by_rows(rows, self.recipe, row), columns, x.dtype)
        return self._taken[x]

    def keep(self, x: Taken4) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _tensors(x.columns or x.rows)

    def send(self, x: Taken4) -> tuple[Tensor, ...]:  # type: ignore[override]
        return _tensors(x.rows)

    def kept(self, *saved: Tensor) -> Taken4:  # type: ignore[override]
        codes, scales, *whole = saved
        down = scales.shape[-1] == 2 * codes.shape[-1]
        scales = scales.flatten(0, -2).view(torch.float8_e4m3fn if whole else torch.float8_e8m0fnu)
        size = (self.recipe.block, 1) if down else (1, self.recipe.block)
        found = FourBits(codes.flatten(0, -2), scales, whole[0] if whole else None, size)
        return Taken4(None, found, self._dtype) if down else Taken4(found, None, self._dtype)

    # ---- products

    def output(self, x: Taken4, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """x·Wᵀ + b: rows (n, in), (out, in), (out,) -> (n, out)."""
        assert x.rows is not None
        y = _product(x.rows.dequantized(), self._weights(weight)[0][0].dequantized().t(), x.dtype)
        return y if bias is None else y.add_(bias.to(y.dtype))

    def input_gradient(self, dy: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
        dx = _product(self._rows(dy).dequantized(), self._weights(weight)[0][1].dequantized(), dy.dtype)
        return dx if onto is None else onto.add_(dx)

    def weight_gradient(self, dy: Tensor, x: Taken4, onto: Tensor | None = None) -> Tensor:  # type: ignore[override]
        """dyᵀ·x: (n, out), (n, in) -> (out, in) as the weight is; added to ``onto``, in fp32, if that is given."""
        assert x.columns is not None
        inside = turned(dy, self.recipe)
        column = self._largest(dy)[1]
        noise = self._noise(partial(self._keys, "dW", len(inside), len(dy)), dy.shape[1])
        left = by_columns(inside, self.recipe, column, noise).dequantized()
        dtype = self._weight_dtype if onto is None else torch.float32
        dw = _product(left.t(), x.columns.dequantized(), dtype)
        return dw if onto is None else onto.add_(dw)

    # ---- weights

    def copies(self, weight: Tensor) -> list[Tensor]:
        """The tensors of the weight in four bits: codes and scales."""
        return [tensor for pair in self._weights(weight) for one in pair for tensor in _tensors(one)]

    def _weights(self, weight: Tensor) -> list[Copies]:
        """The copies of a weight, or of each of a stack of them, as it is in this step."""
        self._weight_dtype = weight.dtype
        now = weight.data_ptr(), weight._version, self.history.ended
        if self._copies is not None and self._copies[0] == now:
            return self._copies[1]
        groups, block = self.recipe.weights, self.recipe.block
        stack = weight.detach().view(-1, *weight.shape[-2:])
        largest, found = self._largest_of_weight(stack), []
        for w in stack:
            first = quantize_fp4(w, groups, (groups.rows or 1, block), largest)
            square = first if self.recipe.square else quantize_fp4(w, groups, (block, 1), largest)
            found.append((first, square))
        self._copies = (now, found) if self._remembers else None
        return found

    def _largest_of_weight(self, stack: Tensor) -> Tensor | None:
        """Its largest magnitude on all ranks that have a part of it; where it comes and goes, told once a step."""
        known = self._largest_weight
        if self._remembers or known is None or known[0] != self.history.ended:
            known = self.history.ended, self._agreed("weight", stack.flatten(0, 1), None)[0]
        self._largest_weight = known
        return known[1]

    # ---- scales that ranks share

    def _agreed(self, what: str, x: Tensor, inside: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """The largest magnitudes of x and of what is ``inside`` the product of a weight's gradient, on all ranks that
        have a part of them: one message. None where a tensor has no scale of its own."""
        if not self.recipe.whole_scale:
            return None, None
        both = [x] if inside is None or not self.recipe.hadamard else [x, inside]
        found = torch.stack([t.abs().amax().float() if t.numel() else x.new_zeros(()).float() for t in both])
        for group in self._groups[what]:
            dist.all_reduce(found, dist.ReduceOp.MAX, group)
        return found[0], found[-1]

    def _largest(self, dy: Tensor, counts: list[int] | None = None) -> tuple[Tensor | None, Tensor | None]:
        """Those of a gradient, which two products read as views of one tensor; ``counts`` rows go to each expert."""
        whole, view = (dy if dy._base is None else dy._base), (dy.storage_offset(), dy.numel())
        known = self._gradients.setdefault(whole, {})
        if view not in known:
            some = [dy] if counts is None else dy.split(counts)
            inside = torch.cat([turned(part, self.recipe) for part in some]) if self.recipe.hadamard else dy
            known[view] = self._agreed("dy", dy, inside)
        return known[view]

    # ---- rounding at random

    def _rows(self, dy: Tensor, counts: list[int] | None = None) -> FourBits:
        """dy (n, out) in blocks along the outputs."""
        row, _ = self._largest(dy, counts)
        keys = partial(self._row_keys, len(dy), counts)
        return by_rows(dy, self.recipe, row, self._noise(keys, dy.shape[1]))

    def _row_keys(self, rows: int, counts: list[int] | None) -> Tensor:
        return self._keys("dx", rows, rows)

    def _noise(self, keys: Callable[[], Tensor], columns: int) -> Tensor | None:
        if not self.recipe.stochastic:
            return None
        first = self._columns.rank() * columns if self._columns else 0
        return Noise(keys()).uniform(columns, first)

    def _keys(self, what: str, rows: int, tokens: int) -> Tensor:
        """Of the rows of a gradient of so many ``tokens``, all or, with sequence parallelism, a rank's own; rows behind
        them fill up a last block."""
        device = self._device
        first, (b, s), positions = self._model.begins or (0, (1, tokens), None)
        at = torch.arange(s, device=device) if not isinstance(positions, Tensor) else positions
        if isinstance(positions, tuple):  # rows of documents, of which each micro-batch has made one
            first, at = 0, at + first * s
        if b * s != tokens:
            group = next((g for g in self._tokens if g.size() * tokens == b * s), None)
            if group is None:  # a pass that no engine has told of
                first, b, at = 0, 1, torch.arange(tokens, device=device)
            else:
                at = at.chunk(group.size())[group.rank()]
        samples = torch.arange(first, first + b, device=device).repeat_interleave(len(at))
        beyond = torch.arange(rows - tokens, device=device)
        return self._key(what, torch.cat([samples, beyond - rows]), torch.cat([at.repeat(b), beyond]))

    def _key(self, what: str, *coordinates: Tensor) -> Tensor:
        purpose = f"{what} of {self._layer} in step {self.history.count}"
        return Noise.of(self._seed, purpose, *coordinates).keys


class FP4Experts(FP4):
    """The products of experts: x is kept as y reads it, and blocks along the tokens are those of one expert.

    With ep their tensors are of all its ranks' micro-batches, and so is their scale; other layers' is of one rank's
    alone. No micro-batch of one device has both: experts alone, and mxfp4, which has no such scale, have a twin there.
    """

    keeps_columns = False

    def grouped_output(self, x: Taken4, weight: Tensor, ends: Tensor) -> Tensor:  # type: ignore[override]
        assert x.rows is not None
        parts = zip(x.rows.dequantized().split(counts_of(ends)), self._weights(weight), strict=True)
        return torch.cat([_product(rows, pair[0].dequantized().t(), x.dtype) for rows, pair in parts])

    def grouped_input_gradient(self, dy: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        counts = counts_of(ends)
        self._here = len(counts)
        parts = zip(self._rows(dy, counts).dequantized().split(counts), self._weights(weight), strict=True)
        return torch.cat([_product(rows, pair[1].dequantized(), dy.dtype) for rows, pair in parts])

    def grouped_weight_gradient(self, dy: Tensor, x: Taken4, ends: Tensor) -> Tensor:  # type: ignore[override]
        """dyᵀ·x of each expert's rows, its last block filled up with zeros: (n, out), (n, in) -> (E, out, in)."""
        assert x.rows is not None
        counts, recipe, bound = counts_of(ends), self.recipe, None
        self._here = len(counts)
        if x.rows.whole is not None:  # a transform of so many numbers makes none of them larger than this
            bound = x.rows.whole * LARGEST * (math.sqrt(recipe.block) if recipe.hadamard else 1.0)
        column, found = self._largest(dy, counts)[1], []
        pairs = zip(dy.split(counts), x.rows.dequantized().split(counts), strict=True)
        for i, (gradient, rows) in enumerate(pairs):
            inside, kept = turned(gradient, recipe), turned(rows, recipe)
            noise = self._noise(partial(self._keys_of, i, "dW", len(inside)), dy.shape[1])
            left = by_columns(inside, recipe, column, noise).dequantized()
            found.append(
                _product(left.t(), by_columns(kept, recipe, bound).dequantized(), self._weight_dtype)
            )
        return torch.stack(found)

    def _row_keys(self, rows: int, counts: list[int] | None) -> Tensor:
        return torch.cat([self._keys_of(i, "dx", n) for i, n in enumerate(counts or [])])

    def _keys_of(self, expert: int, what: str, rows: int) -> Tensor:
        """Of the rows of one of this rank's experts, in their order; other ranks have sent some of them."""
        first, (b, _), _ = self._model.begins or (0, (1, rows), None)
        if self._experts is not None:
            rank = self._experts.rank()
            expert, first = expert + rank * self._here, first - rank * b
        at = torch.arange(rows, device=self._device)
        return self._key(what, torch.full_like(at, expert), torch.full_like(at, first), at)


def _tensors(one: FourBits | None) -> tuple[Tensor, ...]:
    assert one is not None
    scales = one.scales.view(torch.uint8)
    return (one.codes, scales) if one.whole is None else (one.codes, scales, one.whole)


def _product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """a·b of dequantised numbers, summed in fp32."""
    with torch.autocast(a.device.type, enabled=False):
        return (a @ b).to(dtype)


def use_fp4(
    model: Transformer, recipe: str | FP4Recipe, leave: Collection[int] = (), seed: int = 0
) -> AmaxHistory:
    """Have the linear layers in the blocks of ``model`` multiply in four bits, but for the blocks ``leave`` and the first
    and last ones, which the recipe leaves as they are. Before the model is cut over ranks; ``seed`` is of the noise.

    Raises ConfigError for a model that the recipe leaves nothing of, and for weights that are not whole blocks.
    """
    found = load_fp8(recipe)
    assert isinstance(found, FP4Recipe)
    layers = len(model.blocks)
    first, last = found.wide_blocks(layers) or (0, 0)
    wide = {*leave, *range(first), *range(layers - last, layers)}
    history, taken = AmaxHistory(0, 0, next(model.parameters()).device), WeakTensorKeyDictionary()
    for i, block in enumerate(model.blocks):
        for j, layer in enumerate(linear_layers(block) if i not in wide else ()):
            if any(size % found.block for size in layer.weight.shape[-2:]):
                size = " × ".join(map(str, layer.weight.shape[-2:]))
                raise ConfigError(
                    f"a weight has {size} elements, but {found.name} has blocks of {found.block}"
                )
            kind = FP4Experts if isinstance(layer, GroupedLinear) else FP4
            layer.products = kind(found, model, f"layer {j} of block {i}", seed, history, taken)
    return history
