"""``python -m benchmarks.faults``: it finds what is wrong with a run, and nothing where nothing is."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import ClassVar
from unittest import mock

import pytest

from benchmarks.faults import campaign
from benchmarks.faults.__main__ import main
from benchmarks.faults.campaign import PROBLEMS, Bench, report_faults
from benchmarks.faults.trials import ALL, CASES, DAMAGES, STEPS, Trial, damage, draw

#: Seconds. No test is about time: only what never ends takes so long.
LONG = 600.0


def trial(kind: str, **given) -> Trial:
    """One on two ranks: the second has the fault in step 6, and a checkpoint was made after step 4."""
    known = {
        "index": 0, "kind": kind, "case": 0, "rank": 1, "moment": "step", "step": 6, "number": 0, "amount": 50,
        "times": 1, "every": 5, "keep": None, "background": False, "restarts": 0,
    }  # fmt: skip
    return Trial(**{**known, **given})


class Wrong(Bench):
    """Trials after whose runs something can be made wrong."""

    how = ""
    #: By its arguments: what came of a run, and its log. It need not be done again to be made wrong in another way.
    ran: ClassVar[dict[tuple[str, ...], tuple[int, str, str]]] = {}

    def train(self, arguments, fault, name):
        if fault is None or not self.how:
            return super().train(arguments, fault, name)
        log = Path(arguments[-1])
        if (key := tuple(arguments)) not in self.ran:
            self.ran[key] = (*super().train(arguments, fault, name), log.read_text())
        status, said, text = self.ran[key]
        lines = text.splitlines()
        match self.how:
            case "orphans":
                grace, self.grace = self.grace, LONG
                assert (
                    self.leftovers() == []
                )  # the run's own processes, on a busy machine, take longer than the grace
                self.grace = grace
                subprocess.Popen(["sh", "-c", "sleep 1000 & exit"]).wait()
            case "folders":
                (self.root / "tmp" / "playbook-left").mkdir()
            case "wrong losses":
                record = json.loads(lines[3])
                lines[3] = json.dumps({**record, "loss": record["loss"] * (1 + 1e-15)})
            case "unnamed":
                said = said.replace("rank 1", "rank 0")
            case "unfinished":
                lines[-2] = lines[-2][:-3]
            case "lost steps":
                lines += lines
        log.write_text("".join(f"{line}\n" for line in lines))
        return status, said


@pytest.fixture(scope="module")
def module_bench(tmp_path_factory):
    with Wrong(tmp_path_factory.mktemp("faults"), LONG) as made:
        yield made


@pytest.fixture
def bench(module_bench):
    module_bench.how, module_bench.limit, module_bench.grace = "", LONG, LONG
    return module_bench


class Told(Bench):
    """Tells of trials without a run."""

    def trial(self, trial, seed):
        problems = ["hang"] if trial.index == 3 else []
        found = {"happened": 1, "named": not problems, "lost": [2], "problems": problems, "command": "python"}
        return {**trial.told(), **found}


def test_a_campaign_tells_of_all_its_trials(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign, "Bench", Told)
    record, flags = tmp_path / "faults.json", ["--only", "3,18,4", "--seed", "7", "--jobs", "2", "--json"]
    assert main([*flags, "--record", str(record)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert json.loads(record.read_text()) == found
    assert (found["trials"], found["happened"], found["restarts"]) == (3, 3, 3)
    assert (found["named"], found["to name"]) == (2, 3)
    assert found["problems"] == {**dict.fromkeys(PROBLEMS, 0), "hang": 1}
    assert found["kinds"][ALL[3]]["trials"] == 2
    assert [one["index"] for one in found["bad"]] == [3]
    assert "did not end: python" in report_faults(found)


def test_a_run_that_does_not_end_is_found_and_the_next_one_is_not_touched(bench):
    """Where it is the first one, the process that runs trials has only begun to start, and is taken along."""
    bench.limit = 0.01
    with mock.patch.dict(bench.known, {0: {}}):
        assert bench.trial(trial("SIGKILL"), 0)["problems"] == ["hang"]
    bench.limit = LONG
    found = bench.trial(trial("SIGKILL"), 0)
    assert (found["problems"], found["statuses"], found["named"]) == ([], [1, 0], True)


@pytest.mark.parametrize(
    ("kind", "given", "statuses", "words"),
    [
        ("exception", {}, [1, 0], "rank 1 failed: RuntimeError: a fault, on purpose"),
        (
            "out of memory",
            {},
            [2, 0],
            "out of memory at step 6 with micro_batch=2 and seq=16 on cpu of rank 1: make one",
        ),
        ("full disk", {}, [2, 0], "cannot be written by rank 1 into"),
        ("Ctrl-C", {}, [130, 0], "interrupted after"),
        ("flipped bit", {"case": 3}, [1, 0], "weights of"),
        ("torn file", {"step": 12, "damage": "missing"}, [1, 0], "rank 1 was killed by SIGKILL"),
        ("dead launcher", {}, [-9, 0], ""),
    ],
)
def test_what_a_run_says_and_how_it_goes_on(bench, kind, given, statuses, words):
    found = bench.trial(trial(kind, **given), 0)
    assert found["problems"] == []
    assert found["statuses"] == statuses
    assert words in (bench.root / "first.err").read_text()
    assert found["happened"] == 1
    assert "resumes after step" in (bench.root / "again.err").read_text()


def test_restarts_and_the_steps_they_repeat(bench):
    found = bench.trial(trial("os._exit", restarts=2, times=2), 0)
    assert (found["statuses"], found["happened"], found["lost"]) == ([0], 2, [1, 1])
    assert found["problems"] == []
    assert found["named"]


@pytest.mark.parametrize("how", sorted(PROBLEMS.keys() - {"hang"}))
def test_what_is_wrong_is_found(bench, how):
    bench.how, bench.grace = how, 1.0 if how == "orphans" else LONG
    found = bench.trial(trial("SIGKILL", restarts=1) if how == "unnamed" else trial("slow rank"), 0)
    assert found["problems"] == [how]
    assert found["command"] == "python -m benchmarks.faults --seed 0 --only 0"


def test_trials_follow_from_seed_and_number():
    assert draw(3, 40) == draw(3, 40) != draw(4, 40)
    drawn = [draw(0, index) for index in range(1000)]
    assert {one.kind for one in drawn} == set(ALL)
    assert {one.case for one in drawn} == set(range(len(CASES)))
    assert {one.damage for one in drawn} == {None, *DAMAGES}
    assert all(one.rank < one.layout.world_size <= 4 and 0 <= one.step < STEPS for one in drawn)
    assert all((one.step + 1) % one.every == 0 for one in drawn if one.moment == "save")
    assert {one.moment for one in drawn if one.kind == "SIGKILL"} == {"start", "step", "soon", "save"}


def test_flags(capsys):
    for flags, said in {
        ("--count", "0"): "count must be at least 1, got 0",
        ("--jobs", "0"): "jobs must be at least 1, got 0",
        ("--limit", "nan"): "limit must be a number above 0, got nan",
    }.items():
        assert main(flags) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_done_to_the_newest(tmp_path, how):
    """By one of a few ways, each of which a resumed run must notice."""
    for step in (5, 10):
        folder = tmp_path / f"step-{step:08d}"
        folder.mkdir()
        files = [{"name": "a.safetensors", "crc32": step}]
        (folder / "a.safetensors").write_bytes(bytes(range(100)))
        (folder / "manifest.json").write_text(json.dumps({"step": step, "files": files}))
    contents = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    assert damage(tmp_path, how, random.Random(0)) == "step-00000010"
    changed = [path for path, data in contents.items() if not path.exists() or path.read_bytes() != data]
    assert [path.parent.name for path in changed] == ["step-00000010"]
    assert damage(tmp_path / "none", how, random.Random(0)) is None
