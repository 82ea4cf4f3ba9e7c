"""The end of ``playbook sweep``: a table with the fastest layout first, or one JSON object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from playbook.launch.sweep.results import Row


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The fastest first, and then those that did not run to their end."""
    return sorted(rows, key=lambda row: (row["status"] != "ok", float(row["step_s"] or "inf")))


def summary(rows: Sequence[Row], missing: int) -> dict[str, Any]:
    """The object of ``--json``: how many rows of each status, how many are missing yet, and the rows."""
    cells = [{column: _number(text) for column, text in row.items()} for row in rows]
    return {"counts": dict(Counter(row["status"] for row in rows)), "missing": missing, "rows": cells}


def table(rows: Sequence[Row]) -> str:
    """Rows for people: milliseconds of a step, tokens/s of a GPU, MiB of the rank with the highest peak."""
    width = max([len(name(row)) for row in rows], default=6)
    header = f"{'step ms':>9} {'quartiles':>17} {'predicted':>9} {'tokens/s/GPU':>12} {'peak MiB':>9} {'predicted':>9}"
    lines = [f"{'layout':{width}} {header}"]
    for row in rows:
        lines.append(f"{name(row):{width}} {_cells(row)}")
    return "\n".join(lines)


def name(row: Row) -> str:
    """The layout as a reader writes it."""
    return row["layout"] or "one rank"


def _cells(row: Row) -> str:
    if row["status"] != "ok":
        return f" {row['status']}: {row['reason']}"
    quartiles = f"{_scaled(row['step_q1_s'], 1e3)}–{_scaled(row['step_q3_s'], 1e3)}"
    return (
        f"{_scaled(row['step_s'], 1e3):>9} {quartiles:>17} {_scaled(row['predicted_step_s'], 1e3):>9} "
        f"{float(row['tokens_per_s_per_gpu']):12,.0f} {_scaled(row['peak_bytes'], 2**-20):>9} "
        f"{_scaled(row['predicted_peak_bytes'], 2**-20):>9}"
    )


def _scaled(text: str, factor: float) -> str:
    return f"{float(text) * factor:,.1f}" if text else "–"


def _number(text: str) -> Any:
    """A cell as JSON has it."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return {"": None, "True": True, "False": False}.get(text, text)
