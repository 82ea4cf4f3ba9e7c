"""What ``playbook sweep`` is asked to run: what all layouts share, and a row for each with what is predicted of it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from playbook._checks import check_int, check_positive, typed_int, unknown
from playbook.commands.flags import read_fields
from playbook.commands.train import prepared
from playbook.errors import ConfigError, LayoutError, PlaybookError
from playbook.launch import group
from playbook.launch.slurm import SlurmJob
from playbook.launch.sweep.jobs import parse_slurm
from playbook.launch.sweep.results import STATUSES, Spec
from playbook.launch.sweep.task import Task
from playbook.layout import FIELDS
from playbook.planning.job import Job
from playbook.planning.jobs import job_of_run
from playbook.planning.memory import predict_job
from playbook.shapes import load

#: Flags of ``playbook train`` that a sweep says itself.
OWN = ("--model", "--data", "--layout", "--seq", "--global-batch", "--steps", "--log", "--json", "--quiet")
#: Predicted seconds of a step of a job.
Clock = Callable[[Job], float]


def asked(args: argparse.Namespace, trains: argparse.ArgumentParser) -> tuple[Spec, list[Task]]:
    """All that the flags say; ``trains`` is the parser of ``playbook train``. Raises PlaybookError for what is wrong for
    all rows."""
    _check(args)
    shape = load(args.model)
    # A folder of a sweep from before models had these is of the same sweep.
    later = {"windows": (), "recurrent": None, "differs": "", "train": "full"}
    model = {name: v for name, v in dataclasses.asdict(shape).items() if later.get(name, ...) != v}
    spec = Spec(model, **read_fields(args, Spec), train=_train_flags(args))
    if spec.data:
        if not Path(spec.data).is_file():
            raise ConfigError(f"data is {spec.data!r}, which is no file")
        spec = dataclasses.replace(spec, data=str(Path(spec.data).resolve()))
    if spec.seq > (most := shape.max_seq):
        name = shape.name or "this model"
        raise ConfigError(f"seq is {spec.seq}, but {name} has positions for at most max_seq={most} tokens")
    job, clock = None if args.slurm is None else parse_slurm(args.slurm), _clock(args)
    rows = [_row(args, spec, trains, job, clock, layout) for layout in dict.fromkeys(_layouts(args))]
    one_rank = _row(args, spec, trains, job, clock, "")
    if one_rank.refused and all(row.refused == one_rank.refused for row in rows):
        raise ConfigError(one_rank.refused)
    return spec, list({row.key: row for row in rows}.values())


def _check(args: argparse.Namespace) -> None:
    check_positive("timeout", args.timeout, ConfigError)
    if args.at_once is not None:
        check_int("at_once", args.at_once, ConfigError)
    if args.slurm is not None and args.local_executor:
        raise ConfigError("--slurm and --local-executor are two ways to run jobs: give one of them")
    if args.at_once and args.slurm is None and not args.local_executor:
        raise ConfigError("--at-once is for jobs: give --slurm or --local-executor with it")
    if args.gpus and not args.grid:
        raise ConfigError(f"gpus is {args.gpus}, which is for a grid: give --grid with it")
    if wrong := args.again - {*STATUSES}:
        raise ConfigError(unknown("status", min(wrong), STATUSES))


def named(layout: str) -> dict[str, str]:
    """The fields that the text of a layout names, as they stand there.

    Raises LayoutError for one that no layout has: a typing error, not a layout that cannot run.
    """
    parts = [tuple(map(str.strip, part.partition("="))) for part in layout.split(",") if part.strip()]
    if wrong := [name for name, _, _ in parts if name not in FIELDS]:
        raise LayoutError(unknown("layout field", wrong[0], FIELDS))
    return {name: value if equals else "True" for name, equals, value in parts}


def read_layouts(path: Path) -> list[str]:
    """The layouts of a file, one a line; blank lines and those that begin with # are left out. Raises ConfigError."""
    try:
        lines = map(str.strip, path.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"layouts file {str(path)!r} cannot be read: {reason.lower()}") from None
    found = [line for line in lines if line and not line.startswith("#")]
    if not found:
        raise ConfigError(f"layouts file {str(path)!r} holds no layout: write one a line, such as dp=2,tp=2")
    return found


def grid(axes: Sequence[str], gpus: Sequence[int] = ()) -> list[str]:
    """Every combination of ``["dp=1,2", "tp=1,2", …]``, as layouts; with ``gpus``, those of so many ranks alone.

    A grid without dp has it filled in, where the other axes divide the number of GPUs. Raises ConfigError for what is no
    axis with values, and for a grid of which nothing is left.
    """
    values: dict[str, list[str]] = {}
    for axis in axes:
        name, equals, text = map(str.strip, axis.partition("="))
        several = [value.strip() for value in text.split(",")]
        if not equals or not all(several):
            raise ConfigError(f"grid has {axis!r}, but must be fields with values, such as dp=1,2 tp=1,2")
        if name in values:
            raise ConfigError(f"grid has {name} twice: give all its values at once")
        values |= dict.fromkeys(named(name), several)
    found = []
    for combination in itertools.product(*values.values()):
        one = dict(zip(values, combination, strict=True))
        found += _sized(one, gpus) if gpus else [one]
    if not found:
        raise ConfigError(f"grid has no layout of {' or '.join(map(str, gpus))} GPUs: give other values")
    return [",".join(f"{name}={value}" for name, value in one.items()) for one in found]


