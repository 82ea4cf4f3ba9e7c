"""Where the book says that it runs: commands that it names exist, and containers are made of what the project has."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from playbook.cli import main

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "book" / "run-it.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


CODE = "\n".join(re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)).replace("\\\n", " ")


def lines(command: str) -> list[str]:
    """What the page's shell code calls, each whole, up to a pipe and without a comment; not what torchrun calls."""
    found = re.findall(rf"(?:^|(?<!-m )\b){command}\b[^|#&\n]*", CODE, re.M)
    return [line.replace("$PWD", "/home/me/playbook").strip() for line in found]


COMMANDS = lines("playbook (?:memory|slurm|kubernetes|doctor)")


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_of_the_page_run(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(line)[1:]) == 0
    assert capsys.readouterr().out


def test_the_page_has_such_commands() -> None:
    assert [line.split()[1] for line in COMMANDS] == ["memory", "doctor", "slurm", "kubernetes"]


def test_targets_and_settings_of_make_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z]+):", makefile, re.M)
    for line in (*lines("make"), *re.findall(r"`(make [^`]*)`", PAGE)):
        _, target, *settings = shlex.split(line.partition(">")[0])
        assert target in targets
        for name in (setting.partition("=")[0] for setting in settings):
            assert f"$({name})" in makefile, line


def test_the_image_is_made_of_what_there_is() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", DOCKERFILE, re.M))
    (device,) = re.findall(r"^ARG DEVICE=(\S+)", DOCKERFILE, re.M)
    assert {device, *re.findall(r"--build-arg DEVICE=(\w+)", PAGE)} <= stages
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (extras,) = re.findall(r"^RUN python3 tools/bootstrap.py([^&\n]*)", DOCKERFILE, re.M)
    assert set(extras.split()) <= set(project["optional-dependencies"])
    _, script, *flags = json.loads(re.findall(r"^CMD (.*)", DOCKERFILE, re.M)[0])
    told = subprocess.run([sys.executable, ROOT / script, *flags, "--help"], capture_output=True, text=True)
    assert (told.returncode, told.stderr) == (0, "")


def test_editors_use_the_same_image() -> None:
    folder = ROOT / ".devcontainer"
    told = json.loads((folder / "devcontainer.json").read_text(encoding="utf-8"))
    assert (folder / told["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    assert f" AS {told['build']['target']}\n" in DOCKERFILE
    assert told["forwardPorts"] == [
        int(port) for port in re.findall(r"^EXPOSE (.*)", DOCKERFILE, re.M)[0].split()
    ]
    (script,) = re.findall(r"python3 (tools/\S+)", told["postCreateCommand"])
    assert (ROOT / script).is_file()
