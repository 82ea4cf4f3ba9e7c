"""Where tensors of a test are: on the CPU, where kernels are interpreted, and on a GPU where there is one; a cache."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from triton.runtime.cache import get_cache_manager

from playbook_book.kernels import machine_code

DEVICES = ["cpu", *[pytest.param("cuda", marks=pytest.mark.gpu)] * torch.cuda.is_available()]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """What a test makes without saying where is on this device."""
    if request.param == "cpu":
        yield request.param
        return
    with torch.device(request.param):
        yield request.param


@pytest.fixture
def fp8_device(device: str) -> str:
    """The same, but for GPUs before those that have FP8."""
    if device == "cuda" and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    return device


@pytest.fixture(autouse=True)
def kept_disassembly(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is kept from run to run, as Triton keeps what it compiles: nothing else takes as long."""

    def disassembled(cubin: bytes) -> str:
        cache = get_cache_manager(hashlib.sha256(cubin).hexdigest())
        return Path(cache.get_file("sass") or cache.put(read(cubin), "sass", binary=False)).read_text()

    read = machine_code.disassembled
    monkeypatch.setattr(machine_code, "disassembled", disassembled)
