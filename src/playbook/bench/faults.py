"""``playbook bench faults``: runs of ``playbook train`` that something happens to, many of them, and what came of each.

A trial is a short run on two to four ranks with checkpoints and a fault at some moment. It is allowed restarts, and where
it still did not finish, it is started again with ``--resume``. Counted are runs that never end, processes and folders
that are left, steps that were saved and yet repeated, losses that differ in any bit from those of an undisturbed run, and
messages that do not name rank and cause.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from playbook.bench import provenance
from playbook.bench.faults_trials import ALL, Trial, damage, draw, quiet
from playbook.launch.processes import adopt_orphans, die_with_parent

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
#: Seconds that a process may take to be gone on a busy machine.
GRACE = 60.0
_DRIVER = "from playbook.commands.faulty import main; main()"


def bench_faults(seed: int, indices: list[int], jobs: int, limit: float) -> dict[str, Any]:
    """Trials of these numbers, ``jobs`` at a time; one that takes more than ``limit`` seconds hangs."""
    begin = time.monotonic()
    results = sorted(_all(seed, indices, jobs, limit), key=lambda one: one["index"])
    kinds = {kind: [one for one in results if one["kind"] == kind] for kind in ALL}
    return {
        "provenance": provenance("cpu"),
        "seed": seed,
        "trials": len(results),
        "seconds": time.monotonic() - begin,
        "happened": sum(one["happened"] > 0 for one in results),
        "named": sum(one["named"] is True for one in results),
        "to name": sum(one["named"] is not None for one in results),
        "problems": _count(results),
        "kinds": {
            kind: {"trials": len(some), "happened": sum(one["happened"] > 0 for one in some), **_count(some)}
            for kind, some in kinds.items()
            if some
        },
        "bad": [one for one in results if one["problems"]],
    }


def _count(results: list[dict[str, Any]]) -> dict[str, int]:
    found = Counter(problem for one in results for problem in one["problems"])
    return {problem: found[problem] for problem in PROBLEMS}


def _all(seed: int, indices: list[int], jobs: int, limit: float) -> Iterator[dict[str, Any]]:
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="playbook-faults-") as root:
        if jobs == 1:
            with Bench(Path(root), limit) as bench:
                yield from (bench.trial(draw(seed, index), seed) for index in indices)
            return
        shares = [(Path(root), seed, indices[i::jobs], limit) for i in range(min(jobs, len(indices)))]
        with context.Pool(len(shares), maxtasksperchild=1) as pool:
            for some in pool.imap_unordered(_share, shares, chunksize=1):
                yield from some
            pool.close()
            pool.join()


def _share(given: tuple[Path, int, list[int], float]) -> list[dict[str, Any]]:
    root, seed, indices, limit = given
    with Bench(root, limit) as bench:
        return [bench.trial(draw(seed, index), seed) for index in indices]


class Hang(Exception):
    """A run that did not end in time."""


class Bench:
    """Trials one after another, in processes that are all descendants of this one: whatever is left can be found."""

    def __init__(self, root: Path, limit: float, grace: float = GRACE):
        self.root, self.limit, self.grace = Path(tempfile.mkdtemp(dir=root)), limit, grace
        self.before = {pid for pid, _ in _descendants()}
        self.driver: subprocess.Popen[str] | None = None
        self.known: dict[int, dict[int, tuple[Any, Any]]] = {}

    def __enter__(self) -> Bench:
        adopt_orphans()
        (self.root / "tmp").mkdir()
        return self

    def __exit__(self, *_: object) -> None:
        self._end_driver()

    # ---- running

    def train(self, arguments: list[str], fault: dict[str, Any] | None, name: str) -> tuple[int, str]:
        """Run a command; its status, and what it said on stderr. Raises Hang."""
        out, err = self.root / f"{name}.out", self.root / f"{name}.err"
        status = self._ask({"arguments": arguments, "fault": fault, "out": str(out), "err": str(err)})
        return status, err.read_text(errors="replace")

    def _ask(self, request: dict[str, Any]) -> int:
        if self.driver is None:
            self.driver = subprocess.Popen(
                [sys.executable, "-c", _DRIVER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={"OMP_NUM_THREADS": "1", **os.environ, "TMPDIR": str(self.root / "tmp")},
                preexec_fn=die_with_parent,
            )
        driver = self.driver
        assert driver.stdin is not None
        assert driver.stdout is not None
        driver.stdin.write(json.dumps(request) + "\n")
        driver.stdin.flush()
        if not select.select([driver.stdout], [], [], self.limit)[0]:
            raise Hang
        if answer := driver.stdout.readline():
            return int(answer)
        self.driver = None
        return driver.wait()

    def _end_driver(self) -> None:
        if self.driver is not None:
            self.driver.kill()
            self.driver.wait()
            self.driver = None
        self._leftovers()

    def _leftovers(self) -> list[str]:
        """What runs beside the driver and its warm process though it had time to end; it is killed then."""
        end = time.monotonic() + self.grace
        while True:
            left = self._strangers()
            if not left or time.monotonic() > end:
                break
            time.sleep(0.02)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return list(left.values())

    def _strangers(self) -> dict[int, str]:
        own = {self.driver.pid} if self.driver else set[int]()
        left = dict[int, str]()
        for pid, parent in _descendants():
            command = _command(pid)
            if parent == os.getpid() and pid not in own and not command:
                _reap(pid)
            elif (
                command and pid not in own | self.before and not (parent in own and "warm_process" in command)
            ):
                left[pid] = command
        return left

    # ---- judging

    def quiet(self, case: int) -> dict[int, tuple[Any, Any]]:
        """Loss and gradient norm of each step, undisturbed."""
        if case not in self.known:
            log = self.root / f"quiet-{case}.jsonl"
            status, err = self.train([*quiet(case), "--log", str(log)], None, "quiet")
            if status:
                raise RuntimeError(f"case {case} does not run undisturbed: {err}")
            self.known[case] = {r["step"]: (r["loss"], r["grad_norm"]) for r in _steps(log)[0]}
        return self.known[case]

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
                self._look_for_leftovers(trial, found, status)
                if status == 0 or (again and "none of them whole" in err):
                    break
                if trial.damage and not again:
                    found["damaged"] = damage(
                        folder / "checkpoints", trial.damage, random.Random(trial.amount)
                    )
        except Hang:
            found["problems"].append("hang")
            found["processes"] = [_command(pid) for pid, _ in _descendants()]
            self._end_driver()
            self._remove_folders()
        found["happened"] = len(list(folder.glob("happened-*")))
        found["seconds"] = round(time.monotonic() - begin, 2)
        self._judge(trial, found, folder / "log.jsonl", losses, said)
        if found["problems"]:
            found["said"] = said.replace(str(self.root), "DIR")[-3000:]
            found["command"] = f"playbook bench faults --seed {seed} --only {trial.index}"
        shutil.rmtree(folder, ignore_errors=True)
        return found

    def _look_for_leftovers(self, trial: Trial, found: dict[str, Any], status: int) -> None:
        if left := self._leftovers():
            found["problems"].append("orphans")
            found["processes"] = left
        folders = self._remove_folders()
        if folders and trial.kind != "dead launcher":  # who is killed removes nothing
            found["problems"].append("folders")
            found["folders"] = folders

    def _remove_folders(self) -> list[str]:
        """The folders of launches among temporary files, which are no more then."""
        found = [path for path in (self.root / "tmp").iterdir() if path.name.startswith("playbook")]
        for path in found:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in found]

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


def _descendants() -> list[tuple[int, int]]:
    """Every process below this one, with its parent."""
    parents = dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
    found, new = list[tuple[int, int]](), {os.getpid()}
    while new:
        some = [(pid, parent) for pid, parent in parents.items() if parent in new]
        found, new = found + some, {pid for pid, _ in some}
    return found


def _command(pid: int) -> str:
    """The command line of a process; empty for one that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip()
    except OSError:
        return ""


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def report_faults(result: dict[str, Any]) -> str:
    """For people."""
    named = f"{result['named']} of {result['to name']} messages name rank and cause"
    lines = [
        f"{result['trials']} trials in {result['seconds']:,.0f} s, {result['happened']} faults happened; {named}"
    ]
    width = max(map(len, result["kinds"]))
    for kind, count in result["kinds"].items():
        bad = ", ".join(f"{count[problem]} {text}" for problem, text in PROBLEMS.items() if count[problem])
        lines.append(f"  {kind:{width}} {count['happened']:4} of {count['trials']:4}  {bad or 'all well'}")
    for one in result["bad"]:
        what = ", ".join(PROBLEMS[problem] for problem in one["problems"])
        lines.append(f"{one['index']}: {one['kind']} ({one['layout']}) {what}: {one['command']}")
    return "\n".join(lines)
