"""A kernel that runs nothing: what the build keeps of a chapter's run is what nbval hears.

Cells tagged ``nbval-check-output`` are so compared with what the pages show. A chapter of which no run of this very
code is kept gets a kernel.
"""

from __future__ import annotations

import json
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import outputs
from jupyter_cache import get_cache
from nbformat import NotebookNode
from nbval.plugin import IPyNbFile


class Built(IPyNbFile):
    """A chapter whose cells have been run by the build, if they have."""

    def setup(self) -> None:
        cells = kept(self.path)
        if cells is None:
            super().setup()
        else:
            self.kernel = Replay(cells)
            self.setup_sanitize_files()


class Replay:
    """What `nbval.kernel.RunningKernel` would say, if cells printed what they have printed before."""

    def __init__(self, cells: list[NotebookNode]):
        self.cells = deque(cells)
        self.messages: deque[dict[str, Any]] = deque()

    def execute_cell_input(self, source: str, allow_stdin: bool | None = None) -> int:
        while (cell := self.cells.popleft()).source != source:  # nbval leaves out cells tagged nbval-skip
            pass
        said = [(output.output_type, output) for output in cell.outputs]
        said.append(("status", NotebookNode(execution_state="idle")))
        header = {"msg_id": len(self.cells)}
        self.messages.extend({"msg_type": k, "content": c, "parent_header": header} for k, c in said)
        return header["msg_id"]

    def get_message(self, stream: str, timeout: float | None = None) -> dict[str, Any]:
        return self.messages.popleft()

    def await_reply(self, msg_id: int, timeout: float | None = None) -> None:
        """All has been said."""

    def await_idle(self, msg_id: int, timeout: float | None = None) -> None:
        self.messages.clear()

    def is_alive(self) -> bool:
        return True

    def stop(self) -> None:
        """Nothing runs."""


@cache
def present() -> dict[str, str]:
    return outputs.keys(sorted((outputs.ROOT / "book").rglob("*.ipynb")))


def kept(chapter: Path) -> list[NotebookNode] | None:
    """The code cells of the build's run of ``chapter``, if that was with its present code, library and pins."""
    page, state = outputs.page(chapter), outputs.STATE
    built = json.loads(state.read_text(encoding="utf-8"))["executed"] if state.exists() else {}
    if page not in built or built[page] != present()[page]:
        return None
    records = [r for r in get_cache(outputs.CACHE).list_cache_records() if r.uri == str(chapter)]
    if not records:
        return None
    notebook = get_cache(outputs.CACHE).get_cache_bundle(max(record.pk for record in records)).nb
    return [cell for cell in notebook.cells if cell.cell_type == "code"]
