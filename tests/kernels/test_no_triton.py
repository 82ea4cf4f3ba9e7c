"""Without Triton every kernel's module says so in one sentence; what needs none, and the rest of the book, works."""

from __future__ import annotations

import subprocess
import sys

import playbook.kernels

PROGRAM = """
import gc
gc.disable()  # nothing that is imported becomes garbage
import importlib, pkgutil, sys
sys.modules["triton"] = None  # as if it were not installed
import playbook.kernels
from playbook.errors import ConfigError
for module in pkgutil.iter_modules(playbook.kernels.__path__, "playbook.kernels."):
    try:
        importlib.import_module(module.name)
        print(module.name, "works")
    except ConfigError as error:
        print(module.name, error)
from playbook.cli import main
sys.exit(main(["train", "--kernels", "fused", "--device", "cpu", "--steps", "1", "--quiet"]))
"""
NEEDS_NONE = {"block", "chips", "warps"}


def test_the_sentence():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert len(said) > len(NEEDS_NONE)
    for name, words in said.items():
        if name.removeprefix(f"{playbook.kernels.__name__}.") in NEEDS_NONE:
            assert words == "works", name
        else:
            assert words.startswith("the kernels need Triton, which is not installed here"), name
    assert done.returncode == 2, done.stderr
    assert done.stderr.strip().endswith("(it exists for Linux: pip install triton)")
    assert "Traceback" not in done.stderr
