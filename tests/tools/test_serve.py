"""The server behind `make serve`: address, types, ports, and a clean end."""

from __future__ import annotations

import os
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


#: Of a reader in front of this machine, whatever these tests run in.
AT_HOME = {
    name: value
    for name, value in os.environ.items()
    if name not in ("SSH_CONNECTION", "KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID")
} | {"CODESPACES": "true"}


@pytest.fixture
def process(folder: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-u", serve.__file__, "--directory", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=AT_HOME, **pipes) as process:
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
        written = folder / "late.part"
        written.write_text("late", encoding="utf-8")
        written.rename(folder / "late.html")  # at once: an empty page would be served as well
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
    with subprocess.Popen(["sh", "-c", command], env=AT_HOME, stdout=subprocess.PIPE, text=True) as process:
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


def test_it_outlives_the_terminal_under_nohup(folder: Path) -> None:
    command = f"trap '' HUP; exec {sys.executable} -u {serve.__file__} --directory {folder}"
    with subprocess.Popen(["sh", "-c", command], env=AT_HOME, stdout=subprocess.PIPE, text=True) as process:
        address = printed_address(process)
        process.send_signal(signal.SIGHUP)
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
        process.terminate()
        assert "Server stopped." in process.communicate(timeout=10)[0]


def test_for_other_machines_it_listens_on_all_addresses(folder: Path) -> None:
    server = serve.start(folder, host="0.0.0.0")
    port = server.server_address[1]
    assert server.server_address[0] == "0.0.0.0"
    assert serve.address(server) == f"http://127.0.0.1:{port}/"
    with pytest.raises(SystemExit, match=f"port {port} is taken"):
        serve.start(folder, port)
    server.server_close()


def test_an_address_of_another_machine_is_refused_in_a_sentence(folder: Path) -> None:
    with pytest.raises(SystemExit, match=r"^192\.0\.2\.1 is no IPv4 address of this machine"):
        serve.start(folder, host="192.0.2.1")


SSH = "198.51.100.7 51234 203.0.113.9"


@pytest.mark.parametrize(
    ("environ", "container", "way"),
    [
        ({}, False, ""),
        ({"SSH_CONNECTION": f"{SSH} 22"}, False, "log in with: ssh -L 8000:localhost:8000 me@203.0.113.9"),
        ({"SSH_CONNECTION": f"{SSH} 2222"}, True, ": ssh -L 8000:localhost:8000 -p 2222 me@203.0.113.9"),
        (
            {"SSH_CONNECTION": f"{SSH} 22", "SLURM_JOB_ID": "1"},
            False,
            "On your own machine: ssh -L 8000:localhost:8000 -J me@203.0.113.9 me@node-7",
        ),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, True, "kubectl port-forward node-7 8000"),
        ({}, True, "HOST=0.0.0.0 here, -p 8000:8000 where it is started"),
        ({"REMOTE_CONTAINERS": "true"}, True, ""),
        ({"SSH_CONNECTION": f"{SSH} 22", "VSCODE_IPC_HOOK_CLI": "/run/vscode.sock"}, False, ""),
    ],
)
def test_the_way_in_from_another_machine(
    environ: dict[str, str], container: bool, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve.socket, "gethostname", lambda: "node-7")
    monkeypatch.setattr(serve.getpass, "getuser", lambda: "me")
    found = serve.way_in("127.0.0.1", 8000, environ, container)
    assert found.endswith(way)
    assert bool(found) == bool(way)
    assert serve.way_in("0.0.0.0", 8000, environ) == "Whoever reaches this machine can open it, at port 8000."


def test_it_says_the_way_in(folder: Path) -> None:
    command = [sys.executable, "-u", serve.__file__, "--directory", str(folder)]
    environ = {**AT_HOME, "SSH_CONNECTION": f"{SSH} 22"}
    environ.pop("CODESPACES")
    environ.pop("VSCODE_IPC_HOOK_CLI", None)
    with subprocess.Popen(command, text=True, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        way, book = process.stdout.readline(), process.stdout.readline()
        process.terminate()
        process.communicate(timeout=10)
    (port,) = re.findall(r"http://127\.0\.0\.1:(\d+)/", book)
    assert f"ssh -L {port}:localhost:{port} " in way
