"""What the routing widget says: who waits for whom, what a remedy does and costs, the same in Python and as a run.

Standard library only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from playbook.figures.units import format_size
from playbook.shapes import PRESETS, MoE
from playbook_widgets.compute.routing_setting import RoutingSetting

#: The model that a command trains with the router.
MODEL = "tiny-moe"


def in_percent(share: float) -> str:
    """0.084 is "8 %", and less than one percent keeps a digit."""
    return f"{100 * share:.2g} %" if share < 0.01 else f"{100 * share + 1e-9:.0f} %"


def in_ratio(value: float) -> str:
    """Two places; 1.125 is "1.13", as the page has it."""
    return f"{value + 1e-9:.2f}"


def answer(setting: RoutingSetting, pictures: Sequence[Mapping[str, Any]], number: int) -> str:
    """Two to four sentences on picture ``number``: the balance, what is done about it, what is dropped and sent."""
    now = pictures[number]
    parts = [
        _balance(setting, now),
        _remedy(setting, pictures, number),
        _dropped(setting, now),
        _sent(setting, now),
    ]
    return " ".join(filter(None, parts))


def _balance(setting: RoutingSetting, now: Mapping[str, Any]) -> str:
    if setting.ranks == 1:
        return "One rank has all experts: every row stays, and nobody waits."
    ranks, loads = now["ranks"], now["loads"]
    most, busiest = max(ranks), max(range(len(loads)), key=loads.__getitem__)
    mean = sum(ranks) / len(ranks)
    if most == mean:
        return f"Every rank computes {most} rows: nobody waits."
    return (
        f"The layer takes as long as its busiest rank: rank {ranks.index(most)} computes {most} rows, "
        f"{in_ratio(now['imbalance'])} times the mean of {mean:.0f}, and the others wait "
        f"{in_percent(waiting(ranks))} of the time on average. The busiest expert, {busiest}, has {loads[busiest]} rows."
    )


def waiting(ranks: Sequence[int]) -> float:
    """The share of the time that ranks wait for the busiest one, on average over the others."""
    most = max(ranks)
    return sum(most - rows for rows in ranks) / (max(1, len(ranks) - 1) * most)


def _remedy(setting: RoutingSetting, pictures: Sequence[Mapping[str, Any]], number: int) -> str:
    if setting.ranks == 1 or setting.remedy == "none":
        return ""
    return _replicated(pictures[0]) if setting.remedy == "replicas" else _biased(setting, pictures, number)


def _biased(setting: RoutingSetting, pictures: Sequence[Mapping[str, Any]], number: int) -> str:
    now = pictures[number]
    if not number:
        return "All biases are still zero; each update moves them towards an even load."
    return (
        f"After {number} {'update' if number == 1 else 'updates'} of {setting.sizes.bias_rate:g}, biases are between "
        f"{_signed(min(now['bias']))} and {_signed(max(now['bias']))}; without them, the busiest rank had "
        f"{in_ratio(pictures[0]['imbalance'])} times the mean."
    )


def _signed(bias: float) -> str:
    """With a minus that is one."""
    return f"{bias:.2g}".replace("-", "−")


def _replicated(now: Mapping[str, Any]) -> str:
    extra = sum(map(len, now["experts"])) - len(now["loads"])
    change = f"from {in_ratio(now['imbalance_in_order'])} to {in_ratio(now['imbalance'])} times the mean"
    if not extra:
        return f"A better packing alone takes the busiest rank {change}."
    return (
        f"{extra} extra {'replica' if extra == 1 else 'replicas'} of hot experts and a better packing take the busiest "
        f"rank {change}, at the cost of {in_percent(extra / len(now['loads']))} more expert weights."
    )


def _dropped(setting: RoutingSetting, now: Mapping[str, Any]) -> str:
    if setting.sizes.capacity is None:
        return ""
    lost = sum(now["dropped"])
    if not lost:
        return f"A capacity factor of {setting.sizes.capacity:g} drops nothing."
    choices = setting.ranks * setting.tokens * setting.sizes.top_k
    return (
        f"A capacity factor of {setting.sizes.capacity:g} drops {lost} of {choices} choices "
        f"({in_percent(lost / choices)}): a dropped choice adds nothing to its token."
    )


def _sent(setting: RoutingSetting, now: Mapping[str, Any]) -> str:
    """What two steps save between nodes, and what they cost within them."""
    (inside, plain), (more, two) = now["plain"], now["two_steps"]
    if setting.nodes == 1 or not plain:
        return ""
    if plain == two:
        return f"Two-step dispatch sends as much between nodes as a plain all-to-all: {format_size(plain)}."
    return (
        f"Two-step dispatch sends {format_size(two)} between nodes instead of {format_size(plain)}, since a token with "
        f"several experts in a node travels there once, and {format_size(more)} within nodes instead "
        f"of {format_size(inside)}."
    )


def code(setting: RoutingSetting, loads: Sequence[int]) -> str:
    """The Python that says how many rows each rank gets when experts have ``loads`` rows."""
    if setting.remedy != "replicas":
        made = f"in_order({list(loads)}, ranks={setting.ranks}).rows"
        return f"from playbook_book.expert_placement import in_order\n{made}"
    own, each = setting.ranks // setting.parts, len(loads) // setting.parts
    slots = len(loads) // setting.ranks + setting.spare
    parts = [
        f"balanced({list(loads[first : first + each])}, ranks={own}, slots={slots}).rows"
        for first in range(0, len(loads), each)
    ]
    return "from playbook_book.expert_placement import balanced\n" + " + ".join(parts)


def command(setting: RoutingSetting) -> str:
    """The ``playbook train`` line of a small model with this router; none with replicas, which no training run has."""
    if setting.remedy == "replicas":
        return ""
    rate = setting.sizes.bias_rate if setting.remedy == "bias" else 0.0
    base = PRESETS[MODEL]
    assert base.moe is not None
    sizes = replace(setting.sizes, ffn=base.moe.ffn, bias_rate=rate)
    sizes = sizes if setting.limited else replace(sizes, groups=1, top_groups=1)
    model = {**base.sizes(), "moe": _asked(sizes)}
    words = ["playbook", "train", "--model", json.dumps(model, separators=(",", ":"))]
    words += ["--layout", f"dp={setting.ranks},ep={setting.ranks}"] if setting.ranks > 1 else []
    if setting.nodes > 1:
        words += ["--dispatch", "two-step", "--node", str(setting.node)]
    return shlex.join([*words, "--seq", str(setting.tokens), "--global-batch", str(setting.ranks)])


def _asked(sizes: MoE) -> dict[str, Any]:
    """The fields of ``sizes`` that differ from their defaults."""
    plain = MoE(experts=sizes.experts, top_k=sizes.top_k, ffn=sizes.ffn)
    return {
        name: value
        for name, value in vars(sizes).items()
        if name in ("experts", "top_k", "ffn") or value != getattr(plain, name)
    }
