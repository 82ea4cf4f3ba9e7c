"""``%%torchrun -n 4``: the cell as ranks, its results in the notebook."""

from __future__ import annotations

import argparse
import shlex
from typing import Any, NoReturn

from playbook.errors import LaunchError
from playbook.launch.run import prepare, run


def load(shell: Any) -> None:
    """Register the magic with IPython, and have the warm process ready when the first cell comes."""

    def magic(line: str, cell: str) -> None:
        torchrun(shell, line, cell)

    magic.__doc__ = f"{torchrun.__doc__}\n\n{_parser().format_help()}"  # for `%%torchrun?`
    shell.register_magic_function(magic, "cell", "torchrun")
    prepare()


def torchrun(shell: Any, line: str, cell: str) -> None:
    """Run the cell as ranks, print their output in rank order, and put the ``Ranks`` into the notebook.

    The ranks run nothing but the cell: it imports what it uses, and of the notebook's variables it has a copy of those
    that ``--pass`` names. ``ranks[2].value`` is the cell's variable ``result`` in rank 2. Raises IPython's ``UsageError``
    for a bad line and ``RankError`` when a rank fails.
    """
    from IPython.core.error import UsageError

    try:
        options = _options(line)
        result = run(
            # An empty first line in place of the magic's: lines of tracebacks are lines of the cell.
            f"\n{cell}",
            ranks=options.n,
            timeout=options.timeout,
            cold=options.cold,
            nnodes=options.nnodes,
            backend=options.backend,
            echo="stream" if options.stream else "grouped",
            names=_passed(shell.user_ns, options.passed),
        )
    except LaunchError as error:
        raise UsageError(f"%%torchrun: {error}") from None
    shell.user_ns[options.name] = result


def _options(line: str) -> argparse.Namespace:
    """What the magic's line asks for."""
    try:
        options = _parser().parse_args(shlex.split(line))
    except (argparse.ArgumentError, ValueError) as error:
        raise LaunchError(str(error)) from None
    if not options.name.isidentifier():
        raise LaunchError(f"--name is {options.name!r}, but must be the name of a variable")
    return options


class _Parser(argparse.ArgumentParser):
    """argparse that raises where it would end the process."""

    def error(self, message: str) -> NoReturn:
        raise LaunchError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="%%torchrun", add_help=False, exit_on_error=False)
    add = parser.add_argument
    add("-n", type=int, default=4, metavar="N", help="ranks (default: 4)")
    add("--nnodes", type=int, default=1, metavar="N", help="nodes, each a torchrun of its own here")
    add("--timeout", type=float, default=60.0, metavar="S", help="seconds that ranks may take (default: 60)")
    add("--cold", action="store_true", help="torchrun itself, not the warm process")
    add("--backend", choices=["gloo", "nccl"], help="default: nccl if each rank has a GPU of its own")
    add("--stream", action="store_true", help="print lines when they come, not in rank order at the end")
    add("--name", default="ranks", metavar="NAME", help="variable for the results (default: ranks)")
    add("--pass", dest="passed", default="", metavar="A,B", help="variables of the notebook that ranks get")
    return parser


def _passed(notebook: dict[str, Any], names: str) -> dict[str, Any]:
    """The variables that the ranks get."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in notebook:
            raise LaunchError(f"--pass names {name!r}, which the notebook does not have")
    return {name: notebook[name] for name in wanted}
