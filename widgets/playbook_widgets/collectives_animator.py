"""The collectives animator: every message of a collective, step by step, and the time that the α–β model gives it."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_seconds
from playbook.hardware import CLUSTERS
from playbook_book.collectives.plans import ALGORITHMS, DEFAULT
from playbook_book.collectives.plans.catalogue import ROOTED
from playbook_widgets.base import Widget
from playbook_widgets.compute.animation import BYTES, DEFAULTS, NETWORKS, RANKS, read


class CollectivesAnimator(Widget):
    """``CollectivesAnimator({"collective": "all_gather", "ranks": 8})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.animation.DEFAULTS``; "step" is where it stands when it opens.
    ``start`` says when a page loads Python, as for every widget. Raises PlaybookError for settings that cannot be.
    """

    script = "collectives_animator.mjs"
    compute = "playbook_widgets.compute.animation:compute"
    name = "collectives-animator"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"collective": DEFAULTS["collective"], **(inputs or {})}
        read(shown).plan()  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        table = _transcript(self.outputs)
        return f"<p>{html.escape(_in_words(self.outputs))}</p><div class='pb-scroll'>{table}</div>"


# --- What the page's controls are. Choices, limits and names come from the library.

#: The name of each collective, and what it leaves behind.
COLLECTIVES = {
    "broadcast": ("Broadcast", "Every rank ends with the root's vector."),
    "reduce": ("Reduce", "The root ends with the sum of all vectors."),
    "gather": ("Gather", "The root ends with the chunks of all ranks."),
    "scatter": ("Scatter", "Each rank ends with its chunk of the root's vector."),
    "all_gather": ("All-gather", "Every rank ends with the chunks of all ranks."),
    "reduce_scatter": ("Reduce-scatter", "Each rank ends with its chunk of the sum."),
    "all_reduce": ("All-reduce", "Every rank ends with the sum of all vectors."),
    "all_to_all": ("All-to-all", "Every rank ends with one chunk from each rank."),
    "barrier": ("Barrier", "Nobody goes on until all have come."),
}
#: The name of each algorithm.
NAMES = {
    "naive": "naive",
    "binomial": "binomial tree",
    "scatter_all_gather": "scatter, then all-gather",
    "ring": "ring",
    "recursive_doubling": "recursive doubling",
    "recursive_halving": "recursive halving",
    "halving_doubling": "halving, then doubling",
    "two_level": "two levels",
    "pairwise": "pairwise",
    "dissemination": "dissemination",
}
_IN_TURN = "The root deals with the others one after the other."
_THROUGH_ONE = "All to one, one to all: everything goes through rank 0."
#: How each algorithm goes about it.
ABOUT = {
    "broadcast": {
        "naive": _IN_TURN,
        "binomial": "Whoever has the vector passes it on: 1, 2, 4 … ranks have it.",
        "scatter_all_gather": "Scatter down a tree, then all-gather around a ring: for long vectors.",
    },
    "reduce": {
        "naive": _IN_TURN,
        "binomial": "Up a tree: at each step half of the sums go into the others.",
    },
    "gather": {"naive": _IN_TURN, "binomial": "Up a tree: each rank hands on all that it has gathered."},
    "scatter": {
        "naive": _IN_TURN,
        "binomial": "Down a tree: each rank keeps the nearer half and passes the farther half on.",
    },
    "all_gather": {
        "naive": _THROUGH_ONE,
        "ring": "Every chunk travels once around; each rank keeps a copy and passes it on.",
        "recursive_doubling": "Partners at distance 1, 2, 4 … exchange all the chunks that they have.",
    },
    "reduce_scatter": {
        "naive": _THROUGH_ONE,
        "ring": "Every chunk travels once around and grows by each rank's share.",
        "recursive_halving": "Partners share the work: each sends the half that the other is to sum up.",
    },
    "all_reduce": {
        "naive": _THROUGH_ONE,
        "ring": "Once around to sum, once around to copy.",
        "binomial": "Up a tree to sum, down the same tree to copy.",
        "recursive_doubling": "Partners at distance 1, 2, 4 … exchange and add whole vectors.",
        "halving_doubling": "Halve until each rank has the sum of a chunk, then double back.",
        "two_level": "Sum inside each node, all-reduce each chunk across nodes, copy inside each node.",
    },
    "all_to_all": {
        "naive": "At each step all send to the same rank.",
        "pairwise": "At step d every rank sends to the one d places to its right.",
    },
    "barrier": {
        "naive": _THROUGH_ONE,
        "dissemination": "Each rank tells the ranks at distance 1, 2, 4 … whom it has heard of.",
    },
}


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it: a list to choose from, or a slider over ``stops`` and a field."""
    return [
        {"field": "collective", "label": "Collective", "kind": "select",
         "choices": [[name, words] for name, (words, _) in COLLECTIVES.items()]},
        {"field": "algorithm", "label": "Algorithm", "kind": "select", "choices": []},
        {"field": "ranks", "label": "Ranks (N)", "kind": "number", "stops": list(range(RANKS[0], RANKS[1] + 1))},
        {"field": "bytes", "label": "Vector (K)", "kind": "size", "stops": sizes(*BYTES)},
        {"field": "cluster", "label": "Network", "kind": "select",
         "choices": [[name, _network_words(name)] for name in NETWORKS]},
        {"field": "ranks_per_node", "label": "Ranks per node (g)", "kind": "number",
         "stops": [*range(1, 9), RANKS[1]]},
        {"field": "root", "label": "Root", "kind": "number", "stops": list(range(RANKS[1]))},
    ]  # fmt: skip


