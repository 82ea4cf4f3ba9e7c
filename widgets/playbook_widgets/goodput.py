"""The goodput widget: what the time of a run goes to that fails, saves and starts again."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from playbook_widgets.base import Widget
from playbook_widgets.compute.goodput import DEFAULTS, LIMITS, read


class GoodputCurve(Widget):
    """``GoodputCurve({"gpus": 16384, "save": 60})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.goodput.DEFAULTS``; ``start`` says when a page loads Python, as for
    every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "goodput.mjs"
    compute = "playbook_widgets.compute.goodput:compute"
    name = "goodput-curve"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"every": DEFAULTS["every"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        words = "".join(f"<p>{html.escape(outputs[key])}</p>" for key in ("machine", "answer"))
        rows = "".join(
            f"<tr><td>{part['text']}</td><td>{part['share']:.1%}</td></tr>" for part in outputs["parts"]
        )
        head = "<thead><tr><th>what the time goes to</th><th>share</th></tr></thead>"
        return f"{words}<div class='pb-scroll'><table>{head}<tbody>{rows}</tbody></table></div>"


# --- What the page's controls are. Limits come from the library.

LABELS = {
    "gpus": "GPUs",
    "mtbf": "MTBF of a GPU, h",
    "save": "Save, s",
    "restart": "Restart, s",
    "every": "Save every, s",
}


def stops(field: str) -> list[int]:
    """Likely values: of GPUs powers of two; of times 1, 1.5, 2, 3, 5 and 7 of each power of ten, and none."""
    least, most = LIMITS[field]
    if field == "gpus":
        likely = [2**k for k in range(20)]
    else:
        likely = [0, *(int(digit * 10**k / 10) for k in range(1, 8) for digit in (10, 15, 20, 30, 50, 70))]
    return sorted({n for n in (*likely, DEFAULTS[field]) if least <= n <= most})


#: Settings to load: a name, what is set, and where it comes from.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    ("Save every hour", {}, "A failure every three hours, and a checkpoint as rarely as in a small run."),
    (
        "Llama 3 405B",
        {"save": 3, "every": 240},
        "419 unexpected interruptions in 54 days on 16,384 H100s; a storage that takes 2 TB/s (Grattafiori et al. 2024, "
        "arXiv 2407.21783, sections 3.3.1 and 3.3.4). Ten minutes of restart are our assumption: they cost the most now.",
    ),
    (
        "One node",
        {"gpus": 8},
        "Eight GPUs of the same kind fail so rarely that saving too often is what costs time.",
    ),
    (
        "131,072 GPUs",
        {"gpus": 131_072, "every": 300},
        "A failure every 23 minutes: even at the best interval less than half of the time is useful.",
    ),
    (
        "The same, repaired",
        {"gpus": 131_072, "save": 2, "restart": 60, "every": 70},
        "Asynchronous saves, of which two seconds are exposed, and a restart of one minute.",
    ),
]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "controls": [
            {"field": field, "label": label, "kind": "number", "stops": stops(field)}
            for field, label in LABELS.items()
        ],
        "defaults": DEFAULTS,
        "examples": [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES],
    }
