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
