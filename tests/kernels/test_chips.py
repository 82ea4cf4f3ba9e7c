"""What a GPU is made of, held to its datasheet."""

import pytest

from playbook.errors import ConfigError
from playbook.hardware import ACCELERATORS
from playbook.kernels.matmul import PROGRAMS
from playbook_book.chips import CHIPS, H100, LATENCY, busy, bytes_in_flight, waves
from playbook_book.kernels.compiled import ARCHITECTURES


def test_cores_times_a_published_clock_are_the_peak():
    """Boost clocks in MHz, from the vendor's papers: cores and peaks come from different tables."""
    boost = {"a100-80": 1410, "rtx4090": 2520, "h100": 1980, "h200": 1980}
    assert {name: round(chip.clock / 1e7) * 10 for name, chip in CHIPS.items()} == boost
    assert H100.cores == 16_896


def test_they_are_gpus_that_the_rest_of_the_library_knows():
    assert set(CHIPS) <= set(ACCELERATORS)
    assert {chip.capability for chip in CHIPS.values()} <= set(ARCHITECTURES)
    assert H100.multiprocessors == PROGRAMS


def test_latency_grows_with_the_distance():
    assert list(LATENCY.values()) == sorted(LATENCY.values())
    assert bytes_in_flight(2e12, 5e-7) == pytest.approx(1e6)


@pytest.mark.parametrize(
    ("blocks", "at_once", "rounds", "share"),
    [(1, 132, 1, 1 / 132), (132, 132, 1, 1), (133, 132, 2, 133 / 264)],
)
def test_a_wave_is_begun_for_one_block(blocks, at_once, rounds, share):
    assert waves(blocks, at_once) == rounds
    assert busy(blocks, at_once) == pytest.approx(share)


def test_no_blocks():
    with pytest.raises(ConfigError, match="blocks is 0, but must be at least 1"):
        waves(0, 132)
    with pytest.raises(ConfigError, match="at_once is 0, but must be at least 1"):
        busy(1, 0)
