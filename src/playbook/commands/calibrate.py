"""``playbook calibrate``: measure this machine, for plans that are made with what it really does."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from playbook._json import to_json
from playbook.commands.flags import say
from playbook.errors import ConfigError

_EPILOG = """\
playbook sweep --calibration FILE predicts the steps of a sweep with it. What the file holds is described by
pydoc playbook.bench.calibrate.
"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "calibrate",
        help="measure this machine and write what it reaches to a TOML file",
        description="Measure this machine: matrix products, attention, memory, single calls, the optimizer, collectives\n"
        "and how ranks slow each other down when they share cores. It takes four minutes; nothing else should run.",
        epilog=_EPILOG,
    )
    flag = p.add_argument
    flag(
        "--out",
        type=Path,
        default=Path("calibration.toml"),
        metavar="FILE",
        help="file to write, or to write anew (default: calibration.toml)",
    )
    flag("--device", metavar="D", help="cpu or cuda (default: cuda when there is one)")
    flag(
        "--ranks",
        default="2,4,8",
        metavar="N,…",
        help="numbers of ranks to measure together; on GPUs no more than there are (default: 2,4,8)",
    )
    flag("--threads", type=int, default=1, metavar="N", help="threads of each process on a CPU (default: 1)")
    flag("--quick", action="store_true", help="a rehearsal with tiny tensors: the numbers mean nothing")
    flag("--json", action="store_true", help="print what the file says, without the raw times, as JSON")
    p.set_defaults(run=_calibrate)


def _calibrate(args: argparse.Namespace) -> int:
    ranks = [_number(text) for text in args.ranks.split(",") if text.strip()]
    if args.out.is_dir():
        raise ConfigError(
            f"out is {str(args.out)!r}, which is a folder: name a file, such as calibration.toml"
        )

    from playbook.bench.calibrate import calibrate, report, write
    from playbook.training.trainer import default_device

    tables = calibrate(args.device or default_device(), ranks, args.threads, args.quick, say)
    write(tables, args.out)
    say(f"written to {args.out}")
    if args.json:
        print(to_json({key: table for key, table in tables.items() if key != "raw"}))
    else:
        print(report(tables))
    return 0


def _number(text: str) -> int:
    if not text.strip().isdecimal():
        raise ConfigError(f"ranks must be numbers separated by commas, such as 2,4,8, got {text!r}")
    return int(text)
