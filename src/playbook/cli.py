"""The command line: ``playbook <subcommand>``, one per main object of the library.

With ``--json`` a subcommand prints one JSON object on stdout and everything else on stderr. Bad input ends with one clear
sentence on stderr and exit status 2; Ctrl-C, SIGTERM and SIGHUP with status 130.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any, NoReturn

from playbook import __version__
from playbook.commands import (
    calibrate,
    checkpoint,
    doctor,
    kubernetes,
    memory,
    mesh,
    schedule,
    search,
    simulate,
    slurm,
    sweep,
    train,
)
from playbook.commands.flags import Help, whole
from playbook.doctor import TORCH
from playbook.errors import PlaybookError
from playbook.registry import lab, places, register

#: Commands of the book, where that is installed as well.
register({"command": {"bench": "playbook_book.bench.command:add", "exercises": "playbook_book.command:add"}})
#: What those who only plan need not install.
NEEDED = ("numpy", "safetensors", "torch", "tqdm")


class _Parser(argparse.ArgumentParser):
    """argparse that answers a bad flag with one sentence instead of the whole usage."""

    def __init__(self, **options: Any):
        super().__init__(**{"formatter_class": Help, **options})
        self.register("type", int, whole)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """argparse takes the -- of ``--flag=--`` away, and is left with an empty list for a value."""
        for word in takewhile(lambda word: word != "--", sys.argv[1:] if args is None else args):
            if word.startswith("--") and word.endswith("=--"):
                self.error(f"argument {word[:-3]}: -- is no value")
        found, unread = super().parse_known_args(args, namespace)
        if unread and self.get_default("run"):  # the parser of all commands does not know this one's flags
            flags = [flag for action in self._actions for flag in action.option_strings]
            near = difflib.get_close_matches(unread[0].partition("=")[0], flags, n=2, cutoff=0.75)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unread)}{hint}")
        return found, unread


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # the encoding may be ASCII
    args = _parser().parse_args(argv)
    try:
        with _asked_to_end():
            status: int = args.run(args)
            sys.stdout.flush()
            return status
    except PlaybookError as error:
        print(f"playbook {args.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(f"playbook {args.command}: {error.name} is not installed: {TORCH}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # `playbook … | head`: the reader left, and what was to be done is not done
        sys.stderr.close()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"playbook {args.command}: what it writes has no room: {error}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is still to be written to stdout has none, either
        return 1


@contextmanager
def _asked_to_end() -> Iterator[None]:
    """Within, SIGTERM and SIGHUP are Ctrl-C: logs are ended, and temporary files removed.

    Not in torchrun's ranks, which may be in a collective that Python cannot leave: these die at once.
    """
    alone = threading.current_thread() is threading.main_thread() and "RANK" not in os.environ
    signals = (signal.SIGTERM, signal.SIGHUP) if alone else ()
    asked = [number for number in signals if signal.getsignal(number) is signal.SIG_DFL]
    for number in asked:
        signal.signal(number, _as_ctrl_c)
    try:
        yield
    finally:
        for number in asked:
            signal.signal(number, signal.SIG_DFL)


def _as_ctrl_c(*_: object) -> None:
    if not callable(signal.getsignal(signal.SIGINT)):  # a shell's background jobs ignore it
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="playbook", description="Train, plan and measure large models: the tools of the book."
    )
    parser.add_argument("--version", action="version", version=f"playbook {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (
        train, checkpoint, memory, simulate, search, mesh, schedule, calibrate, sweep, slurm, kubernetes, doctor,
    ):  # fmt: skip
        command.add(commands)
    for name in places("command"):
        with suppress(ModuleNotFoundError):  # the library alone, without its book
            lab("command", name)(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
