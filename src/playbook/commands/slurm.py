"""``playbook slurm``: a batch script that runs a playbook command on the nodes of a cluster."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from playbook._checks import unknown
from playbook._json import to_json
from playbook.commands.flags import add_fields, read_fields
from playbook.errors import LaunchError
from playbook.launch.slurm import SlurmJob, sbatch_script


def add(commands: Any) -> None:
    p = commands.add_parser(
        "slurm",
        help="write a Slurm batch script for a playbook command",
        description="Print a script for sbatch that runs a playbook command as one rank for each GPU of several nodes.",
        usage="playbook slurm [--nodes N] [--gpus-per-node N] [...] -- COMMAND [ARGUMENT ...]",
        epilog="example: playbook slurm --nodes 2 -- train --model llama3-8b --layout dp=16,zero=3 | sbatch",
    )
    add_fields(p, SlurmJob)
    p.add_argument(
        "--setup",
        action="append",
        default=[],
        metavar="LINE",
        help="line of shell that each node runs first, such as 'source venv/bin/activate'; repeatable",
    )
    add_command(p, "script")
    p.set_defaults(run=lambda args: _slurm(args, commands.choices))


def add_command(p: argparse.ArgumentParser, text: str) -> None:
    """What is run, behind all flags, and --json, whose object holds the ``text`` as well."""
    p.add_argument("--json", action="store_true", help=f"print one JSON object, with the {text} in it")
    p.add_argument(
        "command_line",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a playbook command or a script.py, and its arguments",
    )


def command_of(args: argparse.Namespace) -> list[str]:
    """The words of that command."""
    return args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line


def _slurm(args: argparse.Namespace, parsers: dict[str, argparse.ArgumentParser]) -> int:
    job = SlurmJob(**read_fields(args, SlurmJob), setup=tuple(args.setup))
    command = command_of(args)
    script = sbatch_script(command, job)
    check_command(command, job.ranks, later(job), parsers)
    if args.json:
        print(to_json({**dataclasses.asdict(job), "command": command, "ranks": job.ranks, "script": script}))
    else:
        print(script, end="")
    return 0


def later(job: SlurmJob) -> str | None:
    """The field of a job for which its command must be able to go on from a checkpoint, as in ``requeue is True``."""
    asked = {"requeue": job.requeue, "array": job.array > 1, "max_restarts": job.max_restarts}
    return next((f"{name} is {getattr(job, name)}" for name, wanted in asked.items() if wanted), None)


def check_command(
    command: list[str], ranks: int, goes_on: str | None, parsers: dict[str, argparse.ArgumentParser]
) -> None:
    """Find a typing error now, not after the job has waited in the queue for a day. Raises LaunchError.

    ``goes_on`` is what asks for a command that can go on from a checkpoint.
    """
    name, *arguments = command
    if name.endswith(".py"):
        return
    known = {key: parser for key, parser in parsers.items() if key not in ("slurm", "kubernetes")}
    if name not in known:
        raise LaunchError(unknown("command", name, known))
    args = known[name].parse_args(arguments)
    if name != "train":
        return
    if goes_on and not (args.checkpoint and args.resume):
        raise LaunchError(
            f"{goes_on}, but training would begin at step 0 again: give train --checkpoint DIR --resume"
        )
    if args.layout:
        from playbook.layout import Layout

        needed = Layout.parse(args.layout).world_size
        if needed != ranks:
            raise LaunchError(
                f"layout is {args.layout!r}, which needs {needed} ranks, but the nodes have {ranks} GPUs"
            )
