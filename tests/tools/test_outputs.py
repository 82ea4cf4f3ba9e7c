"""What the outputs of chapters depend on: a change runs the chapters that can see it, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import nbformat
import outputs
import pytest
from closure import ROOT, Modules
from jupyter_cache import get_cache
from jupyter_cache.base import CacheBundleIn

CHAPTERS = sorted((ROOT / "book").rglob("*.ipynb"))
MODULES = Modules()
KNOWN: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """No test changes who imports whom, which takes seconds to read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MODULES, "needed_by", cache(MODULES.needed_by))
        patch.setattr(outputs, "Modules", lambda: MODULES)
        patch.setattr(outputs, "_recorded", cache(outputs._recorded))
        yield


@pytest.fixture(scope="module")
def needs(read_once: None) -> dict[str, set[str]]:
    """The modules that each chapter needs."""
    codes = {outputs.page(file): outputs.code_of(nbformat.read(file, as_version=4)) for file in CHAPTERS}
    return {page: MODULES.needed_by(code) for page, code in codes.items()}


@pytest.fixture(scope="module")
def before(read_once: None) -> dict[str, str]:
    return outputs.keys(CHAPTERS, KNOWN)


def test_known_keys_are_those_that_are_worked_out(
    before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(before.values()) <= set(KNOWN.values())
    monkeypatch.setattr(outputs, "files_of", None)  # nothing is worked out again
    assert outputs.keys(CHAPTERS, KNOWN) == before


@pytest.mark.parametrize(
    "leaf", ["playbook_book.figures.text", "playbook_widgets.compute.ring_words", "playbook_book.collectives"]
)
def test_a_changed_module_changes_the_keys_of_the_chapters_that_import_it(
    leaf: str, needs: dict[str, set[str]], before: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read, changed = Path.read_bytes, MODULES.files[leaf]
    monkeypatch.setattr(Path, "read_bytes", lambda path: read(path) + (b"# more" if path == changed else b""))
    importing = {page for page, modules in needs.items() if leaf in modules}
    assert 0 < len(importing) < len(CHAPTERS)
    assert outputs.stale(before, outputs.keys(CHAPTERS, KNOWN)) == importing


def notebook(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def names(*cells: str) -> set[str]:
    files = outputs.files_of(outputs.code_of(notebook(*cells)), MODULES)
    return {file.relative_to(ROOT).as_posix() for file in files}


def test_a_generator_of_schedules_counts_for_the_chapters_with_pipelines_alone(
    needs: dict[str, set[str]],
) -> None:
    found = {Path(page).name for page, modules in needs.items() if "playbook.schedules.dualpipe" in modules}
    assert {"pipeline", "zero-bubble", "pipeline-schedules", "memory-calculator"} <= found
    assert not found & {"first-steps", "profiling", "ring-all-reduce", "data-parallel", "sequence", "tensor"}


def test_pins_count_for_every_chapter() -> None:
    assert names("1 + 1") == {"constraints.txt"}


def test_magics_and_shell_commands_count() -> None:
    assert "src/playbook/seeding.py" in names("%%torchrun -n 2\nfrom playbook.seeding import derive_seed")
    assert "src/playbook/seeding.py" in names("%%writefile a.py\nfrom playbook.seeding import derive_seed")
    assert "src/playbook/launch/magic.py" in names("%load_ext playbook.launch")
    assert "src/playbook/doctor.py" in names("out = !playbook doctor")


def test_data_beside_modules_counts() -> None:
    found = names("from playbook_book.published import TABLES")
    beside = {"planning/frameworks.toml", "planning/calibration/h100.toml"}
    assert {f"src/playbook/{name}" for name in beside} | {"book/playbook_book/published_rates.toml"} <= found


def recorded(*cells: str) -> set[str]:
    return {Path(name).name for name in names(*cells) if name.startswith("benchmarks/")}


def test_recorded_measurements_count_for_the_chapters_that_read_them() -> None:
    every = {file.name for file in outputs.RECORDED.glob("*.json")}
    reading = "from playbook.bench import records\n"
    assert recorded('records = {"collectives": 1}') == set()
    assert recorded(reading + 'records("collectives")') == {
        f for f in every if f.endswith("-collectives.json")
    }
    assert recorded(reading + "records(kind)") == every
    all_files = {file.name for file in outputs.RECORDED.iterdir()}
    assert recorded("from playbook.bench import RESULTS", 'kind = "collectives"') == all_files > every
    named = recorded("from playbook.bench import RESULTS", 'files = RESULTS.glob("*-sweep-*.csv")')
    assert named == {name for name in all_files if name.endswith(".csv")} > set()


def test_what_is_recorded_of_kernels_counts_for_the_chapters_that_read_it(tmp_path, monkeypatch) -> None:
    for name in ("gpu-matmul-kernels", "gpu-kernels", "gpu-memory"):
        (tmp_path / f"{name}.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(outputs, "RECORDED", tmp_path)
    found = outputs._recorded("from playbook_book import recorded\nrun = recorded.kernels()")
    assert [file.stem for file in found] == ["gpu-kernels", "gpu-matmul-kernels"]


def test_only_stale_executions_are_forgotten(tmp_path: Path) -> None:
    cache = get_cache(tmp_path / "cache")
    for name in ("one", "two", "gone"):
        bundle = CacheBundleIn(notebook(f"print({name!r})"), str(ROOT / f"{name}.ipynb"))
        cache.cache_notebook_bundle(bundle, check_validity=False)
    outputs.forget({"one"}, ["one", "two"], tmp_path / "cache")
    left = get_cache(tmp_path / "cache").list_cache_records()
    assert [Path(record.uri).stem for record in left] == ["two"]
    assert get_cache(tmp_path / "cache").match_cache_notebook(notebook("print('two')"))


def test_stale_are_new_changed_and_removed_chapters() -> None:
    assert outputs.stale({"a": "1", "b": "1", "c": "1"}, {"a": "1", "b": "2", "d": "1"}) == {"b", "c", "d"}
