"""``playbook exercises``: the exercises of the book, which of them you have solved, and packs of them for a class."""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path
from typing import Any

from playbook._json import to_json
from playbook.commands.flags import say
from playbook.errors import ConfigError

WAYS = """\
playbook exercises                             all, and which you have solved
playbook exercises zero                        those of a chapter
playbook exercises --progress FILE             joined with a page's file
playbook exercises export one-gpu --to FOLDER  a notebook, pytest checks
playbook exercises grade FOLDER                a CSV of what came back"""


def add(commands: Any) -> None:
    p = commands.add_parser(
        "exercises",
        help="the exercises of the book, which of them you have solved, and packs of them for a class",
        description=WAYS,
        usage="playbook exercises [CHAPTER | export PART --to FOLDER | grade FOLDER] [options]",
    )
    for name, metavar, text in (
        ("what", "CHAPTER", "only those of this chapter, such as zero or pipeline"),
        ("of", "PART or FOLDER", "export: a part of the book, or a chapter; grade: where the notebooks are"),
    ):
        p.add_argument(name, nargs="?", metavar=metavar, help=text)
    for flag, kind, metavar, text in (
        (
            "--progress",
            Path,
            "FILE",
            "join what is solved here with what the book's pages saved: both get all",
        ),
        ("--to", Path, "PATH", "export: the folder to write into; grade: the file (default: stdout)"),
        ("--limit", float, "SECONDS", "grade: how long a cell may compute (default: 60)"),
    ):
        p.add_argument(flag, type=kind, metavar=metavar, help=text)
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_exercises)


def _exercises(args: argparse.Namespace) -> int:
    ways = {"export": _export, "grade": _grade}
    if args.what in ways:
        if not args.of:
            way = next(line for line in WAYS.splitlines() if f" {args.what} " in line)
            raise ConfigError(f"{args.what} of what? {way.partition('  ')[0]}")
        if args.progress:
            raise ConfigError(f"--progress does not belong to {args.what}")
        return ways[args.what](args)
    for given, flag in ((args.of, args.of), (args.to, "--to"), (args.limit, "--limit")):
        if given is not None:
            raise ConfigError(f"{flag} belongs to `playbook exercises export` or `grade`")
    return _list(args)


def _list(args: argparse.Namespace) -> int:
    from playbook_book.exercises import exercises, progress

    found = exercises(*filter(None, [args.what])).values()
    if args.progress:
        here, there = progress.join(args.progress)
        say(f"{here} solved exercises were new here, {there} in {args.progress}")
    solved = progress.solved()
    rows = [{"name": e.name, "kind": e.kind, "title": e.title, "solved": solved.get(e.name)} for e in found]
    print(to_json({"exercises": rows}) if args.json else _table(rows))
    return 0


def _table(rows: list[dict[str, Any]]) -> str:
    wide = max(len(row["name"]) for row in rows)
    lines = []
    for chapter, some in groupby(rows, key=lambda row: row["name"].partition(".")[0]):
        lines.append(chapter)
        for row in some:
            mark = "✓" if row["solved"] else "·"
            lines.append(f"  {mark} {row['name']:{wide}}  {row['kind']:8}  {row['title']}")
    done = sum(row["solved"] is not None for row in rows)
    return "\n".join([*lines, f"{done} of {len(rows)} solved"])


def _export(args: argparse.Namespace) -> int:
    from playbook_book.assignments.pack import export

    if args.to is None:
        raise ConfigError("export needs --to FOLDER, the folder to write into")
    files = [str(file) for file in export(args.of, args.to)]
    print(to_json({"files": files}) if args.json else "\n".join(files))
    return 0


def _grade(args: argparse.Namespace) -> int:
    from playbook_book.assignments.handed_in import LIMIT, grade_folder, table

    limit = LIMIT if args.limit is None else args.limit
    if not 0 < limit < 1e6:
        raise ConfigError(f"--limit is {limit:g}, but must be seconds, more than 0")
    rows = []
    for file, results in grade_folder(Path(args.of), limit):
        say(f"{file}: {sum(one.right for one in results)} of {len(results)} right")
        rows.append((file, results))
    told = [{"file": str(file), **vars(one)} for file, results in rows for one in results]
    text = to_json({"results": told}) + "\n" if args.json else table(rows)
    if args.to is None:
        print(text, end="")
        return 0
    try:
        args.to.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{args.to} cannot be written: {error.strerror}") from error
    return 0
