"""Keep the chapters' notebooks in one normal form, so that a diff shows what an author changed.

Usage: python tools/notebooks.py [FILE or FOLDER ...]          rewrite what is not normal (default: book)
       python tools/notebooks.py --check [FILE or FOLDER ...]  only say what is not; status 1 if anything
       python tools/notebooks.py --run FILE ...                execute, and store outputs that are contracts

Normal form: no outputs, except in cells tagged ``nbval-check-output``, whose stored output the tests compare
with a fresh run; no metadata but tags, and what makes JupyterLab fold what the pages fold; every cell with an id of its
own; the kernel called ``python3``.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

import nbformat
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
CONTRACT = "nbval-check-output"
#: What JupyterLab does with a cell that carries a tag for the pages.
FOLDED = {
    "hide-input": {"source_hidden": True},
    "hide-output": {"outputs_hidden": True},
    "hide-cell": {"source_hidden": True, "outputs_hidden": True},
}
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def normalised(notebook: NotebookNode) -> NotebookNode:
    """A copy of ``notebook`` in normal form."""
    result = copy.deepcopy(notebook)
    result.metadata = nbformat.from_dict(METADATA)
    result.nbformat, result.nbformat_minor = 4, 5
    taken: set[str] = set()
    for index, cell in enumerate(result.cells):
        _normalise_cell(cell)
        cell.id = _own_id(cell, index, taken)
    return result


def _normalise_cell(cell: NotebookNode) -> None:
    tags = cell.metadata.get("tags", [])
    folded = [FOLDED[tag] for tag in tags if tag in FOLDED and cell.cell_type == "code"]
    metadata = {"jupyter": folded[0]} if folded else {}
    cell.metadata = nbformat.from_dict({**metadata, "tags": list(tags)} if tags else {})
    cell.source = cell.source.rstrip()
    if cell.cell_type != "code":
        return
    contract = CONTRACT in tags
    cell.execution_count = 1 if contract and cell.outputs else None
    cell.outputs = _merged(cell.outputs) if contract else []
    for output in cell.outputs:
        if "metadata" in output:
            output.metadata = nbformat.from_dict({})
        if "execution_count" in output:
            output.execution_count = 1


def _merged(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Outputs with texts of one stream put together: where a kernel cuts them is a matter of chance."""
    result: list[NotebookNode] = []
    for output in outputs:
        if (
            result
            and output.output_type == result[-1].output_type == "stream"
            and output.name == result[-1].name
        ):
            result[-1].text += output.text
        else:
            result.append(output)
    return result


def _own_id(cell: NotebookNode, index: int, taken: set[str]) -> str:
    """The cell's id, or one made of its place and text where it has none or shares it."""
    name = cell.get("id") or ""
    if not name or name in taken:
        name = hashlib.sha256(f"{index} {cell.source}".encode()).hexdigest()[:8]
    taken.add(name)
    return name


def complaints(notebook: NotebookNode) -> Iterator[str]:
    """What is not normal, a sentence each, naming the cell."""
    normal = normalised(notebook)
    for number, (cell, wanted) in enumerate(zip(notebook.cells, normal.cells, strict=True), 1):
        where = f"cell {number} ({_first_line(cell)})"
        if CONTRACT in wanted.metadata.get("tags", []) and not wanted.get("outputs"):
            yield f"{where}: tagged {CONTRACT}, but stores no output; tools/notebooks.py --run stores it"
        if cell == wanted:
            continue
        if cell.get("outputs") and not wanted.get("outputs"):
            yield f"{where}: stores outputs, and is not tagged {CONTRACT}"
        elif cell.get("execution_count") != wanted.get("execution_count"):
            yield f"{where}: execution count is {cell.execution_count}, not {wanted.execution_count}"
        elif cell.metadata != wanted.metadata:
            yield f"{where}: its metadata is {dict(cell.metadata)}, not {dict(wanted.metadata)}"
        elif cell.get("id") != wanted.get("id"):
            yield f"{where}: has no id of its own"
        else:
            yield f"{where}: ends in blank lines, or its outputs carry metadata"
    if notebook.metadata != normal.metadata:
        yield "its metadata is not the normal kernelspec and language"


def _first_line(cell: NotebookNode) -> str:
    line = cell.source.strip().partition("\n")[0]
    return f"{cell.cell_type}: {line[:50]}{'…' if len(line) > 50 else ''}"


def text(notebook: NotebookNode) -> str:
    """The file's text, as JupyterLab writes it."""
    return nbformat.writes(notebook, version=4) + "\n"


def check(path: Path) -> list[str]:
    """All that is wrong with the file at ``path``."""
    try:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
    except (OSError, ValueError, nbformat.ValidationError) as error:
        return [f"is no valid notebook: {str(error).partition(chr(10))[0]}"]
    found = list(complaints(notebook))
    if not found and path.read_text(encoding="utf-8") != text(normalised(notebook)):
        found = ["is not laid out as nbformat writes it"]
    return found


def normalise(path: Path) -> bool:
    """Rewrite the file in normal form; whether it changed."""
    before = path.read_text(encoding="utf-8")
    after = text(normalised(nbformat.reads(before, as_version=4)))
    if after != before:
        path.write_text(after, encoding="utf-8")
    return after != before


def run(path: Path) -> None:
    """Execute the notebook where it lies, keep the outputs of its contract cells, and normalise it."""
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute(cwd=str(path.parent))
    path.write_text(text(normalised(notebook)), encoding="utf-8")


def notebooks(places: list[Path]) -> list[Path]:
    """The notebooks named, and those inside the folders named, without Jupyter's own copies."""
    found = [file for place in places for file in (place.rglob("*.ipynb") if place.is_dir() else [place])]
    return sorted(file for file in found if ".ipynb_checkpoints" not in file.parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("places", nargs="*", type=Path, default=[ROOT / "book"])
    parser.add_argument("--check", action="store_true", help="change nothing; say what is not normal")
    parser.add_argument("--run", action="store_true", help="execute, and store contract outputs")
    options = parser.parse_args()
    wrong = 0
    for path in notebooks(options.places):
        if options.check:
            found = check(path)
            wrong += bool(found)
            print("".join(f"{path}: {complaint}\n" for complaint in found), end="")
        elif options.run:
            print(f"running {path}", flush=True)
            run(path)
        elif normalise(path):
            print(f"normalised {path}")
    if wrong:
        print(f"{wrong} notebooks are not normal: `make normalise` mends them", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
