"""The command line: ``playbook <subcommand>``, one per main object of the library.

With ``--json`` a subcommand prints one JSON object on stdout and everything else on stderr. Bad input ends with one clear
sentence on stderr and exit status 2; Ctrl-C with status 130.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from playbook.commands import (
    bench,
    calibrate,
    doctor,
    exercises,
    memory,
    mesh,
    schedule,
    search,
    simulate,
    slurm,
    sweep,
    train,
)
from playbook.errors import PlaybookError


class _Parser(argparse.ArgumentParser):
    """argparse that answers a bad flag with one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except PlaybookError as error:
        print(f"playbook {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `playbook … | head`: the reader left, which is no error
        sys.stderr.close()
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="playbook", description="Train, plan and measure large models: the tools of the book."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (
        train, memory, simulate, search, mesh, schedule, bench, calibrate, sweep, slurm, exercises, doctor,
    ):  # fmt: skip
        command.add(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
