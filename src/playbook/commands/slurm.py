"""``playbook slurm``: a batch script that runs a playbook command on the nodes of a cluster."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from playbook._checks import unknown
from playbook._json import to_json
from playbook.errors import LaunchError

if TYPE_CHECKING:
    from playbook.launch.slurm import SlurmJob


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
    flag(
        "--requeue",
        action="store_true",
        help="back to the queue when the time is up, a node has failed or another job needs the nodes",
    )
    flag(
        "--array",
        type=int,
        metavar="N",
        help="N jobs, one after another: each goes on where the one before has stopped (default: 1)",
    )
    flag(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often torchrun starts ranks again within a job (default: 0)",
    )
    flag(
        "--signal",
        metavar="NAME@S",
        help="signal that comes S seconds before the time is up (default: B:USR1@120 with --requeue or --array)",
    )
    flag("--switches", metavar="N@TIME", help="nodes behind at most N switches, if they are free by TIME")
    flag("--exclusive", action="store_true", help="no other job on these nodes")
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
