"""The command of the README with fewer steps: a real run on real text."""

import json
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_tiny_model_learns_pythons_documentation(tmp_path):
    command = [sys.executable, "-m", "playbook", "train", "--model", "tiny", "--steps", "80"]
    sizes = ["--global-batch", "8", "--seq", "64", "--device", "cpu", "--json", "--quiet"]
    done = subprocess.run([*command, *sizes], capture_output=True, text=True, cwd=tmp_path, timeout=1800)
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert losses[0] == pytest.approx(5.6, abs=0.15)
    assert sum(losses[-20:]) / 20 < 2.75  # letters drawn by their frequency alone: 3.3
