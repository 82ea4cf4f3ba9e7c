"""The routing widget: one pure function from what a reader sets to where the tokens of a mixture of experts go.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Each rank has one sample; tokens choose by
the library's rule (``routing_rule``), replicas of hot experts are placed by ``playbook_book.expert_placement``. Standard
library only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from playbook_book.expert_placement import ExpertPlacement, in_order
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.routing_rows import Placement, Rows, travel
from playbook_widgets.compute.routing_rule import choose, keep, load_of, room, updated
from playbook_widgets.compute.routing_setting import RoutingSetting, read
from playbook_widgets.compute.routing_words import answer, code, command, waiting

#: Updates of the biases that are gone through.
UPDATES = 16
#: Bands that a picture shows at most; where there would be more, a rank's experts are taken together.
BANDS = 600


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What :func:`describe` says of the setting, or ``{"error": {"field", "message"}}``: the control to change."""
    return answered(lambda: describe(read(inputs)))


def describe(setting: RoutingSetting) -> dict[str, Any]:
    """All that the page shows of a setting: one layer, one dispatch; rows, and bytes of all ranks together."""
    sizes, ranks = setting.sizes, setting.ranks
    pictures = _pictures(setting)
    return {
        "values": _values(setting),
        "nodes": setting.nodes,
        "choices": ranks * setting.tokens * sizes.top_k,
        "room": room(sizes, setting.tokens),
        "row_bytes": setting.row_bytes,
        "coarse": ranks * sum(map(len, pictures[0]["experts"])) > BANDS,
        "pictures": pictures,
        "command": command(setting),
    }


def _values(setting: RoutingSetting) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    sizes = setting.sizes
    return {
        **{
            name: getattr(sizes, name) for name in ("experts", "top_k", "capacity", "top_groups", "bias_rate")
        },
        **{
            name: getattr(setting, name)
            for name in ("remedy", "ranks", "node", "tokens", "skew", "spare", "hidden", "itemsize", "seed")
        },
    }


def _pictures(setting: RoutingSetting) -> list[dict[str, Any]]:
    """How it stands; with biases, before the first update and after each, the same tokens routed again."""
    sizes, scores = setting.sizes, setting.scores()
    bias, found = [0.0] * sizes.experts, list[dict[str, Any]]()
    for number in range(UPDATES + 1 if setting.remedy == "bias" else 1):
        chosen = choose(scores, bias, sizes)
        kept, wanted = keep(chosen, scores, sizes), load_of(chosen, sizes.experts)
        loads = wanted if kept is chosen else load_of(kept, sizes.experts)
        rows = travel(chosen, kept, setting.placed(loads), loads, setting.node)
        found.append(_picture(setting, rows, loads, bias))
        found[-1]["answer"] = answer(setting, found, number)
        bias = updated(bias, wanted, sizes.bias_rate)
    return found


def _picture(setting: RoutingSetting, rows: Rows, loads: list[int], bias: list[float]) -> dict[str, Any]:
    """What is drawn of one moment."""
    coarse = setting.ranks * sum(map(len, rows.placement)) > BANDS
    return {
        "experts": [list(own) for own in rows.placement],
        "loads": loads,
        "bias": [round(b, 6) for b in bias],
        "bands": [rows.by_rank(row) for row in rows.sent] if coarse else rows.sent,
        "slots": rows.slots,
        "missed": rows.by_rank(rows.missed),
        "dropped": rows.dropped,
        "ranks": rows.ranks,
        "imbalance": rows.imbalance,
        "imbalance_in_order": in_order(loads, setting.ranks).imbalance,
        "waiting": waiting(rows.ranks),
        "busiest_expert": max(loads) * len(loads) / sum(loads),
        "capacity": _capacity(setting, loads, rows.placement),
        "plain": [count * setting.row_bytes for count in rows.plain],
        "two_steps": [count * setting.row_bytes for count in rows.two_steps],
        "code": code(setting, loads),
    }


def _capacity(setting: RoutingSetting, loads: list[int], placement: Placement) -> list[float] | None:
    """Rows that each rank has at most; None where nothing is dropped."""
    most = room(setting.sizes, setting.tokens)
    if most is None:
        return None
    replicas = ExpertPlacement(tuple(loads), placement).counts
    return [sum(most * setting.ranks / replicas[e] for e in experts) for experts in placement]
