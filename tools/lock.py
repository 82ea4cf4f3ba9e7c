"""Resolve what pyproject.toml asks for into constraints.txt: for every platform and Python, with hashes.

Usage: python tools/lock.py [--upgrade | --upgrade-package NAME …]    options of `uv pip compile`

Without an option, pins stay where they are as long as they fit. A dependency taken out of pyproject.toml goes, with what
it alone needed.
"""

from __future__ import annotations

import re
import subprocess
import sys

from bootstrap import PINS, ROOT, UV_AT_LEAST, program

HEADER = """\
# Made by tools/lock.py: the versions with which the book is built and tested, for every platform and Python. `make`
# installs them, and compares hashes. torch has none: its builds for CPUs and for CUDA are different files.
"""


def main(options: list[str]) -> None:
    if not (uv := program("uv", UV_AT_LEAST)):
        raise SystemExit("There is no uv: put one on PATH, or into .venv (pip install uv).")
    fixed = ("--all-extras", "--universal", "--python-version", "3.11", "--generate-hashes")
    quiet = ("--quiet", "--no-header", "--no-annotate", "--no-python-downloads")
    subprocess.run(
        [uv, "pip", "compile", "pyproject.toml", *fixed, *quiet, "-o", PINS, *options], cwd=ROOT, check=True
    )
    pins = PINS.read_text(encoding="utf-8")
    pins = re.sub(r"^(torch==.*?) \\\n(?: +--hash=.*\n)+", r"\1\n", pins, flags=re.M)
    PINS.write_text(HEADER + pins, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
