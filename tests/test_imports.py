"""The order of the house: who may import whom, what importing the trainer brings in, and what browsers can run."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter

import pytest
from closure import ROOT, TOPS, Modules
from reading_order import CORE, is_core

MODULES = Modules()
#: Rooms after the core: the labs, then what supports core and labs.
AFTER = (
    ("recurrent", "planned_presets"),
    ("rope_scaling", "huggingface", "config_families", "config_hybrids"),
    ("schedules.validate", "schedules.explain", "schedules.solver"),
    (
        "precision.products",
        "precision.four_bits",
        "precision.fp4",
        "model.fp4",
        "model.fp8",
        "model.lora",
        "model.hugging_face",
    ),
    (
        "training.saving",
        "training.convert",
        "training.fp8_gathers",
        "training.guard",
        "training.replica_check",
    ),
    (
        "planning.recurrent",
        "planning.regret",
        "planning.search",
        "planning.jobs",
        "planning.flags",
        "planning.rank_view",
        "planning.four_bits",
        "planning.fp8_traffic",
    ),
    ("collectives",),
    ("estimates",),
    ("documents",),
    ("kernels",),
    ("decentralized",),
    ("figures",),
    ("launch",),
    ("instruments",),
    ("recovery",),
    ("doctor",),
    ("bench",),
    ("commands",),
    ("cli",),
    ("__main__",),
)
ORDER = {name: place for place, room in enumerate((*CORE, *AFTER)) for name in room}
LAST = len(ORDER)
#: What stands on the library: widgets, and what chapters alone need.
AROUND = ("playbook_widgets", "playbook_book")


def place(module: str) -> int:
    """The place of a module's room in the order. Raises KeyError for one in no room."""
    package, _, name = module.partition(".")
    if package in AROUND:
        return LAST
    room = name.partition(".")[0]
    if name in ORDER or not name:
        return ORDER.get(name, 0)
    for lab in ("schedules.solver", "planning.flags"):
        if name.startswith(lab):
            return ORDER[lab]
    return ORDER[room]


def upward(modules: Iterable[str]) -> Iterator[str]:
    """Imports of later rooms, each as file, line and what is imported."""
    for module in sorted(modules):
        for item in MODULES.imports(module):
            if not item.by_name and place(item.module) > place(module):
                yield f"{_path(module)}:{item.line} imports {item.module} ({', '.join(item.names)})"


def circle(modules: Iterable[str]) -> list[str]:
    """Files that name each other in a circle (in functions, for types and in strings as well), or none."""
    inside = set(modules)
    needs = {module: MODULES.named(module) & inside for module in inside}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def _path(module: str) -> str:
    return MODULES.files[module].relative_to(ROOT).as_posix()


def lines(modules: Iterable[str]) -> int:
    return sum(len(MODULES.files[module].read_text(encoding="utf-8").splitlines()) for module in modules)


def test_every_module_is_in_a_room() -> None:
    for module in MODULES.files:
        place(module)


@pytest.mark.parametrize("part", ["core", "labs and support"])
def test_imports_go_to_the_same_room_or_an_earlier_one(part: str) -> None:
    assert not list(upward(module for module in MODULES.files if is_core(module) == (part == "core")))


def test_no_files_import_each_other_in_a_circle() -> None:
    assert not circle(MODULES.files)


def test_the_library_does_not_know_its_widgets_nor_its_chapters() -> None:
    """``cli.py`` names the book's commands."""
    for module in MODULES.files:
        if module.startswith("playbook.") and module != "playbook.cli":
            assert not {name for name in MODULES.named(module) if name.startswith(AROUND)}, module


def trainer() -> set[str]:
    """What the trainer and `parallelize` need, imports inside functions included."""
    return MODULES.closure(["playbook.training.trainer", "playbook.parallel.parallelize"], by_name=False)


def test_what_training_needs_can_be_read() -> None:
    found = trainer()
    print(f"trainer and parallelize need {len(found)} files, {lines(found)} lines")
    assert len(found) <= 64, sorted(found)
    assert lines(found) <= 9368


