"""Instruments of several chapters: the bytes that autograd saves, the FLOPs that run, the time that passes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from playbook.instruments.measure import storage, synchronize

# Steps between a parameter and the tensor a layer really multiplies with: views, and autocast's copy in 16 bits.
_WEIGHT_VIEWS = ("TBackward", "TransposeBackward", "ViewBackward", "ToCopyBackward", "UnsafeViewBackward")


@dataclass(frozen=True)
class SavedTensor:
    """One storage that backward will need: who saved it first, and how large it is."""

    module: str  # dotted name of the innermost module that was running, "" for the model itself
    producer: str  # what computed it: the name of its autograd node, or "leaf"
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    kind: str  # "activation", "input" (given to the model) or "weight copy" (made by autocast)


class SavedActivations:
    """Counts what autograd keeps for backward while the ``with`` block runs, each storage once.

    Parameters and buffers of ``model`` are left out: they exist anyway. Two tensors that share a storage (a view and its
    base, or one activation that two layers need) count once, as memory does.

        with SavedActivations(model, inputs=(tokens, targets)) as saved:
            loss = model.loss(tokens, targets)
        saved.bytes, saved.by_module()
    """

    def __init__(self, model: nn.Module, inputs: tuple[Tensor, ...] = ()):
        self.model = model
        self.tensors: list[SavedTensor] = []
        self._inputs = {storage(t) for t in inputs}
        self._skip = {storage(t) for t in [*model.parameters(), *model.buffers()]}
        self._parameters = {id(p) for p in model.parameters()}
        self._seen: dict[
            int, torch.UntypedStorage
        ] = {}  # keeps storages alive, so that no address comes back
        self._stack: list[str] = []

    @property
    def bytes(self) -> int:
        """Bytes of activations: neither the model's inputs nor autocast's copies of the weights."""
        return sum(t.bytes for t in self.tensors if t.kind == "activation")

    def by_module(self, depth: int | None = None) -> dict[str, int]:
        """Bytes of activations per module, in the order of the forward pass; ``depth`` cuts the dotted names."""
        totals: dict[str, int] = {}
        for t in self.tensors:
            if t.kind == "activation":
                name = ".".join(t.module.split(".")[:depth]) if depth else t.module
                totals[name] = totals.get(name, 0) + t.bytes
        return totals

    def __enter__(self) -> SavedActivations:
        self._handles = []
        for name, module in self.model.named_modules():
            self._handles.append(module.register_forward_pre_hook(self._entering(name)))
            self._handles.append(module.register_forward_hook(self._leaving, always_call=True))
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, lambda t: t)
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._seen.clear()

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self._stack.append(name)

    def _leaving(self, *_: Any) -> None:
        self._stack.pop()

    def _pack(self, t: Tensor) -> Tensor:
        key = storage(t)
        if key not in self._seen and key not in self._skip:
            self._seen[key] = t.untyped_storage()
            module = self._stack[-1] if self._stack else ""
            producer = t.grad_fn.name() if t.grad_fn else "leaf"
            size = t.untyped_storage().nbytes()
            self.tensors.append(SavedTensor(module, producer, tuple(t.shape), t.dtype, size, self._kind(t)))
        return t.detach()  # without its graph: a saved output must not keep its own node alive

    def _kind(self, t: Tensor) -> str:
        if storage(t) in self._inputs:
            return "input"
        return "weight copy" if self._comes_from_parameter(t.grad_fn) else "activation"

    def _comes_from_parameter(self, node: Any) -> bool:
        while node is not None:
            if hasattr(node, "variable"):
                return id(node.variable) in self._parameters
            if not node.name().startswith(_WEIGHT_VIEWS):
                return False
            node = node.next_functions[0][0]
        return False


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of the parameters, shared ones once."""
    return sum(p.numel() * p.element_size() for p in model.parameters())


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of the gradients that exist now."""
    return sum(p.grad.numel() * p.grad.element_size() for p in model.parameters() if p.grad is not None)


def optimizer_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the optimizer's state tensors with a parameter's shape (step counters, 4 bytes each, are left out)."""
    return sum(
        value.numel() * value.element_size()
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor) and value.dim() > 0
    )


def count_flops(function: Callable[[], Any]) -> int:
    """Floating-point operations of the matrix products that ``function`` runs, backward included (2·m·n·k each).

    A flash kernel counts two products forward and five backward: four, and the scores once more.
    """
    counter = FlopCounterMode(display=False, custom_mapping=_CPU_FLASH)
    with counter:
        function()
    return counter.get_total_flops()


def _cpu_flash(query, key, value, *args, out_shape=None, **kwargs) -> int:
    return sdpa_flop_count(query, key, value)


def _cpu_flash_backward(gradient, query, key, value, *args, out_shape=None, **kwargs) -> int:
    return sdpa_backward_flop_count(gradient, query, key, value)


# PyTorch counts the flash kernels of CUDA and knows no formula for the CPU's.
_CPU_FLASH = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _cpu_flash,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _cpu_flash_backward,
}


def compare_times(
    functions: Mapping[str, Callable[[], Any]], *, repeats: int = 7, device: torch.device | str = "cpu"
) -> dict[str, float]:
    """Median seconds of each function, measured in turns (a, b, c, a, b, c …) after one warm-up turn.

    Turns keep the comparison fair on a machine whose speed drifts; the median forgives an interrupted run.
    """
    times = seconds_in_turns(functions, repeats, device)
    return {name: statistics.median(values) for name, values in times.items()}


def seconds_in_turns(
    functions: Mapping[str, Callable[[], Any]],
    turns: int,
    device: torch.device | str = "cpu",
    warm_up: int = 1,
    reverse: bool = False,
) -> dict[str, list[float]]:
    """Seconds of each function in each turn, after ``warm_up`` of them: caches and allocators are not ready in the first.

    ``reverse``: every other turn goes in the opposite order.
    """
    times: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(warm_up + turns):
        for name in list(functions)[:: -1 if reverse and turn % 2 else 1]:
            synchronize(device)
            start = time.perf_counter()
            functions[name]()
            synchronize(device)
            times[name].append(time.perf_counter() - start)
    return {name: values[warm_up:] for name, values in times.items()}
