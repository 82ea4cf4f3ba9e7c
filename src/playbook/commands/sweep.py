"""``playbook sweep``: many layouts run for real, one after the other or as jobs of a cluster, with what was predicted."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from playbook import bench, doctor
from playbook._interrupt import STATUS, raise_again
from playbook._json import to_json
from playbook.commands import sweep_table
from playbook.commands.flags import add_fields, say
from playbook.commands.sweep_rows import asked
from playbook.errors import ConfigError
from playbook.launch.sweep.jobs import SETTINGS, Jobs
from playbook.launch.sweep.results import Results, Spec, alone
from playbook.launch.sweep.task import Task, run, run_file, where

_EPILOG = """\
examples:
  playbook sweep --grid dp=1,2 tp=1,2 pp=1,2 zero=0,1 --gpus 4 --seq 128
  playbook sweep --layout dp=2 --layout tp=2,sp --out runs/two -- --dtype bfloat16
  playbook sweep --model llama3.2-1b --layouts layouts.txt --slurm partition=gpu,time=30 --out runs/llama

OUT/results.csv has a line for each layout: its fields, a status (ok, oom, timeout, failed, refused) with the reason in
one sentence, the median and quartiles of a step's seconds, tokens/s of each GPU, the highest peak of a rank in bytes,
and what was predicted. The same command again goes on where the last one ended; --again runs layouts of some statuses
anew. On CPUs a rank has one thread, and so has one rank alone, unless OMP_NUM_THREADS says otherwise.
"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "sweep",
        help="run many layouts for real and collect one table",
        description="Train a few steps with each of many layouts and write one CSV, predictions beside measurements.",
        usage="playbook sweep (--layout L ... | --layouts FILE | --grid AXIS=V,... ...) [options] [-- TRAIN_FLAGS]",
        epilog=_EPILOG,
    )
    p.set_defaults(run=lambda args: _sweep(args, commands.choices["train"]))

    def flag(name: str, metavar: str, help: str, **options: Any) -> None:
        p.add_argument(name, metavar=metavar, help=help, **options)

    flag("--layout", "dp=4,zero=2", "a layout to run; repeatable", action="append")
    flag("--layouts", "FILE", "layouts to run, one a line", type=Path)
    flag("--grid", "dp=1,2", "every combination of these values of layout fields", nargs="+")
    flag("--gpus", "N,…", "of the grid only layouts of so many ranks; dp is filled in where it is not given")
    flag("--model", "M", "preset, TOML, config.json or inline JSON", default="tiny")
    add_fields(p, Spec)
    flag("--timeout", "S", "seconds that a run may take (default: 600)", type=float, default=600.0)
    flag("--out", "DIR", "folder of the sweep", type=Path, default=Path("sweep"))
    again = "run layouts with these statuses again: failed, timeout, oom …"
    flag("--again", "STATUS,…", again, default="", type=lambda text: set(text.replace(",", " ").split()))
    asks = f"{', '.join(SETTINGS)}, as in `playbook slurm`"
    flag("--slurm", "partition=P,…", f"run each layout as a Slurm job, which asks for: {asks}")
    here = "run each layout as a job on this machine, which outlives a sweep that is killed"
    p.add_argument("--local-executor", action="store_true", help=here)
    flag("--at-once", "N", "jobs that are submitted at once (default: all; on this machine 1)", type=int)
    measured = "a file of `playbook calibrate`, or a calibration of `playbook simulate`"
    flag("--calibration", "FILE", f"predict the time of a step, too: {measured}")
    flag("--cluster", "C", "cluster of that prediction, such as h100-8 (default: the one that was measured)")
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.add_argument("--task", type=Path, help=argparse.SUPPRESS)  # what a job does
    flag("train", "TRAIN_FLAGS", "after --: further flags of `playbook train`", nargs=argparse.REMAINDER)


def _sweep(args: argparse.Namespace, trains: argparse.ArgumentParser) -> int:
    if args.task:
        raise_again()
        run_file(args.task)
        return 0
    spec, rows = asked(args, trains)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"out is {str(args.out)!r}, which cannot be a folder ({reason})") from None
    raise_again()
    with alone(args.out):
        spec.settle(args.out)
        results = Results(args.out)
        try:
            interrupted = _run_all(args, rows, results)
        finally:
            results.write()
    found = sweep_table.ordered([results.rows[row.key] for row in rows if row.key in results.rows])
    if args.json:
        summary = sweep_table.summary(found, missing=len(rows) - len(found))
        print(to_json({"results": str(results.path), **summary}))
    else:
        print(sweep_table.table(found))
    if failed := sum(row["status"] in ("failed", "timeout") for row in found):
        say(f"{failed} of {len(found)} did not run to their end: --again failed,timeout runs them again")
    return STATUS if interrupted else 0


def _run_all(args: argparse.Namespace, rows: list[Task], results: Results) -> bool:
    """Run what has no result yet; whether Ctrl-C came in between."""
    tasks, done = [], 0
    for row in rows:
        results.predict(row.key, row.fields)
        known = results.rows.get(row.key)
        if known and known["status"] not in args.again:
            continue
        if row.refused:
            _add(results, {**row.fields, "status": "refused", "reason": row.refused, **where()})
        else:
            tasks.append(row)
    say(f"{len(rows)} layouts, {len(tasks)} of them to run; results in {results.path}")
    try:
        for done, found in enumerate(_measured(args, tasks), start=1):
            _add(results, found)
            told = f"{found['status']}: {found.get('reason')}"
            if found["status"] == "ok":
                told = f"{found['step_s'] * 1e3:,.1f} ms a step"
            say(f"{done} of {max(done, len(tasks))}: {found['layout'] or 'one rank'}: {told}")
    except KeyboardInterrupt:
        say(f"interrupted after {done} of {len(tasks)} layouts; the same command goes on from here")
        return True
    return False


def _measured(args: argparse.Namespace, tasks: Sequence[Task]) -> Iterator[dict[str, Any]]:
    """Rows of tasks, one after the other; or as jobs end, those that an earlier call submitted among them."""
    if not args.slurm and not args.local_executor:
        yield from map(run, tasks)
        return
    jobs = Jobs(args.out.resolve())
    try:
        yield from jobs.rows(tasks, args.at_once or (1 if args.local_executor else len(tasks)))
    finally:
        if jobs.sent:
            say(f"jobs that go on: {', '.join(map(str, jobs.sent.values()))}")


def _add(results: Results, row: Mapping[str, Any]) -> None:
    results.add({**row, "version": doctor.version("playbook"), "commit": bench.commit()})
