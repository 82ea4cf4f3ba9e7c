"""The memory calculator: what every rank of a training run holds, whether it fits, and what would make it fit."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from playbook.errors import ConfigError
from playbook.figures.style import colour
from playbook.figures.units import format_count
from playbook.hardware import ACCELERATORS, FITS, GB, TIGHT, TOO_LARGE
from playbook.planning.recipes import RECIPES
from playbook.planning.terms import SYMBOLS
from playbook.shapes import PRESETS, ModelShape
from playbook_widgets.base import Widget
from playbook_widgets.compute.calculator import CATEGORIES, DEFAULTS
from playbook_widgets.compute.sizes import shown
from playbook_widgets.memory_controls import Group, groups


class MemoryCalculator(Widget):
    """``MemoryCalculator({"model": "llama3-70b", "tp": 8})`` as the last line of a cell; two mappings stand side by side.

    Keys are those of ``playbook_widgets.compute.calculator``; ``start`` says when a page loads Python, as for every
    widget. Raises ConfigError for more than two mappings.
    """

    script = "memory_calculator.mjs"
    compute = "playbook_widgets.compute.calculator:compute"
    name = "calculator"

    def __init__(self, *configs: Mapping[str, Any], start: str = "touch"):
        if len(configs) > 2:
            raise ConfigError(f"the memory calculator compares two configurations, got {len(configs)}")
        shown = [dict(config) for config in configs] or [{"model": DEFAULTS["model"]}]
        # With advice from the start: else a page would have to load Python before its reader has touched anything.
        super().__init__({"configs": shown, "advice": True}, start=start, constants=constants())

    def summary(self) -> str:
        results = self.outputs["results"]
        names = ["", ""] if len(results) == 1 else ["A: ", "B: "]
        return "".join(_result_table(n, r) for n, r in zip(names, results, strict=False))


# --- What the page shows and no input changes. Choices, names and sizes come from the library.


#: What fills a GPU: its name, its concept in the palette, and what it is.
CATEGORY_WORDS = {
    "parameters": ("parameters", "parameters", "Weights that the rank computes with."),
    "gradients": ("gradients", "gradients", "One for each parameter, until the optimizer has used it."),
    "optimizer": ("optimizer", "optimizer", "Master copy of the weights, and the optimizer's averages."),
    "activations": (
        "activations",
        "activations",
        "What forward keeps for backward, of all micro-batches in flight.",
    ),
    "buffers": ("buffers", "buffers", "What stays besides the model: communication buckets, rotary angles."),
    "working": ("working memory", "temporary", "Tensors that live for a moment, when most is alive."),
}


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "groups": described(groups()),
        "defaults": {k: v for k, v in DEFAULTS.items() if v is not None},
        "presets": presets(),
        "accelerators": {g.name: g.memory_bytes for g in ACCELERATORS.values()},
        "recipes": {r.name: r.states.master + r.states.optimizer for r in RECIPES.values()},
        "categories": categories(),
        "symbols": SYMBOLS,
    }  # fmt: skip


def described(settings: Iterable[Group]) -> list[dict[str, Any]]:
    """Groups of controls as a page takes them."""
    return [
        {**asdict(g), "controls": [{k: v for k, v in asdict(c).items() if v not in ("", ())} for c in g.controls]}
        for g in settings
    ]  # fmt: skip


def presets() -> dict[str, dict[str, Any]]:
    """What each preset sets."""
    return {name: _preset(shape) for name, shape in PRESETS.items()}


def categories() -> list[list[str]]:
    """What fills a GPU: name, words, meaning and colour of each."""
    return [_category(category) for category in CATEGORIES]


def _category(category: str) -> list[str]:
    words, concept, about = CATEGORY_WORDS[category]
    return [category, words, about, colour(concept)]


def _preset(shape: ModelShape) -> dict[str, Any]:
    """What a preset sets: every size of the model, and the default sequence length."""
    family = re.match("[a-z]+", shape.name)
    return {
        "family": family[0] if family else "",
        "parameters": format_count(shape.num_parameters),
        "sizes": shown(shape),
    }


# --- The first state in words, for readers without JavaScript and for paper.


def _result_table(name: str, result: Mapping[str, Any]) -> str:
    if "error" in result:
        return f"<p>{html.escape(name + result['error']['message'])}</p>"
    spare = result["spare"]
    verdict = {
        FITS: f"fits, {_gb(spare)} to spare",
        TIGHT: f"tight, {_gb(spare)} to spare, less than the {_gb(result['reserve'])} kept free",
        TOO_LARGE: f"does not fit, by {_gb(-spare)}",
    }[result["verdict"]]
    facts = f"{_gb(result['peak'])} of {_gb(result['memory'])} on each GPU: {verdict}. "
    facts += f"{format_count(result['parameters'])} parameters"
    if result["active"] != result["parameters"]:
        facts += f", {format_count(result['active'])} active per token"
    command = html.escape(result["command"])
    head = _row("th", ["stage", *(CATEGORY_WORDS[category][0] for category in CATEGORIES), "together"])
    rows = [
        _row("td", [str(stage["stage"]), *map(_gb, stage["at_peak"].values()), _gb(stage["total"])])
        for stage in result["stages"]
    ]
    table = f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"
    return (
        f"<p>{html.escape(name)}{facts}.</p><div class='pb-scroll'>{table}</div><p><code>{command}</code></p>"
    )


def _gb(size: float) -> str:
    return f"{size / GB:.1f} GB"


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
