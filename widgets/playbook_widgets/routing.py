"""The routing widget: which experts tokens choose, how uneven the load of ranks is, what remedies do, what is sent."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_size
from playbook_widgets.base import Widget
from playbook_widgets.compute.routing_setting import (
    BIAS_RATE,
    CAPACITIES,
    DEFAULTS,
    EXPERTS,
    HIDDEN,
    NODE,
    RANKS,
    SEED,
    SKEW,
    SPARE,
    TOKENS,
    TOP_K,
    read,
)


class ExpertRouting(Widget):
    """``ExpertRouting({"remedy": "bias", "skew": 1.5})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.routing_setting.DEFAULTS``: ``experts``, ``top_k``, ``capacity`` and
    ``top_groups`` (the nodes that a token may choose) are the router's; ``ranks``, ``node`` (ranks of a node), ``tokens``
    (of a rank), ``skew`` and ``seed`` say what it routes; ``remedy`` is none, bias (with ``bias_rate``) or replicas (with
    ``spare`` slots a rank); "step" is the number of updates at which it opens. In a notebook::

        from playbook_widgets import ExpertRouting

        ExpertRouting({"remedy": "bias"})

    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "routing.mjs"
    compute = "playbook_widgets.compute.routing:compute"
    name = "routing"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"remedy": DEFAULTS["remedy"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        pictures = self.outputs["pictures"]
        now = pictures[min(int(self.inputs.get("step") or 0), len(pictures) - 1)]
        words = "".join(f"<p>{html.escape(text)}</p>" for text in (_setting(self.outputs), now["answer"]))
        return f"{words}<div class='pb-scroll'>{_ranks(now)}{_bytes(now)}</div>"


# --- What the page's controls are. Choices and limits are those of the function behind it.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    return [
        {"field": "experts", "label": "Experts", "kind": "number", "stops": _within(EXPERTS, 4, 8, 16, 32, 64, 128, 256)},
        {"field": "top_k", "label": "Experts per token (k)", "kind": "number", "stops": _within(TOP_K, 1, 2, 3, 4, 6, 8)},
        {"field": "ranks", "label": "Ranks (ep)", "kind": "number", "stops": _within(RANKS, 1, 2, 4, 8, 16, 32)},
        {"field": "node", "label": "Ranks per node", "kind": "number", "stops": _within(NODE, 1, 2, 4, 8, 16)},
        {"field": "tokens", "label": "Tokens per rank", "kind": "number",
         "stops": _within(TOKENS, 8, 16, 32, 64, 128, 256, 512, 1024)},
        {"field": "hidden", "label": "Hidden size", "kind": "number",
         "stops": _within(HIDDEN, 256, 512, 1024, 2048, 4096, 7168, 8192, 16384)},
        {"field": "itemsize", "label": "Bytes a number", "kind": "choice",
         "choices": [[1, "1 (fp8)"], [2, "2 (bf16)"], [4, "4 (fp32)"]]},
        {"field": "seed", "label": "Text (seed)", "kind": "number", "stops": _within(SEED, *range(20))},
        {"field": "skew", "label": "Skew of the text", "kind": "number",
         "stops": _within(SKEW, 0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 3)},
        {"field": "capacity", "label": "Capacity factor", "kind": "select",
         "choices": [["", "none (dropless)"], *([one, f"{one:g}"] for one in CAPACITIES)]},
        {"field": "top_groups", "label": "Nodes per token (M)", "kind": "number", "stops": [1, 2, 3, 4, 6, 8]},
        {"field": "remedy", "label": "Remedy", "kind": "choice",
         "choices": [["none", "none"], ["bias", "bias"], ["replicas", "replicas"]]},
        {"field": "bias_rate", "label": "Bias per update", "kind": "number",
         "stops": _within(BIAS_RATE, 0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2)},
        {"field": "spare", "label": "Spare slots per rank", "kind": "number",
         "stops": _within(SPARE, 0, 1, 2, 3, 4, 6, 8)},
    ]  # fmt: skip


def _within(limits: tuple[float, float], *stops: float) -> list[float]:
    return [stop for stop in stops if limits[0] <= stop <= limits[1]]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {"controls": _controls(), "defaults": DEFAULTS}


# --- The first state in words, for readers without JavaScript and for paper.


def _setting(outputs: Mapping[str, Any]) -> str:
    values = outputs["values"]
    return (
        f"{values['tokens']} tokens on each of {values['ranks']} ranks, {values['node']} of them in a node, choose "
        f"{values['top_k']} of {values['experts']} experts each: {outputs['choices']} choices, rows of "
        f"{format_size(outputs['row_bytes'])}."
    )


def _ranks(picture: Mapping[str, Any]) -> str:
    """A row for each rank: its experts, what it computes, what its tokens lose."""
    rows = [
        _row("td", [str(rank), ", ".join(map(str, experts)), str(picture["ranks"][rank]), str(picture["dropped"][rank])])
        for rank, experts in enumerate(picture["experts"])
    ]  # fmt: skip
    head = _row("th", ["rank", "experts", "rows computed", "choices of its tokens dropped"])
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _bytes(picture: Mapping[str, Any]) -> str:
    ways = {"plain all-to-all": picture["plain"], "two steps": picture["two_steps"]}
    rows = [_row("td", [name, *map(format_size, sizes)]) for name, sizes in ways.items()]
    head = _row("th", ["dispatch", "sent within nodes", "sent between nodes"])
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
