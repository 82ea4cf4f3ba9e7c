"""The pipeline schedule visualizer: who does what when, why a rank waits, and what each keeps meanwhile."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.schedules.catalogue import NAMES
from playbook.schedules.explain import CAUSES
from playbook_widgets.base import Widget
from playbook_widgets.compute.visualizer import describe
from playbook_widgets.compute.visualizer_setting import (
    CHUNKED,
    CHUNKS,
    DEFAULTS,
    FITTED,
    MICROBATCHES,
    OVERLAPPING,
    STAGES,
)
from playbook_widgets.compute.visualizer_times import PRESETS
from playbook_widgets.compute.visualizer_words import ABOUT


class ScheduleVisualizer(Widget):
    """``ScheduleVisualizer({"schedule": "zb-h1", "stages": 8})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.visualizer_setting.DEFAULTS``. ``schedule`` and ``compare`` are names
    that ``playbook schedule`` knows; ``stages``, ``microbatches``, ``vpp`` say how large it is; ``times`` is a preset,
    and f, b, w, comm, transfer, overlap what is set over it; ``limit`` is the micro-batches whose activations fit. In a
    notebook::

        from playbook_widgets import ScheduleVisualizer

        ScheduleVisualizer({"schedule": "1f1b", "compare": "zb-h1", "stages": 4, "microbatches": 8})

    ``trace``, the JSON of a real run (see ``playbook_widgets.compute.pipeline_runs.read_trace``), is laid below its own
    prediction.
    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "schedule_visualizer.mjs"
    compute = "playbook_widgets.compute.visualizer:compute"
    name = "schedules"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"schedule": DEFAULTS["schedule"], **(inputs or {})}
        # Refused here, where the cell is, and not in the page.
        super().__init__(shown, start=start, constants=constants(), outputs=describe(shown))

    def summary(self) -> str:
        outputs = self.outputs
        words = f"<p>{html.escape(outputs['answer'])}</p>"
        return words + "".join(f"<div class='pb-scroll'>{_table(side)}</div>" for side in outputs["sides"])


# --- What the page's controls are. Choices, limits and names come from the library.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field. A control with ``of``
    is for these schedules alone."""
    times = [0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 2.5, 3, 4, 6, 8, 10, 15, 20, 30, 50]
    hops = [0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5]
    main: list[dict[str, Any]] = [
        {"field": "schedule", "label": "Schedule", "kind": "select", "choices": _schedules()},
        {
            "field": "compare",
            "label": "Compare with",
            "kind": "select",
            "choices": [["none", "nothing"], *_schedules()],
        },
        {"field": "stages", "label": "Stages (ranks)", "kind": "number", "stops": _stops(2, STAGES[1])},
        {
            "field": "microbatches",
            "label": "Micro-batches",
            "kind": "number",
            "stops": _stops(1, MICROBATCHES[1]),
        },
        {
            "field": "vpp",
            "label": "Chunks a rank",
            "kind": "number",
            "stops": list(range(1, CHUNKS[1] + 1)),
            "of": CHUNKED,
        },
        {"field": "run", "label": "Run of", "kind": "number", "stops": _stops(2, 64), "of": ["interleaved"]},
    ]
    more: list[dict[str, Any]] = [
        {"field": "times", "label": "Times", "kind": "select", "choices": [[n, p.label] for n, p in PRESETS.items()]},
        {"field": "f", "label": "Forward F", "kind": "number", "stops": times},
        {"field": "b", "label": "Backward B", "kind": "number", "stops": times},
        {"field": "w", "label": "Weights W", "kind": "number", "stops": times},
        {"field": "fb", "label": "F beside B", "kind": "number", "stops": times, "of": OVERLAPPING},
        {"field": "comm", "label": "Latency", "kind": "number", "stops": hops},
        {"field": "transfer", "label": "Transfer", "kind": "number", "stops": hops},
        {"field": "overlap", "label": "Sending", "kind": "choice",
         "choices": [[True, "beside work"], [False, "rank waits"]]},
        {"field": "limit", "label": "Memory cap", "kind": "number", "stops": _stops(1, 64)},
        {"field": "rest", "label": "Kept after B", "kind": "number", "stops": [i / 10 for i in range(11)]},
    ]  # fmt: skip
    return [{**c, "group": "main"} for c in main] + [{**c, "group": "more"} for c in more]


def _schedules() -> list[list[str]]:
    """Name, words and family of each schedule, simplest first."""
    families = {
        "without W": ("naive", "afab", "1f1b"),
        "several stages a rank": ("interleaved", "breadth-first"),
        "zero bubble": ("zb-h1", "zb-h2", *FITTED, "zb-v"),
        "overlapped F and B": OVERLAPPING,
    }
    found = [[name, ABOUT[name][0], family] for family, names in families.items() for name in names]
    assert {name for name, *_ in found} == set(NAMES)
    return found


def _stops(least: int, most: int) -> list[int]:
    """Every number up to 12, then powers of two and three times powers of two."""
    rare = {n for k in range(4, 9) for n in (2**k, 3 * 2 ** (k - 1))}
    return sorted({*range(least, 13), *(n for n in rare if 12 < n <= most)})


_SIZES = ["schedule", "compare", "stages", "microbatches", "vpp", "run"]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "controls": _controls(),
        "defaults": {key: value for key, value in DEFAULTS.items() if key not in ("trace", "own", "step")},
        "about": ABOUT,
        "causes": CAUSES,
        "presets": {
            name: {"stages": p.stages, "microbatches": p.microbatches} for name, p in PRESETS.items()
        },
        # What a trace, or a schedule, that a reader brings says itself.
        "fixed": {"traced": [*_SIZES, "times", "f", "b", "w", "fb"], "brought": _SIZES},
    }


# --- The first state in words, for readers without JavaScript and for paper.


def _table(side: Mapping[str, Any]) -> str:
    """A row for each rank: its actions in order, and the most that it keeps."""
    rows = []
    for rank in range(side["ranks"]):
        first, last = side["offsets"][rank : rank + 2]
        words = _actions(side["slots"], first, min(last, first + 60)) + (" …" if last > first + 60 else "")
        rows.append(_row("td", [str(rank), words, f"{side['peaks'][rank]:g}"]))
    head = _row(
        "th",
        ["rank", f"{html.escape(side['label'])}: actions in order (F, B, W and micro-batch)", "keeps up to"],
    )
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _actions(slots: Mapping[str, Any], first: int, last: int) -> str:
    names = {"X": "BW"}
    return " ".join(
        f"{names.get(slots['op'][i], slots['op'][i])}{slots['microbatch'][i]}" for i in range(first, last)
    )


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{text}</{cell}>" for text in texts) + "</tr>"
