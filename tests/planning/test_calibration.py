"""Calibrations: files with provenance."""

import pytest

from playbook.errors import ConfigError
from playbook.hardware import load_accelerator
from playbook.planning.calibration import load_calibration, names

H100 = load_accelerator("h100")


def test_every_file_can_be_read_and_says_where_it_comes_from():
    assert names()
    for name in names():
        found = load_calibration(name, H100)
        assert found.name == name
        assert len(found.source) > 40
        assert load_accelerator(found.accelerator).name == found.accelerator
        assert all(0 < share <= 1 for share in found.matmul.values())


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[provenance]\nsource = "measured"\n[device]\nmatmul = {bf16 = 0.5}\n[framework]\nhidden_dp = 0.25\n'
    )
    found = load_calibration(str(path), H100)
    assert (found.name, found.source, found.reached("bf16"), found.hidden_dp) == (
        "mine",
        "measured",
        0.5,
        0.25,
    )
    assert found.reached("fp8") == 0.5  # not measured: that of bf16


def test_nonsense_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ConfigError, match="unknown calibration 'h1000'; did you mean h100"):
        load_calibration("h1000", H100)
    path = tmp_path / "mine.toml"
    for text, message in (
        ("[device]\nbandwith = 0.5\n", "unknown field 'bandwith'; did you mean bandwidth"),
        ("[device]\nbandwidth = 1.5\n", "bandwidth must be a share from 0 to 1, got 1.5"),
        ("[device\n", "calibration .*mine.toml"),
        ('[device]\nmatmul = {bf16 = "x"}\n', "matmul"),
        ("[device]\nmatmul = 3\n", "matmul"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=message):
            load_calibration(str(path), H100)
