"""Numbers in the prose of chapters, each beside what it rests on: an output, a setting in code, a source.

Usage: python tools/claims.py [NAME …]        print those that rest on nothing that this script can see
       python tools/claims.py --all [NAME …]  print every number with what it was found in

Needs the built book, whose chapters have outputs. What is listed has to be read: a number may follow from two others.
"""

from __future__ import annotations

import argparse
import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

ROOT = Path(__file__).resolve().parents[1]
RUN = ROOT / "_build/jupyter_execute/book"
#: A number of two digits or more, or with a decimal point; not inside a name, a version or a date.
NUMBER = re.compile(r"(?<![\w.,/-])(\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+\.\d+|\d{2,})(?![\w/]|\.\d|-\d)")
_NO_PROSE = re.compile(
    r"```.*?```|`[^`]*`|\$[^$]*\$|\]\([^)]*\)|<[^>]*>|^#.*$|^:::.*$", re.DOTALL | re.MULTILINE
)
_CITED = re.compile(r"\{cite|\]\(|arXiv|predicted|[Ss]ection|[Tt]able|[Ff]igure|published")
_YEAR = re.compile(r"(?:19|20)\d\d")


def shown(cell: Any) -> str:
    """All that a cell's outputs say, alternative texts as well."""
    texts = []
    for output in cell.get("outputs", []):
        texts.append(output.get("text", ""))
        texts += [str(value) for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return html.unescape(re.sub(r"(?<=\d),(?=\d{3})", "", "\n".join(texts)))


def sentences(text: str) -> Iterator[tuple[str, str]]:
    """Sentences of a cell, as they are and without what is no prose."""
    for part in re.split(
        r"(?<=[.?!:])\s+(?=[A-Z*`\[{(])|\n\n", re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    ):
        yield part, _NO_PROSE.sub(" ", part)


def claims(path: Path) -> Iterator[tuple[str, str, str]]:
    """Each number, what it rests on ("" for nothing), and its sentence."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = "\n".join(shown(cell) for cell in cells if cell.cell_type == "code")
    code = "\n".join(cell.source for cell in cells if cell.cell_type == "code").replace("_", "")
    for cell in cells:
        if cell.cell_type != "markdown":
            continue
        for whole, prose in sentences(cell.source):
            for number in NUMBER.findall(prose):
                plain = number.replace(",", "")
                if _YEAR.fullmatch(plain):
                    continue
                alone = rf"(?<![\d.]){re.escape(plain)}(?!\d|\.\d)"
                where = "output" if re.search(alone, outputs) else "code" if re.search(alone, code) else ""
                yield number, where or ("source" if _CITED.search(whole) else ""), " ".join(whole.split())


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("names", nargs="*", metavar="NAME", help="chapters (default: all)")
    p.add_argument("--all", action="store_true", help="those that rest on something as well")
    args = p.parse_args()
    for path in sorted(RUN.glob("*/*.ipynb")):
        if args.names and path.stem not in args.names:
            continue
        found = list(claims(path))
        print(f"{path.stem}: {len(found)} numbers, {sum(not where for _, where, _ in found)} to look at")
        for number, where, sentence in found:
            if args.all or not where:
                print(f"  {number:>10}  {where or '?':7} {sentence[:200]}")


if __name__ == "__main__":
    main()
