"""``playbook sweep``: many layouts run for real, one after the other or as jobs of a cluster, with what was predicted."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from playbook._interrupt import STATUS, raise_again
from playbook._json import to_json
from playbook.commands.flags import say
from playbook.errors import ConfigError

if TYPE_CHECKING:
    from playbook.commands.sweep_rows import Asked
    from playbook.launch.sweep.layouts import Configuration
    from playbook.launch.sweep.results import Results
    from playbook.launch.sweep.runs import Task

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
    flag = p.add_argument
    flag("--layout", action="append", metavar="dp=4,zero=2", help="a layout to run; repeatable")
    flag("--layouts", type=Path, metavar="FILE", help="layouts to run, one a line")
    flag("--grid", nargs="+", metavar="dp=1,2", help="every combination of these values of layout fields")
    flag(
        "--gpus",
        metavar="N,…",
        help="of the grid only layouts of so many ranks; dp is filled in where it is not given",
    )
    flag(
        "--model",
        default="tiny",
        metavar="M",
        help="preset, TOML, config.json or inline JSON (default: tiny)",
    )
    flag("--data", metavar="FILE", help="any text file (default: Python's own documentation)")
    flag("--seq", type=int, default=256, metavar="N", help="tokens per sample (default: 256)")
    flag("--global-batch", type=int, default=16, metavar="N", help="samples per optimizer step (default: 16)")
    flag("--steps", type=int, default=10, metavar="N", help="optimizer steps of a run (default: 10)")
    flag(
        "--warmup",
        type=int,
        default=3,
        metavar="N",
        help="first steps that do not count: one allocates, in the next one memory is watched (default: 3)",
    )
    flag(
        "--repeat",
        type=int,
        default=1,
        metavar="N",
        help="runs of each layout, whose steps count together (default: 1)",
    )
    flag(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds that a run may take (default: 600)"
    )
    _where(p)
    flag("--json", action="store_true", help="print one JSON object on stdout")
    flag(
        "train",
        nargs=argparse.REMAINDER,
        metavar="TRAIN_FLAGS",
        help="after --: further flags of `playbook train`",
    )
    p.set_defaults(run=lambda args: _sweep(args, commands.choices["train"]))


def _where(p: argparse.ArgumentParser) -> None:
    """Flags of where runs are started, and what they are compared with."""
    flag = p.add_argument
    flag(
        "--out", type=Path, default=Path("sweep"), metavar="DIR", help="folder of the sweep (default: sweep)"
    )
    flag(
        "--again",
        default="",
        metavar="STATUS,…",
        help="run layouts with these statuses again: failed, timeout, oom …",
    )
    flag(
        "--slurm",
        metavar="partition=P,…",
        help="run each layout as a Slurm job, through submitit: partition, time, account, gpus_per_node, cpus_per_gpu, "
        "setup, container, as in `playbook slurm`",
    )
    flag("--local-executor", action="store_true", help="run each layout as a job of submitit on this machine")
    flag(
        "--at-once",
        type=int,
        metavar="N",
        help="jobs that are submitted at once (default: all; on this machine 1)",
    )
    flag(
        "--calibration",
        metavar="FILE",
        help="predict the time of a step, too: a file of `playbook calibrate`, or a calibration of `playbook simulate`",
    )
    flag(
        "--cluster",
        metavar="C",
        help="cluster of that prediction, such as h100-8 (default: the machine that was measured)",
    )


def _sweep(args: argparse.Namespace, trains: argparse.ArgumentParser) -> int:
    from playbook.commands import sweep_table
    from playbook.commands.sweep_rows import asked
    from playbook.launch.sweep.results import Results, alone

    what = asked(args, trains)
    try:
        args.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"out is {str(args.out)!r}, which cannot be a folder ({reason})") from None
    raise_again()
    with alone(args.out):
        what.spec.settle(args.out)
        results = Results(args.out)
        try:
            interrupted = _run_all(args, what, results)
        finally:
            results.close()
    rows = sweep_table.ordered([results.rows[row.key] for row in what.rows if row.key in results.rows])
    if args.json:
        found = sweep_table.summary(rows, missing=len(what.rows) - len(rows))
        print(to_json({"results": str(results.path), **found}))
    else:
        print(sweep_table.table(rows))
    if failed := sum(row["status"] in ("failed", "timeout") for row in rows):
        say(f"{failed} of {len(rows)} did not run to their end: --again failed,timeout runs them again")
    return STATUS if interrupted else 0


def _run_all(args: argparse.Namespace, what: Asked, results: Results) -> bool:
    """Run what has no result yet; whether Ctrl-C came in between."""
    by_key, waiting = {row.key: row for row in what.rows}, []
    for row in what.rows:
        results.predict(row.key, row.fields)
        known = results.rows.get(row.key)
        if known and known["status"] not in what.again:
            continue
        if row.refused:
            _add(results, row, {"status": "refused", "reason": row.refused})
        else:
            waiting.append(row)
    say(f"{len(what.rows)} layouts, {len(waiting)} of them to run; results in {results.path}")
    tasks, done = [_task(args, what, row) for row in waiting], 0
    try:
        for key, outcome in (
            _through_jobs(args, tasks) if args.slurm or args.local_executor else _one_by_one(tasks)
        ):
            if key in by_key:  # an earlier call may have submitted others
                done += 1
                _add(results, by_key[key], outcome)
                say(
                    f"{done} of {len(waiting)}: {by_key[key].fields['layout'] or 'one rank'}: {_told(outcome)}"
                )
    except KeyboardInterrupt:
        say(f"interrupted after {done} of {len(waiting)} layouts; the same command goes on from here")
        return True
    return False


def _task(args: argparse.Namespace, what: Asked, row: Configuration) -> Task:
    from playbook.launch.sweep.jobs import minutes, sized
    from playbook.launch.sweep.runs import Task

    spec, job, timeout = what.spec, sized(what.job, row.ranks) if what.job else None, args.timeout
    if job:  # its runs end in time to say so
        timeout = min(timeout, max(30.0, 60.0 * minutes(job.time) - 120) / spec.repeat)
    sizes = spec.global_batch * spec.seq, spec.warmup, spec.repeat
    return Task(row.key, args.out.resolve(), row.flags, row.ranks, *sizes, timeout, job)


def _one_by_one(tasks: Sequence[Task]) -> Iterator[tuple[str, dict[str, Any]]]:
    from playbook.launch.sweep.runs import run

    for task in tasks:
        yield task.key, run(task)


def _through_jobs(args: argparse.Namespace, tasks: Sequence[Task]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Outcomes as jobs end, those that an earlier call submitted among them."""
    from playbook.launch.sweep.jobs import Jobs

    jobs = Jobs(args.out.resolve())
    most = args.at_once or (1 if args.local_executor else len(tasks))
    waiting = [task for task in tasks if task.key not in jobs.submitted]
    try:
        while waiting or jobs.submitted:
            while waiting and len(jobs.submitted) < most:
                jobs.submit(waiting.pop(0))
            for key, outcome in jobs.ended():
                yield key, outcome
                jobs.forget(key)
            jobs.wait()
    finally:
        jobs.cancel_local()
        if jobs.submitted:
            say(f"jobs that go on: {', '.join(job.id for job in jobs.submitted.values())}")


@cache
def _library() -> dict[str, Any]:
    """Which version of this library measures."""
    from playbook import doctor
    from playbook.bench import provenance

    return {"version": doctor.version("playbook"), "commit": provenance("cpu")["commit"]}


def _add(results: Results, row: Configuration, outcome: dict[str, Any]) -> None:
    from playbook.launch.sweep.runs import where

    results.add({**where(), **row.fields, "key": row.key, **outcome, **_library()})


def _told(outcome: dict[str, Any]) -> str:
    if outcome["status"] == "ok":
        return f"{outcome['step_s'] * 1e3:,.1f} ms a step"
    return f"{outcome['status']}: {outcome['reason']}"
