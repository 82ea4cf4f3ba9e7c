"""The glossary has every term that a chapter introduces: what a chapter sets in bold is one, or a label."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]
CHAPTERS = sorted(path for path in ROOT.joinpath("book").glob("*/*.ipynb") if path.parent.name != "tools")


def normal(term: str) -> str:
    return re.sub(r"\s+", " ", term).strip(" .,:;").lower()


def singular(term: str) -> set[str]:
    """A term and what may be its singular."""
    return {term, term.removesuffix("s"), term.removesuffix("es"), re.sub("ies$", "y", term)}


def entries() -> set[str]:
    text = ROOT.joinpath("book", "glossary.md").read_text(encoding="utf-8").partition("```{glossary}")[2]
    return {normal(line) for line in text.splitlines() if line and line[0] not in " :`"}


def introduced(path: Path) -> set[str]:
    """Bold words of a chapter's prose: no labels (at the start of an item or a line, in tables), no summary."""
    found = set()
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type != "markdown":
            continue
        text = cell.source.partition("## Summary")[0]
        lines = [line for line in text.splitlines() if not line.startswith("|")]
        text = re.sub(r"^\s*(?:[-*]|\d+\.)? ?\*\*[^*]+\*\*", "", "\n".join(lines), flags=re.MULTILINE)
        found |= {normal(term) for term in re.findall(r"\*\*([^*]+)\*\*", text)}
    return found


@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_what_a_chapter_introduces_is_in_the_glossary(path):
    known = entries()
    assert {term for term in introduced(path) if not singular(term) & known} == set()


def test_a_term_leads_from_where_it_is_introduced_to_its_entry(built_book):
    chapter = built_book.joinpath("book/one-gpu/memory.html").read_text(encoding="utf-8")
    links = re.findall(r'<a class="[^"]*pb-term[^"]*" href="\.\./glossary\.html#([\w-]+)"', chapter)
    assert {"term-optimizer-states", "term-meta-device"} <= set(links)
    assert len(links) == len(set(links))  # once each
    ids = re.findall(r'id="([\w-]+)"', built_book.joinpath("book/glossary.html").read_text(encoding="utf-8"))
    assert set(links) <= set(ids)


def test_a_term_has_one_entry_of_few_words_and_a_link_to_where_it_runs():
    text = ROOT.joinpath("book", "glossary.md").read_text(encoding="utf-8").partition("```{glossary}")[2]
    blocks = [block for block in text.split("\n\n") if "\n  " in block]
    for block in blocks:
        definition = " ".join(line.strip() for line in block.splitlines() if line.startswith("  "))
        assert re.search(r"\]\([a-z-]+/[a-z0-9-]+\.ipynb\)", definition), block
        assert len(definition) < 320, block
    names = [line for block in blocks for line in block.splitlines() if line and line[0] not in " :"]
    assert len(names) == len(set(map(str.lower, names)))
