"""Where the tensors of a test are: on the CPU, where kernels are interpreted, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

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
