"""The end of ``playbook sweep``: a table with the fastest layout first, or one JSON object."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from playbook.launch.sweep.results import Row


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The fastest first, and then those that did not run to their end."""
    return sorted(rows, key=lambda row: (row["status"] != "ok", float(row["step_s"] or "inf")))


def summary(rows: Sequence[Row], missing: int) -> dict[str, Any]:
    """The object of ``--json``: how many rows of each status, how many are missing yet, how well steps were predicted,
    and the rows."""
    cells = [{column: _number(text) for column, text in row.items()} for row in rows]
    counts = dict(Counter(row["status"] for row in rows))
    return {"counts": counts, "missing": missing, "predictions": accuracy(rows), "rows": cells}


def accuracy(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Of the layouts whose steps were both measured and predicted: how many these are, the median of |predicted /
    measured - 1|, and Spearman's rank correlation. None below three, or of equal ones, which have no order."""
    both = [(float(row["step_s"]), float(row["predicted_step_s"])) for row in rows if _has_both(row)]
    if len(both) < 3 or any(len(set(each)) == 1 for each in zip(*both, strict=True)):
        return None
    measured, predicted = zip(*both, strict=True)
    return {
        "layouts": len(both),
        "median_error": statistics.median(abs(p / m - 1) for m, p in both),
        "rank_correlation": statistics.correlation(_ranks(measured), _ranks(predicted)),
    }


def _has_both(row: Row) -> bool:
    return row["status"] == "ok" and bool(row["step_s"] and row["predicted_step_s"])


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order; equal values share the middle one of theirs."""
    order = sorted(values)
    return [order.index(value) + order.count(value) / 2 for value in values]


def table(rows: Sequence[Row]) -> str:
    """Rows for people: milliseconds of a step, tokens/s of a GPU, MiB of the rank with the highest peak."""
    width = max([len(name(row)) for row in rows], default=6)
    header = f"{'step ms':>9} {'quartiles':>17} {'predicted':>9} {'tokens/s/GPU':>12} {'peak MiB':>9} {'predicted':>9}"
    lines = [f"{'layout':{width}} {header}"]
    for row in rows:
        lines.append(f"{name(row):{width}} {_cells(row)}")
    if found := accuracy(rows):
        lines.append(
            f"\npredicted steps of {found['layouts']} layouts: median error {found['median_error']:.1%}, rank "
            f"correlation {found['rank_correlation']:.2f}"
        )
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
