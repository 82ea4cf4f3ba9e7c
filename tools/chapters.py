"""What each chapter weighs, and whether it keeps what a reader is promised: half an hour, in the field's words.

Usage: python tools/chapters.py [FILE or FOLDER ...]          print a table (default: book)
       python tools/chapters.py --check [FILE or FOLDER ...]  say what is over a limit; status 1 if anything

A chapter has at most 55 cells and 1,975 words, and no open cell of more than 15 lines. It begins with what to carry away,
in at most 90 words, says where things break, and ends with three exercises or more, one of them a repair, a bridge to the
frameworks and a summary, in this order. It uses no word of its own for what the field has a term for; neither do its
captions, nor docstrings and messages of the code.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[1]
MOST_CELLS, MOST_WORDS, MOST_LINES, LEAST_EXERCISES = 55, 1975, 15, 3
MOST_CARRIED = 90  # words of the box at its head
BRIDGE = "## In the frameworks"
#: Headings that end a chapter, in their order.
END = ("## Exercises", BRIDGE, "## Summary")
#: Whose docstrings and messages readers see.
CODE = ("src/playbook", "book/playbook_book", "widgets/playbook_widgets")
#: Words that readers would not find in the literature, with the field's own.
HOME_MADE = {
    "addends?": "partial sum",
    "dealt out|share out|shared out|shares out": "sharded",
    "foretold|foretells?": "predicted",
    "tenants?": "category",
    "the wire|on the wire": "the network, the link",
    "older texts?": "the text's name",
    "dear for": "costly for",
    "hold your tongue": "skip synchronisation",
    "throws? dice": "samples",
    "sleeps": "is idle",
    "words of the vocabulary": "vocabulary entries",
    "puts? off": "defers",
    "a way through": "a direction",
}
#: The box at the head of a chapter.
_TAKEAWAY = re.compile(r":::\{div\} pb-takeaway\n(.*?)\n:::", re.DOTALL)
#: What is no prose: formulas, code, roles' names and targets.
_NOT_WORDS = re.compile(r"\$.*?\$|`.*?`|\{.*?\}", re.DOTALL)


@dataclass(frozen=True)
class Weight:
    """Counts of one chapter. ``long`` are the numbers (from 1) of open code cells over the limit."""

    cells: int
    words: int
    long: tuple[int, ...]
    exercises: int
    bridge: bool
    shape: bool
    home_made: dict[str, str]
    carried: int

    def complaints(self) -> list[str]:
        found = []
        if self.cells > MOST_CELLS:
            found.append(f"{self.cells} cells, at most {MOST_CELLS}")
        if self.words > MOST_WORDS:
            found.append(f"{self.words} words, at most {MOST_WORDS}")
        if self.long:
            cells = ", ".join(map(str, self.long))
            found.append(
                f"more than {MOST_LINES} lines in open cells: {cells}; shorten them, or tag them hide-input"
            )
        if self.exercises < LEAST_EXERCISES:
            found.append(f"{self.exercises} exercises, at least {LEAST_EXERCISES}")
        if not 0 < self.carried <= MOST_CARRIED:
            found.append(f"{self.carried} words to carry away, at least one and at most {MOST_CARRIED}")
        if not self.bridge:
            found.append(f"no section {BRIDGE!r}")
        if not self.shape:
            found.append(f"it does not say 'Where it breaks', or does not end with {', '.join(END)}")
        return found + [f"{word!r}: say {term!r}" for word, term in self.home_made.items()]


def weigh(path: Path) -> Weight:
    """What the chapter at ``path`` weighs."""
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    end = tuple(line for line in prose.splitlines() if line in END)
    said = "\n".join(
        [prose, *(text for cell in cells if cell.cell_type == "code" for text in _strings(cell.source))]
    )
    return Weight(
        len(cells),
        _words(prose),
        tuple(number for number, cell in enumerate(cells, 1) if _is_long(cell)),
        prose.count("pb-exercise"),
        BRIDGE in prose.splitlines(),
        end == END and "Where it breaks" in prose,
        home_made(said),
        _words("".join(_TAKEAWAY.findall(cells[0].source))),
    )


def home_made(text: str) -> dict[str, str]:
    """Words of a text that are no terms, with the field's own."""
    return {
        word.lower(): term
        for pattern, term in HOME_MADE.items()
        for word in re.findall(rf"\b(?:{pattern})\b", text, re.IGNORECASE)
    }


def _strings(source: str) -> list[str]:
    """Captions, docstrings, messages: all strings of some code that is Python."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # a magic
        return [source]
    return [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def in_code() -> list[str]:
    """What is wrong with the words of docstrings and messages."""
    files = [path for folder in CODE for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = {path: "\n".join(_strings(path.read_text(encoding="utf-8"))) for path in files}
    return [
        f"{path.relative_to(ROOT)}: {word!r}: say {term!r}"
        for path, text in texts.items()
        for word, term in home_made(text).items()
    ]


def _words(text: str) -> int:
    return len(re.findall(r"[A-Za-z]{2,}", _NOT_WORDS.sub(" ", text)))


def _is_long(cell: nbformat.NotebookNode) -> bool:
    folded = any(tag.startswith("hide") or tag.startswith("remove") for tag in cell.metadata.get("tags", ()))
    return cell.cell_type == "code" and not folded and len(cell.source.splitlines()) > MOST_LINES


def chapters(paths: list[Path]) -> list[Path]:
    """Notebooks of chapters: those in a part's folder. The tools' pages have no exercises and are none."""
    found = [f for path in paths for f in (sorted(path.rglob("*.ipynb")) if path.is_dir() else [path])]
    return [f for f in found if f.parent.name not in ("book", "tools", ".ipynb_checkpoints")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "book"])
    parser.add_argument("--check", action="store_true", help="say what is over a limit; status 1 if anything")
    args = parser.parse_args()
    weights = {path: weigh(path) for path in chapters(args.paths)}
    if args.check:
        said = [f"{path.stem}: {text}" for path, weight in weights.items() for text in weight.complaints()]
        said += in_code() if args.paths == [ROOT / "book"] else []
        print("\n".join(said), file=sys.stderr)
        return bool(said)
    print(f"{'chapter':24} cells words long exercises bridge  words of our own")
    for path, w in weights.items():
        bridge = "yes" if w.bridge else "no"
        print(
            f"{path.stem:24} {w.cells:5} {w.words:5} {len(w.long):4} {w.exercises:9} {bridge:6}  {', '.join(w.home_made)}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
