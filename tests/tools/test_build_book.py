"""The build's memory: what it forgets when, in which order it goes, and that there is one at a time."""

from __future__ import annotations

import subprocess
import sys
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
        ({"sources": "2"}, READ - {"book/index.doctree"}, {"book", "source"}),
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


def test_pages_are_in_the_order_of_the_table_of_contents() -> None:
    order = build_book.reading_order()
    assert order[:3] == ["book/index", "book/one-gpu/first-steps", "book/one-gpu/memory"]
    assert {page for page in order if (build_book.ROOT / f"{page}.ipynb").exists()} == {
        *build_book.runs.recorded()
    }


def test_the_head_of_a_chapter_says_how_long_it_ran() -> None:
    for page, seconds in build_book.runs.recorded().items():
        text = (build_book.ROOT / f"{page}.ipynb").read_text(encoding="utf-8")
        assert set(build_book.TAKES.findall(text)) <= {build_book.runs.takes(seconds)}, page


def test_two_builds_in_one_folder_wait_for_each_other(project: Path) -> None:
    program = (
        "import sys, build_book; from pathlib import Path; build_book.BUILD = Path(sys.argv[1])\n"
        "with build_book.alone(): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(project / "_build")]
    settings: dict[str, Any] = {"cwd": Path(build_book.__file__).parent, "text": True}
    settings |= {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **settings) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "mine\n"
        with subprocess.Popen(command, **settings) as second:
            line = f"Another build runs in this folder (process {first.pid}): waiting for it\n"
            assert second.stdout is not None
            assert second.stdout.readline() == line
            first.communicate()
            assert second.stdout.readline() == "mine\n"
            second.communicate()
