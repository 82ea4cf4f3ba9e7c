"""The normal form of notebooks: what is stripped, what is kept, and what the check says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import notebooks
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

CONTRACT = notebooks.CONTRACT


def messy() -> nbformat.NotebookNode:
    """A notebook as an author leaves it behind."""
    printed = new_output("stream", name="stdout", text="2\n")
    value = new_output("execute_result", {"text/plain": "3"}, execution_count=7)
    cells = [
        new_markdown_cell("# Title\n\n", metadata={"editable": True}),
        new_code_cell("1 + 1", execution_count=5, outputs=[printed], metadata={"scrolled": True}),
        new_code_cell("1 + 2", execution_count=7, outputs=[value], metadata={"tags": [CONTRACT]}),
    ]
    return new_notebook(cells=cells, metadata={"kernelspec": {"name": "my-kernel", "display_name": "Mine"}})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "chapter.ipynb"
    path.write_text(nbformat.writes(messy()), encoding="utf-8")
    return path


def test_normalising_keeps_contracts_and_strips_the_rest(file: Path) -> None:
    assert notebooks.normalise(file)
    title, plain, contract = nbformat.read(file, as_version=4).cells
    assert title.source == "# Title"
    assert title.metadata == {}
    assert plain.outputs == []
    assert plain.execution_count is None
    assert contract.outputs[0].data == {"text/plain": "3"}
    assert contract.execution_count == contract.outputs[0].execution_count == 1
    assert contract.metadata == {"tags": [CONTRACT]}
    assert len({cell.id for cell in (title, plain, contract)}) == 3


def test_where_a_kernel_cuts_its_text_is_forgotten(tmp_path: Path) -> None:
    texts = [("stdout", "one\n"), ("stdout", "two\n"), ("stderr", "three\n"), ("stdout", "four\n")]
    outputs = [new_output("stream", name=name, text=text) for name, text in texts]
    cell = new_code_cell("…", outputs=outputs, metadata={"tags": [CONTRACT]})
    normal = notebooks.normalised(new_notebook(cells=[cell])).cells[0].outputs
    assert [(o.name, o.text) for o in normal] == [
        ("stdout", "one\ntwo\n"), ("stderr", "three\n"), ("stdout", "four\n")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("tag", "folded"),
    [
        ("hide-input", {"source_hidden": True}),
        ("hide-output", {"outputs_hidden": True}),
        ("hide-cell", {"source_hidden": True, "outputs_hidden": True}),
    ],
)
def test_what_pages_fold_jupyterlab_folds(tag: str, folded: dict[str, bool]) -> None:
    cells = [new_code_cell("1", metadata={"tags": [tag]}), new_markdown_cell("one", metadata={"tags": [tag]})]
    code, markdown = notebooks.normalised(new_notebook(cells=cells)).cells
    assert code.metadata == {"jupyter": folded, "tags": [tag]}
    assert markdown.metadata == {"tags": [tag]}


def test_normalising_twice_changes_nothing(file: Path) -> None:
    notebooks.normalise(file)
    before = file.read_bytes()
    assert not notebooks.normalise(file)
    assert file.read_bytes() == before
    assert notebooks.check(file) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            lambda cells: cells[1].update(outputs=messy().cells[1].outputs),
            "cell 2 (code: 1 + 1): stores outputs",
        ),
        (lambda cells: cells[1].update(execution_count=4), "cell 2 (code: 1 + 1): execution count is 4"),
        (
            lambda cells: cells[2].update(outputs=[]),
            "cell 3 (code: 1 + 2): tagged nbval-check-output, but stores no",
        ),
        (
            lambda cells: cells[2].update(execution_count=None),
            "cell 3 (code: 1 + 2): execution count is None",
        ),
        (
            lambda cells: cells[0].metadata.update(editable=True),
            "cell 1 (markdown: # Title): its metadata is {'editable': True}, not {}",
        ),
        (lambda cells: cells[2].update(id=cells[1].id), "cell 3 (code: 1 + 2): has no id of its own"),
    ],
)
def test_the_check_names_the_cell(file: Path, change, complaint: str) -> None:
    notebooks.normalise(file)
    notebook = nbformat.read(file, as_version=4)
    change(notebook.cells)
    assert any(line.startswith(complaint) for line in notebooks.complaints(notebook))


def test_the_command_line_fails_until_the_file_is_normal(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    check = [str(notebooks.ROOT / "tools" / "notebooks.py"), "--check", str(file)]
    wrong = subprocess.run([sys.executable, *check], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert f"{file}: cell 2 (code: 1 + 1): stores outputs" in wrong.stdout
    for arguments in ([check[0], check[2]], check):
        monkeypatch.setattr(sys, "argv", arguments)
        assert notebooks.main() == 0
    assert capsys.readouterr().out == f"normalised {file}\n"


def test_running_stores_what_contracts_print(file: Path) -> None:
    notebook = messy()
    notebook.cells[2].outputs = []
    file.write_text(nbformat.writes(notebook), encoding="utf-8")
    notebooks.run(file)
    assert notebooks.check(file) == []
    assert nbformat.read(file, as_version=4).cells[2].outputs[0].data["text/plain"] == "3"


def test_a_broken_file_is_reported_not_raised(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_text("{", encoding="utf-8")
    assert notebooks.check(path)[0].startswith("is no valid notebook")


def test_the_books_own_notebooks_are_normal() -> None:
    chapters = notebooks.notebooks([notebooks.ROOT / "book"])
    assert chapters
    assert [complaint for path in chapters for complaint in notebooks.check(path)] == []
