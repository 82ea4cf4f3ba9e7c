"""The memory access widget: which sectors and banks a warp's threads ask for, by how they are laid over a matrix."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook_widgets.base import Widget
from playbook_widgets.compute.access_setting import CHOICES, DEFAULTS, LIMITS, SIDES, SIZES, read
from playbook_widgets.compute.access_words import grouped, in_percent


class MemoryAccess(Widget):
    """``MemoryAccess({"memory": "shared", "along": "column", "remedy": "padding"})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.access_setting.DEFAULTS``. ``memory`` is global or shared. The array has
    ``rows`` and ``columns`` of elements of ``size`` bytes, is row-major or column-major (``layout``) and begins
    ``offset`` elements after a multiple of 128 bytes. A block of ``block_x`` × ``block_y`` threads reads or writes
    (``access``) one element each, or ``vector`` contiguous ones: threadIdx.x goes ``along`` a row or a column, in steps
    of ``stride``, threadIdx.y across, in steps of ``stride_y``. In shared memory, ``remedy`` against bank conflicts is
    none, padding (of ``padding`` elements) or swizzle. It opens at warp ``step`` of the block and ``thread`` of the warp.
    In a notebook::

        from playbook_widgets import MemoryAccess

        MemoryAccess({"along": "column"})

    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "memory_access.mjs"
    compute = "playbook_widgets.compute.access:compute"
    name = "warp"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"memory": DEFAULTS["memory"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        pictures = self.outputs["pictures"]
        now = pictures[min(int(self.inputs.get("step") or 0), len(pictures) - 1)]
        cuda = f"<pre><code>{html.escape(self.outputs['cuda'])}</code></pre>"
        words = "".join(f"<p>{html.escape(text)}</p>" for text in (_setting(self.outputs), now["answer"]))
        return f"{words}{cuda}<div class='pb-scroll'>{_warps(self.outputs)}</div>"


# --- What the page's controls are. Choices and limits are those of the function behind it.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    powers = [2**k for k in range(15)]
    return [
        _choice("memory", "Memory"),
        _choice("access", "Access"),
        _number("rows", "Rows", powers),
        _number("columns", "Columns", powers),
        _choice("layout", "Layout"),
        {"field": "size", "label": "Bytes per element", "kind": "choice", "choices": [[n, str(n)] for n in SIZES]},
        _number("block_x", "Threads along x", powers),
        _number("block_y", "Threads along y", powers),
        _choice("along", "x runs along a"),
        {"field": "vector", "label": "Elements per access", "kind": "choice", "choices": [[n, str(n)] for n in SIZES]},
        _number("stride", "Stride of x", [*range(9), 16, 31, 32, 33, 64]),
        _number("stride_y", "Stride of y", [*range(9), 16, 31, 32, 33, 64]),
        _number("offset", "Offset (elements)", [*range(9), 16, 32, 64]),
        _choice("remedy", "Against conflicts"),
        _number("padding", "Padding (elements)", [1, 2, 3, 4, 8, 16, 32]),
    ]  # fmt: skip


def _choice(field: str, label: str) -> dict[str, Any]:
    return {
        "field": field,
        "label": label,
        "kind": "choice",
        "choices": [[name, name] for name in CHOICES[field]],
    }


def _number(field: str, label: str, stops: Iterable[int]) -> dict[str, Any]:
    least, most = LIMITS[field]
    return {
        "field": field,
        "label": label,
        "kind": "number",
        "stops": [n for n in stops if least <= n <= most],
    }


#: A column of a tile in shared memory, which a transpose reads.
COLUMN = {"memory": "shared", "along": "column"}
#: Accesses to load: a name, what is set, and a note.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "Coalesced row",
        {},
        "Neighbouring threads take neighbouring elements: C in the coalesced matmul.",
    ),
    (
        "Column, row-major",
        {"along": "column"},
        "Neighbouring threads take neighbouring rows: C in the naive matmul, whose threadIdx.x is a row.",
    ),
    (
        "Column, column-major",
        {"along": "column", "layout": "column-major"},
        "The same threads and elements, but columns are contiguous: what counts is the layout, not the direction.",
    ),
    (
        "Misaligned row",
        {"offset": 1},
        "The array begins one element after a boundary, as a slice of a larger one may.",
    ),
    ("Stride of 2", {"stride": 2}, "Every second element, as the real parts of complex numbers."),
    (
        "Vectors",
        {"vector": 4},
        "Each thread reads four floats at once: four times the bytes with one instruction, no byte more than needed.",
    ),
    (
        "Tile of 8 × 4",
        {"block_x": 8, "block_y": 32},
        "A warp covers four rows of eight floats. Each row fills a sector, so all that is moved is needed.",
    ),
    (
        "Matmul naive, A",
        {"along": "column", "stride_y": 0},
        "A[row][p] for one p, where row is threadIdx.x: every thread needs a sector of its own.",
    ),
    (
        "Matmul naive, B",
        {"along": "column", "stride": 0},
        "B[p][column] for one p, where column is threadIdx.y: all threads of a warp read the same element.",
    ),
    (
        "Transpose, no padding",
        {**COLUMN},
        "A block has stored 32 × 32 floats row by row, and a warp reads a column: its elements share a bank.",
    ),
    (
        "Transpose, padded to 33",
        {**COLUMN, "remedy": "padding"},
        "One unused element after each row: the next row begins one bank further.",
    ),
    (
        "Transpose, swizzled",
        {**COLUMN, "remedy": "swizzle"},
        "Places in a row are permuted by the row's number (XOR): no element is left unused.",
    ),
]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    examples = [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES]
    return {"controls": _controls(), "defaults": DEFAULTS, "sides": SIDES, "examples": examples}


# --- The first state in words, for readers without JavaScript and for paper.


def _setting(outputs: Mapping[str, Any]) -> str:
    values = outputs["values"]
    where = "tile in shared" if values["memory"] == "shared" else "matrix in global"
    size = f"{grouped(values['rows'])} × {grouped(values['columns'])} elements of {values['size']} bytes"
    threads = f"{values['block_x']} × {values['block_y']} threads"
    return f"A block of {threads} {values['access']}s a {where} memory: {size}, {values['layout']}."


def _warps(outputs: Mapping[str, Any]) -> str:
    """A row for each warp: what it asks of memory."""
    if outputs["values"]["memory"] == "shared":
        head = ["warp", "threads", "passes", "without conflicts", "words of the busiest bank"]
        rows = [[one["active"], one["passes"], one["least"], max(one["ways"])] for one in outputs["pictures"]]
    else:
        head = ["warp", "threads", "sectors", "bytes moved", "bytes needed", "efficiency"]
        rows = [
            [
                one["active"],
                len(one["sectors"]),
                one["moved"],
                one["needed"],
                _share(one["needed"], one["moved"]),
            ]
            for one in outputs["pictures"]
        ]
    lines = "".join(_row("td", [warp, *row]) for warp, row in enumerate(rows))
    return f"<table><thead>{_row('th', head)}</thead><tbody>{lines}</tbody></table>"


def _share(part: int, whole: int) -> str:
    return in_percent(part / whole) if whole else "none"


def _row(cell: str, texts: Iterable[object]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(str(text))}</{cell}>" for text in texts) + "</tr>"
