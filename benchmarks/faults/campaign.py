"""``python -m benchmarks.faults``: runs of ``playbook train`` that something happens to, and what came of each.

A trial is a short run on two to four ranks with checkpoints and a fault at some moment. It is allowed restarts, and where
it still did not finish, it is started again with ``--resume``. Counted are runs that never end, processes and folders
that are left, steps that were saved and yet repeated, losses that differ in any bit from those of an undisturbed run, and
messages that do not name rank and cause.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.util
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.faults.runs import GRACE, Hang, Runs, command_of, descendants
from benchmarks.faults.trials import ALL, Trial, damage, draw, quiet
from playbook.bench import RESULTS, provenance

#: What is counted, and what it means of a trial.
PROBLEMS = {
    "hang": "did not end",
    "orphans": "left processes",
    "folders": "left temporary folders",
    "lost steps": "repeated steps that had been saved",
    "wrong losses": "gave losses that differ",
    "unnamed": "did not name rank and cause",
    "unfinished": "ended otherwise than it should",
}


def bench_faults(
    seed: int, indices: list[int], jobs: int, limit: float, live: bool = False
) -> Iterator[dict[str, Any]]:
    """What came of the trials of these numbers, ``jobs`` at a time, told anew after each of them.

    One that takes more than ``limit`` seconds hangs. Those of ``live`` recovery are in ``live.py``.
    """
    about, begin, done = provenance("cpu"), time.monotonic(), list[dict[str, Any]]()
    about["command"] = " ".join(["python -m benchmarks.faults", *sys.argv[1:]])
    for one in _all(seed, indices, jobs, limit, live):
        done.append(one)
        told = _summary_live(done) if live else _summary(done)
        yield {"provenance": about, "seed": seed, "seconds": time.monotonic() - begin, **told}


def _summary(done: list[dict[str, Any]]) -> dict[str, Any]:
    kinds = {kind: [one for one in done if one["kind"] == kind] for kind in ALL}
    return {
        **_count(done),
        "named": sum(one["named"] is True for one in done),
        "to name": sum(one["named"] is not None for one in done),
        "restarts": sum(len(one["lost"]) for one in done),
        "kinds": {kind: _count(some) for kind, some in kinds.items() if some},
        "bad": sorted((one for one in done if one["problems"]), key=lambda one: one["index"]),
    }


def _summary_live(done: list[dict[str, Any]]) -> dict[str, Any]:
    from benchmarks.faults.live import PROBLEMS as OF_LIVE
    from benchmarks.faults.live import STEPS

    layouts = sorted({one["layout"] for one in done})
    moments = Counter(kill.split()[0] for one in done for kill in one["kills"][: one["happened"]])
    return {
        "trials": len(done),
        "kills": sum(one["happened"] for one in done),
        "moments": dict(sorted(moments.items())),
        "recovered": sum(one.get("recovered", 0) for one in done),
        "steps": STEPS * sum("lost" in one for one in done),
        "steps taken again": sum(one.get("discarded", 0) for one in done),
        "tokens lost": sum(one.get("lost tokens", 0) for one in done),
        "problems": {p: sum(p in one["problems"] for one in done) for p in OF_LIVE},
        "layouts": {text: sum(one["happened"] for one in done if one["layout"] == text) for text in layouts},
        "bad": sorted((one for one in done if one["problems"]), key=lambda one: one["index"]),
    }


def _count(done: list[dict[str, Any]]) -> dict[str, Any]:
    found = Counter(problem for one in done for problem in one["problems"])
    return {
        "trials": len(done),
        "happened": sum(one["happened"] > 0 for one in done),
        "problems": {problem: found[problem] for problem in PROBLEMS},
    }


def _all(seed: int, indices: list[int], jobs: int, limit: float, live: bool) -> Iterator[dict[str, Any]]:
    """In processes of their own, for all that is left below one of them is of its trials."""
    context = multiprocessing.get_context("fork")
    with (
        tempfile.TemporaryDirectory(prefix="playbook-faults-") as root,
        context.Pool(min(jobs, len(indices)), _enter, (Path(root), limit, live)) as pool,
    ):
        yield from pool.imap_unordered(_one, [(seed, index) for index in indices])
        pool.close()
        pool.join()


_bench: Bench | None = None  # of a process of the pool


def _enter(root: Path, limit: float, live: bool) -> None:
    global _bench
    kind: Any = Bench
    if live:
        from benchmarks.faults.live import LiveBench as kind
    _bench = kind(root, limit).__enter__()
    multiprocessing.util.Finalize(None, _bench.__exit__, exitpriority=0)


def _one(trial: tuple[int, int]) -> dict[str, Any]:
    assert _bench is not None
    seed, index = trial
    return _bench.drawn(seed, index)


class Bench(Runs):
    """Trials, one after another."""

    def __init__(self, root: Path, limit: float, grace: float = GRACE):
        super().__init__(root, limit, grace)
        self.known: dict[int, dict[int, tuple[Any, Any]]] = {}

    def quiet(self, case: int) -> dict[int, tuple[Any, Any]]:
        """Loss and gradient norm of each step, undisturbed."""
        if case not in self.known:
            log = self.root / f"quiet-{case}.jsonl"
            status, err = self.train([*quiet(case), "--log", str(log)], None, "quiet")
            if status:
                raise RuntimeError(f"case {case} does not run undisturbed: {err}")
            self.known[case] = {r["step"]: (r["loss"], r["grad_norm"]) for r in _steps(log)[0]}
        return self.known[case]

    def drawn(self, seed: int, index: int) -> dict[str, Any]:
        """What came of the trial of this number."""
        return self.trial(draw(seed, index), seed)

    def trial(self, trial: Trial, seed: int) -> dict[str, Any]:
        """Run it, and tell what came of it."""
        losses, begin = self.quiet(trial.case), time.monotonic()
        folder = self.root / f"trial-{trial.index}"
        folder.mkdir()
        arguments = trial.arguments(folder)
        found: dict[str, Any] = {**trial.told(), "statuses": [], "problems": [], "happened": 0, "named": None}
        said = ""
        try:
            for attempt in ("first", "again"):
                again = attempt == "again"
                fault = None if again else trial.fault(folder)
                status, err = self.train(arguments + ["--resume"] * again, fault, attempt)
                found["statuses"].append(status)
                said += err
                self._look(trial, found)
                if status == 0 or (again and "none of them whole" in err):
                    break
                if trial.damage and not again:
                    found["damaged"] = damage(
                        folder / "checkpoints", trial.damage, random.Random(trial.amount)
                    )
        except Hang:
            found["problems"].append("hang")
            found["processes"] = [command_of(pid) for pid, _ in descendants()]
            self.end_driver()
            self.remove_folders()
        found["happened"] = len(list(folder.glob("happened-*")))
        found["seconds"] = round(time.monotonic() - begin, 2)
        self._judge(trial, found, folder / "log.jsonl", losses, said)
        if found["problems"]:
            for path, name in {self.root: "DIR", RESULTS.parents[1]: ".", Path(sys.prefix): "VENV"}.items():
                said = said.replace(str(path), name)
            found["said"] = said[-3000:]
            found["command"] = f"python -m benchmarks.faults --seed {seed} --only {trial.index}"
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _look(self, trial: Trial, found: dict[str, Any]) -> None:
        """For what the run has left."""
        if left := self.leftovers():
            found["problems"].append("orphans")
            found["processes"] = left
        folders = self.remove_folders()
        if folders and trial.kind != "dead launcher":  # who is killed removes nothing
            found["problems"].append("folders")
            found["folders"] = folders

    def _judge(
        self, trial: Trial, found: dict[str, Any], log: Path, losses: dict[int, tuple[Any, Any]], said: str
    ) -> None:
        steps, lost, torn = _steps(log)
        refused = trial.kind == "torn file" and "none of them whole" in said
        found["lost"] = lost
        checked = [
            r for r in steps if not (trial.kind == "flipped bit" and r["attempt"] <= found["happened"])
        ]
        wrong = [r["step"] for r in checked if (r["loss"], r["grad_norm"]) != losses[r["step"]]]
        if wrong:
            found["problems"].append("wrong losses")
            found["wrong"] = wrong
        if any(count > trial.allowed for count in lost):
            found["problems"].append("lost steps")
        ended = found["statuses"][-1:] == [0] and {r["step"] for r in steps} == losses.keys()
        if (not (ended or refused) or torn) and "hang" not in found["problems"]:
            found["problems"].append("unfinished")
        pattern = trial.expected()
        harmless = found["statuses"] == [0] and "begin again" not in said
        if pattern and found["happened"] and not harmless and "hang" not in found["problems"]:
            found["named"] = bool(re.search(pattern, said))
            if not found["named"]:
                found["problems"].append("unnamed")
        if trial.kind == "flipped bit" and harmless:
            found["problems"].append("unnamed")


def _steps(log: Path) -> tuple[list[dict[str, Any]], list[int], bool]:
    """Records of steps with the number of their attempt; how many each attempt took again; whether lines are torn."""
    records: list[dict[str, Any]] = []
    lost: list[int] = []
    torn, attempt, new = False, 0, False
    for line in log.read_text().splitlines() if log.exists() else []:
        try:
            record = json.loads(line)
        except ValueError:
            torn = True
            continue
        if record["event"] == "start":
            attempt, new = attempt + 1, True
        elif record["event"] == "step":
            if new and records:
                lost.append(records[-1]["step"] + 1 - record["step"])
            new = False
            records.append({**record, "attempt": attempt})
    return records, lost, torn


def report_faults(result: dict[str, Any]) -> str:
    """For people."""
    named = f"{result['named']} of {result['to name']} messages name rank and cause"
    lines = [
        f"{result['trials']} trials in {result['seconds']:,.0f} s, {result['happened']} faults happened; {named}"
    ]
    width = max(map(len, result["kinds"]))
    for kind, count in result["kinds"].items():
        bad = ", ".join(
            f"{count['problems'][key]} {text}" for key, text in PROBLEMS.items() if count["problems"][key]
        )
        lines.append(f"  {kind:{width}} {count['happened']:4} of {count['trials']:4}  {bad or 'all well'}")
    for one in result["bad"]:
        what = ", ".join(PROBLEMS[problem] for problem in one["problems"])
        lines.append(f"{one['index']}: {one['kind']} ({one['layout']}) {what}: {one['command']}")
    return "\n".join(lines)
