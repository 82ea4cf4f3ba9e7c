"""The command of the README with fewer steps: a real run on real text."""

import json
import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_the_tiny_model_learns_pythons_documentation(tmp_path):
    command = [sys.executable, "-m", "playbook", "train", "--model", "tiny", "--steps", "60"]
    sizes = ["--global-batch", "16", "--seq", "128", "--device", "cpu", "--json", "--quiet"]
    environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}  # all the cores
    done = subprocess.run(
        [*command, *sizes], capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=1800
    )
    assert done.returncode == 0, done.stderr
    losses = json.loads(done.stdout)["losses"]
    assert losses[0] == pytest.approx(5.6, abs=0.15)
    assert sum(losses[-20:]) / 20 < 2.75  # letters drawn by their frequency alone: 3.3
