"""``playbook kubernetes``: a manifest that runs a playbook command on the nodes of a Kubernetes cluster."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from playbook._json import to_json
from playbook.commands.flags import add_fields, read_fields
from playbook.commands.slurm import add_command, check_command, command_of
from playbook.launch.kubernetes import KubernetesJob, job_set, manifest


def add(commands: Any) -> None:
    p = commands.add_parser(
        "kubernetes",
        help="write a Kubernetes manifest for a playbook command",
        description="Print a JobSet that runs a playbook command as one rank for each GPU of several nodes. Evicted "
        "ranks save and leave; all pods start again, and go on from the last checkpoint.",
        usage="playbook kubernetes --image IMAGE [--nodes N] [--gpus-per-node N] [...] -- COMMAND [ARGUMENT ...]",
        epilog="example: playbook kubernetes --image me/playbook --nodes 2 --claim data -- train --model llama3-8b "
        "--layout dp=16,zero=3 --checkpoint run --every 100 --resume | kubectl create -f -",
    )
    p.add_argument(
        "--image", required=True, metavar="IMAGE", help="container image that has playbook installed"
    )
    add_fields(p, KubernetesJob)
    add_command(p, "manifest")
    p.set_defaults(run=lambda args: _kubernetes(args, commands.choices))


def _kubernetes(args: argparse.Namespace, parsers: dict[str, argparse.ArgumentParser]) -> int:
    job = KubernetesJob(args.image, **read_fields(args, KubernetesJob))
    command = command_of(args)
    text = manifest(command, job)
    # Without a volume there is nothing to go on from: pods begin anew, which is for short commands alone.
    check_command(command, job.ranks, f"claim is {job.claim!r}" if job.claim else None, parsers)
    if args.json:
        found = {**dataclasses.asdict(job), "command": command, "ranks": job.ranks}
        print(to_json({**found, "manifest": job_set(command, job)}))
    else:
        print(text, end="")
    return 0
