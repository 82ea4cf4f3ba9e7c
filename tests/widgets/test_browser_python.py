"""What the site carries of Python: the files that widgets need and no more, and a snapshot that is made once."""

import os
import subprocess
import sys
import zipfile

import pytest
from playbook_widgets.site.browser_python import first_calls, write_library, write_snapshot
from sphinx.errors import ExtensionError

COMPUTE = "playbook_widgets.compute.calculator:compute"


def test_the_library_holds_what_the_functions_import_and_runs_on_its_own(tmp_path):
    archive = tmp_path / "library.zip"
    write_library(archive, [COMPUTE])
    names = set(zipfile.ZipFile(archive).namelist())
    assert {"playbook/__init__.py", "playbook/planning/memory.py", "python_call.py"} <= names
    assert not [name for name in names if "training" in name or "model/" in name]
    code = f"import python_call; print(python_call.call({COMPUTE!r}, '{{\"configs\": [{{}}]}}')[:11])"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(archive)},
    )  # fmt: skip
    assert run.stdout.strip() == '{"results":', run.stderr


def test_the_same_files_give_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_library(tmp_path / name, [COMPUTE])
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_function_that_needs_torch_fails_the_build(tmp_path):
    with pytest.raises(ExtensionError, match="more than the standard library"):
        write_library(tmp_path / "library.zip", ["playbook.training.data:load_corpus"])


def test_every_widget_that_computes_is_called_with_what_it_starts_with():
    calls = dict(first_calls())
    assert COMPUTE in calls
    assert calls[COMPUTE]["configs"]


def test_a_snapshot_is_made_once_for_the_same_library(tmp_path, browser_python):
    cache, library = tmp_path / "cache", browser_python / "library.zip"
    cache.mkdir()
    write_snapshot(tmp_path / "one", library, [], cache)
    [kept] = cache.iterdir()
    made = kept.stat().st_mtime_ns
    write_snapshot(tmp_path / "two", library, [], cache)
    assert [file.stat().st_mtime_ns for file in cache.iterdir()] == [made]
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    write_snapshot(tmp_path / "three", library, [(COMPUTE, {"configs": [{}]})], cache)
    assert [file.name for file in cache.iterdir()] != [kept.name]
