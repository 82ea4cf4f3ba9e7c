"""Runs of chapters by real kernels: in order, told of as they go, kept where they end well."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernels
import nbformat
import pytest
import runs
from jupyter_cache import get_cache

WELL = [
    "import os, sys; print(os.getpid(), 'torch' in sys.modules, os.path.basename(os.getcwd()))",
    "from playbook import launch\nprint([rank.value for rank in launch.run(lambda: 1 + 1, ranks=2)])",
    "from playbook.launch import warm\nprint(warm._server.process.pid)",
]
ILL = ["print('before')", "1 / 0", "print('never')"]
DEAD = ["import os\nos._exit(3)"]


def chapters(folder: Path, **cells: list[str]) -> dict[str, Path]:
    """Notebooks with these code cells."""
    made = {}
    for name, sources in cells.items():
        path = made[f"book/{name}"] = folder / f"{name}.ipynb"
        nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources]), path)
    return made


@pytest.mark.parametrize(
    ("count", "gib", "expected"),
    [(1, 64, 1), (2, 64, 2), (4, 64, 2), (6, 64, 3), (16, 64, 8), (64, 64, 8), (16, 5, 2), (2, 1, 1)],
)
def test_as_many_at_a_time_as_there_is_room_for(
    count: int, gib: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "cores", lambda: count)
    monkeypatch.setattr(runs, "free_memory", lambda: gib * runs.GIB)
    assert runs.room() == expected


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "about 5 seconds"), (31, "about 30 seconds"), (50, "about a minute"), (170, "about 3 minutes")],
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert runs.in_words(seconds) == words


def test_chapters_run_in_order_and_are_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build = tmp_path / "_build"
    (build / "html").mkdir(parents=True)
    running = runs.Runs(chapters(tmp_path, well=WELL, ill=ILL, dead=DEAD), build)
    ended = [run for some in running.ended() for run in some]
    running.stop()
    assert [run.page for run in ended] == ["book/well", "book/ill", "book/dead"]  # one at a time

    cache = get_cache(build / ".jupyter_cache")
    (record,) = cache.list_cache_records()
    assert record.uri == str(tmp_path / "well.ipynb")
    assert record.data["execution_seconds"] == ended[0].seconds > 0
    printed = [cell.outputs[0].text for cell in cache.get_cache_bundle(record.pk).nb.cells]
    kernel, warm, folder = printed[0].split()
    assert (warm, folder, printed[1]) == ("True", tmp_path.name, "[2, 2]\n")
    for process in (kernel, printed[2]):  # neither the kernel nor its ranks' warm process is left
        patience = (
            time.monotonic() + 60
        )  # it ends when it sees that its kernel has, on a machine that may be busy
        while Path(f"/proc/{process.strip()}").exists():
            assert time.monotonic() < patience
            time.sleep(0.05)

    assert [run.page for run in running.failed_runs()] == ["book/ill", "book/dead"]
    assert "ZeroDivisionError: division by zero" in (ended[1].traceback or "")
    assert "died" in (ended[2].traceback or "")
    failed = nbformat.read(build / "failed" / "book" / "ill.ipynb", as_version=4)
    assert [[output.output_type for output in cell.outputs] for cell in failed.cells] == [
        ["stream"],
        ["error"],
        [],
    ]

    running.shown(ended[:1])
    told = json.loads((build / "html" / "progress.json").read_text(encoding="utf-8"))
    assert [told[run.page]["state"] for run in ended] == ["shown", "failed", "failed"]
    assert (told["book/well"]["cell"], told["book/well"]["cells"]) == (3, 3)
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in said] == [
        [str(n), "of", "3", run.page] for n, run in enumerate(ended, 1)
    ]
    assert ["FAILED" in line for line in said] == [False, True, True]


def test_a_timed_cell_runs_while_no_other_does(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    span = "import time; start = time.monotonic(); time.sleep({}); print(start, time.monotonic())"
    wait = f"import os, time\nwhile not os.path.exists({str(begun)!r}): time.sleep(0.01)"
    found = chapters(
        tmp_path,
        timed=[wait, span.format(0.5)],
        other=[f"open({str(begun)!r}, 'w')"] + 6 * [span.format(0.2)],
    )
    timed = nbformat.read(found["book/timed"], as_version=4)
    timed.cells[1].metadata.tags = [kernels.TIMED]
    nbformat.write(timed, found["book/timed"])
    running = runs.Runs(found, tmp_path / "_build")
    running.at_a_time = 2
    ended = [run for some in running.ended() for run in some]
    running.stop()
    assert len(ended) == 2
    assert not running.failed_runs()
    cache = get_cache(tmp_path / "_build" / ".jupyter_cache")
    spans = {
        Path(record.uri).stem: [
            [float(t) for t in cell.outputs[0].text.split()]
            for cell in cache.get_cache_bundle(record.pk).nb.cells[1:]
        ]
        for record in cache.list_cache_records()
    }
    ((start, end),) = spans["timed"]
    assert all(b <= start or a >= end for a, b in spans["other"])


def test_both_threads_may_say_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "_build" / "html").mkdir(parents=True)
    running = runs.Runs({}, tmp_path / "_build")

    def say(_: int) -> None:
        for _ in range(100):
            running.write_progress()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(say, range(4)))  # raises what a thread has raised
    assert json.loads(running.progress.read_text(encoding="utf-8")) == {}


def test_what_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    note = tmp_path / "note"
    where = "from ipykernel import get_connection_file\nfile = get_connection_file()"
    sleep = [
        f"import os, time\n{where}\nopen({str(note)!r}, 'w').write(f'{{os.getpid()}} {{file}}')\ntime.sleep(600)"
    ]
    running = runs.Runs(chapters(tmp_path, one=["1"], two=sleep), tmp_path / "_build")
    try:
        assert next(running.ended())[0].page == "book/one"
        while not (note.exists() and note.read_text()):
            assert not running.failed_runs()
            time.sleep(0.05)
    finally:
        running.stop()
    assert len(get_cache(tmp_path / "_build" / ".jupyter_cache").list_cache_records()) == 1
    kernel, file = note.read_text().split()
    with pytest.raises(ProcessLookupError):
        os.kill(int(kernel), signal.SIG_DFL)
    assert "playbook-kernel-" in file
    assert not Path(file).parent.exists()
