"""What ``playbook bench kernels`` compares: cases, and who competes in them.

A `Case` makes its tensors, knows the bytes and FLOPs that it needs, and who competes. Peers have the same tensors, in the
same places: where they want another order of dims they get a view.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from playbook.errors import ConfigError

Outputs = Tensor | tuple[Tensor, ...]
#: How many times further off those may be who round to 16 bits after each operator.
EAGER = 4.0


@dataclass(frozen=True)
class Contender:
    """``run`` takes the tensors of the case. ``missing`` says why it cannot be compared here; ``waits`` that it waits for
    numbers of the GPU, ``forward`` that it has no backward; ``slack`` times the bounds are allowed to its errors."""

    name: str
    run: Callable[..., Outputs]
    ours: bool = False
    missing: str = ""
    waits: bool = False
    forward: bool = False
    slack: float = 1.0


@dataclass(frozen=True)
class Case:
    """One kernel in one size. ``needs`` gives (bytes, FLOPs) by direction: "forward", "both" (forward and backward).

    ``make`` gives the tensors, from a generator on their device; ``leaves`` of them, the first ones, get gradients.
    ``twin`` is what results are held to, computed in fp32. FLOPs are those of matrix products. Of several that are ours
    the first one is what a model takes.
    """

    kernel: str
    size: str
    dtype: torch.dtype
    make: Callable[[torch.Generator], list[Tensor]]
    leaves: int
    twin: Callable[..., Outputs]
    contenders: tuple[Contender, ...]
    needs: Mapping[str, tuple[int, int]]


def normal(generator: torch.Generator, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=dtype)


def contenders(
    ours: Callable[..., Outputs], twin: Callable[..., Outputs], cuda: bool, *peers: Contender
) -> tuple[Contender, ...]:
    """Ours, its twin as it is and compiled, and further ``peers``."""
    return (
        Contender("ours", ours, ours=True),
        Contender("eager", twin, slack=EAGER),
        Contender(
            "compiled",
            torch.compile(twin, dynamic=False) if cuda else twin,
            missing="" if cuda else "torch.compile is compared on a GPU",
        ),
        *peers,
    )


def liger(
    name: str, run: Callable[[Any], Callable[..., Outputs]], cuda: bool, waits: bool = False
) -> Contender:
    """Liger Kernel's: ``run`` makes it of a function of ``liger_kernel.transformers.functional``."""
    theirs = installed(
        "Liger", "liger-kernel", "liger_kernel.transformers.functional", name, run, needs_gpu=not cuda
    )
    return replace(theirs, waits=waits)


def installed(
    label: str,
    distribution: str,
    module: str,
    name: str,
    run: Callable[[Any], Callable[..., Outputs]],
    needs_gpu: bool = False,
) -> Contender:
    """Somebody else's function ``name`` of ``module``, where ``distribution`` is installed; ``run`` makes a contender of
    it. ``needs_gpu``: it does, and there is none."""
    if needs_gpu:
        return Contender(label, _unused, missing="its kernels need a GPU")
    try:
        return Contender(label, run(getattr(importlib.import_module(module), name)))
    except Exception as error:
        # another version, no nvcc, a library that cannot be loaded: it loses its own rows alone
        absent = isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}.")
        why = f"{distribution} is not installed" if absent else said(error)
        return Contender(label, _unused, missing=why)


def said(error: Exception) -> str:
    """What a table says of who could not run."""
    return f"{type(error).__name__}: {str(error)[:300]}"


def in_cuda(kind: str, steps: tuple[str, ...], cuda: bool, prefix: str = "") -> tuple[Contender, ...]:
    """The kernels in CUDA C++, forward alone, where there is nvcc to compile them."""
    try:
        from playbook_book.kernels import cuda_build

        cuda_build.nvcc()
    except (ConfigError, ImportError) as error:
        return tuple(Contender(prefix + step, _unused, missing=str(error)) for step in steps)
    missing, made = "" if cuda else "it needs a GPU", getattr(cuda_build, kind)
    return tuple(Contender(prefix + step, partial(made, step), True, missing, forward=True) for step in steps)


def _unused(*tensors: Tensor) -> Outputs:
    raise AssertionError("a contender that is missing was run")
