"""What a module or a piece of code needs, read from its source."""

from __future__ import annotations

from pathlib import Path

import pytest
from closure import Modules

FILES = {
    "lib/__init__.py": "",
    "lib/leaf.py": "x = 1\n",
    "lib/other.py": "y = 2\n",
    "lib/room/__init__.py": "from lib.room.door import enter\n",
    "lib/room/door.py": "from ..leaf import x\ndef enter():\n    import lib.room.attic\n",
    "lib/room/attic.py": "",
    "lib/typed.py": (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from lib.leaf import x\nelse:\n    from lib.other import y\n"
    ),
    "lib/untyped.py": "from typing import TYPE_CHECKING\nif not TYPE_CHECKING:\n    from lib.leaf import x\n",
    "lib/named.py": 'compute = "lib.leaf:x"\n',
    "lib/named_in_words.py": '"""Works like lib.leaf, with lib.other."""\n',
    "lib/family.py": 'def load(name):\n    return __import__(f"lib.room.{name}")\n',
    "lazy/__init__.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from lazy.one import One\n"
        "    from lazy.two import Two\ndef __getattr__(name): ...\n"
    ),
    "lazy/one.py": "import lib.leaf\n",
    "lazy/two.py": "import lib.other\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> Modules:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return Modules([tmp_path])


@pytest.mark.parametrize(
    ("module", "needs"),
    [
        ("lib.leaf", {"lib"}),
        ("lib.room.door", {"lib", "lib.room", "lib.leaf", "lib.room.attic"}),
        ("lib.typed", {"lib", "lib.other"}),
        ("lib.untyped", {"lib", "lib.leaf"}),
        ("lib.named", {"lib", "lib.leaf"}),
        ("lib.named_in_words", {"lib"}),
        ("lib.family", {"lib", "lib.room", "lib.room.door", "lib.room.attic", "lib.leaf"}),
        ("lazy", set()),
    ],
)
def test_the_closure_of_a_module(modules: Modules, module: str, needs: set[str]) -> None:
    assert modules.closure([module]) == {module, *needs}


def test_without_what_functions_import_or_strings_name(modules: Modules) -> None:
    assert "lib.room.attic" not in modules.closure(["lib.room"], deferred=False)
    assert modules.closure(["lib.named"], by_name=False) == {"lib", "lib.named"}


@pytest.mark.parametrize(
    ("code", "needs"),
    [
        ("import os", set()),
        ("from lib import leaf", {"lib", "lib.leaf"}),
        ("from lazy import One", {"lazy", "lazy.one", "lib", "lib.leaf"}),
        ("import lazy", {"lazy", "lazy.one", "lazy.two", "lib", "lib.leaf", "lib.other"}),
        ("def later():\n    from lib.leaf import x", {"lib", "lib.leaf"}),
    ],
)
def test_what_code_needs(modules: Modules, code: str, needs: set[str]) -> None:
    assert modules.needed_by(code) == needs


PLAYBOOK = Modules()


@pytest.mark.parametrize(
    ("code", "needs", "not_needed"),
    [
        (
            "get_ipython().run_cell_magic('torchrun', '', 'from playbook.seeding import derive_seed')",
            "seeding",
            "shapes",
        ),
        ("script = f'''import sys\nfrom playbook.seeding import {name}\n'''", "seeding", "shapes"),
        ("module = 'in playbook.seeding.derive_seed'", "seeding", "shapes"),
        ("!{python} -m playbook doctor --json", "doctor", "playbook_book.bench.train"),
        ("get_ipython().system('playbook doctor --json')", "commands.memory", "playbook_book.bench.train"),
        (
            "command = f'{python} -m playbook {words}'",
            "playbook_book.bench.train",
            "playbook_book.expert_placement",
        ),
        ("subprocess.run(['-m', 'playbook', 'doctor'])", "doctor", "playbook_book.bench.train"),
        (
            "from playbook.cli import main\nmain([name])",
            "playbook_book.bench.train",
            "playbook_book.expert_placement",
        ),
        ("from playbook.cli import main\nmain(['doctor'])", "doctor", "playbook_book.bench.train"),
        ("from playbook_widgets import RingAttention", "layout", "instruments.trace"),
        ("from playbook import show", "source", "shapes"),
        (
            "from playbook_book.exercises import check\ncheck('data-parallel.bytes', ...)",
            "playbook_book.exercises.data_parallel",
            "playbook_book.exercises.zero",
        ),
        ("!playbook exercises", "playbook_book.exercises.zero", "playbook_book.bench.train"),
    ],
)
def test_what_strings_need(code: str, needs: str, not_needed: str) -> None:
    found = PLAYBOOK.needed_by(code if not code.startswith("!") else f"system({code[1:]!r})")
    needs, not_needed = (
        name if name in PLAYBOOK.files else f"playbook.{name}" for name in (needs, not_needed)
    )
    assert needs in found
    assert not_needed in PLAYBOOK.files
    assert not_needed not in found


def test_nothing_is_loaded_by_a_name_that_no_source_tells() -> None:
    """Who loads modules by names that are made while it runs; for each, why the closure is complete without them."""
    known = {
        "playbook",  # its names are listed under TYPE_CHECKING
        "playbook.registry",  # who asks it is read, and what `labs.py` offers
        "playbook_book.bench.contenders",  # another package
        "playbook_book.bench.fp8",  # another package
        "playbook.launch.warm_process",  # only so that they are there when a rank imports them
        "playbook_widgets",  # its names are listed under TYPE_CHECKING
        "playbook_widgets.base",  # `compute`, which is a module's name in full
        "playbook_widgets.site.extension",  # its parts, while the site is built
        "playbook_widgets.site.python_call",  # in the reader's browser
        "playbook_widgets.site.browser_python",  # while the site is built
        "playbook_widgets.site.reference",  # as well
    }
    loaders = {name for name in PLAYBOOK.files if "import_module(" in PLAYBOOK.files[name].read_text("utf-8")}
    # By beginnings of names that stand in their texts.
    told = {"playbook_book.exercises.grading"}
    assert loaders - told <= known
