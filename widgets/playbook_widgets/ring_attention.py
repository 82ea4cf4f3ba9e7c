"""The ring-attention widget: which block of the mask each rank computes in which step, and what it sends meanwhile."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_count, format_seconds, format_size
from playbook.hardware import CLUSTERS
from playbook.shapes import PRESETS
from playbook_widgets.base import Widget
from playbook_widgets.compute.ring_attention import (
    BANDWIDTH,
    DEFAULTS,
    HEAD_DIM,
    HEADS,
    MODELS,
    RANKS,
    SEQ,
    TFLOPS,
    read,
)
from playbook_widgets.compute.ring_words import NAMES, PLACES


class RingAttention(Widget):
    """``RingAttention({"ranks": 4, "placement": "contiguous"})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.ring_attention.DEFAULTS``: ``context`` is ring, gather or ulysses,
    ``placement``
    contiguous or zigzag; ``ranks``, ``seq``, ``causal`` and ``backward`` (the pass that is shown) say what is computed;
    ``model``, ``cluster`` and others what it takes; "step" is where it stands when it opens. In a notebook::

        from playbook_widgets import RingAttention

        RingAttention({"ranks": 4, "seq": 8192, "placement": "contiguous"})

    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "ring_attention.mjs"
    compute = "playbook_widgets.compute.ring_attention:compute"
    name = "ring-attention"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"context": DEFAULTS["context"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        words = "".join(f"<p>{html.escape(text)}</p>" for text in (_setting(outputs), outputs["answer"]))
        return f"{words}<div class='pb-scroll'>{_table(outputs)}</div>"


# --- What the page's controls are. Choices, limits and names come from the library.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    return [
        {"field": "context", "label": "Attention", "kind": "choice", "choices": _named(NAMES)},
        {"field": "placement", "label": "Placement", "kind": "choice", "choices": _named(PLACES)},
        {"field": "ranks", "label": "Ranks (cp)", "kind": "number", "stops": list(range(RANKS[0], RANKS[1] + 1))},
        {"field": "seq", "label": "Tokens", "kind": "number", "stops": doublings(256, 2**20, SEQ)},
        {"field": "causal", "label": "Mask", "kind": "choice", "choices": [[True, "causal"], [False, "none"]]},
        {"field": "backward", "label": "Pass", "kind": "choice",
         "choices": [[False, "forward"], [True, "backward"]]},
        {"field": "model", "label": "Model", "kind": "select", "choices": _models()},
        {"field": "heads", "label": "Query heads", "kind": "number", "stops": doublings(1, 128, HEADS)},
        {"field": "kv_heads", "label": "K, V heads", "kind": "number", "stops": doublings(1, 128, HEADS)},
        {"field": "head_dim", "label": "Head dim", "kind": "number", "stops": doublings(16, 256, HEAD_DIM)},
        {"field": "itemsize", "label": "Bytes a number", "kind": "choice", "choices": [[2, "2 (bf16)"], [4, "4 (fp32)"]]},
        {"field": "cluster", "label": "GPUs", "kind": "select",
         "choices": [[name, _cluster(name)] for name in CLUSTERS]},
        {"field": "bandwidth", "label": "Link, GB/s", "kind": "number",
         "stops": [b for b in (0.125, 1.25, 3.125, 12.5, 25, 50, 100, 200, 300, 450, 900)
                   if BANDWIDTH[0] <= b <= BANDWIDTH[1]]},
        {"field": "tflops", "label": "TFLOP/s reached", "kind": "number",
         "stops": [f for f in (0.05, 0.5, 5, 10, 20, 50, 100, 156, 200, 300, 400, 494.5, 650, 800, 1125, 1500)
                   if TFLOPS[0] <= f <= TFLOPS[1]]},
    ]  # fmt: skip


def _named(names: Mapping[str, str]) -> list[list[str]]:
    return [[name, words] for name, words in names.items()]


def _models() -> list[list[str]]:
    """Name, words and family of each preset."""
    families = {name: re.match("[a-z]+", name) for name in MODELS}
    return [[name, _heads(name), found[0] if found else ""] for name, found in families.items()]


def _heads(name: str) -> str:
    shape = PRESETS[name]
    heads = (
        f"{shape.heads} heads"
        if shape.heads == shape.n_kv_heads
        else f"{shape.heads}/{shape.n_kv_heads} heads"
    )
    return f"{name}, {heads} of {shape.qk_dim}"


def doublings(least: int, most: int, limits: tuple[int, int]) -> list[int]:
    """Powers of two, and three times powers of two between them, from ``least`` to ``most`` and within the limits."""
    first, last = max(least, limits[0]), min(most, limits[1])
    return sorted(n for k in range(24) for n in (2**k, 3 * 2**k) if first <= n <= last)


def _cluster(name: str) -> str:
    cluster = CLUSTERS[name]
    return f"nodes of {cluster.gpus_per_node} {cluster.accelerator.name.upper()}"


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {"controls": _controls(), "defaults": DEFAULTS, "names": NAMES, "places": PLACES}


# --- The first state in words, for readers without JavaScript and for paper.


def _setting(outputs: Mapping[str, Any]) -> str:
    values = outputs["values"]
    mask = "a causal mask" if values["causal"] else "no mask"
    where = "" if values["context"] == "ulysses" else f", {PLACES[values['placement']]}"
    return (
        f"Attention of {outputs['padded']} tokens under {mask} on {values['ranks']} ranks by {NAMES[values['context']]}"
        f"{where}: the {'backward' if values['backward'] else 'forward'} pass of one layer of {values['model']} takes "
        f"{format_seconds(outputs['seconds'])}, and each rank sends {format_size(outputs['sent'])}."
    )


def _table(outputs: Mapping[str, Any]) -> str:
    """A row for each step: what the ranks compute, who is idle, what each sends, and how long both take."""
    rows = [
        _row("td", [str(number), step["does"], _pairs(step), ", ".join(map(str, step["idle"])) or "nobody",
                    format_size(step["sent"]), format_seconds(step["compute"]), format_seconds(step["message"])])
        for number, step in enumerate(outputs["steps"], 1)
    ]  # fmt: skip
    head = _row("th", ["step", "does", "pairs of each rank", "idle", "each sends", "computing", "message"])
    return f"<table><thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _pairs(step: Mapping[str, Any]) -> str:
    return ", ".join(format_count(rank["pairs"]) if rank["pairs"] else "0" for rank in step["ranks"])


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
