"""Linear layers whose three products are computed in FP8, as a recipe says (``precision/recipes.py``).

    y = x·Wᵀ      x and W are quantised along the inputs; of x, codes and scales are all that is kept for backward
    dx = dy·W     dy and Wᵀ are quantised along the outputs
    dW = dyᵀ·x    dyᵀ, and xᵀ from what was kept, are quantised along the tokens

Operands are in FP8, sums in fp32. A weight is quantised from its own precision, once for all micro-batches of a step.
Embeddings, routers, norms, attention and the output head stay in the precision that they had.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.weak import WeakTensorKeyDictionary

from playbook.errors import ConfigError
from playbook.model.linear import Products, counts_of, linear_layers
from playbook.model.transformer import Transformer
from playbook.precision.casts import DTYPES
from playbook.precision.formats import FORMATS
from playbook.precision.products import product
from playbook.precision.recipes import FP8Recipe, Groups, load_fp8
from playbook.precision.scaling import Quantized, amax, has_kernel, on_fp8_gpu, quantize, scales_of
from playbook.registry import lab

if TYPE_CHECKING:
    from playbook.model.linear import Taken

#: A weight for y, and for dx.
Copies = tuple[Quantized, Quantized]


class AmaxHistory:
    """The largest magnitudes of tensors in the last ``length`` steps, a column for each tensor.

    A scale that is known before its tensor is there saves a pass over it. It is a guess: what has grown since is cut.
    """

    def __init__(self, length: int, columns: int, device: torch.device):
        self.now = torch.zeros(columns, device=device)
        self.steps = torch.zeros(length, columns, device=device)
        self.count = 0
        self.ended = 0  # steps that were not made too: what is kept for one says no magnitude to the next

    def largest(self, column: int, here: Tensor) -> Tensor:
        """The largest magnitude of a tensor in the steps before this one; in the first, of the one that is ``here``."""
        torch.maximum(self.now[column], here, out=self.now[column])
        if not self.count:
            return here
        # A guess would cut what has overflowed to a finite number, and nobody would skip the step.
        return torch.where(here.isfinite(), self.steps[:, column].amax(), here)

    def forget_step(self) -> None:
        """In the place of `end_step` for a step that is not made: what overflowed in it says nothing of the next one."""
        self.now.zero_()
        self.ended += 1

    def end_step(self, group: dist.ProcessGroup | None = None) -> None:
        """What was seen in the step on any rank of ``group`` counts for those that follow."""
        if self.steps.numel():
            if group is not None:
                dist.all_reduce(self.now, dist.ReduceOp.MAX, group)
            self.steps[self.count % len(self.steps)] = self.now
            self.now.zero_()
        self.count += 1
        self.ended += 1


def quantize_both(
    x: Tensor, form: str, groups: Groups, *, scales: Tensor | None = None
) -> tuple[Quantized, Quantized]:
    """x (n, m) and xᵀ (m, n), each as `quantize`, by the book's kernel from one reading; ``scales`` can be that of x."""
    if on_fp8_gpu(x) and has_kernel(FORMATS[form], groups):
        return lab("fp8", "quantize_both")(x, form, groups, scales)
    return quantize(x, form, groups, scales=scales), quantize(x.t(), form, groups, scales=scales)


class Shared:
    """What layers of a model have in common: inputs that were taken, and on a GPU the transposes that were made last, of
    a gradient, which the product after next needs, and of an input, which the next layer may have kept as well."""

    def __init__(self) -> None:
        self.taken = WeakTensorKeyDictionary()
        self._last: dict[str, tuple[Any, Quantized]] = {}

    def turned(self, what: str, of: Tensor, make: Callable[[], Quantized]) -> Quantized:
        """The transpose of ``of``, which ``make`` makes if it was not the last one of its kind."""
        known, memory = self._last.pop(what, None), StorageWeakRef(of.untyped_storage())
        place = memory, of.storage_offset(), of.shape, of.stride(), of._version
        found = known[1] if known is not None and known[0] == place else make()
        self._last[what] = place, found
        return found

    def forget(self) -> None:
        """Backward is over, or has not begun."""
        self._last.clear()


