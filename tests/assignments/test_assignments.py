"""Packs for a class: a notebook without solutions, its checks, and what students hand in, graded each by itself."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from leftovers import alive

from playbook.cli import main
from playbook.errors import ConfigError
from playbook_book.assignments.handed_in import Result, graded, table
from playbook_book.assignments.pack import export, parts
from playbook_book.assignments.student import ASKED, read
from playbook_book.exercises import exercises
from playbook_book.exercises.grading import CHAPTERS

BOOK = Path(__file__).resolve().parents[2] / "book"
TERM = exercises("simulator")["simulator.term"].right[0]


def cells(notebook: Path) -> list[str]:
    return ["".join(cell["source"]) for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]]


def hand_in(file: Path, *sources: str, **metadata: object) -> Path:
    """A notebook with these cells of code."""
    code = [{"cell_type": "code", "source": source.splitlines(keepends=True)} for source in sources]
    file.write_text(json.dumps({"cells": code, "metadata": metadata}), encoding="utf-8")
    return file


def lines(source: str) -> set[str]:
    """Lines of code that say something."""
    text = (re.sub(r"\s*#.*", "", line).strip() for line in source.splitlines())
    return {
        line for line in text if len(line) > 12 and not line.startswith(("def ", "check(", "for ", "import "))
    }


def test_parts_are_the_books_and_have_all_chapters_with_exercises():
    assert [*parts()] == [
        "one-gpu", "communication", "data-parallelism", "model-parallelism", "at-scale", "inside-the-gpu",
    ]  # fmt: skip
    assert [chapter for some in parts().values() for chapter in some] == [*CHAPTERS]


@pytest.mark.parametrize("part", parts())
def test_a_pack_has_every_stub_once_what_it_needs_and_no_solution(part, tmp_path, capsys):
    assert main(["exercises", "export", part, "--to", str(tmp_path / "pack")]) == 0
    notebook, checks = map(Path, capsys.readouterr().out.split())
    whole = json.loads(notebook.read_text(encoding="utf-8"))
    names = list(exercises(*parts()[part]))
    assert whole["metadata"]["playbook"]["exercises"] == names
    ids = [cell["id"] for cell in whole["cells"]]
    assert len({*ids}) == len(ids)
    assert all(re.fullmatch(r"[\w-]{1,64}", one) for one in ids)
    assert not [cell for cell in whole["cells"] if cell.get("outputs")]
    sources = cells(notebook)
    code = [text for text, cell in zip(sources, whole["cells"], strict=True) if cell["cell_type"] == "code"]
    assert [name for text in code for name in ASKED.findall(text)] == names
    assert not [text for text in sources if re.search(r"record=False|:::|\{\w+:?\w*\}`", text)]
    for chapter in parts()[part]:
        of_chapter = cells(BOOK / part / f"{chapter}.ipynb")
        for name in exercises(chapter):
            stub, solution = (text for text in of_chapter if name in ASKED.findall(text))
            assert "record=False" in solution
            given = next(text for text in code if name in ASKED.findall(text))
            assert given.endswith(stub)
            answer = lines(solution) - lines("\n".join(of_chapter[: of_chapter.index(solution)]))
            assert answer, name
            assert not answer & {line.strip() for text in sources for line in text.splitlines()}, name
    compile(checks.read_text(encoding="utf-8"), checks.name, "exec")


def test_a_stub_gets_what_it_takes_from_its_chapter(tmp_path):
    """Of the pack of memory access, whose stub calls a function that stands in between; and of kernels and regions."""
    notebook, _ = export("fused-kernels", tmp_path)
    made = {cell["id"]: "".join(cell["source"]) for cell in json.loads(notebook.read_text())["cells"]}
    assert made["fused-kernels-edge-needs"].startswith("def of_rows(program):")
    assert "from playbook.kernels.jit import cdiv, kernel, next_power, tl" in made["fused-kernels-imports"]
    notebook, _ = export("tensor", tmp_path)
    assert "from playbook.parallel.regions import f_star" in "\n".join(cells(notebook))
    notebook, _ = export("memory-access", tmp_path)
    assert [
        text for text in cells(notebook) if "def halves(" in text and 'check("memory-access.race"' in text
    ]
    notebook, _ = export("zero-bubble", tmp_path)
    (text,) = (text for text in cells(notebook) if "The bubble of the equation below holds" in text)
    assert text.count("$$") == 2


def test_a_pack_is_not_written_over(tmp_path, capsys):
    files = export("simulator", tmp_path)
    files[1].unlink()
    before = files[0].read_bytes()
    assert main(["exercises", "export", "simulator", "--to", str(tmp_path)]) == 2
    assert "simulator.ipynb is there already" in capsys.readouterr().err
    assert files[0].read_bytes() == before
    assert not files[1].exists()
    with pytest.raises(ConfigError, match=r"unknown part or chapter 'one-gpus'; did you mean one-gpu"):
        export("one-gpus", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"nothing can be written into .*file"):
        export("simulator", tmp_path / "file" / "pack")


def test_the_checks_of_a_pack_say_what_is_right_and_give_hints(tmp_path):
    notebook, checks = export("simulator", tmp_path)
    whole = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in whole["cells"]:
        if cell["id"] == "simulator-term":
            cell["source"] = f'check("simulator.term", {TERM!r})'
    (tmp_path / "ana.ipynb").write_text(json.dumps(whole), encoding="utf-8")
    quiet = ["-q", "-p", "no:cacheprovider", "--noconftest", "-c", "/dev/null"]
    command = [sys.executable, "-m", "pytest", *quiet, checks.name]
    environment = {
        "NOTEBOOK": "ana.ipynb",
        "PYTHONPATH": ":".join(filter(None, sys.path)),
        "PATH": "/usr/bin:/bin",
    }
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "2 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "no answer yet: write the function in place of the line that raises" in done.stdout
    assert "Traceback" not in done.stdout


def test_a_folder_is_graded_answer_by_answer(tmp_path, capsys):
    """Right, wrong, missing, broken, endless: whatever one of them does, all others are graded."""
    names = {"playbook": {"exercises": [*exercises("simulator")]}}
    right = f'check("simulator.term", {TERM!r})'
    start = "%matplotlib inline\nfrom playbook_book.exercises import check\nprint('✓ simulator.waves: right')"
    (tmp_path / "late").mkdir()
    hand_in(tmp_path / "ana.ipynb", start, right, 'check("simulator.step", lambda **given: 1 / 0)', **names)
    hand_in(
        tmp_path / "late" / "ben.ipynb",
        start,
        'while True: pass\ncheck("simulator.waves", ...)',
        "%%torchrun -n 4\nanything",
        "exit()",
        f'check("simulator.term", {10 * TERM!r})\n{right}',
        'from nowhere import step\ncheck("simulator.step", step)',
    )
    hand_in(tmp_path / "eve.ipynb", start, f"import os; os._exit(3)\n{right}", "check('simulator.step', 1)")
    (tmp_path / "broken.ipynb").write_text('{"cells": 3}', encoding="utf-8")
    assert main(["exercises", "grade", str(tmp_path), "--limit", "2"]) == 0
    out, err = capsys.readouterr()
    assert "ana.ipynb: 1 of 3 right" in err
    rows = {(row["file"], row["exercise"]): row for row in csv.DictReader(io.StringIO(out))}
    found = {key: (row["result"], row["hint"]) for key, row in rows.items()}
    cannot = "The check in line 1 cannot use what it was given (TypeError: "
    wanted = {
        ("ana.ipynb", "simulator.term"): ("right", ""),
        ("ana.ipynb", "simulator.waves"): ("wrong", "no cell checks it"),
        ("ana.ipynb", "simulator.step"): ("wrong", "Line 1 raised ZeroDivisionError: division by zero."),
        ("broken.ipynb", ""): ("wrong", "broken.ipynb is no notebook that can be read (TypeError)"),
        ("eve.ipynb", "simulator.term"): ("wrong", "its process ended with status 3"),
        ("eve.ipynb", "simulator.step"): ("wrong", cannot),
        ("late/ben.ipynb", "simulator.waves"): (
            "wrong",
            "no answer within 2 seconds: is there a loop without an end?",
        ),
        ("late/ben.ipynb", "simulator.term"): ("right", ""),
        ("late/ben.ipynb", "simulator.step"): (
            "wrong",
            "Line 1 raised ModuleNotFoundError: No module named 'nowhere'.",
        ),
    }
    assert found.keys() == wanted.keys()
    for key, (result, hint) in wanted.items():
        assert found[key][0] == result, key
        assert found[key][1].startswith(hint), key


def test_a_cell_that_waits_is_ended_with_all_that_it_has_started(tmp_path):
    """It computes nothing, so that the clock ends it."""
    file = tmp_path / "pid"
    source = f"""import subprocess, time
