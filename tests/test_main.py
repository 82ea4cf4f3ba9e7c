"""The module runs as the script does."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import terminal

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
# Python imports this before the command. As soon as MODULE begins to be imported it sends Ctrl-C's signal, from a place
# where exceptions get lost.
CTRL_C = """
import os, signal, sys
class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(10):
            pass
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ["MODULE"]:
            Last()
sys.meta_path.insert(0, Finder())
"""


def test_module_is_the_command_line():
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "playbook", *arguments], capture_output=True, text=True)

    assert "train" in run("--help").stdout
    wrong = run("train", "--layout", "dp=0")
    assert wrong.returncode == 2
    assert "dp" in wrong.stderr
    assert "Traceback" not in wrong.stderr


@pytest.mark.parametrize(
    ("front_door", "module"),
    [
        *[("module", name) for name in ("argparse", "playbook.cli", "playbook.training.data")],
        *[("script", name) for name in ("argparse", "playbook.planning.memory", "torch")],
    ],
)
def test_ctrl_c_is_one_word_however_early_it_comes(front_door, module, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(CTRL_C)
    name, function = PROJECT["scripts"]["playbook"].split(":")
    script = f"import sys; from {name} import {function}; sys.exit({function}())"
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, *(["-m", "playbook"] if front_door == "module" else ["-c", script]),
         "train", "--steps", "1", "--device", "cpu"],
        capture_output=True, text=True, timeout=120, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "MODULE": module},
        preexec_fn=terminal.listen,
    )  # fmt: skip
    assert done.returncode == 130, done.stderr
    assert done.stderr == "interrupted\n"
