"""Open the chapters as notebooks in JupyterLab: on a free port, as root too, and from other machines.

Usage: python tools/lab.py [--host 127.0.0.1] [--port 8888] [-- FLAG …]    flags of `jupyter lab`
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import serve


def command(host: str, port: int, way: str, flags: Sequence[str], root: bool) -> list[str]:
    """What starts JupyterLab. Its token guards it, so that root, whom containers and rented machines have, may run it;
    no browser is opened where the reader's is on another machine. ``flags`` come last: they may say otherwise."""
    given = [f"--ServerApp.ip={host}", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    given += ["--allow-root"] * root + ["--no-browser"] * bool(way)
    return [sys.executable, "-m", "jupyterlab", *given, *flags]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default=serve.HOST)
    parser.add_argument("--port", type=int)
    parser.add_argument("flags", nargs="*", metavar="FLAG")
    options = parser.parse_args()
    port = serve.free_port(options.port, options.host, 8888)
    if way := serve.way_in(options.host, port, os.environ):
        print(way, flush=True)
    arguments = command(options.host, port, way, options.flags, getattr(os, "geteuid", lambda: 1)() == 0)
    os.chdir(serve.ROOT / "book")
    os.execv(arguments[0], arguments)


if __name__ == "__main__":
    main()