process = subprocess.Popen(["sleep", "1000"])
open({str(file)!r}, "w").write(str(process.pid))
time.sleep(1000)
check("simulator.term", 1)"""
    (result,) = graded(hand_in(tmp_path / "ana.ipynb", source), limit=1)
    assert result == Result(
        "simulator.term", False, "no answer within 1 seconds: is there a loop without an end?"
    )
    assert not alive(int(file.read_text()))


def test_a_spreadsheet_takes_no_cell_for_a_formula():
    text = table(
        [(Path("=a.ipynb"), [Result("zero.bytes", False, "-1 is too small"), Result("a.b", True, "")])]
    )
    assert text.splitlines() == [
        "file,exercise,result,hint", "'=a.ipynb,zero.bytes,wrong,'-1 is too small", "'=a.ipynb,a.b,right,",
    ]  # fmt: skip


def test_lines_of_a_notebook_that_python_does_not_know_leave_their_places():
    assert read("%time x\n!ls\nx = 1") == "\n\nx = 1"
    assert read("%%bash\nls") == ""
    assert read('x = """\n%d"""') == 'x = """\n%d"""'


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["export", "zero"], "export needs --to FOLDER"),
        (["export"], "export of what? playbook exercises export one-gpu --to FOLDER"),
        (["grade"], "grade of what? playbook exercises grade FOLDER"),
        (["grade", "nowhere"], "there is no folder nowhere"),
        (["grade", ".", "--limit", "0"], "--limit is 0, but must be seconds, more than 0"),
        (["grade", "."], "there is no notebook (*.ipynb) in ."),
        (["zero", "more"], "more belongs to `playbook exercises export` or `grade`"),
        (["zero", "--to", "x"], "--to belongs to"),
        (["grade", ".", "--progress", "x"], "--progress does not belong to grade"),
    ],
)
def test_what_is_meant_otherwise_ends_with_one_sentence(arguments, sentence, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["exercises", *arguments]) == 2
    assert sentence in capsys.readouterr().err