def sizes(least: int, most: int) -> list[int]:
    """1, 2 and 5 times powers of ten."""
    return [n for power in range(10) for m in (1, 2, 5) if least <= (n := m * 10**power) <= most]


def _network_words(name: str) -> str:
    if name not in CLUSTERS:
        return "one machine's loopback"
    cluster = CLUSTERS[name]
    return f"nodes of {cluster.gpus_per_node} {cluster.accelerator.name.upper()}"


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    in_a_node = {name: cluster.gpus_per_node for name, cluster in CLUSTERS.items()}
    return {
        "controls": _controls(),
        "defaults": {**DEFAULTS, "algorithm": DEFAULT, "ranks_per_node": in_a_node},
        "rooted": list(ROOTED),
        "collectives": {name: _collective(name) for name in COLLECTIVES},
    }


def _collective(name: str) -> dict[str, Any]:
    words, result = COLLECTIVES[name]
    algorithms = [[algorithm, NAMES[algorithm], ABOUT[name][algorithm]] for algorithm in ALGORITHMS[name]]
    return {"name": words, "result": result, "algorithms": algorithms}


# --- The first state in words, for readers without JavaScript and for paper.


def _in_words(outputs: Mapping[str, Any]) -> str:
    values, steps = outputs["values"], len(outputs["steps"])
    name, result = COLLECTIVES[values["collective"]]
    naive = outputs["algorithms"][0]
    vector = "" if values["collective"] == "barrier" else f" of {_spaced(values['bytes'])} bytes"
    formula = outputs["formula"]
    sent = f"{_spaced(max(outputs['sent']))} bytes" + (f" ({formula['text']})" if formula else "")
    words = (
        f"{name}{vector} among {values['ranks']} ranks, {NAMES[values['algorithm']]}: {_count(steps, 'step')}, "
        f"{format_seconds(outputs['seconds'])} by the α–β model on {_network_words(values['cluster'])}. "
        f"{result} The busiest rank sends {sent}."
    )
    if values["algorithm"] == "naive":
        return words
    slower = format_seconds(naive["seconds"])
    return f"{words} The naive algorithm takes {_count(naive['steps'], 'step')} and {slower}."


def _transcript(outputs: Mapping[str, Any]) -> str:
    """A row for each step: who sends which chunk to whom, when, and who is idle."""
    rows = [
        [
            str(number),
            "; ".join(_message(m) for m in step["messages"]),
            f"{format_seconds(step['start'])} to {format_seconds(step['end'])}",
            ", ".join(map(str, step["idle"])) or "nobody",
        ]
        for number, step in enumerate(outputs["steps"], 1)
    ]
    head = _row("th", ["step", "messages", "time", "idle ranks"])
    return f"<table><thead>{head}</thead><tbody>{''.join(_row('td', row) for row in rows)}</tbody></table>"


def _message(message: Mapping[str, Any]) -> str:
    first, last = message["first"], message["last"] - 1
    chunks = f"chunk {first}" if first == last else f"chunks {first}–{last}"
    how = "added" if message["adds"] else "kept"
    return f"{message['from']} → {message['to']} {chunks}, {_spaced(message['bytes'])} B {how}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _spaced(number: int) -> str:
    return f"{number:,}".replace(",", " ")


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
