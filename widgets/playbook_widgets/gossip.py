"""The gossip widget: values on the nodes of a topology, which mix with their neighbours' until all have the average."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from typing import Any

from playbook.decentralized.topology import NAMES
from playbook_widgets.base import Widget
from playbook_widgets.compute.gossip import DEFAULTS, ITEMSIZES, MOST, NODES, TITLES, read
from playbook_widgets.compute.zero_setting import PARAMETERS
from playbook_widgets.zero_sharding import counts


class GossipMixing(Widget):
    """``GossipMixing({"topology": "torus", "nodes": 16, "values": "10,0,0,5"})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.gossip.DEFAULTS``: ``values`` are the nodes' at the start, in order, 0
    where the text ends; ``parameters`` of ``itemsize`` bytes are what a node sends to another one; it opens at ``step``,
    with the neighbours of ``node`` lit. ``start`` says when a page loads Python, as for every widget. Raises
    PlaybookError for settings that cannot be.
    """

    script = "gossip.mjs"
    compute = "playbook_widgets.compute.gossip:compute"
    name = "gossip-mixing"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"topology": DEFAULTS["topology"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        words = "".join(f"<p>{html.escape(outputs[key])}</p>" for key in ("answer", "machine"))
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(text)}</td>' for text in fact)}</tr>"
            for fact in outputs["facts"]
        )
        head = "<thead><tr><th>what</th><th>number</th><th>remark</th></tr></thead>"
        return f"{words}<div class='pb-scroll'><table>{head}<tbody>{rows}</tbody></table></div>"


# --- What the page's controls are. Choices and limits are those of the function behind it.

FORMATS = {1: "1 (fp8)", 2: "2 (bf16)", 4: "4 (fp32)"}


def _controls() -> list[dict[str, Any]]:
    stops = [2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 20, 24, 25, 30, 32, 36, 48, 49, 63, 64]
    return [
        {"field": "topology", "label": "Topology", "kind": "select", "choices": [[n, TITLES[n], ""] for n in NAMES]},
        {"field": "nodes", "label": "Nodes (n)", "kind": "number",
         "stops": [n for n in stops if NODES[0] <= n <= NODES[1]]},
        {"field": "parameters", "label": "Parameters", "kind": "count", "stops": counts(*PARAMETERS)},
        {"field": "itemsize", "label": "Bytes a number", "kind": "choice",
         "choices": [[size, FORMATS[size]] for size in ITEMSIZES]},
    ]  # fmt: skip


#: Settings to load: a name, what is set, and what to look for.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "Ring",
        {},
        "One value spreads to both sides. Only the slowest pattern shrinks as slowly as the bound: half the ring high "
        "and half of it low comes close.",
    ),
    (
        "Torus",
        {"topology": "torus"},
        "Four neighbours instead of two: twice the bytes of a step, a ninth of the steps.",
    ),
    (
        "Star",
        {"topology": "star", "values": "0,10"},
        "The hub talks to everybody, but gives each value a weight of 1/n only: many messages, and slow all the same.",
    ),
    (
        "Exponential",
        {"topology": "exponential"},
        "Each node takes from those 1, 2, 4 and 8 places further: as fast as the torus here, and with "
        "more nodes the gap shrinks only like 1/log n.",
    ),
    (
        "One peer in turn",
        {"topology": "one-peer-exponential"},
        "One message a step, from 1, 2, 4 and then 8 places further: after log₂ n steps the average is exact "
        "(Ying et al. 2021).",
    ),
    (
        "One peer, 6 nodes",
        {"topology": "one-peer-exponential", "nodes": 6},
        "6 is no power of two: the average is never reached exactly, but still fast.",
    ),
    (
        "Random pairs",
        {"topology": "matching"},
        "Everybody averages with one partner, another one in each step: about half of the squared disagreement goes in "
        "each.",
    ),
]


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "controls": _controls(),
        "value": {"field": "value", "label": "Value", "kind": "number", "stops": list(range(-20, 21))},
        "most": MOST,
        "defaults": DEFAULTS,
        "examples": [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES],
    }
