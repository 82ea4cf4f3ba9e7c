"""A small table: an HTML table on the page, aligned text in a terminal."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


class Table:
    """What `table` returns: rows of text under a header, numbers to the right."""

    def __init__(self, header: list[str], rows: list[list[str]], right: list[bool]):
        self.header, self.rows, self.right = header, rows, right

    def _repr_html_(self) -> str:
        body = "".join(self._row("td", row) for row in self.rows)
        head = self._row("th", self.header)
        return f'<div class="pb-scroll"><table class="table"><thead>{head}</thead><tbody>{body}</tbody></table></div>'

    def _row(self, tag: str, texts: list[str]) -> str:
        return f"<tr>{''.join(self._cell(tag, i, text) for i, text in enumerate(texts))}</tr>"

    def _cell(self, tag: str, column: int, text: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        # Said in the cell itself: JupyterLab, which lacks the book's style sheet, sets every column to the right.
        side = f' style="text-align: {"right" if self.right[column] else "left"}"'
        text = html.escape(text)
        # On a narrow page a name may wrap; a shape, or a number and its unit, may not.
        if column and len(text) <= 24 and text[:1] in "+−-±×(0123456789":
            text = text.replace(" ", "&nbsp;")
        return f"<{tag}{scope}{side}>{text}</{tag}>"

    def __repr__(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        padded = (
            [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(line, widths, self.right, strict=True)]
            for line in lines
        )
        return "\n".join("  ".join(line).rstrip() for line in padded)


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of ``rows`` under ``header``. Whole numbers get thousands separators; columns of numbers stand right.

    A text counts as a number when it starts with a digit or a sign (+, −, ±, ×). Raises ``ValueError`` when a row has
    another length than the header.
    """
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"row {list(row)} has {len(row)} cells, the header {len(header)}")
    written = [[_written(value) for value in row] for row in rows]
    columns = [[row[i] for row in written if row[i]] for i in range(len(header))]
    right = [bool(column) and all(text[0] in "+−-±×0123456789" for text in column) for column in columns]
    return Table(list(header), written, right)


def _written(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}".replace("-", "−")
    return str(value)
