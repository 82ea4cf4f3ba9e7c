"""Which modules of the project a module, or a piece of code, needs: read from the source, nothing is imported.

An import inside a function counts; one under ``if TYPE_CHECKING`` does not. A string that is a module's dotted name
counts as a load by name (``"playbook_widgets.compute.calculator:compute"``), and one that is the beginning of such names
(``f"playbook_book.exercises.{name}"``) as a load of all of them. Who asks the registry (``lab("schedule", name)``) loads
what ``labs.py`` or ``cli.py`` offers there. A package whose ``__getattr__`` loads names when they are asked for lists
them under TYPE_CHECKING: who imports such a name needs its module, and no other of the package.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOPS = (ROOT / "src", ROOT / "widgets", ROOT / "book")
CLI = "playbook.cli"
COMMANDS = "playbook.commands."
LABS = "playbook.labs"

MODULE = re.compile(r"([a-z_]\w*(?:\.\w+)+)(\.?)(?::\w+)?")
# `playbook train` in a shell command or a script; `-m playbook` followed by what only the run knows.
COMMAND = re.compile(r"(?<![\w./-])playbook +([a-z]+)\b")
ANY_COMMAND = re.compile(r"-m +playbook *$")

# Modules that load others by name, and what code says that can come to that: schedules are made for pipelines alone, and
# all exercises are listed by one command. A chapter checks its own. Methods that send less have names of their own.
PIPELINES = re.compile(r"\bpp\b|pipeline|playbook\.schedules|playbook +schedule")
SENDS_LESS = re.compile(r"\b(local:|(slowmo|diloco|gossip|powersgd|topk)\b)|playbook\.decentralized\.[ms]")
ON_DEMAND = {
    "playbook.schedules.catalogue": PIPELINES,
    "playbook.layout.stages": PIPELINES,
    "playbook.layout.layout": SENDS_LESS,
    "playbook.parallel.parallelize": SENDS_LESS,
    "playbook_book.exercises.grading": re.compile(r"playbook +exercises\b"),
}
EXERCISE = re.compile(r"""check\(\s*["']([a-z-]+)\.""")

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Import:
    """One module of the project that a module imports."""

    module: str
    names: tuple[str, ...]  # what is taken out of it; empty for the module itself
    line: int
    deferred: bool  # inside a function: carried out when that is called
    by_name: bool = False  # a string names the module


class Modules:
    """The modules of the packages in ``tops``, and who imports whom."""

    def __init__(self, tops: Iterable[Path] = TOPS):
        self.files: dict[str, Path] = {}
        for top in tops:
            for package in sorted(init.parent for init in top.glob("*/__init__.py")):
                for file in sorted(package.rglob("*.py")):
                    name = ".".join(file.relative_to(top).with_suffix("").parts)
                    self.files[name.removesuffix(".__init__")] = file
        self._trees: dict[str, ast.Module] = {}
        self._imports: dict[str, tuple[Import, ...]] = {}
        self._offers = {
            kind: places for m in (LABS, CLI) if m in self.files for kind, places in _offers(self.tree(m))
        }

    def tree(self, module: str) -> ast.Module:
        if module not in self._trees:
            self._trees[module] = _syntax(self.files[module].read_text(encoding="utf-8"))
        return self._trees[module]

    def imports(self, module: str) -> tuple[Import, ...]:
        """What the file of ``module`` imports of the project, in the order of its lines."""
        if module not in self._imports:
            self._imports[module] = tuple(self._found(self.tree(module), self._package(module)))
        return self._imports[module]

    def named(self, module: str) -> set[str]:
        """All other modules that the file of ``module`` names: in imports anywhere, for types as well, and in strings."""
        found = self._found(self.tree(module), self._package(module), all_named=True)
        return {item.module for item in found} - {module}

    def _package(self, module: str) -> str:
        return module if self.files[module].name == "__init__.py" else module.rpartition(".")[0]

    def closure(
        self,
        modules: Iterable[str],
        *,
        deferred: bool = True,
        by_name: bool = True,
        asleep: Iterable[str] = (),
    ) -> set[str]:
        """``modules``, the packages around them, and all that these need.

        Without ``deferred`` only what importing them executes; without ``by_name`` only what import statements say, and
        so for the modules ``asleep``.
        """
        found: set[str] = set()
        todo = list(modules)
        while todo:
            module = todo.pop()
            if module in found or module not in self.files:
                continue
            found.add(module)
            todo.append(module.rpartition(".")[0])
            for item in self.imports(module):
                named = by_name and module not in asleep and module != LABS
                if (deferred or not item.deferred) and (named or not item.by_name):
                    todo.append(item.module)
        return found

    def needed_by(self, code: str) -> set[str]:
        """All modules that running ``code`` may need: more rather than fewer.

        What `ON_DEMAND` modules load by name counts where the code says that it asks for such things.

        Its strings may be scripts (``%%torchrun`` hands one over) and commands: `playbook train` needs what `train`
        needs, and of other subcommands only what starting the command imports. Which one runs where ``playbook.cli`` is
        called is said by strings that are names of subcommands; where none is, it may be any.
        """
        strings: list[str] = []
        roots = set(self._named_in(code, strings))
        checked = {f"playbook_book.exercises.{name.replace('-', '_')}" for name in EXERCISE.findall(code)}
        roots |= checked & set(self.files)
        commands = {self._command(name) for text in strings for name in COMMAND.findall(text)} & set(
            self.files
        )
        if CLI in roots or any(text == "playbook" or ANY_COMMAND.search(text) for text in strings):
            called = {self._command(text) for text in strings} & set(self.files)
            offered = self._offers.get("command", {}).values()
            commands |= called or {name for name in self.files if name.startswith((COMMANDS, *offered))}
        start = self.closure(["playbook.__main__", CLI], deferred=False) if commands else set()
        # A widget computes with whatever its reader sets.
        widgets = self.closure(root for root in roots if root.startswith("playbook_widgets."))
        asleep = {
            module for module, asked in ON_DEMAND.items() if not (asked.search(code) or module in widgets)
        }
        return self.closure((roots - {CLI}) | commands, asleep=asleep) | start

    def _command(self, name: str) -> str:
        """The module of a subcommand: the library's own, or one that it is offered."""
        return self._offers.get("command", {}).get(name, COMMANDS + name)

    def _named_in(self, code: str, strings: list[str]) -> Iterator[str]:
        """What ``code`` and the scripts in its strings import and name; ``strings`` collects its texts."""
        for tree in _readable(code):
            yield from (item.module for item in self._found(tree, ""))
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    strings.append(node.value)
                    if "playbook" in node.value:
                        yield from self._named_in(node.value, strings)
                        for match in MODULE.finditer(node.value):
                            yield from self._prefix(match[1])

    def _prefix(self, name: str) -> list[str]:
        """The longest beginning of a dotted name that is a module."""
        while name and name not in self.files:
            name = name.rpartition(".")[0]
        return [name] if name else []

    def _found(self, tree: ast.AST, package: str, all_named: bool = False) -> Iterator[Import]:
        for node, deferred in _imports_and_strings(tree, all_named):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    for module in (alias.name, *self.lazy(alias.name).values()):
                        if module in self.files:
                            yield Import(module, (), node.lineno, deferred)
            elif isinstance(node, ast.ImportFrom):
                yield from self._taken(node, _absolute(node, package), deferred)
            elif isinstance(node, ast.Call):
                for module in () if all_named else self._asked(node):
                    yield Import(module, (), node.lineno, deferred, by_name=True)
            elif match := MODULE.fullmatch(node.value):
                for module in self._loaded(match[1], beginning=bool(match[2])):
                    yield Import(module, (), node.lineno, deferred, by_name=True)

    def _taken(self, node: ast.ImportFrom, module: str, deferred: bool) -> Iterator[Import]:
        """``from module import …``: submodules, names that are loaded when asked for, and what the file itself holds."""
        lazy = self.lazy(module)
        names = [alias.name for alias in node.names]
        parts = [name for name in names if f"{module}.{name}" in self.files]
        for name in parts:
            yield Import(f"{module}.{name}", (), node.lineno, deferred)
        for name in lazy if "*" in names else [name for name in names if name in lazy]:
            yield Import(lazy[name], (name,), node.lineno, deferred)
        own = tuple(name for name in names if name not in parts and name not in lazy)
        if module in self.files and own:
            yield Import(module, own, node.lineno, deferred)

    def _asked(self, call: ast.Call) -> list[str]:
        """What a call ``lab(kind, name)`` can load: of a name that only the run knows, all of the kind."""
        kind, name = (arg.value if isinstance(arg, ast.Constant) else None for arg in call.args)
        offers = self._offers.get(str(kind), {})
        return [module for key, module in offers.items() if name in (None, key)]

    def _loaded(self, name: str, *, beginning: bool) -> list[str]:
        if beginning:
            return [module for module in self.files if module.startswith(f"{name}.")]
        return [name] if name in self.files else []

    def lazy(self, module: str) -> dict[str, str]:
        """Names that the ``__getattr__`` of a package loads when they are asked for, and the module of each."""
        if module not in self.files or self.files[module].name != "__init__.py":
            return {}
        body = self.tree(module).body
        if not any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in body):
            return {}
        promised = [node for part in body if _is_for_types(part) for node in ast.walk(part)]
        found = (node for node in promised if isinstance(node, ast.ImportFrom))
        return {alias.name: _absolute(node, module) for node in found for alias in node.names}