class FP8(Products):
    """The products of one layer, whose histories are ``columns``, those of x, dy and the weight.

    What is ``shared`` by the layers of a model: those that read one tensor quantise it, and keep it, once. The scale of
    a whole tensor is that of all ranks which have a part of it (`over`). The experts of a layer share theirs.
    """

    def __init__(self, recipe: FP8Recipe, history: AmaxHistory, columns: range, shared: Shared):
        self.recipe, self._shared = recipe, shared
        self.history: AmaxHistory = history
        self._columns = dict(zip(("x", "dy", "weight"), columns, strict=True)) if columns else {}
        self._groups: dict[str, list[dist.ProcessGroup]] = {"x": [], "dy": [], "weight": []}
        self._gradients = WeakTensorKeyDictionary()  # scales of gradients that two products read
        self._dtype = self._weight_dtype = torch.float32
        self._remembers = True
        self.one_by_one = False  # for those who watch what `_quantized` makes of each tensor
        self._copies: tuple[tuple[int, int, int], list[Copies]] | None = None
        self._sent: tuple[int, Tensor] | None = None  # the step, and the weight's one scale in it

    def over(self, group: dist.ProcessGroup, *tensors: str) -> None:
        for what in tensors:
            self._groups[what].append(group)

    def remember_no_weight(self) -> None:
        self._remembers = False

    def take(self, x: Tensor) -> Quantized:
        """x (…, in) in FP8, as rows (n, in)."""
        self._dtype = x.dtype
        taken = self._shared.taken
        if x not in taken:
            self._shared.forget()
            taken[x] = self._quantized("x", x.flatten(0, -2), self.recipe.groups)
        return taken[x]

    def keep(self, x: Taken) -> tuple[Tensor, ...]:
        assert isinstance(x, Quantized)
        scales = x.scales.contiguous() if self.recipe.groups.rows else x.scales.view(())
        return _as_bytes(x.codes), _as_bytes(scales)

    def kept(self, *saved: Tensor) -> Quantized:
        codes, scales = saved
        codes = codes.flatten(0, -2).view(DTYPES[self.recipe.forward])
        size = self.recipe.groups.size(codes.shape)
        if scales.dtype == torch.uint8:
            scales = scales.view(torch.float8_e8m0fnu)
        return Quantized(
            codes, scales.flatten(0, -2) if scales.dim() else scales.view(1, 1), size, self._dtype
        )

    def pack(self, rows: Tensor) -> Tensor:
        """Codes and scales, byte by byte, where scales are powers of two: else they would be others when taken again."""
        if not self.recipe.groups.powers:
            return rows
        taken = self.take(rows)
        return torch.cat([_as_bytes(taken.codes), taken.scales.contiguous().view(torch.uint8)], 1)

    def unpack(self, packed: Tensor, like: Tensor) -> Tensor:
        """What was sent; taken again it has the same codes and scales."""
        if not self.recipe.groups.powers:
            return packed
        codes, scales = packed[:, : like.shape[1]], packed[:, like.shape[1] :].contiguous()
        return self.kept(codes, scales.view(_dtype_of(self.recipe.groups))).dequantized(like.dtype)

    # ---- weights that travel in FP8

    @property
    def sends_weights(self) -> bool:  # type: ignore[override]
        """Where groups are the same for W and Wᵀ: what was quantised has then the same codes in both products."""
        return self.recipe.turns

    def weight_groups(self, shape: torch.Size) -> tuple[int, int]:
        """Rows and columns of a group in a weight, or in each of a stack of them."""
        return self.recipe.weights.size(shape[-2:])

    def no_magnitudes(self, shape: torch.Size, device: torch.device) -> Tensor:
        """A zero for each group of a weight: (1, 1), or (…, rows, columns)."""
        if self.recipe.weights.rows is None:
            return torch.zeros(1, 1, device=device)
        sizes = zip(shape[-2:], self.weight_groups(shape), strict=True)
        return torch.zeros(*shape[:-2], *(-(-n // size) for n, size in sizes), device=device)

    def weight_scales(self, largest: Tensor) -> Tensor:
        """The scales of a weight's groups with these largest magnitudes."""
        if self.recipe.weights.rows is None:
            self._sent = self.history.ended, self._scale_of_all("weight", largest.view(()))
            return self._sent[1]
        return scales_of(largest, FORMATS[self.recipe.forward], powers=self.recipe.weights.powers)

    def codes_of(self, numbers: Tensor, scales: Tensor) -> Tensor:
        """Numbers (n,) with a scale each, as bytes."""
        form = FORMATS[self.recipe.forward]
        scaled = (numbers.float() / scales).clamp(-form.max, form.max)
        return _as_bytes(scaled.to(DTYPES[form.name]))

    def numbers_of(self, codes: Tensor, scales: Tensor) -> Tensor:
        """The numbers (n,) again, in fp32."""
        return codes.view(DTYPES[self.recipe.forward]).float() * scales

    # ---- products

    def output(self, x: Taken, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """x·Wᵀ + b: rows (n, in), (out, in), (out,) -> (n, out). Raises ConfigError for an input that was not taken."""
        if not isinstance(x, Quantized):
            raise ConfigError(
                f"tensor_overlap is 'chunked', but with fp8={self.recipe.name} tokens are gathered whole: take async"
            )
        y = product(x, self._weights(weight)[0][0], x.dtype)
        return y if bias is None else y.add_(bias.to(y.dtype))

    def input_gradient(self, dy: Tensor, weight: Tensor, onto: Tensor | None = None) -> Tensor:
        found = None
        together = weight.requires_grad and not self.one_by_one
        if together and self._by_kernel(dy, self.recipe.gradients):  # one reading for both products
            scales = self._scale("dy", dy) if self.recipe.groups.rows is None else None
            found, turned = quantize_both(dy, self.recipe.gradients, self.recipe.groups, scales=scales)
            self._shared.turned("dy", dy, lambda: turned)
        dx = product(found or self._gradient(dy), self._weights(weight)[0][1], dy.dtype)
        return dx if onto is None else onto.add_(dx)

    def weight_gradient(self, dy: Tensor, x: Taken, onto: Tensor | None = None) -> Tensor:
        """dyᵀ·x: (n, out), (n, in) -> (out, in) as the weight is; added to ``onto``, in fp32, if that is given."""
        assert isinstance(x, Quantized)
        turned = self._gradient(dy, along_tokens=True)
        dw = product(turned, self._along_tokens(x), self._weight_dtype if onto is None else torch.float32)
        return dw if onto is None else onto.add_(dw)

    def grouped_output(self, x: Taken, weight: Tensor, ends: Tensor) -> Tensor:
        assert isinstance(x, Quantized)
        parts = zip(_split(x, ends), self._weights(weight), strict=True)
        return torch.cat([product(rows, copies[0], x.dtype) for rows, copies in parts])

    def grouped_input_gradient(self, dy: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
        parts = zip(_split(self._gradient(dy), ends), self._weights(weight), strict=True)
        return torch.cat([product(rows, copies[1], dy.dtype) for rows, copies in parts])

    def grouped_weight_gradient(self, dy: Tensor, x: Taken, ends: Tensor) -> Tensor:
        assert isinstance(x, Quantized)
        scales = self._scale("dy", dy) if self.recipe.groups.rows is None else None
        pairs = zip(dy.split(counts_of(ends)), _split(x, ends), strict=True)
        return torch.stack(
            [product(self._gradient(d, True, scales), self._along_tokens(rows)) for d, rows in pairs]
        )

    # ---- what they are of

    def _gradient(self, dy: Tensor, along_tokens: bool = False, scales: Tensor | None = None) -> Quantized:
        if not along_tokens:
            return self._quantized("dy", dy, self.recipe.groups, scales)
        make = partial(self._quantized, "dy", dy.t(), self.recipe.groups, scales)
        return self._shared.turned("dy", dy, make) if self._by_kernel(dy, self.recipe.gradients) else make()

    def _by_kernel(self, x: Tensor, form: str) -> bool:
        return on_fp8_gpu(x) and has_kernel(FORMATS[form], self.recipe.groups)

    def _along_tokens(self, x: Quantized) -> Quantized:
        """xᵀ (in, n), with groups along the tokens."""
        tensor, form = self.recipe.groups.rows is None, self.recipe.forward
        if not self._by_kernel(x.codes, form):
            return x.t() if tensor else quantize(x.dequantized().t(), form, self.recipe.groups)
        if tensor:
            return self._shared.turned(
                "x", x.codes, lambda: replace(x.t(), codes=lab("fp8", "turn")(x.codes))
            )
        again = lab("fp8", "requantize_columns")
        return self._shared.turned("x", x.codes, lambda: again(x, form, self.recipe.groups))

    def copies(self, weight: Tensor) -> list[Tensor]:
        """The tensors of the weight in FP8, codes and scales."""
        both = [one for pair in self._weights(weight) for one in pair]
        return [tensor for one in both for tensor in (one.codes, one.scales)]

    def _weights(self, weight: Tensor) -> list[Copies]:
        """The copies of a weight, or of each of a stack of them, as it is in this step."""
        self._weight_dtype = weight.dtype
        now = weight.data_ptr(), weight._version, self.history.ended
        if self._copies is not None and self._copies[0] == now:
            return self._copies[1]
        groups, stack = self.recipe.weights, weight.detach().view(-1, *weight.shape[-2:])
        scales = None
        if groups.rows is None:  # what was sent is rounded: its largest magnitude may be another
            step, scales = self._sent or (None, None)
            if step != self.history.ended:
                scales = self._scale("weight", stack.flatten(0, 1))
        found = []
        for w in stack:
            if self.recipe.turns:
                copy = self._quantized("weight", w, groups, scales)
                found.append((copy, copy.t()))
            elif self.one_by_one:
                found.append((self._quantized("weight", w, groups), self._quantized("weight", w.t(), groups)))
            else:
                found.append(quantize_both(w, self.recipe.forward, groups, scales=scales))
        self._copies = (now, found) if self._remembers else None
        return found

    def _quantized(self, what: str, x: Tensor, groups: Groups, scales: Tensor | None = None) -> Quantized:
        form = self.recipe.gradients if what == "dy" else self.recipe.forward
        if scales is None and groups.rows is None:
            scales = self._scale(what, x)
        return quantize(x, form, groups, scales=scales)

    def _scale(self, what: str, x: Tensor) -> Tensor:
        """The one scale (1, 1) of x (n, m): that of all ranks which have a part of it."""
        # dy is read by two products, as views of one tensor.
        whole, view = (x if x._base is None else x._base), (x.storage_offset(), x.numel())
        known = self._gradients.setdefault(whole, {}) if what == "dy" else {}
        if view not in known:
            largest = amax(x, (len(x), x.shape[1])) if x.numel() else torch.zeros(1, 1, device=x.device)
            known[view] = self._scale_of_all(what, largest.view(()))
        return known[view]

    def _scale_of_all(self, what: str, largest: Tensor) -> Tensor:
        """The one scale (1, 1) of a tensor, of which this rank's part has the ``largest`` magnitude."""
        if not self._columns or not self.history.count:  # a guess is the same on all ranks
            for group in self._groups[what]:
                dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        if self._columns:
            largest = self.history.largest(self._columns[what], largest)
        form = FORMATS[self.recipe.gradients if what == "dy" else self.recipe.forward]
        scales = lab("fp8", "scales") if on_fp8_gpu(largest) else scales_of
        return scales(largest, form).view(1, 1)


def _as_bytes(t: Tensor) -> Tensor:
    """Numbers of 8 bits as bytes, which every backend can send."""
    return t.view(torch.uint8) if t.element_size() == 1 else t


def _dtype_of(groups: Groups) -> torch.dtype:
    return torch.uint8 if groups.scale_bytes == 1 else torch.float32


def _split(x: Quantized, ends: Tensor) -> list[Quantized]:
    """The rows of each group."""
    counts = counts_of(ends)
    codes = x.codes.split(counts)
    by_rows = x.size[0] == 1
    scales = x.scales.split(counts) if by_rows else [x.scales] * len(codes)
    sizes = [(1 if by_rows else len(c), x.size[1]) for c in codes]
    return [Quantized(*part, x.dtype) for part in zip(codes, scales, sizes, strict=True)]


def use_fp8(
    model: Transformer, recipe: str | FP8Recipe, leave: Collection[int] = (), seed: int = 0
) -> AmaxHistory:
    """Have the linear layers in the blocks of ``model`` multiply in FP8, but for the blocks ``leave``; or in FP4.

    Before the model is cut over ranks; ``seed`` is of what is rounded at random. Raises ConfigError for an unknown
    recipe, and for a block that is not there.
    """
    recipe = load_fp8(recipe)
    for i in leave:
        if not 0 <= i < len(model.blocks):
            raise ConfigError(f"leave has block {i}, but the model has blocks 0 to {len(model.blocks) - 1}")
    if recipe.dtype == "fp4":
        return lab("fp4", "layers")(model, recipe, leave, seed)
    layers = [
        layer for i, block in enumerate(model.blocks) if i not in leave for layer in linear_layers(block)
    ]
    each = 3 if recipe.history else 0
    history = AmaxHistory(recipe.history, each * len(layers), next(model.parameters()).device)
    shared = Shared()
    for i, layer in enumerate(layers):
        layer.products = FP8(recipe, history, range(each * i, each * (i + 1)), shared)
    return history
