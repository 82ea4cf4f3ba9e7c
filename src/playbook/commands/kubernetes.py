"""``playbook kubernetes``: a manifest that runs a playbook command on the nodes of a Kubernetes cluster."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from playbook._json import to_json
from playbook.commands.slurm import check_command


def add(commands: Any) -> None:
    p = commands.add_parser(
        "kubernetes",
        help="write a Kubernetes manifest for a playbook command",
        description="Print a JobSet that runs a playbook command as one rank for each GPU of several nodes. Evicted "
        "ranks save and leave; all pods start again, and go on from the last checkpoint.",
        usage="playbook kubernetes --image IMAGE [--nodes N] [--gpus-per-node N] [...] -- COMMAND [ARGUMENT ...]",
        epilog="example: playbook kubernetes --image me/playbook --nodes 2 --claim data -- train --model llama3-8b "
        "--layout dp=16,zero=3 --checkpoint run --every 100 --resume | kubectl create -f -",
        argument_default=argparse.SUPPRESS,  # KubernetesJob has the defaults, and is imported when it is needed
    )
    flag = p.add_argument
    flag("--image", required=True, metavar="IMAGE", help="container image that has playbook installed")
    flag("--nodes", type=int, metavar="N", help="nodes, a pod on each (default: 1)")
    flag("--gpus-per-node", type=int, metavar="N", help="GPUs, and ranks, of each node (default: 8)")
    flag("--cpus-per-gpu", type=int, metavar="N", help="CPU cores of each rank (default: 8)")
    flag("--name", metavar="NAME", help="of the JobSet (default: playbook)")
    flag("--namespace", metavar="NAME", help="of the cluster (default: yours)")
    flag("--claim", metavar="NAME", help="PersistentVolumeClaim for checkpoints, which all nodes can write")
    flag("--mount", metavar="PATH", help="where it is mounted, and where the command runs (default: /shared)")
    flag("--shm", metavar="16Gi", help="shared memory of a pod (default: 16Gi)")
    flag("--gpu-resource", metavar="NAME", help="what the cluster calls its GPUs (default: nvidia.com/gpu)")
    flag(
        "--max-restarts",
        type=int,
        metavar="N",
        help="how often torchrun starts ranks again before the pod fails (default: 3)",
    )
    flag("--restarts", type=int, metavar="N", help="how often all pods start again (default: 10)")
    flag("--grace", type=int, metavar="S", help="seconds that ranks have to save and leave (default: 120)")
    flag("--json", action="store_true", default=False, help="print one JSON object, with the manifest in it")
    flag(
        "command_line",
        nargs=argparse.REMAINDER,
        metavar="COMMAND",
        help="a playbook command or a script.py, and its arguments",
    )
    p.set_defaults(run=lambda args: _kubernetes(args, commands.choices))


def _kubernetes(args: argparse.Namespace, parsers: dict[str, argparse.ArgumentParser]) -> int:
    from playbook.launch.kubernetes import KubernetesJob, job_set, manifest

    names = {field.name for field in dataclasses.fields(KubernetesJob)}
    job = KubernetesJob(**{name: value for name, value in vars(args).items() if name in names})
    command = args.command_line[1:] if args.command_line[:1] == ["--"] else args.command_line
    text = manifest(command, job)
    # Without a volume there is nothing to go on from: pods begin anew, which is for short commands alone.
    check_command(command, job.ranks, f"claim is {job.claim!r}" if job.claim else None, parsers)
    if args.json:
        found = {**dataclasses.asdict(job), "command": command, "ranks": job.ranks}
        print(to_json({**found, "manifest": job_set(command, job)}))
    else:
        print(text, end="")
    return 0