def _is_for_types(node: ast.AST) -> bool:
    """Whether a statement is ``if TYPE_CHECKING:``, and not one that only mentions it."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _offers(tree: ast.Module) -> Iterator[tuple[str, dict[str, str]]]:
    """By kind and name the module that ``register({kind: {name: "module:object"}})`` names."""
    calls = (
        node.value for node in tree.body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    )
    for call in (call for call in calls if ast.unparse(call.func) == "register"):
        for kind, places in ast.literal_eval(call.args[0]).items():
            yield kind, {name: place.partition(":")[0] for name, place in places.items()}


def _imports_and_strings(
    node: ast.AST, for_types: bool = False, deferred: bool = False
) -> Iterator[tuple[ast.Import | ast.ImportFrom | ast.Constant | ast.Call, bool]]:
    """Import statements, strings and questions to the registry below ``node``, and whether each is inside a function."""
    if (
        isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        or (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "lab")
    ):
        yield node, deferred
    inside = deferred or isinstance(node, FUNCTIONS)
    skip = isinstance(node, ast.If) and _is_for_types(node) and not for_types
    for child in node.orelse if skip else ast.iter_child_nodes(node):
        yield from _imports_and_strings(child, for_types, inside)


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The module that an import statement in ``package`` names, with the dots of a relative import resolved."""
    if not node.level:
        return node.module or ""
    around = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*around, *filter(None, [node.module])])


@cache
def _syntax(text: str) -> ast.Module:
    """Of a file; it takes seconds for all of them, and does not change with who asks."""
    return ast.parse(text)


@cache
def _readable(code: str) -> tuple[ast.Module, ...]:
    """The code as syntax; where it is none as a whole (a piece of a script, a command), its import lines each."""
    try:
        return (ast.parse(textwrap.dedent(code)),)
    except (SyntaxError, ValueError):
        pass
    found = []
    for line in re.findall(r"^\s*((?:from|import)\s.*)$", code, re.M):
        try:
            found.append(ast.parse(line))
        except (SyntaxError, ValueError):
            continue
    return tuple(found)
