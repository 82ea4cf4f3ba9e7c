"""``playbook exercises``: the exercises of the book, and which of them you have solved."""

from __future__ import annotations

import argparse
from itertools import groupby
from typing import Any

from playbook._json import to_json


def add(commands: Any) -> None:
    p = commands.add_parser("exercises", help="the exercises of the book, and which of them you have solved")
    p.add_argument("chapter", nargs="?", help="only those of this chapter, such as zero or pipeline")
    p.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    p.set_defaults(run=_exercises)


def _exercises(args: argparse.Namespace) -> int:
    from playbook_book.exercises import exercises, progress

    found, solved = exercises(*filter(None, [args.chapter])).values(), progress.solved()
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