def test_the_core_can_be_read() -> None:
    core = set(filter(is_core, MODULES.files))
    print(f"the core has {len(core)} files, {lines(core)} lines")
    assert len(core) <= 107
    assert lines(core) <= 16490


def test_the_library_stays_small() -> None:
    library = {module for module in MODULES.files if f"{module}.".startswith("playbook.")}
    print(f"src/playbook has {len(library)} files, {lines(library)} lines")
    assert len(library) <= 260
    assert lines(library) <= 40971


def test_what_training_needs_is_the_core() -> None:
    assert not list(upward(trainer()))
    assert not {module for module in trainer() if module != "playbook" and not is_core(module)}


def test_what_training_needs_has_no_circles() -> None:
    assert not circle(trainer())


def test_the_techniques_stay_short() -> None:
    room = {module for module in MODULES.files if f"{module}.".startswith("playbook.parallel.")}
    print(f"src/playbook/parallel has {lines(room)} lines")
    assert lines(room) <= 4199


def test_functions_of_the_core_fit_on_a_screen() -> None:
    long = [
        f"{_path(module)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for module in filter(is_core, MODULES.files)
        for node in ast.walk(MODULES.tree(module))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 60
    ]
    assert not long, "\n".join(long)


#: Files and folders that a browser runs: they import nothing outside the standard library, but each other.
IN_BROWSERS = [
    "errors.py",
    "source.py",
    "layout",
    "block.py",
    "shapes.py",
    "presets.py",
    "hardware.py",
    "planning",
    "precision/formats.py",
    "precision/four_bits.py",
    "schedules",
    "collectives/links.py",
    "decentralized/topology.py",
    "decentralized/methods.py",
]

#: Of widgets and of the book, likewise; My cluster shows tables that the book compares with.
BOOK_IN_BROWSERS = [
    "widgets/playbook_widgets/compute",
    "book/playbook_book/collectives/plans",
    "book/playbook_book/collectives/closed_forms.py",
    "book/playbook_book/collectives/network.py",
    "book/playbook_book/kernels/warps.py",
]

PROBE = """
import importlib, sys
sys.path[:0] = {tops!r}
before = set(sys.modules) | {{"torch", "numpy"}}
sys.modules["torch"] = sys.modules["numpy"] = None  # makes importing them an ImportError
for modules in {rooms!r}:
    for name in [name for name in sys.modules if name.startswith("playbook")]:
        del sys.modules[name]
    for module in modules:
        importlib.import_module(module)
    loaded = {{name.split(".")[0] for name in set(sys.modules) - before}}
    print(*sorted(loaded - set(sys.stdlib_module_names)))
"""


@functools.cache
def imported_from_elsewhere() -> dict[str, set[str]]:
    """What is loaded with the files of each room, the first to be imported, beside the standard library."""
    rooms = {room: ROOT / "src/playbook" / room for room in IN_BROWSERS}
    rooms |= {room: ROOT / room for room in BOOK_IN_BROWSERS}
    modules = [
        [name for name, file in MODULES.files.items() if room in (file, *file.parents)]
        for room in rooms.values()
    ]
    assert all(modules), "a room holds no module"
    code = PROBE.format(tops=[str(top) for top in TOPS], rooms=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return {room: set(line.split()) for room, line in zip(rooms, done.stdout.splitlines(), strict=True)}


@pytest.mark.parametrize("room", IN_BROWSERS)
def test_room_needs_the_standard_library_alone(room: str) -> None:
    assert imported_from_elsewhere()[room] == {"playbook"}


@pytest.mark.parametrize("room", BOOK_IN_BROWSERS)
def test_room_of_the_book_needs_the_standard_library_and_such_rooms_alone(room: str) -> None:
    assert imported_from_elsewhere()[room] <= {"playbook", "playbook_widgets", "playbook_book"}


def test_importing_playbook_does_not_import_torch() -> None:
    code = "import sys, playbook; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_command_line_works_without_the_book() -> None:
    code = """
import sys
sys.modules["playbook_book"] = None  # makes importing it an ImportError
from playbook.cli import main
sys.exit(main(["memory", "--model", "tiny", "--json"]))
"""
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, timeout=60).returncode == 0
