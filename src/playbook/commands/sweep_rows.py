"""What ``playbook sweep`` is asked to run: what all layouts share, and a row for each with what is predicted of it."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playbook._checks import check_int, check_positive, typed_int, unknown
from playbook.commands.train import prepared
from playbook.errors import ConfigError, PlaybookError
from playbook.launch import group
from playbook.launch.slurm import SlurmJob
from playbook.launch.sweep.jobs import parse_slurm, sized
from playbook.launch.sweep.layouts import Configuration, Spec, check_names, grid, read_layouts
from playbook.launch.sweep.results import STATUSES
from playbook.layout import FIELDS
from playbook.planning.job import Job, job_of_run
from playbook.planning.memory import predict_job
from playbook.shapes import ModelShape, load
from playbook.training.config import TrainConfig

#: Flags of ``playbook train`` that a sweep says itself.
OWN = ("--model", "--data", "--layout", "--seq", "--global-batch", "--steps", "--log", "--json", "--quiet")


#: Predicted seconds of a step of a model, trained as a config says in the precision of a recipe.
Clock = Callable[[Job], float]


@dataclasses.dataclass(frozen=True)
class Asked:
    """All that the flags say: rows, statuses to run again, and the request of a Slurm job, if it is one."""

    spec: Spec
    rows: tuple[Configuration, ...]
    again: frozenset[str]
    job: SlurmJob | None


def asked(args: argparse.Namespace, trains: argparse.ArgumentParser) -> Asked:
    """Read the flags; ``trains`` is the parser of ``playbook train``. Raises PlaybookError for what is wrong for all."""
    _check(args)
    shape = load(args.model)
    if args.seq > shape.max_seq:
        name = shape.name or "this model"
        raise ConfigError(
            f"seq is {args.seq}, but {name} has positions for at most max_seq={shape.max_seq} tokens"
        )
    data = str(Path(args.data).resolve()) if args.data else None
    sizes = args.seq, args.global_batch, args.steps, args.warmup, args.repeat
    # A folder of a sweep from before models had these is of the same sweep.
    fields = {
        name: value
        for name, value in dataclasses.asdict(shape).items()
        if name not in ("windows", "differs") or value
    }
    spec = Spec(fields, *sizes, data, _train_flags(args))
    job = None if args.slurm is None else parse_slurm(args.slurm)
    make = _Rows(args.model, spec, trains, job, _clock(args))
    rows = [make.row(layout) for layout in dict.fromkeys(_layouts(args))]
    one_rank = make.row("")
    if one_rank.refused and all(row.refused == one_rank.refused for row in rows):
        raise ConfigError(one_rank.refused)
    again = frozenset(status.strip() for status in args.again.split(",") if status.strip())
    return Asked(spec, tuple({row.key: row for row in rows}.values()), again, job)


def _check(args: argparse.Namespace) -> None:
    for name in (
        "seq",
        "global_batch",
        "steps",
        "repeat",
        *(["at_once"] if args.at_once is not None else []),
    ):
        check_int(name, getattr(args, name), ConfigError)
    check_int("warmup", args.warmup, ConfigError, least=2)
    check_positive("timeout", args.timeout, ConfigError)
    if args.steps <= args.warmup:
        raise ConfigError(f"steps is {args.steps}, but must be more than the warmup of {args.warmup}")
    if args.data and not Path(args.data).is_file():
        raise ConfigError(f"data is {args.data!r}, which is no file")
    if args.slurm is not None and args.local_executor:
        raise ConfigError("--slurm and --local-executor are two ways to run jobs: give one of them")
    if args.at_once and args.slurm is None and not args.local_executor:
        raise ConfigError("--at-once is for jobs: give --slurm or --local-executor with it")
    if args.gpus and not args.grid:
        raise ConfigError(f"gpus is {args.gpus}, which is for a grid: give --grid with it")
    for status in filter(None, (status.strip() for status in args.again.split(","))):
        if status not in STATUSES:
            raise ConfigError(unknown("status", status, STATUSES))


def _layouts(args: argparse.Namespace) -> list[str]:
    found = list(args.layout or []) + (read_layouts(args.layouts) if args.layouts else [])
    if args.grid:
        gpus = [typed_int("gpus", text, ConfigError) for text in args.gpus.split(",")] if args.gpus else []
        found += grid(args.grid, gpus)
    if not found:
        raise ConfigError("there is nothing to run: give --layout, --layouts or --grid")
    check_names(found)
    return found


def _train_flags(args: argparse.Namespace) -> tuple[str, ...]:
    flags = tuple(args.train)
    if flags and flags[0] != "--":
        raise ConfigError(f"{flags[0]!r} is no flag: those of `playbook train` come after --")
    for flag in flags[1:]:
        if flag.partition("=")[0] in OWN:
            raise ConfigError(f"{flag} is said by the sweep itself: leave it out after --")
    return flags[1:]


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Makes rows of one sweep; ``model`` is what the reader calls it, ``trains`` the parser of ``playbook train``."""

    model: str
    spec: Spec
    trains: argparse.ArgumentParser
    job: SlurmJob | None
    clock: Clock | None

    def row(self, layout: str) -> Configuration:
        """One row before it has run: refused where the layout cannot be run, with the sentence that says why."""
        spec = self.spec
        sizes = ["--seq", str(spec.seq), "--global-batch", str(spec.global_batch), "--steps", str(spec.steps)]
        data = ["--data", spec.data] if spec.data else []
        flags = ("--model", self.model, *data, *sizes, "--layout", layout, *spec.train)
        parsed = self.trains.parse_args(flags)
        fields: dict[str, Any] = {
            "model": spec.model.get("name") or "",
            "layout": layout,
            "gbs": spec.global_batch,
            "seq": spec.seq,
            "precision": parsed.fp8 or parsed.dtype,
        }
        try:
            shape, config = prepared(parsed)
            if self.job is not None:
                sized(self.job, config.layout.world_size)
            fields |= {name: getattr(config.layout, name) for name in FIELDS} | {"layout": str(config.layout)}
            fields |= self._predicted(shape, config)
        except PlaybookError as error:
            fields |= _named(layout)
            return Configuration(spec.key(layout), flags, 0, fields, refused=str(error))
        return Configuration(spec.key(str(config.layout)), flags, config.layout.world_size, fields)

    def _predicted(self, shape: ModelShape, config: TrainConfig) -> dict[str, Any]:
        """The columns of predictions: bytes from the planner, seconds from the simulator where it knows the machine."""
        on_gpus = self.job is not None or group.gpus() >= config.layout.world_size
        job = job_of_run(shape, config, config.device or ("cuda" if on_gpus else "cpu"))
        found: dict[str, Any] = {}
        with contextlib.suppress(PlaybookError):  # a run can do what a prediction cannot
            found["predicted_peak_bytes"] = predict_job(job).peak
        with contextlib.suppress(PlaybookError):
            found["predicted_step_s"] = self.clock(job) if self.clock else None
        return found


