"""JupyterLab as `make lab` starts it: for root, on a free port, for a browser elsewhere; and what make is told."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import lab
import pytest
import serve

MAKEFILE = Path(__file__).parents[2] / "Makefile"


def flags(**given: object) -> list[str]:
    settings = {"host": "127.0.0.1", "port": 8888, "way": "", "flags": (), "root": False} | given
    _python, module, name, *rest = lab.command(**settings)  # type: ignore[arg-type]
    assert (module, name) == ("-m", "jupyterlab")
    return rest


def test_flags_of_jupyter() -> None:
    plain = ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=8888", "--ServerApp.port_retries=0"]
    assert flags() == plain
    assert flags(root=True) == [*plain, "--allow-root"]
    assert flags(way="ssh …") == [*plain, "--no-browser"]
    assert flags(host="0.0.0.0", root=True, flags=["--collaborative"]) == [
        "--ServerApp.ip=0.0.0.0", *plain[1:], "--allow-root", "--collaborative",
    ]  # fmt: skip


def test_the_port_said_is_the_port_used() -> None:
    with serve.socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert serve.free_port(None, "127.0.0.1", port) != port
        with pytest.raises(SystemExit, match=f"port {port} is taken"):
            serve.free_port(port, "127.0.0.1", 8888)


@pytest.mark.parametrize(
    ("target", "given", "said"),
    [
        ("serve", ["HOST=0.0.0.0", "PORT=8080"], "build_book.py --serve --host 0.0.0.0 --port 8080"),
        ("serve", [], "build_book.py --serve"),
        ("lab", ["PORT=9", "LAB_FLAGS=--no-browser --debug"], "lab.py --port 9 -- --no-browser --debug"),
        ("lab", [], "lab.py --"),
    ],
)
def test_make_hands_on_what_it_is_told(target: str, given: list[str], said: str) -> None:
    """HOST from the command line alone: conda's compilers leave one in the environment."""
    environment = {**os.environ, "HOST": "x86_64-conda-linux-gnu"}
    environment.pop("PORT", None)
    command = ["make", "--dry-run", "--file", str(MAKEFILE), "PYTHON=true", target, *given]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "tools/" in line and "bootstrap" not in line)
    assert " ".join(line.split()).endswith(said)
