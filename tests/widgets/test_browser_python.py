"""What the site carries of Python: the files that widgets need and no more, and a snapshot that is made once."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playbook_widgets.site import browser_python
from playbook_widgets.site.browser_python import first_calls, write_library, write_snapshot
from sphinx.errors import ExtensionError

COMPUTE = "playbook_widgets.compute.calculator:compute"


def test_the_library_holds_what_the_functions_import_and_runs_on_its_own(tmp_path):
    archive, again = tmp_path / "a.zip", tmp_path / "b.zip"
    for file in (archive, again):
        write_library(file, [COMPUTE])
    assert archive.read_bytes() == again.read_bytes()
    names = set(zipfile.ZipFile(archive).namelist())
    assert {"playbook/__init__.py", "playbook/planning/memory.py", "python_call.py"} <= names
    assert not [name for name in names if "training/trainer" in name or "model/" in name]
    code = f"import python_call; print(python_call.call({COMPUTE!r}, '{{\"configs\": [{{}}]}}')[:11])"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(archive)},
    )  # fmt: skip
    assert run.stdout.strip() == '{"results":', run.stderr


def test_a_function_that_needs_torch_fails_the_build(tmp_path):
    with pytest.raises(ExtensionError, match="more than the standard library"):
        write_library(tmp_path / "library.zip", ["playbook.training.data:load_corpus"])


def test_every_widget_that_computes_is_called_with_what_it_starts_with():
    calls = dict(first_calls())
    assert COMPUTE in calls
    assert calls[COMPUTE]["configs"]


def test_a_snapshot_is_made_once_for_the_same_library_and_calls(tmp_path, monkeypatch):
    """How one is made, and that pages start from it, is seen in ``test_runtime``."""
    cache, library, made = tmp_path / "cache", tmp_path / "library.zip", []

    def node(command, **options):
        kept, calls = command[4:]
        made.append(calls)
        Path(kept).write_text(f"{library.read_text()} after {calls}")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(browser_python.subprocess, "run", node)
    wanted = [("one", []), ("one", []), ("one", [(COMPUTE, {"configs": [{}]})]), ("two", [])]
    for text, calls in wanted:
        library.write_text(text)
        write_snapshot(tmp_path / "snapshot", library, calls, cache)
        assert (tmp_path / "snapshot").read_text() == f"{text} after {json.dumps(calls)}"
        assert len(list(cache.iterdir())) == 1  # what is of no use any more is not kept
    assert made == ["[]", json.dumps(wanted[2][1]), "[]"]
