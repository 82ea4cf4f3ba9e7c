"""The overlap widget: for each technique of a layout, the time to send over the time to compute."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_count
from playbook.hardware import CLUSTERS
from playbook.shapes import PRESETS
from playbook_widgets.base import Widget
from playbook_widgets.compute.overlap import DEFAULTS, LIMITS, read


class OverlapRatios(Widget):
    """``OverlapRatios({"model": "mixtral-8x7b", "tp": 2, "dp": 8, "ep": 8})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.overlap.DEFAULTS``; ``start`` says when a page loads Python, as for
    every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "overlap.mjs"
    compute = "playbook_widgets.compute.overlap:compute"
    name = "ratios"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"tokens": DEFAULTS["tokens"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        words = "".join(f"<p>{html.escape(outputs[key])}</p>" for key in ("machine", "answer"))
        head = _row("th", ["technique", "sending over computing", "link", "what decides"])
        rows = "".join(_row("td", _texts(row)) for row in outputs["rows"])
        return (
            f"{words}<div class='pb-scroll'><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>"
        )


# --- What the page's controls are. Choices and limits come from the library.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    models = [[name, f"{name}, {format_count(shape.num_parameters)}"] for name, shape in PRESETS.items()]
    clusters = [[c.name, f"{c.accelerator.title}, {c.gpus_per_node} in a node"] for c in CLUSTERS.values()]
    return [
        {"field": "model", "label": "Model", "kind": "select", "choices": models},
        {"field": "cluster", "label": "Cluster", "kind": "select", "choices": clusters},
        _number("tokens", "Tokens per GPU"),
        _number("reached", "% of peak FLOP/s"),
        _number("tp", "Tensor (tp)"),
        _number("cp", "Context (cp)"),
        _number("dp", "Data (dp)"),
        _number("pp", "Pipeline (pp)"),
        _number("ep", "Experts (ep)"),
        {
            "field": "two_step",
            "label": "Dispatch",
            "kind": "choice",
            "choices": [[False, "every row"], [True, "once per node"]],
        },
    ]


def _number(field: str, label: str) -> dict[str, Any]:
    return {"field": field, "label": label, "kind": "number", "stops": stops(field)}


def stops(field: str) -> list[int]:
    """Likely values: powers of two, of tokens also halfway; tenths of the peak."""
    least, most = LIMITS[field]
    if field == "reached":
        return list(range(10, 101, 5))
    halfway = [3 * 2**k for k in range(6, 19)] if field == "tokens" else []
    return sorted(n for n in [*(2**k for k in range(21)), *halfway] if least <= n <= most)


#: Settings to load: a name, what is set, and where it comes from.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "Llama 3 70B",
        {},
        "TP in each node leaves every data-parallel group one adapter per node: the slowest link for the most bytes.",
    ),
    (
        "Mixtral, all axes",
        {"model": "mixtral-8x7b", "tp": 2, "cp": 2, "dp": 8, "pp": 2, "ep": 8},
        "Six techniques on 64 GPUs. Experts of 14,336 features give each row much to compute.",
    ),
    (
        "DeepSeek-V3",
        {"model": "deepseek-v3", "tp": 1, "dp": 128, "pp": 16, "ep": 64, "tokens": 4096},
        "PP 16 and EP 64 over eight nodes (DeepSeek-AI 2024, arXiv 2412.19437, section 3.2). Its experts are narrow: "
        "rows that leave the node in BF16 take longer than the experts' products.",
    ),
    (
        "Llama 3 405B, CP 16",
        {"model": "llama3.1-405b", "tp": 8, "cp": 16, "dp": 8, "pp": 16},
        "Samples of 131,072 tokens (Grattafiori et al. 2024, arXiv 2407.21783, table 4): hops of keys and values "
        "between nodes, 8,192 tokens on each GPU.",
    ),
    (
        "TP across nodes",
        {"model": "llama3-8b", "tp": 16, "dp": 4, "pp": 1},
        "A group of two nodes uses all their adapters, and still has to wait: its ratio grows with tp.",
    ),
]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "controls": _controls(),
        "defaults": DEFAULTS,
        "examples": [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES],
    }


# --- The first state in words, for readers without JavaScript and for paper.


def _texts(row: Mapping[str, Any]) -> list[str]:
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.3g} ({row['phase']})"
    return [row["name"], ratio, row["link"], row["text"]]


def _row(cell: str, texts: list[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
