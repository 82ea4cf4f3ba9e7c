"""The pins: sufficient for what pyproject.toml and the packages ask, with hashes, and without registry hosts."""

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
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def pins() -> dict[str, str]:
    """The version of each package."""
    lines = [line.rstrip("\\") for line in PINS.splitlines() if not line.startswith(("#", " "))]
    found = [Requirement(line) for line in lines]
    assert [str(r) for r in found if not re.fullmatch(r"==[\w.]+", str(r.specifier))] == []
    result = {canonicalize_name(r.name): str(r.specifier).removeprefix("==") for r in found}
    assert len(result) == len(found), "a package is pinned twice"
    return result


def unmet(wanted: list[Requirement]) -> list[str]:
    """Those that no pin satisfies."""
    found = pins()
    return [
        str(r)
        for r in wanted
        if not (pin := found.get(canonicalize_name(r.name))) or not r.specifier.contains(pin)
    ]


def test_everything_that_the_project_asks_for_is_pinned_within_its_bounds() -> None:
    extras = PYPROJECT["optional-dependencies"]
    asked = [Requirement(line) for lines in [PYPROJECT["dependencies"], *extras.values()] for line in lines]
    own = [r for r in asked if r.name == PYPROJECT["name"]]
    assert unmet([r for r in asked if r not in own]) == []
    assert {extra for r in own for extra in r.extras} <= set(extras)


def test_what_pinned_packages_ask_of_each_other_is_pinned() -> None:
    """As far as they are installed here: torch's wheel for CUDA wants one triton, that for CPUs none."""
    outside = []
    for name in pins():
        try:
            wanted = [Requirement(line) for line in metadata.requires(name) or []]
        except metadata.PackageNotFoundError:
            continue
        applies = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
        outside += [f"{name} wants {r}" for r in unmet(applies)]
    assert outside == []


def test_everything_but_torch_has_hashes_and_no_line_names_a_host_or_a_path() -> None:
    assert re.findall(r"^([\w.-]+)==(?:.*[^\\\n])$", PINS, re.M) == ["torch"]
    assert set(re.findall(r"^ +(\S+?):", PINS, re.M)) == {"--hash=sha256"}
    assert "/" not in re.sub("^#.*", "", PINS, flags=re.M)


def test_the_python_of_conda_is_one_that_the_project_supports() -> None:
    lines = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    python = next(line for line in lines if line.startswith("python="))
    assert PYPROJECT["requires-python"] == ">=" + python.removeprefix("python=")


def test_front_end_packages_are_exact_and_name_no_registry() -> None:
    manifest = json.loads((ROOT / "widgets" / "package.json").read_text(encoding="utf-8"))
    lock = json.loads((ROOT / "widgets" / "package-lock.json").read_text(encoding="utf-8"))
    versions = {**manifest["dependencies"], **manifest["devDependencies"]}
    assert [name for name, version in versions.items() if not re.fullmatch(r"\d+\.\d+\.\d+", version)] == []
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert [name for name, entry in packages.items() if "resolved" in entry or "integrity" not in entry] == []
    assert {name.removeprefix("node_modules/") for name in packages} >= set(versions)
