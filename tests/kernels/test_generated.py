"""What Inductor writes, with and without a GPU: one kernel, which compiles; the very text that torch.compile runs."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch._dynamo.device_interface import get_interface_for_device
from torch.utils._triton import has_triton

from playbook_book.generated import generated
from playbook_book.kernels.compiled import compiled
from playbook_book.kernels.elu import elu_torch


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chain_of_operators_becomes_one_kernel_that_compiles(dtype):
    x = torch.empty(2**20, dtype=dtype, device="meta")
    (one,) = generated(elu_torch, x)
    assert one.language == "triton"
    assert (one.text.count("tl.load("), one.text.count("tl.store(")) == (1, 1)
    made = compiled(one.launch(x, torch.empty_like(x), x.numel(), XBLOCK=1024), 90)
    assert (made.spills, made.occupancy) == (0, 1)
    assert made.uses("ld.global.v4") == 8 * dtype.itemsize / 16  # eight numbers for each thread


def test_a_mask_where_blocks_do_not_fit():
    (whole,), (rest,) = (generated(elu_torch, torch.empty(n)) for n in (2**20, 2**20 + 1))
    assert "xindex < xnumel" not in whole.text
    assert "xindex < xnumel" in rest.text


def test_a_long_row_is_read_twice_and_its_softmax_is_online():
    (short,), (long,) = (generated(softmax, torch.empty(512, n)) for n in (1000, 128256))
    assert short.text.count("tl.load(") == 1
    assert long.text.count("tl.load(") == 2
    assert "online_softmax" in long.text


def test_what_does_not_fuse_gives_several():
    kernels = generated(lambda x: torch.softmax(x.sum(0), -1), torch.empty(4096, 4096))
    assert len(kernels) > 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU answers for itself")
def test_nothing_believes_in_the_gpu_afterwards():
    before = get_interface_for_device("cuda"), torch.cuda.get_device_properties, has_triton()
    generated(elu_torch, torch.empty(8))
    assert before == (get_interface_for_device("cuda"), torch.cuda.get_device_properties, has_triton())
    assert not torch.cuda.is_available()


@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler for a CPU")
def test_it_is_what_torch_compile_runs():
    from torch._inductor.utils import run_and_get_code

    x = torch.randn(1000)
    (mine,) = generated(elu_torch, x, device="cpu")
    y, (module,) = run_and_get_code(torch.compile(elu_torch), x)
    torch.testing.assert_close(y, elu_torch(x))
    assert mine.language == "cpp"
    assert mine.text.strip() in module
