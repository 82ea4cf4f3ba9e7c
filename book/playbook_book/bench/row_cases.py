"""The cases of ``playbook bench kernels`` that go over rows, or over numbers by themselves: what fusion is for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from playbook.kernels import (
    adamw,
    cross_entropy,
    layernorm,
    linear_cross_entropy,
    rmsnorm,
    rotary,
    swiglu,
)
from playbook_book.bench.contenders import Case, Contender, Outputs, contenders, in_cuda, liger, normal
from playbook_book.kernels import elu, vector_add


def both_ways(forward: int, backward: int) -> dict[str, tuple[int, int]]:
    """What a kernel without products needs: bytes alone."""
    return {"forward": (forward, 0), "both": (forward + backward, 0)}


# ---- numbers by themselves


def vector_add_case(n: int, cuda: bool) -> Case:
    steps = in_cuda("add", ("add", "add_pieces", "add_vectors"), cuda, "CUDA C++: ")
    return Case(
        "vector_add", f"{n:,}", torch.float32, lambda g: [normal(g, n), normal(g, n)], 0, vector_add.vector_add_torch,
        contenders(vector_add.vector_add, vector_add.vector_add_torch, cuda, *steps),
        {"forward": (vector_add.bytes_forward(n, 4), 0)},
    )  # fmt: skip


def elu_case(n: int, cuda: bool) -> Case:
    steps = in_cuda("elu", ("elu", "elu_select"), cuda, "CUDA C++: ")
    return Case(
        "elu", f"{n:,}", torch.float32, lambda g: [normal(g, n)], 1, elu.elu_torch,
        contenders(elu.elu, elu.elu_torch, cuda, Contender("torch", F.elu), *steps),
        both_ways(elu.bytes_forward(n, 4), elu.bytes_backward(n, 4)),
    )  # fmt: skip


def swiglu_case(n: int, ffn: int, cuda: bool) -> Case:
    kind, size = torch.bfloat16, n * ffn
    return Case(
        "swiglu", f"{n:,} × {ffn:,}", kind, lambda g: [normal(g, n, ffn, dtype=kind) for _ in range(2)], 2,
        swiglu.swiglu_torch,
        contenders(swiglu.swiglu, swiglu.swiglu_torch, cuda, liger("liger_swiglu", lambda f: f, cuda)),
        both_ways(swiglu.bytes_forward(size, 2), swiglu.bytes_backward(size, 2)),
    )  # fmt: skip


def rotary_case(b: int, s: int, heads: int, kv_heads: int, d: int, cuda: bool) -> Case:
    """q and k of a layer, one after the other; Liger takes both at once."""

    def make(g: torch.Generator) -> list[Tensor]:
        angles = torch.rand(s, d // 2, generator=g, device=g.device).repeat(1, 2)
        turned = [normal(g, b, s, n, d, dtype=torch.bfloat16) for n in (heads, kv_heads)]
        return [*turned, angles.cos(), angles.sin()]

    def both(one: Callable[..., Tensor]) -> Callable[..., Outputs]:
        return lambda q, k, cos, sin: (one(q, cos, sin), one(k, cos, sin))

    def theirs(function: Any) -> Callable[..., Outputs]:
        def run(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> Outputs:
            turned = function(q.transpose(1, 2), k.transpose(1, 2), cos[None], sin[None])
            return turned[0].transpose(1, 2), turned[1].transpose(1, 2)

        return run

    def twin(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return rotary.rotary_torch(x, cos.to(x.dtype), sin.to(x.dtype))

    need = sum(rotary.bytes_forward(b, s, n, d, 2) for n in (heads, kv_heads))
    return Case(
        "rotary", f"{b} × {s:,}, {heads} and {kv_heads} heads of {d}", torch.bfloat16, make, 2, both(rotary.rotary_torch),
        contenders(both(rotary.rotary), both(twin), cuda, liger("liger_rope", theirs, cuda)), both_ways(need, need),
    )  # fmt: skip


# ---- rows


def layer_norm_case(n: int, h: int, cuda: bool) -> Case:
    theirs = liger("liger_layer_norm", lambda f: lambda x, w, b: f(x, w, b, 1e-5), cuda)
    return Case(
        "layer_norm", f"{n:,} × {h:,}", torch.bfloat16, partial(_rows, n, h, 1, 2), 3, layernorm.layer_norm_torch,
        contenders(layernorm.layer_norm, layernorm.layer_norm_torch, cuda, theirs),
        both_ways(layernorm.bytes_forward(n, h, 2, w=2), layernorm.bytes_backward(n, h, 2, w=2)),
    )  # fmt: skip


def rms_norm_case(n: int, h: int, cuda: bool) -> Case:
    own = Contender("torch", lambda x, w: F.rms_norm(x, (h,), w, 1e-5))
    # in place it would write its gradient over the one that comes in
    theirs = liger("liger_rms_norm", lambda f: lambda x, w: f(x, w, 1e-5, in_place=False), cuda)
    return Case(
        "rms_norm", f"{n:,} × {h:,}", torch.bfloat16, partial(_rows, n, h, 1, 1), 2, rmsnorm.rms_norm_torch,
        contenders(rmsnorm.rms_norm, rmsnorm.rms_norm_torch, cuda, own, theirs),
        both_ways(rmsnorm.bytes_forward(n, h, 2, w=2), rmsnorm.bytes_backward(n, h, 2, w=2)),
    )  # fmt: skip


def add_rms_norm_case(n: int, h: int, cuda: bool) -> Case:
    def turned(function: Any) -> Callable[..., Outputs]:
        """Liger gives the norm first."""
        return lambda x, r, w: tuple(reversed(function(x, r, w, 1e-5, in_place=False)))

    return Case(
        "add_rms_norm", f"{n:,} × {h:,}", torch.bfloat16, partial(_rows, n, h, 2, 1), 3, rmsnorm.add_rms_norm_torch,
        contenders(
            rmsnorm.add_rms_norm, rmsnorm.add_rms_norm_torch, cuda, liger("liger_fused_add_rms_norm", turned, cuda)
        ),
        both_ways(rmsnorm.bytes_forward(n, h, 2, 2, True), rmsnorm.bytes_backward(n, h, 2, 2, True)),
    )  # fmt: skip


def _rows(n: int, h: int, matrices: int, vectors: int, g: torch.Generator) -> list[Tensor]:
    return [
        *(normal(g, n, h, dtype=torch.bfloat16) for _ in range(matrices)),
        *(normal(g, h, dtype=torch.bfloat16) for _ in range(vectors)),
    ]


# ---- losses, and the step


def _first(function: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Tensor]:
    """The loss alone, and not how many targets count."""
    return lambda *given: function(*given)[0]


def cross_entropy_case(n: int, v: int, cuda: bool) -> Case:
    def make(g: torch.Generator) -> list[Tensor]:
        return [normal(g, n, v, dtype=torch.bfloat16), torch.randint(v, (n,), generator=g, device=g.device)]

    twin = _first(cross_entropy.cross_entropy_torch)
    # Liger's losses have the host wait for the number of targets that count
    theirs = liger("liger_cross_entropy", lambda f: lambda z, t: f(z, t, reduction="sum"), cuda, waits=True)
    return Case(
        "cross_entropy", f"{n:,} × {v:,}", torch.bfloat16, make, 1, twin,
        contenders(_first(cross_entropy.cross_entropy), twin, cuda, theirs),
        both_ways(cross_entropy.bytes_forward(n, v, 2), cross_entropy.bytes_backward(n, v, 2)),
    )  # fmt: skip


def linear_cross_entropy_case(n: int, h: int, v: int, cuda: bool) -> Case:
    """Both directions alone: the gradients are made in forward."""

    def make(g: torch.Generator) -> list[Tensor]:
        x, w = (normal(g, rows, h, dtype=torch.bfloat16) for rows in (n, v))
        return [x, w.mul_(h**-0.5), torch.randint(v, (n,), generator=g, device=g.device)]

    twin = _first(linear_cross_entropy.linear_cross_entropy_torch)
    theirs = liger(
        "liger_fused_linear_cross_entropy",
        lambda f: lambda x, w, t: f(x, w, t, reduction="sum"),
        cuda,
        waits=True,
    )
    ways = linear_cross_entropy.bytes_forward, linear_cross_entropy.bytes_backward
    return Case(
        "linear_cross_entropy", f"{n:,} × {h:,} × {v:,}", torch.bfloat16, make, 2, twin,
        contenders(_first(linear_cross_entropy.linear_cross_entropy), twin, cuda, theirs),
        {"both": (sum(moved(n, h, v, 2) for moved in ways), 6 * n * h * v)},
    )  # fmt: skip


def adamw_case(n: int, dtype: torch.dtype, cuda: bool) -> Case:
    """A step from states that a run has left: the second moment is positive."""
    options: dict[str, Any] = {"step": 10, "lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1}

    def make(g: torch.Generator) -> list[Tensor]:
        parameter, gradient = (normal(g, n, dtype=dtype) for _ in range(2))
        states = [normal(g, n).mul_(0.1), normal(g, n).square_()]
        return [parameter, gradient, *states, *([] if dtype == torch.float32 else [parameter.float()])]

    def stepped(function: Callable[..., None]) -> Callable[..., Outputs]:
        def run(*held: Tensor) -> Outputs:
            function(*held, **options)
            return held[0], *held[2:]

        return run

    peers = (Contender("torch", _fused_step(options)),) if dtype == torch.float32 else ()
    return Case(
        "adamw", f"{n:,}", dtype, make, 0, stepped(adamw.adamw_torch),
        contenders(stepped(adamw.adamw), stepped(adamw.adamw_torch), cuda, *peers),
        {"forward": (adamw.bytes_step(n, dtype.itemsize, dtype.itemsize), 0)},
    )  # fmt: skip


def _fused_step(options: dict[str, Any]) -> Callable[..., Outputs]:
    """What ``torch.optim.AdamW(fused=True)`` calls, on the same states."""

    def run(parameter: Tensor, gradient: Tensor, first: Tensor, second: Tensor) -> Outputs:
        steps = torch.full((), float(options["step"]), device=parameter.device)
        torch._fused_adamw_(
            [parameter], [gradient], [first], [second], [], [steps], lr=options["lr"], beta1=options["betas"][0],
            beta2=options["betas"][1], weight_decay=options["weight_decay"], eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip
        return parameter, first, second

    return run


#: Every kernel of this file: what makes its cases, of which sizes an interpreter manages, and which models have.
SIZES: tuple[tuple[Callable[..., Case], list[tuple[Any, ...]], list[tuple[Any, ...]]], ...] = (
    (linear_cross_entropy_case, [(24, 32, 96)], [(8192, 2048, 128_256)]),
    (cross_entropy_case, [(8, 512)], [(8192, 128_256)]),
    (rms_norm_case, [(16, 256)], [(16_384, 4096), (8192, 8192)]),
    (add_rms_norm_case, [(16, 256)], [(16_384, 4096)]),
    (layer_norm_case, [(16, 256)], [(16_384, 4096)]),
    (swiglu_case, [(8, 256)], [(8192, 14_336)]),
    (rotary_case, [(1, 16, 4, 2, 32)], [(4, 4096, 32, 8, 128)]),
    (adamw_case, [(4096, torch.bfloat16)], [(2**27, torch.bfloat16)]),
    (adamw_case, [(4096, torch.float32)], [(2**27, torch.float32)]),
    (elu_case, [(4096,)], [(2**26,)]),
    (vector_add_case, [(4096,)], [(2**26,)]),
)


def row_cases(large: bool, cuda: bool) -> list[Case]:
    """Every kernel of this file, as large as models have them or as an interpreter manages."""
    return [make(*size, cuda) for make, *sizes in SIZES for size in sizes[large]]
