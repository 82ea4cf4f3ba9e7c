"""The wheel: all that `playbook` needs and nothing that it cannot have, in an environment with PyTorch and without."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import cloudpickle
import platformdirs
import pytest
import torch
import yaml
from packaging.requirements import Requirement

from playbook import __version__, doctor

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PACKAGES = {"playbook": "src", "playbook_widgets": "widgets", "playbook_book": "book"}
#: The package's own page: commands, and whether they run without PyTorch.
PAGE = (ROOT / "src" / "README.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^\| `playbook (.+?)` \| (yes|no) \|", PAGE, re.M)
#: The installed command, as in an environment that has these folders and the standard library.
COMMAND = "import sys; sys.path += {folders}; from playbook.__main__ import main; sys.exit(main())"


def sources() -> set[str]:
    """Files of the packages, but for what builds the site, by their places in a wheel."""
    found = set()
    for package, top in PACKAGES.items():
        for path in (ROOT / top / package).rglob("*"):
            name = path.relative_to(ROOT / top).as_posix()
            if path.is_file() and not re.search(
                r"__pycache__|/\.|^playbook_widgets/site/|/ruff\.toml$", name
            ):
                found.add(name)
    return found


def build(what: str, source: Path, out: Path) -> Path:
    """Have setuptools make what ``source`` is built into."""
    code = f"import setuptools.build_meta as s; print(s.build_{what}({str(out)!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return out / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the archive of a copy, so that nothing which an earlier build has left gets into it."""
    clone, out = tmp_path_factory.mktemp("clone"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "node_modules")
    for name in ("src", "widgets", "book"):
        shutil.copytree(ROOT / name, clone / name, ignore=ignored)
    for name in ("pyproject.toml", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    shutil.unpack_archive(build("sdist", clone, out), unpacked := tmp_path_factory.mktemp("unpacked"))
    (source,) = unpacked.iterdir()  # of which `python -m build` makes a wheel, too
    return build("wheel", source, out)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    shutil.unpack_archive(wheel, folder, "zip")  # as pip does where there is no script to make
    for module in (cloudpickle, platformdirs):
        package = Path(module.__file__).parent
        (folder / package.name).symlink_to(package)
    return folder


def playbook(
    arguments: str, folder: Path, cwd: Path, *more: Path, status: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run the command of a folder that a wheel was installed into; ``more`` has other packages."""
    code = COMMAND.format(folders=[str(folder), *map(str, more)])
    command = [sys.executable, "-I", "-S", "-c", code, *arguments.split()]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return done


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode())


def test_it_has_every_file_of_its_packages_and_no_other(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == sources()
    assert {"playbook/py.typed", "playbook_widgets/py.typed"} < names


def test_what_it_says_of_itself(wheel: Path) -> None:
    told = metadata(wheel)
    assert wheel.name == f"training_playbook-{__version__}-py3-none-any.whl"
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == __version__
    assert told["Author"] == "The playbook authors"
    asked = [Requirement(line) for line in told.get_all("Requires-Dist", [])]
    alone = {r.name for r in asked if r.marker is None or r.marker.evaluate({"extra": ""})}
    assert alone == {"cloudpickle", "platformdirs"}
    assert not re.search(r"\]\((?!http)", told.get_payload())  # a link to a file, which the index has not


def test_what_is_missing_is_installed_by_the_name_of_the_project() -> None:
    (wanted,) = re.findall(r"pip install '(.+)'", doctor.TORCH)
    found = Requirement(wanted)
    assert found.name == PROJECT["name"]
    assert found.extras <= set(PROJECT["optional-dependencies"])
    for page in ("README.md", "src/README.md", "book/run-it.md"):
        text = (ROOT / page).read_text(encoding="utf-8")
        named = [Requirement(text) for text in re.findall(r"pip install '?([\w-]*playbook[^'\s`]*)", text)]
        assert {r.name for r in named} <= {PROJECT["name"]}, page
        assert f"`{PROJECT['name']}`" in text


def test_it_sends_nobody_to_a_folder_that_it_has_not(installed: Path) -> None:
    """What it prints names no file of the checkout and no target of its Makefile."""
    away = re.compile(r"\b(?:src|widgets|tools|benchmarks|tests|book)/\w|\bmake (?:book|lab|serve|setup)\b")
    found = []
    for file in installed.glob("playbook*/**/*.py"):
        if not away.search(text := file.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        told = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                found += [f"{file.name}:{node.lineno} {name}" for name in away.findall(node.value)]
    assert found == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--version", f"playbook {__version__}"),
        ("mesh --model llama3-8b --layout tp=8,dp=2", "stage 0"),
        ("exercises", "0 of"),
        ("doctor", doctor.TORCH),
        *((command, "") for command, plans in COMMANDS if plans == "yes"),
    ],
)
def test_planning_needs_no_torch(
    arguments: str, words: str, installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))  # exercises that the reader has solved
    said = playbook(arguments, installed, tmp_path).stdout
    assert said
    assert words in said


@pytest.mark.parametrize(
    "arguments",
    ["bench collectives", "checkpoint verify x", *(command for command, plans in COMMANDS if plans == "no")],
)
def test_what_needs_torch_says_what_to_install(arguments: str, installed: Path, tmp_path: Path) -> None:
    said = playbook(arguments, installed, tmp_path, status=2).stderr
    assert said == f"playbook {arguments.split()[0]}: torch is not installed: {doctor.TORCH}\n"


def test_it_trains_where_torch_is(installed: Path, tmp_path: Path) -> None:
    """Its data and its kernels' sources are found in the folder that it was installed into, and nothing is of the
    checkout: this environment's packages are there, but not its ``.pth`` files."""
    packages = Path(torch.__file__).parents[1]
    arguments = "train --model tiny --steps 1 --global-batch 2 --seq 16 --device cpu --json"
    assert '"losses"' in playbook(arguments, installed, tmp_path, packages).stdout
    kernels = "playbook_book/kernels/cuda/matmul.cu"
    assert (installed / kernels).read_bytes() == (ROOT / "book" / kernels).read_bytes()
