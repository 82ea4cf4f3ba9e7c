"""The rooms that a browser runs need the standard library alone, and importing the library stays cheap."""

import subprocess
import sys
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"
#: Files and folders that never import anything outside the standard library.
ROOMS = ["errors.py", "source.py", "layout", "shapes.py", "presets.py", "hardware.py", "planning"]
ROOMS += ["collectives/plans", "collectives/costs.py", "collectives/volumes.py"]
ROOMS += [room for room in ("schedules",) if (SRC / "playbook" / room).exists()]

PROBE = """
import importlib, sys
sys.path.insert(0, {src!r})
before = set(sys.modules)
sys.modules["torch"] = sys.modules["numpy"] = None  # makes importing them an ImportError
for module in {modules!r}:
    importlib.import_module(module)
loaded = {{name.split(".")[0] for name in set(sys.modules) - before}} - {{"torch", "numpy"}}
print(sorted(loaded - set(sys.stdlib_module_names)))
"""


def modules_of(room: str) -> list[str]:
    path = SRC / "playbook" / room
    files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
    names = [".".join(file.relative_to(SRC).with_suffix("").parts) for file in files]
    return [name.removesuffix(".__init__") for name in names]


def imported_from_elsewhere(modules: list[str]) -> str:
    code = PROBE.format(src=str(SRC), modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("room", ROOMS)
def test_room_needs_the_standard_library_alone(room):
    assert imported_from_elsewhere(modules_of(room)) == "['playbook']"


@pytest.mark.parametrize("room", ["layout", "planning", "schedules"])
def test_no_lab_is_imported_by_what_readers_read_first(room):
    """Plans of collectives and the solver are for those who ask for them."""
    modules = [m for m in modules_of(room) if not m.startswith("playbook.schedules.solver")]
    code = f"import importlib, sys; [importlib.import_module(m) for m in {modules!r}]; print(sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "playbook.collectives" not in loaded
    assert "playbook.schedules.solver" not in loaded


def test_importing_playbook_does_not_import_torch():
    code = "import sys, playbook; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
