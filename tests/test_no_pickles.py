"""No file that somebody else may have written is unpickled: to load a pickle is to run what it says.

The launcher is the exception: a parent pickles the function of a job into a folder of its own, for ranks that it starts
itself (``launch/``). Nobody else's file is ever read there.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LAUNCH = ROOT / "src" / "playbook" / "launch"
#: Reads the metadata that PyTorch's own checkpoint has pickled a moment before, to compare the two.
COMPARES = ROOT / "book" / "playbook_book" / "bench" / "checkpoint.py"
PICKLES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}


def trees() -> Iterator[tuple[Path, ast.AST]]:
    """The library, its tools and the cells of the book, parsed."""
    for room in ("src", "widgets", "book", "tools", "benchmarks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path, ast.parse(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / "book").rglob("*.ipynb")):
        if "_build" in path.parts or ".ipynb_checkpoints" in path.parts:
            continue
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        for cell in cells:
            lines = [line for line in "".join(cell["source"]).splitlines() if not line.startswith(("%", "!"))]
            if cell["cell_type"] == "code":
                try:
                    yield path, ast.parse("\n".join(lines))
                except SyntaxError:  # a cell that another program runs
                    assert "load(" not in "\n".join(lines), path


def unpickles(tree: ast.AST) -> Iterator[str]:
    """What in a file loads pickles, or could."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
            yield from (name for name in names if name.split(".")[0] in PICKLES)
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                yield from (f"torch.{a.name}" for a in node.names if a.name == "load")
        elif isinstance(node, ast.Call):
            given = {k.arg: ast.unparse(k.value) for k in node.keywords}
            called = ast.unparse(node.func)
            if called == "torch.load" and given.get("weights_only") != "True":
                yield f"line {node.lineno}: {ast.unparse(node)}"
            if given.get("allow_pickle", "False") != "False" or called.endswith(".read_pickle"):
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Attribute) and node.attr == "FileSystemReader":
            yield f"line {node.lineno}: {node.attr}"


def test_no_file_is_unpickled() -> None:
    found = {}
    for path, tree in trees():
        if LAUNCH not in path.parents and path != COMPARES and (problems := list(unpickles(tree))):
            found.setdefault(path.relative_to(ROOT).as_posix(), []).extend(problems)
    assert not found


@pytest.mark.parametrize(
    "code",
    [
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "from torch import load",
        "import pickle",
        "from cloudpickle import loads",
        "np.load(path, allow_pickle=True)",
        "pd.read_pickle(path)",
        "dcp.FileSystemReader(path)",
    ],
)
def test_what_unpickles_is_found(code) -> None:
    assert list(unpickles(ast.parse(code)))


def test_what_reads_tensors_alone_is_not() -> None:
    assert not list(unpickles(ast.parse("torch.load(p, weights_only=True)\nnp.load(p)\njson.load(f)")))
