"""What runs on CUDA alone, up to the kernels: fake tensors have a GPU's device and dtypes, and no memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from playbook.model.attend import flash, flash_backward, has_kernel
from playbook.model.norms import RMSNorm
from playbook.model.ops import sdpa_attention


@pytest.fixture(autouse=True)
def fake() -> Iterator[None]:
    with FakeTensorMode(), torch.no_grad():
        yield


@pytest.fixture
def autocast() -> Iterator[None]:
    """bf16 autocast for CUDA; ``torch.autocast`` itself turns it off where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    yield
    torch.set_autocast_enabled("cuda", False)


class Calls(TorchFunctionMode):
    """What torch's attention is called with."""

    def __init__(self) -> None:
        self.heads: list[list[int]] = []

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function is F.scaled_dot_product_attention:
            self.heads.append([x.shape[1] for x in args[:3]])
        return function(*args, **(kwargs or {}))


def on_gpu(heads: int, dtype: torch.dtype) -> Tensor:
    return torch.empty(2, heads, 16, 32, dtype=dtype, device="cuda")


@pytest.mark.parametrize(("dtype", "kv_heads"), [(torch.float32, 8), (torch.bfloat16, 2)])
def test_keys_are_repeated_where_the_kernel_knows_no_groups(dtype, kv_heads):
    with Calls() as calls:
        out = sdpa_attention(on_gpu(8, dtype), on_gpu(2, dtype), on_gpu(2, dtype))
    assert calls.heads == [[8, kv_heads, kv_heads]]
    assert (out.shape, out.dtype) == ((2, 8, 16, 32), dtype)


def test_under_autocast_normed_queries_and_keys_stay_in_16_bits(autocast):
    """Values do, too. CUDA's autocast has ``rms_norm`` return fp32, and ring attention would lose its flash kernel."""
    x = on_gpu(8, torch.bfloat16)
    with torch.device("cuda"):
        norm = RMSNorm(32).requires_grad_(False)
    assert F.rms_norm(x, (32,), norm.weight).dtype == torch.float32
    assert norm(x).dtype == torch.bfloat16
    assert norm(x.float()).dtype == torch.float32


def test_flash_kernels_are_for_16_bits_from_ampere_on(monkeypatch):
    for capability, expected in (((7, 5), False), ((8, 0), True), ((9, 0), True), ((10, 0), True)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, found=capability: found)
        assert has_kernel(on_gpu(8, torch.bfloat16)) is expected
        assert not has_kernel(on_gpu(8, torch.float32))


def test_flash_kernels_take_groups_as_they_are():
    q, k, v = (on_gpu(heads, torch.bfloat16) for heads in (8, 2, 2))
    whole: Any = SimpleNamespace(
        queries=lambda x: x, keys=lambda x: x, causal=True
    )  # fake tensors of a GPU have no slices
    out, lse = flash(whole, q, k, v)
    assert (out.shape, lse.shape) == (q.shape, q.shape[:3])
    dq, dk, dv = flash_backward(whole, q, q, k, v, out, lse)
    assert (dq.shape, dk.shape, dv.shape) == (q.shape, k.shape, v.shape)
