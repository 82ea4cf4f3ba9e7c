"""nbval over what the build has run: kept outputs stand in for a kernel's, while they are those of the present code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import nbformat
import pytest
from closure import ROOT
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn
from nbformat.v4 import new_code_cell, new_notebook, new_output

TAGS = {"tags": ["nbval-check-output"]}
NO_ONE_RUNS = "1 / 0"  # a kernel would say so


def printed(source: str, text: str, **metadata: list[str]) -> nbformat.NotebookNode:
    outputs = [new_output("stream", name="stdout", text=text)]
    return new_code_cell(source, outputs=outputs, execution_count=1, metadata=metadata)


@pytest.fixture(scope="module")
def house(tmp_path_factory) -> Path:
    """A project of one chapter, as far as keys and nbval look."""
    root = tmp_path_factory.mktemp("house")
    for name in ("tools", "src", "widgets/playbook_widgets"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("static", "site", "__pycache__")
        )
    for name in ("constraints.txt", "book/conftest.py", "pyproject.toml"):
        (root / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


@cache
def key_of(root: Path, stored: str) -> str:
    """The key of the chapter there."""
    ask = "import outputs; print(outputs.keys([outputs.ROOT / 'book' / 'chapter.ipynb'])['book/chapter'])"
    environment = {**os.environ, "PYTHONPATH": str(root / "tools")}
    answer = subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True)
    return answer.stdout.strip()


def nbval(
    root: Path, stored: nbformat.NotebookNode, run: nbformat.NotebookNode, key: str | None = None
) -> str:
    """Keep ``run`` as the build would have of ``stored``, and give what nbval says."""
    chapter = root / "book" / "chapter.ipynb"
    nbformat.write(stored, chapter)
    shutil.rmtree(root / "_build", ignore_errors=True)
    get_cache(root / "_build" / ".jupyter_cache").cache_notebook_bundle(
        CacheBundleIn(run, str(chapter)), check_validity=False, overwrite=True
    )
    environment = {**os.environ, "PYTHONPATH": str(root / "tools")}
    key = key or key_of(root, nbformat.writes(stored))
    (root / "_build" / "state.json").write_text(json.dumps({"executed": {"book/chapter": key}}))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval-lax",
        "--built",
        "book",
    ]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True).stdout


def test_what_the_build_has_run_is_compared_and_not_run_again(house):
    def chapter(number: str) -> nbformat.NotebookNode:
        skipped = new_code_cell("2 / 0", metadata={"tags": ["nbval-skip"]})
        return new_notebook(cells=[skipped, printed("1 / 0", number, **TAGS), printed("3 / 0", number)])

    stored = chapter("4")
    assert "2 passed, 1 skipped" in nbval(house, stored, stored)
    said = nbval(house, stored, chapter("5"))
    assert "1 failed, 1 passed, 1 skipped" in said
    assert "Cell outputs differ" in said


def test_a_chapter_that_the_build_has_not_run_is_run(house):
    stored = new_notebook(cells=[printed("print(2 + 2)", "4\n", **TAGS), new_code_cell(NO_ONE_RUNS)])
    run = new_notebook(cells=[printed("print(2 + 2)", "4\n"), printed(NO_ONE_RUNS, "")])
    assert "1 failed, 1 passed" in nbval(house, stored, run, key="of another day")
    assert "2 passed" in nbval(house, stored, run)
