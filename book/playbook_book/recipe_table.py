"""The published recipes of training in 16 and 8 bits as a table."""

from __future__ import annotations

from dataclasses import fields

from playbook.planning.recipes import PUBLISHED, StateFormats


def published_rows() -> list[list[str]]:
    """The table of `PUBLISHED`: name, format of products, of each kind of tensor, both sums, and what the second saves.

    Savings are in percent of the first row as printed.
    """
    rows, most = [], next(iter(PUBLISHED.values())).printed.states.total
    for one in PUBLISHED.values():
        formats = [getattr(one.printed, kind.name).upper() or "–" for kind in fields(StateFormats)]
        saved = [f"{1 - form.states.total / most:.0%}" for form in (one.printed, one.kept)]
        sums = [text for pair in zip((one.printed.sum, one.kept.sum), saved, strict=True) for text in pair]
        rows.append([one.name, one.products.upper(), *formats, *sums])
    return rows
