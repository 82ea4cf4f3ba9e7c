"""The end of ``playbook sweep``: a table with the fastest layout first, or one JSON object."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from playbook.launch.sweep.results import Row

#: Columns whose words may look like numbers.
_WORDS = ("key", "model", "layout", "reason", "host", "version", "commit")


def ordered(rows: Sequence[Row]) -> list[Row]:
    """The fastest first, and then those that did not run to their end."""
    return sorted(rows, key=lambda row: (row["status"] != "ok", float(row["step_s"] or "inf")))


def summary(rows: Sequence[Row], missing: int) -> dict[str, Any]:
    """The object of ``--json``: how many rows of each status, how many are missing yet, how well steps were predicted,
    and the rows."""
    cells = [{column: _cell(column, text) for column, text in row.items()} for row in rows]
    counts = dict(Counter(row["status"] for row in rows))
    return {"counts": counts, "missing": missing, "predictions": accuracy(rows), "rows": cells}


def _cell(column: str, text: str) -> Any:
    """A cell as JSON has it."""
    for kind in (int, float) if column not in _WORDS else ():
        try:
            return kind(text)
        except ValueError:
            pass
    return {"": None, "True": True, "False": False}.get(text, text)


def accuracy(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Of the layouts whose steps were both measured and predicted: how many these are, the median of |predicted /
    measured - 1|, and Spearman's rank correlation. None below three, or of equal ones, which have no order."""
    ok = [row for row in rows if row["status"] == "ok" and row["step_s"] and row["predicted_step_s"]]
    measured, predicted = ([float(row[name]) for row in ok] for name in ("step_s", "predicted_step_s"))
    if len(ok) < 3 or 1 in (len(set(measured)), len(set(predicted))):
        return None
    return {
        "layouts": len(ok),
        "median_error": statistics.median(abs(p / m - 1) for m, p in zip(measured, predicted, strict=True)),
        "rank_correlation": statistics.correlation(_ranks(measured), _ranks(predicted)),
    }


def _ranks(values: Sequence[float]) -> list[float]:
    """Places in ascending order; equal values share the middle one of theirs."""
    order = sorted(values)
    return [order.index(value) + order.count(value) / 2 for value in values]


def table(rows: Sequence[Row]) -> str:
    """Rows for people: milliseconds of a step, tokens/s of a GPU, MiB of the rank with the highest peak."""
    width = max([len(row["layout"] or "one rank") for row in rows], default=6)
    cells = "{:>9} {:>17} {:>9} {:>12} {:>9} {:>9}".format
    header = cells("step ms", "quartiles", "predicted", "tokens/s/GPU", "peak MiB", "predicted")
    lines = [f"{'layout':{width}} {header}"]
    for row in rows:
        told = f" {row['status']}: {row['reason']}"
        if row["status"] == "ok":
            steps = ("step_s", "step_q1_s", "step_q3_s", "predicted_step_s")
            step, first, third, predicted = (_scaled(row[name], 1e3) for name in steps)
            peaks = (_scaled(row[name], 2**-20) for name in ("peak_bytes", "predicted_peak_bytes"))
            rate = f"{float(row['tokens_per_s_per_gpu']):,.0f}"
            told = cells(step, f"{first}–{third}", predicted, rate, *peaks)
        lines.append(f"{row['layout'] or 'one rank':{width}} {told}")
    if found := accuracy(rows):
        error, order = found["median_error"], found["rank_correlation"]
        told = f"median error {error:.1%}, rank correlation {order:.2f}"
        lines.append(f"\npredicted steps of {found['layouts']} layouts: {told}")
    return "\n".join(lines)


def _scaled(text: str, factor: float) -> str:
    return f"{float(text) * factor:,.1f}" if text else "–"