def _named(layout: str) -> dict[str, str]:
    """The fields that the text of a layout names, as they stand there."""
    parts = (part.partition("=") for part in layout.split(",") if part.strip())
    return {name.strip(): value.strip() if equals else "True" for name, equals, value in parts}


def _clock(args: argparse.Namespace) -> Clock | None:
    """What predicts the time of a step, if that was asked for: a measured machine, or a cluster from datasheets."""
    if args.calibration is None:
        if args.cluster is not None:
            raise ConfigError(
                f"cluster is {args.cluster!r}, which is for a prediction: give --calibration with it"
            )
        return None
    from playbook.estimates.measured import load_machine, measured_run
    from playbook.planning.calibration import load_calibration
    from playbook.planning.jobs import cluster_of
    from playbook.planning.simulator import Run

    cluster = None if args.cluster is None else cluster_of(args.cluster)
    machine = load_machine(args.calibration) if Path(args.calibration).suffix == ".toml" else None
    if machine is not None:
        return lambda job, here=machine: (  # type: ignore[misc]
            measured_run(here, job, cluster=cluster).step(limit=False).seconds
        )
    if cluster is None:
        raise ConfigError(
            f"calibration {args.calibration} is of no machine: give the --cluster that it is for"
        )
    known = load_calibration(args.calibration, cluster.accelerator)
    return lambda job, on=cluster: Run(job, on, known).step(limit=False).seconds  # type: ignore[misc]
