"""What runs in the reader's browser: the library's standard-library rooms, and Python's memory once they are imported.

Every widget with a ``compute`` names a function. The modules which that function imports go into the archive; the
functions are called once, in Node, and the interpreter's memory is kept: a page that restores it has Python in about a
second.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

import playbook
import playbook_book
import playbook_widgets

HERE = Path(__file__).parent
PYODIDE = HERE.parents[1] / "node_modules" / "pyodide"
TOPS = tuple(Path(str(top.__file__)).parents[1] for top in (playbook, playbook_widgets, playbook_book))
EPOCH = (1980, 1, 1, 0, 0, 0)  # the same bytes for the same files

# Run without site-packages: a module that needs more than the standard library fails here, not in the reader's browser.
FIND = """
import importlib, json, sys, threading
sys.path[:0] = sys.argv[1:4]
for target in sys.argv[4:]:
    importlib.import_module(target.partition(":")[0])
from playbook.registry import lab, places
for asking, kinds in (("schedules.catalogue", ("schedule", "schedule check")), ("shapes", ("model",))):
    for kind in kinds if "playbook." + asking in sys.modules else ():
        for name in places(kind):  # each is loaded when it is asked for
            lab(kind, name)
def no_thread(*given):
    raise RuntimeError("a page has no threads")
threading.Thread.start = no_thread
sys.modules["playbook.launch"] = None  # nor ranks
import playbook_book.page
from playbook_book.exercises import exercises, grade
graded = []
for name, exercise in exercises().items():
    try:  # the best answer goes through all that its grader needs
        graded += [name] if grade(name, exercise.right[0]).right else []
    except (ImportError, RuntimeError):
        pass
ours = ("playbook", "playbook_widgets", "playbook_book")
files = sorted(m.__file__ for name, m in sys.modules.items() if m and name.split(".")[0] in ours)
print(json.dumps({"files": files, "graded": graded}))
"""


def widgets() -> list[Any]:
    """The widgets of the package that compute."""
    found = [getattr(playbook_widgets, name) for name in playbook_widgets.WIDGETS]
    return [widget for widget in found if widget.compute]


def first_calls() -> list[tuple[str, dict[str, Any]]]:
    """Each widget's function with the inputs that it starts with, or that are enough to warm it up."""
    return [(widget.compute, dict(widget.warm or widget().inputs)) for widget in widgets()]


def write_library(target: Path, functions: list[str]) -> list[str]:
    """The archive of what ``functions`` ("module:name") and exercises import. Returns the exercises that it can grade."""
    command = [sys.executable, "-S", "-c", FIND, *map(str, TOPS), *functions]
    found = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""})
    if found.returncode:
        raise ExtensionError(f"a widget's function needs more than the standard library:\n{found.stderr}")
    answer = json.loads(found.stdout)
    loaded = [Path(file) for file in answer["files"]]
    # A package's data stands beside its code.
    loaded += [data for file in loaded if file.name == "__init__.py" for data in file.parent.glob("*.toml")]
    files = {str(file.relative_to(top)): file for file in loaded for top in TOPS if file.is_relative_to(top)}
    files["python_call.py"] = HERE / "python_call.py"
    with zipfile.ZipFile(target, "w") as archive:
        for name, file in sorted(files.items()):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())
    return list(answer["graded"])


def write_snapshot(target: Path, library: Path, calls: list[tuple[str, dict[str, Any]]], cache: Path) -> None:
    """Python's memory after ``calls``; taken from ``cache`` where nothing has changed."""
    script = HERE / "make_snapshot.mjs"
    digest = hashlib.sha256(library.read_bytes() + script.read_bytes() + json.dumps(calls).encode())
    digest.update((PYODIDE / "package.json").read_bytes())
    kept = cache / f"{digest.hexdigest()}.bin.gz"
    if not kept.exists():
        node = shutil.which("node")
        if node is None or not PYODIDE.is_dir():
            raise ExtensionError(
                "widgets need Node and the packages of widgets/package.json: run `make setup`"
            )
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir(parents=True)
        made = subprocess.run(
            [node, str(script), str(PYODIDE), str(library), str(kept), json.dumps(calls)],
            capture_output=True,
            text=True,
        )
        if made.returncode:
            # Node quotes the line of minified code at which it stopped: a megabyte.
            raise ExtensionError(f"no snapshot of Python could be made: {made.stderr[-2000:]}")
    shutil.copy2(kept, target)


def write_all(folder: Path, cache: Path) -> None:
    """``library.zip`` and ``snapshot.bin.gz`` into ``folder``; nothing where no widget computes."""
    if calls := first_calls():
        folder.mkdir(parents=True, exist_ok=True)
        graded = write_library(folder / "library.zip", [target for target, _ in calls])
        (folder / "exercises.json").write_text(json.dumps(graded), encoding="utf-8")
        write_snapshot(folder / "snapshot.bin.gz", folder / "library.zip", calls, cache)


def setup(app: Sphinx) -> None:
    target = Path(app.outdir, "_static", "pb", "python")
    cache = Path(app.outdir).parent / "python"

    def write(app: Sphinx) -> None:
        if not app.config.playbook_again:
            write_all(target, cache)

    app.connect("builder-inited", write, priority=600)  # after the static files
