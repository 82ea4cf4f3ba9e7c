"""What the outputs of a chapter depend on, and forgetting those that are older than it.

A chapter's key is a hash over its cells, the pins, the modules that its cells need (``closure.py``) and the recorded
measurements that they read. jupyter-cache keeps executed notebooks under the hash of their code alone; this drops the
ones whose key has changed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path

import nbformat
from closure import ROOT, Modules
from IPython.core.inputtransformer2 import TransformerManager

PINS = ROOT / "constraints.txt"
STATE = ROOT / "_build" / "state.json"  # for which keys the runs that jupyter-cache keeps are right
CACHE = ROOT / "_build" / ".jupyter_cache"
RECORDED = ROOT / "benchmarks" / "results"


# Only cells with a line like these need IPython to become Python: it is slow on long ones.
MAGIC = re.compile(r"(?:^|=)\s*[%!]|^\s*\?|\?\s*$", re.M)


def code_of(notebook: nbformat.NotebookNode) -> str:
    """The code cells as Python: magics and shell commands are calls with strings."""
    to_python = TransformerManager().transform_cell
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return "\n".join(to_python(cell) if MAGIC.search(cell) else cell for cell in cells)


def files_of(code: str, modules: Modules) -> list[Path]:
    """The files on which the outputs of ``code`` depend."""
    needed = {modules.files[name] for name in modules.needed_by(code)}
    beside = {data for file in needed if file.name == "__init__.py" for data in file.parent.glob("*.toml")}
    return sorted({PINS, *needed, *beside, *_recorded(code)})


def _recorded(code: str) -> list[Path]:
    """The recorded measurements that ``code`` reads: with ``RESULTS`` the files that its strings name, with ``records``
    those of the kinds that they name, or all where none does; with ``recorded`` those that its functions are called
    after."""
    nodes = list(ast.walk(ast.parse(code)))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    names = {node.name for node in nodes if isinstance(node, ast.alias)}
    names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    scripts = any(re.search(r"\brecords\(|\bRESULTS\b|benchmarks/results", text) for text in texts)
    if scripts or "RESULTS" in names:
        files = sorted(RECORDED.iterdir())
        return [file for file in files if any(fnmatch(file.name, text) for text in texts)] or files
    files = sorted(RECORDED.glob("*.json"))
    if not {"records", "recorded"} & names:
        return []
    kinds = tuple(f"-{text}" for text in (names if "recorded" in names else texts) if text)
    return [file for file in files if file.stem.endswith(kinds)] or files


def key(path: Path, modules: Modules, before: str = "", known: dict[str, str] | None = None) -> str:
    """The hash that changes when the outputs of the chapter at ``path`` may.

    ``known`` keys, by the chapter's cells and the hash ``before`` of all that a key may depend on, are not worked out
    again: to read who imports whom takes seconds.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = [
        [cell.source, cell.metadata.get("tags", [])] for cell in notebook.cells if cell.cell_type == "code"
    ]
    text = json.dumps(cells).encode()
    known, basis = {} if known is None else known, hashlib.sha256(before.encode() + text).hexdigest()
    if basis not in known:
        digest = hashlib.sha256(text)
        _add(digest, files_of(code_of(notebook), modules))
        known[basis] = digest.hexdigest()
    return known[basis]


def _add(digest: hashlib._Hash, files: Iterable[Path]) -> None:
    for file in files:
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0" + file.read_bytes() + b"\0")


def page(chapter: Path) -> str:
    """A chapter as Sphinx calls it: its path in the project, without the ending."""
    return chapter.relative_to(ROOT).with_suffix("").as_posix()


def keys(chapters: Iterable[Path], known: dict[str, str] | None = None) -> dict[str, str]:
    """The key of each chapter; new ones are added to those ``known``."""
    modules, digest = Modules(), hashlib.sha256()
    rules = sorted((ROOT / "tools").glob("*.py"))  # this file, and what it reads sources with
    data = sorted((ROOT / "src").rglob("*.toml"))
    _add(digest, [*rules, PINS, *modules.files.values(), *data, *sorted(RECORDED.glob("*.*"))])
    return {page(chapter): key(chapter, modules, digest.hexdigest(), known) for chapter in chapters}


def stale(old: Mapping[str, str], new: Mapping[str, str]) -> set[str]:
    """The chapters whose outputs may be older than what they come from, and those that are no more."""
    return {chapter for chapter in {*old, *new} if old.get(chapter) != new.get(chapter)}


def forget(chapters: set[str], known: Iterable[str], folder: Path) -> None:
    """Drop the executed notebooks of ``chapters``, and of all that are not ``known``, out of jupyter-cache."""
    if not folder.exists():
        return
    from jupyter_cache import get_cache

    kept = {str(ROOT / f"{chapter}.ipynb") for chapter in {*known} - chapters}
    cache = get_cache(folder)
    try:
        for record in cache.list_cache_records():
            if record.uri not in kept:
                cache.remove_cache(record.pk)
    except KeyError:  # its table and its files differ: nothing in it can be trusted
        shutil.rmtree(folder)
