"""The core in the order in which ARCHITECTURE.md lists it: is every file there, and nothing used before it is read?

Usage: python tools/reading_order.py          print what is wrong with the order; status 1 if anything

The list is the lines of the form "- `layout/layout.py` — what it is", with paths below src/playbook. A package's
``__init__.py`` need not be listed; what it hands on counts for the file that defines it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from closure import ROOT, Modules

#: The rooms of the core, each with what it may import: itself, and those before it.
CORE = (
    *(
        (
            "errors",
            "_checks",
            "_tables",
            "_json",
            "_interrupt",
            "registry",
            "labs",
            "seeding",
            "text",
            "source",
            "presets",
            "block",
            "shapes",
            "hardware",
        ),
    ),
    ("layout",),
    ("precision",),
    ("schedules", "planning"),
    ("model",),
    ("parallel",),
    ("training",),
)
#: Inside a room of the core, and no part of it.
LABS_INSIDE = (
    "playbook.precision.products",
    "playbook.precision.four_bits",
    "playbook.precision.fp4",
    "playbook.schedules.solver",
    "playbook.schedules.explain",
    "playbook.schedules.validate",
    "playbook.planning.flags",
    "playbook.planning.four_bits",
    "playbook.planning.fp8_traffic",
    "playbook.planning.jobs",
    "playbook.planning.muon",
    "playbook.planning.recurrent",
    "playbook.planning.regret",
    "playbook.planning.search",
    "playbook.planning.rank_view",
    "playbook.model.fp4",
    "playbook.model.fp8",
    "playbook.model.lora",
    "playbook.model.offload",
    "playbook.model.hugging_face",
    "playbook.training.convert",
    "playbook.training.fp8_gathers",
    "playbook.training.guard",
    "playbook.training.muon",
    "playbook.training.replica_check",
    "playbook.training.saving",
)

LINE = re.compile(r"^- `([\w/]+\.py)` — ", re.M)


def is_core(module: str) -> bool:
    """Whether a module belongs to what a reader of the core reads."""
    if any(f"{module}.".startswith(f"{lab}.") for lab in LABS_INSIDE):
        return False
    return any(module.split(".")[:2] == ["playbook", name] for room in CORE for name in room)


def listed(text: str) -> list[str]:
    """The modules that a text lists, in its order."""
    return ["playbook." + path.removesuffix(".py").replace("/", ".") for path in LINE.findall(text)]


def complaints(order: list[str], modules: Modules) -> Iterator[str]:
    """What is wrong with an order of reading, a sentence each."""
    core = {name for name in modules.files if is_core(name) and modules.files[name].name != "__init__.py"}
    for name in sorted(core - set(order)):
        yield f"{_path(name)} is not in the list"
    for place, name in enumerate(order):
        if name not in core:
            yield f"{_path(name)} is listed, but is no file of the core"
        elif name in order[:place]:
            yield f"{_path(name)} is listed twice"
    for place, name in enumerate(order):
        later = set(order[place + 1 :])
        for line, used, source in uses(name, modules) if name in core else ():
            if source in later:
                yield f"{_path(name)}:{line} uses {used or 'all'} of {_path(source)}, which comes later"


def uses(module: str, modules: Modules) -> Iterator[tuple[int, str, str]]:
    """(line, name, the module that defines it) for what a module imports; the name is empty for a whole module."""
    for item in modules.imports(module):
        if not item.by_name:
            for name in item.names or ("",):
                yield item.line, name, origin(item.module, name, modules)


def origin(module: str, name: str, modules: Modules) -> str:
    """The module that defines ``name``, where ``module`` is a package that hands it on."""
    if modules.files[module].name == "__init__.py":
        for item in modules.imports(module):
            if name in item.names:
                return origin(item.module, name, modules)
    return module


def _path(module: str) -> str:
    return module.removeprefix("playbook.").replace(".", "/") + ".py"


def main() -> int:
    order = listed(Path(ROOT, "ARCHITECTURE.md").read_text(encoding="utf-8"))
    found = list(complaints(order, Modules()))
    print("\n".join(found) or f"{len(order)} files, none used before it is read")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
