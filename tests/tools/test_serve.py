"""The server behind `make serve`: address, types, ports, and a clean end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import serve


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("index.html", "host.mjs", "picture.svg", "code.wasm", "style.css"):
        (tmp_path / name).write_text("content", encoding="utf-8")
    return tmp_path


@pytest.fixture
def process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", serve.__file__, "--directory", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        yield process
        process.kill()


def printed_address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())
    assert match
    return match[0]


def test_types_and_no_caching(process: subprocess.Popen[str]) -> None:
    address = printed_address(process)
    types = {
        "host.mjs": "text/javascript",
        "picture.svg": "image/svg+xml",
        "code.wasm": "application/wasm",
        "": "text/html",
    }
    for name, wanted in types.items():
        with urllib.request.urlopen(address + name) as answer:
            assert answer.headers.get_content_type() == wanted
            assert answer.headers["Cache-Control"] == "no-store"


def test_a_missing_page_is_a_404_that_leads_to_the_book(process: subprocess.Popen[str]) -> None:
    address = printed_address(process)
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        urllib.request.urlopen(address + "chapters/nowhere.html")
    page = error.value.read().decode()
    assert "<h1>File not found</h1>" in page
    assert 'href="/book/index.html"' in page
    assert 'matchMedia("(prefers-color-scheme: dark)")' in page


END = b" HTTP/1.1\r\nHost: book\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03 as TLS begins\n", b"400"),
        (b"\x00\xff\xfe\r\n\r\n", b"400"),
        (b"GET /" + b"a" * (2**16 + 1 - len("GET /")), b"414"),  # as much as is read of a line
        (b"GET /%00" + END, b"404"),
        (b"GET /%ed%a0%80" + END, b"404"),
        (b"GET /outside.txt" + END, b"404"),
        (b"GET /folder/" + END, b"404"),
        (b"GET /" + END, b"200"),
    ],
)
def test_what_is_no_page_gets_an_answer(folder: Path, request_: bytes, status: bytes, capfd) -> None:
    (folder / "folder").mkdir()
    (folder / "outside.txt").symlink_to(__file__)
    server = serve.start(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(request_)
        answer = connection.makefile("rb").read()
    server.shutdown()
    server.server_close()
    thread.join()
    assert b"<title>" + status in answer or status in answer.partition(b"\n")[0]
    assert "Traceback" not in capfd.readouterr().err


def test_who_asks_for_a_page_that_is_still_rendered_waits(folder: Path) -> None:
    server = serve.start(folder)
    server.complete.clear()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    with socket.create_connection(server.server_address[:2]) as connection:
        connection.sendall(b"GET /late.html" + END)
        (folder / "late.html").write_text("late", encoding="utf-8")
        server.complete.set()
        assert connection.makefile("rb").read().endswith(b"late")
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_stops_cleanly(process: subprocess.Popen[str], number: signal.Signals) -> None:
    printed_address(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 0
    assert "Server stopped." in out
    assert err == ""


def test_it_stops_cleanly_as_a_background_job_of_a_script(folder: Path) -> None:
    """Shells start background jobs with SIGINT ignored, which Python would leave so."""
    command = f"trap '' INT; exec {sys.executable} -u {serve.__file__} --directory {folder}"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, text=True) as process:
        printed_address(process)
        process.send_signal(signal.SIGINT)
        assert "Server stopped." in process.communicate(timeout=10)[0]
        assert process.returncode == 0


def test_a_taken_port_gives_the_next_one_or_one_sentence(folder: Path) -> None:
    first = serve.start(folder)
    second = serve.start(folder)
    assert serve.address(first) != serve.address(second)
    with pytest.raises(SystemExit, match="is taken"):
        serve.start(folder, first.server_address[1])
    first.server_close()
    second.server_close()


def test_it_listens_on_this_machine_alone(folder: Path) -> None:
    server = serve.start(folder)
    assert server.socket.getsockname()[0] == "127.0.0.1"
    assert server.socket.family == socket.AF_INET
    server.server_close()


def test_without_a_book_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="make book"):
        serve.start(tmp_path)
