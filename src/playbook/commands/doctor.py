"""``playbook doctor``: what this machine has, and which tiers of the book it can run."""

from __future__ import annotations

import argparse
from typing import Any

from playbook._json import to_json


def add(commands: Any) -> None:
    p = commands.add_parser("doctor", help="what this machine has, and which tiers of the book it can run")
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_doctor)


def _doctor(args: argparse.Namespace) -> int:
    from playbook.doctor import examine, report

    found = examine()
    print(to_json(found) if args.json else report(found))
    return 0
