"""``playbook slurm``: a batch script that runs a playbook command on the nodes of a cluster."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from playbook._checks import unknown
from playbook._json import to_json
from playbook.errors import LaunchError


def add(commands: Any) -> None:
    p = commands.add_parser(
        "slurm",
        help="write a Slurm batch script for a playbook command",
        description="Print a script for sbatch that runs a playbook command as one rank for each GPU of several nodes.",
        usage="playbook slurm [--nodes N] [--gpus-per-node N] [...] -- COMMAND [ARGUMENT ...]",
        epilog="example: playbook slurm --nodes 2 -- train --model llama3-8b --layout dp=16,zero=3 | sbatch",
        argument_default=argparse.SUPPRESS,  # SlurmJob has the defaults, and is imported only when it is needed
    )
    flag = p.add_argument
    flag("--nodes", type=int, metavar="N", help="nodes (default: 1)")
    flag("--gpus-per-node", type=int, metavar="N", help="GPUs, and ranks, of each node (default: 8)")
    flag("--cpus-per-gpu", type=int, metavar="N", help="CPU cores of each rank (default: 8)")
    flag(
        "--time", metavar="H:M:S", help="the most that the job may take, also as D-H:M:S (default: 01:00:00)"
    )
    flag("--job-name", metavar="NAME", help="what squeue calls it (default: playbook)")
    flag("--partition", metavar="NAME", help="partition of the cluster (default: the cluster's)")
    flag("--account", metavar="NAME", help="who pays (default: yours)")
    flag(
        "--setup",
        action="append",
        metavar="LINE",
        help="line of shell that each node runs first, such as 'source venv/bin/activate'; repeatable",
    )
    flag("--container", metavar="IMAGE", help="container image, where Slurm has pyxis")
    flag("--logs", metavar="DIR", help="folder for output: DIR/JOB/node-0.log and so on (default: logs)")
    flag("--requeue", action="store_true", help="start again after a node has failed")
    flag(
        "--signal",
        metavar="NAME@S",
        help="signal that comes S seconds before the time is up, such as TERM@120",
    )
    flag("--json", action="store_true", default=False, help="print one JSON object, with the script in it")
    flag(
        "command_line",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a playbook command or a script.py, and its arguments",
    )
    p.set_defaults(run=lambda args: _slurm(args, commands.choices))


def _slurm(args: argparse.Namespace, parsers: dict[str, argparse.ArgumentParser]) -> int:
    from playbook.launch.slurm import SlurmJob, sbatch_script

    names = {field.name for field in dataclasses.fields(SlurmJob)}
    given = {name: value for name, value in vars(args).items() if name in names}
    if "setup" in given:
        given["setup"] = tuple(given["setup"])
    job = SlurmJob(**given)
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    script = sbatch_script(command, job)
    _check(command, job.ranks, {name: parser for name, parser in parsers.items() if name != "slurm"})
    if args.json:
        print(to_json({**dataclasses.asdict(job), "command": command, "ranks": job.ranks, "script": script}))
    else:
        print(script, end="")
    return 0


def _check(command: list[str], ranks: int, parsers: dict[str, argparse.ArgumentParser]) -> None:
    """Find a typing error now, not after the job has waited in the queue for a day."""
    name, *arguments = command
    if name.endswith(".py"):
        return
    if name not in parsers:
        raise LaunchError(unknown("command", name, parsers))
    layout = getattr(parsers[name].parse_args(arguments), "layout", None)
    if name == "train" and layout:
        from playbook.layout import Layout

        needed = Layout.parse(layout).world_size
        if needed != ranks:
            raise LaunchError(
                f"layout is {layout!r}, which needs {needed} ranks, but the nodes have {ranks} GPUs"
            )
