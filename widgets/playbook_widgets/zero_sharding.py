"""The ZeRO widget: what each rank keeps and sends at every stage, for any number of parameters and replicas."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_count, format_seconds, format_size
from playbook.hardware import ACCELERATORS
from playbook.planning.recipes import RECIPES
from playbook.shapes import PRESETS
from playbook_widgets.base import Widget
from playbook_widgets.compute.zero_setting import (
    BANDWIDTH,
    DEFAULTS,
    GRAD_ACC,
    OPTIMIZER_BYTES,
    PARAMETERS,
    PRECISIONS,
    REPLICAS,
    STAGES,
    read,
)
from playbook_widgets.compute.zero_words import NAMES


class ZeroSharding(Widget):
    """``ZeroSharding({"parameters": "70B", "replicas": 128, "zero": 2})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.zero_setting.DEFAULTS``; ``start`` says when a page loads Python, as
    for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "zero_sharding.mjs"
    compute = "playbook_widgets.compute.zero_stages:compute"
    name = "zero-sharding"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"zero": DEFAULTS["zero"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        words = "".join(f"<p>{html.escape(text)}</p>" for text in (_setting(outputs), outputs["answer"]))
        command = html.escape(outputs["command"]["text"])
        return f"{words}<div class='pb-scroll'>{_table(outputs)}</div><p><code>{command}</code></p>"


# --- What the page's controls are. Choices, limits and names come from the library.

#: How a precision keeps weights and gradients.
PRECISION_WORDS = {
    "bf16-mixed": "bf16, fp32 master copy",
    "bf16-mixed-main-grads": "bf16, fp32 gradients and master copy",
    "fp32": "fp32",
}
#: What each collective moves: the concept whose colour it has, and its name.
MOVES = {
    "all_reduce": ("gradients", "all-reduce of gradients"),
    "reduce_scatter": ("gradients", "reduce-scatter of gradients"),
    "all_gather": ("parameters", "all-gather of weights"),
}
#: What a stage divides among the ranks.
DIVIDES = ("nothing", "the optimizer's states", "gradients, too", "weights, too")


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    return [
        {"field": "model", "label": "Model", "kind": "select", "choices": _models()},
        {"field": "parameters", "label": "Parameters (Ψ)", "kind": "count", "stops": counts(*PARAMETERS)},
        {"field": "replicas", "label": "Replicas (N)", "kind": "number", "stops": _doublings(*REPLICAS)},
        {"field": "zero", "label": "ZeRO stage", "kind": "choice",
         "choices": [[stage, str(stage) if stage else "none"] for stage in STAGES]},
        {"field": "grad_acc", "label": "Micro-batches (G)", "kind": "number", "stops": _doublings(*GRAD_ACC)},
        {"field": "reshard", "label": "Stage 3 weights", "kind": "choice",
         "choices": [[True, "free after forward"], [False, "keep"]]},
        {"field": "precision", "label": "Precision", "kind": "select",
         "choices": [[name, _precision(name)] for name in PRECISIONS]},
        {"field": "optimizer_bytes", "label": "Optimizer (k)", "kind": "number",
         "stops": [k for k in (0, 2, 4, 6, 8, 12, 16) if OPTIMIZER_BYTES[0] <= k <= OPTIMIZER_BYTES[1]]},
        {"field": "accelerator", "label": "GPU", "kind": "select",
         "choices": [[gpu.name, gpu.title] for gpu in ACCELERATORS.values() if gpu.name != "cpu"]},
        {"field": "bandwidth", "label": "Network, GB/s", "kind": "number",
         "stops": [b for b in (0.125, 1.25, 3.125, 12.5, 25, 50, 100, 200, 360, 450, 900)
                   if BANDWIDTH[0] <= b <= BANDWIDTH[1]]},
    ]  # fmt: skip


def _models() -> list[list[str]]:
    """Name, words and family of each preset; the first stands for a bare number of parameters."""
    families = [(shape, re.match("[a-z]+", shape.name)) for shape in PRESETS.values()]
    return [
        ["", "any, of Ψ parameters", ""],
        *(
            [shape.name, f"{shape.name}, {format_count(shape.num_parameters)}", family[0] if family else ""]
            for shape, family in families
        ),
    ]


def counts(least: int, most: int) -> list[int]:
    """Round numbers of parameters, near enough to each other for a slider, and the sizes of well-known models."""
    round_ones = {m * 10**power // 2 for power in range(13) for m in (2, 3, 4, 6, 8, 10, 15)}
    known = {8 * 10**9, 13 * 10**9, 70 * 10**9, 175 * 10**9, 405 * 10**9}
    return sorted(n for n in round_ones | known if least <= n <= most)


def _doublings(least: int, most: int) -> list[int]:
    """Powers of two, and three times powers of two between them."""
    return sorted(n for k in range(13) for n in (2**k, 3 * 2**k) if least <= n <= most)


def _precision(name: str) -> str:
    states = RECIPES[name].states
    each = (states.parameters, states.gradients, states.master + states.optimizer)
    return f"{' + '.join(map(str, each))} B: {PRECISION_WORDS[name]}"


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    states = {name: RECIPES[name].states for name in PRECISIONS}
    return {
        "controls": _controls(),
        "defaults": DEFAULTS,
        "presets": {name: shape.num_parameters for name, shape in PRESETS.items()},
        "optimizer_bytes": {name: kept.master + kept.optimizer for name, kept in states.items()},
        "names": list(NAMES),
        "divides": list(DIVIDES),
        "kinds": {"parameters": "parameters", "gradients": "gradients", "optimizer": "optimizer states"},
        "moves": {name: list(words) for name, words in MOVES.items()},
    }


# --- The first state in words, for readers without JavaScript and for paper.


def _setting(outputs: Mapping[str, Any]) -> str:
    values, each = outputs["values"], outputs["bytes_per_parameter"]
    bytes_each = " + ".join(str(size) for size in each.values())
    return (
        f"{format_count(values['parameters'])} parameters with {bytes_each} bytes each on {values['replicas']} "
        f"replicas, {values['grad_acc']} micro-batches a step; {format_size(outputs['capacity'])} a GPU, "
        f"{values['bandwidth']:g} GB/s between them."
    )


def _table(outputs: Mapping[str, Any]) -> str:
    """A row for each stage: what a rank keeps and sends, and how long sending takes."""
    head = _row(
        "th", ["stage", "parameters", "gradients", "optimizer", "kept by each rank", "sent in a step", "time"]
    )
    sizes = ("parameters", "gradients", "optimizer", "total", "traffic")
    rows = [
        _row(
            "td",
            [NAMES[stage["zero"]], *(format_size(stage[k]) for k in sizes), format_seconds(stage["seconds"])],
        )
        for stage in outputs["stages"]
    ]
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
