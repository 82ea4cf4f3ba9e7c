"""What the ring-attention widget says: who waits for whom, and whether the messages hide. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from playbook.figures.units import format_count, format_seconds, format_size
from playbook_widgets.compute.ring_steps import FP32, RingSetting

#: What each way is called.
NAMES = {"ring": "ring", "gather": "all-gather", "ulysses": "Ulysses"}
PLACES = {"contiguous": "contiguous", "zigzag": "zig-zag"}


def sent_formula(setting: RingSetting) -> str:
    """How the bytes that a rank sends in all come about."""
    n, share = setting.ranges.ranks, format_size(setting.share)
    if setting.context == "ulysses":
        return f"{n - 1}/{n} of its q, K, V and output" + (": their gradients" if setting.backward else "")
    if not setting.backward:
        return f"{n - 1} × {share} of K and V"
    return f"{n - 1} × ({share} of K and V + {format_size(setting.elements * FP32)} of dK and dV in fp32)"


def answer(setting: RingSetting, result: Mapping[str, Any]) -> str:
    """Two sentences or three: the balance, the messages, and what the other placement would take."""
    said = [_balance(setting, result["work"]), _messages(setting, result), _otherwise(setting, result)]
    return " ".join(filter(None, said))


def _balance(setting: RingSetting, work: Mapping[str, Any]) -> str:
    least, most, ranks = min(work["pairs"]), max(work["pairs"]), setting.ranges.ranks
    if setting.context == "ulysses":
        heads = f"{setting.heads_each} of {setting.shape.heads} heads"
        return f"Each of {ranks} ranks computes the whole mask for {heads}: all do the same."
    if least == most:
        return f"Each of {ranks} ranks computes {format_count(most)} pairs of a query and a key: all do the same."
    busiest, idlest = work["pairs"].index(most), work["pairs"].index(least)
    return (
        f"Rank {busiest} computes {format_count(most)} pairs of a query and a key, rank {idlest} only "
        f"{format_count(least)}: the busiest does {work['balance']:.2f} times the mean, and the others wait for it."
    )


def _messages(setting: RingSetting, result: Mapping[str, Any]) -> str:
    message, exposed = result["message"], result["exposed"]
    if setting.context != "ring":
        return f"Its messages take {format_seconds(message)}, in which nobody computes."
    times = f"{format_seconds(message)} of messages"
    if not exposed:
        return f"All {times} hide behind computing."
    if all(step["exposed"] == 0 for step in result["steps"] if step["does"] == "attend"):
        return (
            f"Of {times}, {format_seconds(exposed)} show: the last gradients come home when all is computed."
        )
    return f"Of {times}, {format_seconds(exposed)} show: a rank waits for keys {_share(exposed, result)} of the time."


def _share(part: float, result: Mapping[str, Any]) -> str:
    return f"{100 * part / result['seconds']:.3g} %"


def _otherwise(setting: RingSetting, result: Mapping[str, Any]) -> str:
    """Against the other placement, where that makes a difference."""
    if setting.context == "ulysses":
        return ""
    other = next(
        rival
        for rival in result["rivals"]
        if rival["context"] == setting.context and rival["placement"] != setting.ranges.kind
    )
    ratio = other["seconds"] / result["seconds"]
    if abs(ratio - 1) < 0.005:
        return "" if setting.ranges.causal else "Without a mask, placement makes no difference."
    placed = {"contiguous": "Placed contiguously", "zigzag": "In a zig-zag"}[other["placement"]]
    return f"{placed} it would take {format_seconds(other['seconds'])} instead of {format_seconds(result['seconds'])}."
