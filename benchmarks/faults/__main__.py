"""``python -m benchmarks.faults``, from the project's root."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.faults.campaign import bench_faults, report_faults
from playbook._checks import check_int, check_positive
from playbook._json import to_json
from playbook.errors import ConfigError, PlaybookError


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trials that are asked for, print what came of them, and record it after each."""
    p = argparse.ArgumentParser(prog="python -m benchmarks.faults", description=__doc__)
    flag = p.add_argument
    flag("--count", type=int, default=1000, metavar="N", help="trials (default: 1000)")
    flag("--seed", type=int, default=0, metavar="N", help="of layouts, faults and moments")
    flag("--start", type=int, default=0, metavar="N", help="number of the first trial")
    flag(
        "--live", action="store_true", help="kill replicas of runs with live recovery, four in each (live.py)"
    )
    flag("--only", metavar="N,…", help="the trials of these numbers alone")
    flag("--jobs", type=int, default=2, metavar="N", help="trials at a time (default: 2)")
    flag("--limit", type=float, default=120.0, metavar="S", help="seconds after which a run is said to hang")
    flag("--json", action="store_true", help="print one JSON object on stdout")
    flag("--record", type=Path, metavar="FILE", help="write the JSON to a file as well")
    args = p.parse_args(argv)
    try:
        for name, least in (("count", 1), ("jobs", 1), ("seed", 0), ("start", 0)):
            check_int(name, getattr(args, name), ConfigError, least=least)
        check_positive("limit", args.limit, ConfigError)
    except PlaybookError as error:
        print(error, file=sys.stderr)
        return 2
    numbers = map(int, args.only.split(",")) if args.only else range(args.start, args.start + args.count)
    result = {}
    for result in bench_faults(args.seed, list(numbers), args.jobs, args.limit, args.live):
        if args.record:
            args.record.write_text(to_json(result, indent=1) + "\n", encoding="utf-8")
    print(to_json(result) if args.json or args.live else report_faults(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
