"""Seconds of operations on one device."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from playbook.hardware import load_accelerator
from playbook.planning.calibration import Calibration, load_calibration
from playbook.planning.operations import Operation
from playbook.planning.roofline import PROLOGUE, Device, waves

SIZES = st.integers(1, 20_000)


def device(**fields):
    given = {"processors": 132, "matmul": {"bf16": 0.8, "fp8": 0.7}, "launch": 0.0, **fields}
    return Device(load_accelerator("h100"), Calibration("test", **given))


def product(m, n, k, batch=1, narrow=False):
    return Operation("product", "product", m, n, k, batch, narrow=narrow)


@given(SIZES, SIZES, SIZES, st.integers(1, 64), st.sampled_from([1, 108, 132]))
def test_waves_never_do_less_than_the_product_needs(m, n, k, batch, processors):
    assert waves(m, n, k, batch, processors) >= 2.0 * m * n * k * batch


def test_full_waves_lose_only_the_prologue():
    """132 tiles of 128 × 256 on 132 multiprocessors."""
    m, n, k = 128 * 12, 256 * 11, 8192
    assert waves(m, n, k, 1, 132) == pytest.approx(2.0 * m * n * (k + PROLOGUE))
    # A row of tiles more is another wave, which is nearly empty; smaller tiles or parts of k soften it.
    assert waves(m + 128, n, k, 1, 132) > 1.3 * waves(m, n, k, 1, 132)


@given(st.integers(64, 4096), st.integers(64, 4096), st.integers(64, 4096))
def test_a_larger_product_never_takes_less_time(m, n, k):
    here = device()
    assert here.seconds(product(2 * m, n, k)) >= here.seconds(product(m, n, k)) * (1 - 1e-9)
    assert here.seconds(product(m, n, 2 * k)) >= here.seconds(product(m, n, k)) * (1 - 1e-9)


def test_large_products_reach_what_is_calibrated():
    o = product(16_384, 16_384, 16_384)
    assert o.work / device().seconds(o) / 989e12 == pytest.approx(0.8, rel=0.03)


def test_few_rows_wait_for_memory():
    o = product(1, 16_384, 16_384)
    here = device()
    assert here.seconds(o) == pytest.approx(16_384**2 * 2 / here.bandwidth, rel=0.1)


def test_a_pass_is_its_bytes_and_its_launch():
    here = device(launch=5e-6, bandwidth=0.5)
    o = Operation("norm", "pass", bytes=3.35e9, kernels=2)
    assert here.seconds(o) == pytest.approx(2e-3 + 1e-5)


def test_what_is_not_fused_moves_more_in_more_kernels():
    """All of what eager operators move beyond, or half of it; LayerNorm is one kernel in any case."""
    rms, layer = Operation("norm", "pass", bytes=1e9, eager=7.0), Operation("norm", "pass", bytes=1e9)
    for share, times in ((1.0, 7.0), (0.5, 4.0)):
        calibration = device(unfused=share, unfused_kernels=5.0).calibration
        plain = Device(load_accelerator("h100"), calibration, fused=False)
        assert plain.seconds(rms) == pytest.approx(times * device().seconds(rms))
        assert plain.seconds(layer) == device().seconds(layer)
        assert (plain.kernels([rms]), plain.kernels([layer]), device().kernels([rms])) == (5, 1, 1)


def test_fp8_multiplies_narrow_products_alone():
    eight = Device(load_accelerator("h100"), device(quantise=0.0).calibration, narrow="fp8")
    wide, narrow = product(8192, 8192, 8192), product(8192, 8192, 8192, narrow=True)
    assert eight.seconds(wide) == device().seconds(wide)
    assert eight.seconds(narrow) == pytest.approx(eight.seconds(wide) * (0.8 * 989) / (0.7 * 1979), rel=0.02)
    cast = Device(load_accelerator("h100"), device(quantise=4.0).calibration, narrow="fp8")
    assert cast.seconds(narrow) - eight.seconds(narrow) == pytest.approx(4 * 2 * 8192**2 / cast.bandwidth)


def test_attention_reaches_less_for_short_samples_and_narrow_heads():
    here = device()
    rates = {}
    for name, keys, size in (("long", 16_384, 128), ("short", 512, 128), ("narrow", 16_384, 64)):
        o = Operation("attention", "attention", keys, keys, size, 64, 2.0 * 64 * keys * keys * size)
        rates[name] = o.work / here.seconds(o)
    assert rates["short"] < rates["long"]
    assert rates["narrow"] < rates["long"] < 989e12 * here.calibration.attention


def test_every_gpu_has_a_calibration():
    for name, expected in (("a100-40", "a100"), ("h100", "h100"), ("gb200", "b200"), ("rtx4090", "h100")):
        assert load_calibration(None, load_accelerator(name)).name == expected
