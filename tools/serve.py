"""Serve the built book on this machine alone, unless told otherwise, and say where.

Usage: python tools/serve.py [--host 127.0.0.1] [--port 8000] [--directory _build/html]
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import getpass
import os
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
HOST = "127.0.0.1"
#: What a container's first process leaves for those in it to see.
IN_CONTAINER = any(map(os.path.exists, ("/.dockerenv", "/run/.containerenv")))
PATIENCE = 120  # seconds
SCHEME = ROOT / "widgets" / "playbook_widgets" / "site" / "templates" / "pb-color-scheme.html"

#: What a browser gets for an address that leads nowhere, in the look of the book's own pages.
ERROR = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>%(code)d %(message)s</title>
<link rel="icon" href="/_static/favicon.svg">
<link rel="stylesheet" href="/vendor/fonts/fonts.css">
<link rel="stylesheet" href="/_static/pb/book.css">
<link rel="stylesheet" href="/_static/pb/landing.css">
SCHEME</head>
<body class="pb-lean"><main><h1>%(message)s</h1>
<p>The book has nothing at this address. <a href="/book/index.html">The map of the book</a> lists all chapters,
and <a href="/search.html">the search</a> finds words in them.</p></main></body></html>
"""


class Handler(SimpleHTTPRequestHandler):
    """Static files, never cached: a rebuilt page must show at the next reload."""

    protocol_version = "HTTP/1.1"
    # The system's table of types is not asked: some lack these, or map them to what browsers refuse to run.
    extensions_map = {  # noqa: RUF012 - read only
        **SimpleHTTPRequestHandler.extensions_map,
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".mjs": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
        ".json": "application/json",
        ".ipynb": "application/json",
        ".py": "text/x-python; charset=utf-8",
        ".svg": "image/svg+xml",
        ".wasm": "application/wasm",
        ".woff2": "font/woff2",
    }

    error_message_format = ERROR.replace("SCHEME", SCHEME.read_text(encoding="utf-8").replace("%", "%%"))

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Requests are no news; ``log_error`` still comes through ``log_request`` of failures."""

    def log_request(self, code: object = "-", size: object = "-") -> None:
        if str(code).startswith(("4", "5")):
            asked = getattr(self, "path", self.requestline)  # what is no request has no path
            print(f"{code} {asked[:200]!r}", file=sys.stderr, flush=True)

    def translate_path(self, path: str) -> str:
        """The file of an address; of one that leads out of the folder, or can be no file's, none."""
        file = super().translate_path(path)
        try:
            inside = Path(file).resolve().is_relative_to(Path(self.directory).resolve())
        except (OSError, ValueError):
            inside = False
        return file if inside else ""

    def send_head(self) -> Any:
        """A page that is being rendered for the first time is worth waiting for."""
        if not Path(self.translate_path(self.path)).exists():
            self.server.complete.wait(PATIENCE)  # type: ignore[attr-defined]
        return super().send_head()

    def list_directory(self, path: object) -> None:
        """A folder without a page of its own is no page."""
        self.send_error(HTTPStatus.NOT_FOUND, "File not found")


class Server(ThreadingHTTPServer):
    daemon_threads = True
    # Without this a port still busy in another process may be taken over silently on some systems.
    allow_reuse_address = sys.platform != "win32"

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.complete = Event()
        self.complete.set()

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that closes a connection early is no error of ours."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def start(directory: Path, port: int | None = None, host: str = HOST) -> Server:
    """A server bound to ``port``; without one, to the first free port from 8000 on.

    Raises ``SystemExit`` with one sentence when there is no site, the port is taken, or ``host`` is not this machine.
    """
    if not (directory / "index.html").is_file():
        raise SystemExit(f"{directory} holds no built book: run `make book`")
    return Server((host, free_port(port, host, 8000)), partial(Handler, directory=str(directory)))


def free_port(port: int | None, host: str, first: int) -> int:
    """``port`` if it is free on ``host``; without one, the first free port from ``first`` on.

    Raises ``SystemExit`` with one sentence when it is taken or may not be had, or ``host`` is not this machine.
    """
    for candidate in [port] if port is not None else [*range(first, first + 100), 0]:
        with socket.socket() as trial:
            if Server.allow_reuse_address:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((host, candidate))
                trial.listen(1)
            except (PermissionError, OverflowError):
                raise SystemExit(f"port {port} cannot be had: take one from 1024 to 65535") from None
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise SystemExit(
                        f"{host} is no IPv4 address of this machine: 127.0.0.1, or 0.0.0.0"
                    ) from None
            else:
                number: int = trial.getsockname()[1]
                return number
    raise SystemExit(f"port {port} is taken; without one, the first that is free is used")


def address(server: Server) -> str:
    host, port = server.server_address[:2]
    return f"http://{HOST if host == '0.0.0.0' else host}:{port}/"


def announce(server: Server) -> None:
    """Say where the book is, and how one gets there from another machine."""
    host, port = map(str, server.server_address[:2])
    if way := way_in(host, int(port), os.environ):
        print(way)
    print(f"The book is at {address(server)}   (Ctrl-C stops the server)", flush=True)


def way_in(host: str, port: int, environ: Mapping[str, str], container: bool = IN_CONTAINER) -> str:
    """How a browser on the reader's own machine reaches ``port`` here; nothing where it runs on this one, or an editor
    that came in from there forwards ports by itself."""
    if host == "0.0.0.0":
        return f"Whoever reaches this machine can open it, at port {port}."
    if not host.startswith("127.") or environ.keys() & {
        "CODESPACES",
        "REMOTE_CONTAINERS",
        "VSCODE_IPC_HOOK_CLI",
    }:
        return ""
    here = socket.gethostname()
    if "KUBERNETES_SERVICE_HOST" in environ:
        return f"On your own machine: kubectl port-forward {here} {port}"
    if len(ends := environ.get("SSH_CONNECTION", "").split()) == 4:
        user, (machine, at) = getpass.getuser(), ends[2:]
        way = f"ssh -L {port}:localhost:{port}"
        if "SLURM_JOB_ID" in environ:  # the connection is one to the node that jobs are given from
            return f"On your own machine: {way} -J {user}@{machine} {user}@{here}"
        where = f"{user}@{machine}" if at == "22" else f"-p {at} {user}@{machine}"
        return f"On your own machine, by the name that you log in with: {way} {where}"
    if container:
        return f"From outside this container: HOST=0.0.0.0 here, -p {port}:{port} where it is started"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--host", default=HOST)
    parser.add_argument("--port", type=int)
    parser.add_argument("--directory", type=Path, default=SITE)
    options = parser.parse_args()
    server = start(options.directory, options.port, options.host)
    # Stopped by a script, it leaves as from Ctrl-C; and a shell starts background jobs with SIGINT ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        announce(server)
        server.serve_forever()
    server.server_close()
    print("\nServer stopped.", flush=True)


if __name__ == "__main__":
    main()
