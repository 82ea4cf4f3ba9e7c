"""``playbook doctor``: what this machine has, and which tiers of the book it can run; or what a cluster has."""

from __future__ import annotations

import argparse
import os
from typing import Any

from playbook._checks import check_positive
from playbook._json import to_json
from playbook.errors import ConfigError


def add(commands: Any) -> None:
    p = commands.add_parser(
        "doctor",
        help="what this machine has, and which tiers of the book it can run",
        epilog="example: torchrun --nnodes=2 --nproc-per-node=8 --rdzv-backend=c10d --rdzv-endpoint=node-0:29400 "
        "-m playbook doctor --cluster",
    )
    p.add_argument(
        "--cluster",
        action="store_true",
        help="as one of torchrun's ranks: do all have the same, who is slow, which links are (status 1 if any is amiss)",
    )
    p.add_argument(
        "--folder", default=".", metavar="DIR", help="with --cluster: a folder that all nodes share"
    )
    p.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="with --cluster: seconds for each part of the list",
    )
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    if args.cluster:
        return _cluster(args)
    from playbook.doctor import examine, report

    found = examine()
    print(to_json(found) if args.json else report(found))
    return 0


def _cluster(args: argparse.Namespace) -> int:
    timeout = check_positive("timeout", args.timeout, ConfigError)
    from playbook.launch.checklist import examine_cluster
    from playbook.launch.verdicts import report

    found = examine_cluster(args.folder, timeout)
    if os.environ.get("RANK", "0") != "0":
        return 0  # a rank with another status would have torchrun end the first, which may still be printing
    print(to_json(found) if args.json else report(found), flush=True)
    return 0 if found["ok"] else 1
