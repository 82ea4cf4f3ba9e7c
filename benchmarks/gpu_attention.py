"""Attention on a GPU: which kernel torch takes for which tensors, and whether ours give what the formula does."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from playbook.layout.tokens import MaskBlock
from playbook.model.attend import OnlineSoftmax, flash, flash_backward, has_kernel
from playbook.parallel.context import RankTokens, add
from playbook_book.instruments.measured import compare_times

Result = dict[str, Any]
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "memory-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "formula": SDPBackend.MATH,
}


def machine(device: str) -> Iterator[Result]:
    """The GPU, and which kernel ``scaled_dot_product_attention`` takes for which tensors; how long each takes."""
    found: Result = {"sdpa": [], "times": {}}
    if device == "cuda":
        p = torch.cuda.get_device_properties(0)
        found["capability"], found["multiprocessors"] = f"{p.major}.{p.minor}", p.multi_processor_count
        found["memory_bytes"], found["l2_bytes"] = p.total_memory, p.L2_cache_size
    yield found
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for kv_heads in (32, 8):
            q, k, v, _ = _tensors(device, dtype, 1, 32, kv_heads, 1024, 128)
            chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, True, enable_gqa=kv_heads != 32)
            row = {"dtype": str(dtype), "grouped": kv_heads != 32, "chosen": SDPBackend(chosen).name}
            found["sdpa"].append(row)
    yield found
    seq = 4096 if device == "cuda" else 64
    for name, backend in BACKENDS.items():
        for kv_heads in (32, 8):
            q, k, v, gradient = _tensors(device, torch.bfloat16, 2, 32, kv_heads, seq, 128)
            run = partial(_both_ways, q, k, v, gradient, backend)
            found["times"][f"{name}, {kv_heads} kv heads"] = tried(
                lambda run=run: compare_times({"s": run}, repeats=5, device=device)["s"]
            )
            yield found


def _both_ways(q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, backend: SDPBackend) -> None:
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    with sdpa_kernel(backend):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    out.backward(gradient)


def attention(device: str) -> Iterator[Result]:
    """Blocks of attention, and a ring of four ranks in this process, against fp64: relative errors and seconds."""
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    s = 1024 if device == "cuda" else 64
    found: Result = {"dtype": str(dtype), "blocks": {}, "ring": {}}
    for heads, kv_heads in ((8, 8), (8, 2)):
        q, k, v, gradient = _tensors(device, dtype, 2, heads, kv_heads, s, 64)
        assert has_kernel(q)
        for block in (MaskBlock(0, s, 0, s, causal=True), MaskBlock(s // 2, s, 0, s - s // 4)):
            name = f"{kv_heads} kv heads, {'causal' if block.causal else 'a part'}"
            found["blocks"][name] = tried(partial(_block, block, q, k, v, gradient, device))
            yield found
        for kind in ("contiguous", "zigzag"):
            found["ring"][f"{kv_heads} kv heads, {kind}"] = tried(partial(_ring, kind, q, k, v, gradient))
            yield found


def _block(block: MaskBlock, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor, device: str) -> Result:
    """Kernel against formula in fp64, forward and backward; and the same kernel with a key for each query head."""
    exact = _exact(block, q, k, v, gradient)
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[:3], device=q.device)
    block.queries(out).copy_(exact["out"])
    block.queries(lse).copy_(exact["lse"])
    many = [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v)]
    found = [*flash(block, q, k, v), *flash_backward(block, gradient, q, k, v, out, lse)]
    times = compare_times(
        {"forward": lambda: flash(block, q, k, v), "forward, repeated": lambda: flash(block, q, *many),
         "backward": lambda: flash_backward(block, gradient, q, k, v, out, lse),
         "backward, repeated": lambda: flash_backward(block, gradient, q, *many, out, lse)}, device=device
    )  # fmt: skip
    return {
        "errors": {name: _error(x, exact[name]) for name, x in zip(exact, found, strict=True)},
        "seconds": times,
    }


def _exact(block: MaskBlock, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> dict[str, Tensor]:
    """Attention of a block by itself in fp64: output, log-sum-exp, and gradients by autograd."""
    q, k, v = (x.double().requires_grad_() for x in (block.queries(q), block.keys(k), block.keys(v)))
    many_k, many_v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ many_k.transpose(-2, -1) * q.shape[-1] ** -0.5
    if block.causal:
        scores = scores + torch.full_like(scores, float("-inf")).triu(1)
    out = scores.softmax(-1) @ many_v
    gradients = torch.autograd.grad(out, (q, k, v), block.queries(gradient).double())
    named = {"out": out, "lse": scores.logsumexp(-1)} | dict(zip(("dq", "dk", "dv"), gradients, strict=True))
    return {name: x.detach() for name, x in named.items()}


def _ring(kind: str, q: Tensor, k: Tensor, v: Tensor, gradient: Tensor) -> Result:
    """What four ranks compute in turn, without messages, against one device in fp64."""
    n, s = 4, q.shape[2]
    placement = RankTokens(kind, s, n, True)
    own = [placement.positions(rank).to(q.device) for rank in range(n)]
    like = {"out": q, "dq": q, "dk": k, "dv": v}
    results = {name: torch.zeros_like(x, dtype=torch.float32) for name, x in like.items()}
    for rank, mine in enumerate(own):
        parts, queries = OnlineSoftmax(flash), q[:, :, mine]
        steps = [((rank - step) % n, own[(rank - step) % n]) for step in range(n)]
        for source, theirs in steps:
            for block in placement.blocks(rank, source):
                parts.add(block, queries, k[:, :, theirs], v[:, :, theirs])
        out, lse = parts.result(q.dtype)
        results["out"][:, :, mine] = out.float()
        for source, theirs in steps:
            keys, values = k[:, :, theirs], v[:, :, theirs]
            sums = [torch.zeros_like(x, dtype=torch.float32) for x in (out, keys, values)]
            for block in placement.blocks(rank, source):
                add(
                    block, flash_backward(block, gradient[:, :, mine], queries, keys, values, out, lse), *sums
                )
            for name, where, x in zip(("dq", "dk", "dv"), (mine, theirs, theirs), sums, strict=True):
                results[name][:, :, where] += x
    exact = [t.double().requires_grad_() for t in (q, k, v)]
    with sdpa_kernel(SDPBackend.MATH):
        whole = F.scaled_dot_product_attention(*exact, is_causal=True, enable_gqa=True)
    expected = [whole.detach(), *torch.autograd.grad(whole, exact, gradient.double())]
    return {name: _error(found, x) for (name, found), x in zip(results.items(), expected, strict=True)}


def _tensors(
    device: str, dtype: torch.dtype, b: int, heads: int, kv_heads: int, s: int, d: int
) -> list[Tensor]:
    """q, k, v and a gradient, (b, heads or kv_heads, s, d)."""
    generator = torch.Generator(device).manual_seed(0)
    sizes = (heads, kv_heads, kv_heads, heads)
    return [torch.randn(b, n, s, d, generator=generator, device=device, dtype=dtype) for n in sizes]


def _error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖."""
    found, expected = found.double(), expected.double()
    return ((found - expected).norm() / expected.norm()).item()


def tried(function: Callable[[], Any]) -> Any:
    """What it returns; or in place of it what went wrong: one case that does not fit loses no other."""
    try:
        return function()
    except Exception as error:  # CUDA's errors are of many classes
        return {"failed": f"{type(error).__name__}: {str(error)[:500]}"}
    finally:
        forget("cuda" if torch.cuda.is_available() else "cpu")


def forget(device: str) -> None:
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()