def _sized(one: dict[str, str], gpus: Sequence[int]) -> list[dict[str, str]]:
    """The layout if it has one of these numbers of ranks, with dp filled in where it has none."""
    others = math.prod(typed_int(axis, one.get(axis, 1), ConfigError) for axis in ("tp", "cp", "pp"))
    if "dp" in one:
        return [one] if others * typed_int("dp", one["dp"], ConfigError) in gpus else []
    return [{"dp": str(count // others), **one} for count in gpus if count % others == 0]


def _layouts(args: argparse.Namespace) -> list[str]:
    found = list(args.layout or []) + (read_layouts(args.layouts) if args.layouts else [])
    if args.grid:
        gpus = [typed_int("gpus", text, ConfigError) for text in args.gpus.split(",")] if args.gpus else []
        found += grid(args.grid, gpus)
    if not found:
        raise ConfigError("there is nothing to run: give --layout, --layouts or --grid")
    for layout in found:
        named(layout)
    return found


def _train_flags(args: argparse.Namespace) -> tuple[str, ...]:
    flags = tuple(args.train)
    if flags and flags[0] != "--":
        raise ConfigError(f"{flags[0]!r} is no flag: those of `playbook train` come after --")
    for flag in flags[1:]:
        if flag.partition("=")[0] in OWN:
            raise ConfigError(f"{flag} is said by the sweep itself: leave it out after --")
    return flags[1:]


def _row(
    args: argparse.Namespace, spec: Spec, trains: argparse.ArgumentParser, job: SlurmJob | None,
    clock: Clock | None, layout: str,
) -> Task:  # fmt: skip
    """A layout before it has run: refused where it cannot be run, with the sentence that says why."""
    own = {"model": args.model, "data": spec.data, "layout": layout}
    own |= {name: str(getattr(spec, name)) for name in ("seq", "global_batch", "steps")}
    said = [(f"--{name.replace('_', '-')}", value) for name, value in own.items() if value is not None]
    flags = (*itertools.chain(*said), *spec.train)
    parsed = trains.parse_args(flags)
    name = spec.model.get("name") or ""
    fields: dict[str, Any] = {"model": name, "layout": layout, "gbs": spec.global_batch}
    fields |= {"seq": spec.seq, "precision": parsed.fp8 or parsed.dtype}
    ranks, timeout, refused = 0, args.timeout, ""
    try:
        shape, config = prepared(parsed)
        ranks = config.layout.world_size
        if job is not None:  # its runs end in time to say so
            job = job.sized(ranks)
            timeout = min(timeout, max(30.0, 60.0 * job.minutes - 120) / spec.repeat)
        cuda = job is not None or group.gpus() >= ranks
        predicted = _predicted(job_of_run(shape, config, config.device or ("cuda" if cuda else "cpu")), clock)
        fields |= (
            {name: getattr(config.layout, name) for name in FIELDS}
            | {"layout": str(config.layout)}
            | predicted
        )
    except PlaybookError as error:
        fields, refused = fields | named(layout), str(error)
    key = fields["key"] = spec.key(fields["layout"])
    counts = spec.global_batch * spec.seq, spec.warmup, spec.repeat
    return Task(key, args.out.resolve(), flags, ranks, *counts, timeout, job, fields, refused)


def _predicted(job: Job, clock: Clock | None) -> dict[str, Any]:
    """The columns of predictions: bytes from the planner, seconds from the simulator where it knows the machine."""
    found: dict[str, Any] = {}
    with contextlib.suppress(PlaybookError):  # a run can do what a prediction cannot
        found["predicted_peak_bytes"] = predict_job(job).peak
    with contextlib.suppress(PlaybookError):
        found["predicted_step_s"] = clock(job) if clock else None
    return found


def _clock(args: argparse.Namespace) -> Clock | None:
    """What predicts the time of a step, if that was asked for: a measured machine, or a cluster from datasheets."""
    if args.calibration is None and args.cluster is not None:
        raise ConfigError(
            f"cluster is {args.cluster!r}, which is for a prediction: give --calibration with it"
        )
    if args.calibration is None:
        return None
    from playbook.estimates.measured import load_machine, measured_run
    from playbook.planning.calibration import load_calibration
    from playbook.planning.jobs import cluster_of
    from playbook.planning.simulator import Run

    name, cluster = args.calibration, None if args.cluster is None else cluster_of(args.cluster)
    if machine := load_machine(name) if name.endswith(".toml") else None:
        return lambda job: measured_run(machine, job, cluster=cluster).step(limit=False).seconds
    if cluster is None:
        raise ConfigError(f"calibration {name} is of no machine: give the --cluster that it is for")
    known = load_calibration(name, cluster.accelerator)
    return lambda job: Run(job, cluster, known).step(limit=False).seconds
