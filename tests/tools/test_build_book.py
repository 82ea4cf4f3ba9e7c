"""The build's memory: what it forgets when, and what of Sphinx's log it shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import build_book
import pytest


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a built book, and the build's paths inside it."""
    build = tmp_path / "_build"
    names = {
        "BUILD": build,
        "SITE": build / "html",
        "STATE": build / "state.json",
        "LOG": build / "build.log",
    }
    names |= {"CACHE": build / ".jupyter_cache", "DOCTREES": build / ".doctrees", "ROOT": tmp_path}
    for name, path in names.items():
        monkeypatch.setattr(build_book, name, path)
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("a = 1\n", encoding="utf-8")
    build_book.remember(STATE["chapters"], STATE)
    for page in ("one", "two", "index"):
        for file in (f".doctrees/book/{page}.doctree", f"html/book/{page}.html", f"html/source/{page}.html"):
            (build / file).parent.mkdir(parents=True, exist_ok=True)
            (build / file).touch()
    return tmp_path


STATE: dict[str, Any] = {"chapters": {"book/one": "1", "book/two": "1"}, "pages": "1", "sources": "1"}
READ = {"book/one.doctree", "book/two.doctree", "book/index.doctree"}


def left(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.*") if path.is_file()}


@pytest.mark.parametrize(
    ("change", "read", "written"),
    [
        ({}, READ, {"book", "source"}),
        ({"chapters": {"book/one": "2", "book/two": "1"}}, READ - {"book/one.doctree"}, {"book", "source"}),
        ({"chapters": {"book/two": "1"}}, READ - {"book/one.doctree"}, {"book", "source"}),
        ({"sources": "2"}, READ - {"book/index.doctree"}, {"book"}),
        ({"pages": "2"}, set(), set()),
    ],
)
def test_pages_that_are_stale_are_read_again(
    project: Path, change: dict[str, object], read: set[str], written: set[str]
) -> None:
    build_book.drop_what_is_stale(STATE | change)
    build = project / "_build"
    assert left(build / ".doctrees") == read
    assert {file.partition("/")[0] for file in left(build / "html")} == written


def test_pages_stay_stale_until_a_build_has_succeeded(project: Path) -> None:
    doctree = project / "_build" / ".doctrees" / "book" / "one.doctree"
    changed = STATE | {"chapters": {"book/one": "2", "book/two": "1"}}
    build_book.drop_what_is_stale(changed)
    doctree.touch()  # Sphinx has read the page, and was stopped before it wrote it
    build_book.drop_what_is_stale(changed)
    assert not doctree.exists()
    doctree.touch()
    build_book.remember(changed["chapters"], changed)
    build_book.drop_what_is_stale(changed)
    assert doctree.exists()


def test_a_chapter_is_forgotten_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: list[set[str]] = []
    monkeypatch.setattr(build_book.outputs, "forget", lambda chapters, *_: forgotten.append(chapters))
    changed = STATE | {"chapters": {"book/one": "2", "book/two": "1"}}
    build_book.drop_what_is_stale(changed)
    build_book.drop_what_is_stale(
        changed
    )  # it may have been executed since, by a build that was stopped later
    assert forgotten == [{"book/one"}, set()]


def test_a_state_that_is_written_otherwise_forgets_all(project: Path) -> None:
    (project / "_build" / "state.json").write_text('{"library": "1", "pages": "1"}', encoding="utf-8")
    build_book.drop_what_is_stale(STATE)
    assert not left(project / "_build" / ".doctrees")


def test_the_fingerprint_follows_names_and_contents(project: Path) -> None:
    seen = {build_book.fingerprint(["src"])}
    (project / "src" / "a.py").write_text("a = 2\n", encoding="utf-8")
    seen.add(build_book.fingerprint(["src"]))
    (project / "src" / "a.py").rename(project / "src" / "b.py")
    seen.add(build_book.fingerprint(["src"]))
    (project / "src" / "data.json").write_text("{}", encoding="utf-8")
    seen.add(build_book.fingerprint(["src"]))
    assert len(seen) == 4


def test_the_fingerprint_ignores_compiled_files(project: Path) -> None:
    before = build_book.fingerprint(["src"])
    (project / "src" / "__pycache__").mkdir()
    (project / "src" / "__pycache__" / "a.pyc").write_bytes(b"1")
    assert build_book.fingerprint(["src"]) == before


def test_what_outputs_depend_on_exists() -> None:
    for pattern in (*build_book.SOURCES, *build_book.PAGES):
        assert list(build_book.ROOT.glob(pattern)), pattern


def test_the_log_is_shortened_to_what_tells_something(capsys: pytest.CaptureFixture[str]) -> None:
    root = build_book.ROOT
    for line in (
        "reading sources... [ 50%] book/one-gpu/memory",
        f"{root}/book/one-gpu/memory.ipynb: Executing notebook using local CWD [mystnb]",
        "[IPKernelApp] WARNING | Kernel is running over TCP without encryption.",
        f"{root}/book/one-gpu/memory.ipynb: Executed notebook in 31.62 seconds [mystnb]",
        f"{root}/book/errata.md:3: WARNING: undefined label",
    ):
        build_book.show(line)
    assert capsys.readouterr().out == (
        "   book/one-gpu/memory.ipynb … 31.6 s\nbook/errata.md:3: WARNING: undefined label\n"
    )


def test_failed_cells_are_shown_without_the_runners_own_frames(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = project / "reports"
    reports.mkdir()
    trace = "Traceback: nbclient\n  frames\nAn error occurred while executing the following cell:\n1/0\nZeroDivisionError"
    (reports / "memory.err.log").write_text(trace, encoding="utf-8")
    monkeypatch.setattr(build_book, "REPORTS", reports)
    build_book.print_failures()
    shown = capsys.readouterr().out
    assert "ZeroDivisionError" in shown
    assert "frames" not in shown
