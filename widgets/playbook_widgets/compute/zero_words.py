"""What the ZeRO widget says: its formulas with numbers filled in, what the next stage buys and costs, the command.

Standard library only.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from playbook.figures.units import format_count, format_seconds, format_size
from playbook.layout import Layout
from playbook.shapes import ModelShape
from playbook_widgets.compute.zero_setting import ZeroSetting

NAMES = ("no ZeRO", "ZeRO-1", "ZeRO-2", "ZeRO-3")
#: The first stage in which a rank keeps only a share, by what it is a share of.
SHARED_FROM = {"optimizer": 1, "gradients": 2, "parameters": 3}

#: ``[kind, formula in symbols, the same in numbers, bytes]``
Row = list[Any]
#: Factors of a product, in symbols and in numbers.
Factors = tuple[list[str], list[str]]


# --- Formulas


def memory_terms(setting: ZeroSetting, zero: int) -> list[Row]:
    """What a rank keeps: 2Ψ + 2Ψ/N + kΨ/N and the like."""
    states, held = setting.states, setting.kept(zero)
    each = {
        "parameters": states.parameters,
        "gradients": states.gradients,
        "optimizer": states.master + states.optimizer,
    }
    rows = []
    for kind, size in each.items():
        symbol, shared = "k" if kind == "optimizer" else size, zero >= SHARED_FROM[kind]
        numbers = f"{size} × {format_count(setting.parameters)}" + (
            f" / {setting.replicas}" if shared else ""
        )
        rows.append([kind, f"{symbol}Ψ" + ("/N" if shared else ""), numbers, getattr(held, kind)])
    return rows


def traffic_terms(setting: ZeroSetting, zero: int) -> list[Row]:
    """What a rank sends in a step: 2 · 2Ψ · (N−1)/N and the like."""
    states, sent, n = setting.states, setting.traffic(zero), setting.replicas
    if not zero:
        return [_moved(setting, "all_reduce", states.gradients, ["2"], ["2"], sent.all_reduce)]
    once: Factors = ([], [])
    often: Factors = (["G"], [str(setting.grad_acc)])
    reduced, gathered = (often if zero >= 2 else once), (often if zero == 3 else once)
    if zero == 3 and n > 1:
        one = setting.grad_acc * states.parameters * setting.parameters * (n - 1)
        times = f"{float(sent.all_gather * n / one):.3g}"  # 2, or less where units are not needed again
        gathered = ([*gathered[0], times], [*gathered[1], times]) if times != "1" else gathered
    return [
        _moved(setting, "reduce_scatter", states.gradients, *reduced, sent.reduce_scatter),
        _moved(setting, "all_gather", states.parameters, *gathered, sent.all_gather),
    ]


def _moved(
    setting: ZeroSetting, kind: str, size: int, symbols: list[str], numbers: list[str], sent: Any
) -> Row:
    """``symbols`` and ``numbers`` are the factors before the bytes of a vector."""
    n = setting.replicas
    formula = " · ".join([*symbols, f"{size}Ψ", "(N−1)/N"])
    filled = " × ".join([*numbers, f"{size} × {format_count(setting.parameters)}", f"{n - 1}/{n}"])
    return [kind, formula, filled, float(sent)]


# --- What the next stage buys


def answer(setting: ZeroSetting, stages: Sequence[Mapping[str, Any]]) -> str:
    """What going from the chosen stage to the next buys and costs; from 2 to 3 where 3 is chosen."""
    if setting.replicas == 1:
        return "One replica has nobody to share with: every stage keeps the same and sends nothing."
    before, after = stages[min(setting.zero, 2)], stages[min(setting.zero, 2) + 1]
    zero, saved = after["zero"], before["total"] - after["total"] - after["gathered"]
    between = f"{format_size(before['total'])} to {format_size(after['total'] + after['gathered'])}"
    bought = f"frees {format_size(saved)} on each rank ({between}{_fit(setting, before, after)})"
    if saved <= 0:
        bought = f"frees nothing while a step runs ({format_size(before['total'])} as before)"
    return f"Going from {NAMES[zero - 1]} to {NAMES[zero]} {bought} and {_cost(setting, before, after)}."


def _fit(setting: ZeroSetting, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    capacity = format_size(setting.accelerator.memory_bytes)
    if before["fits"]:
        return ""
    return f", which now fits into {capacity}" if after["fits"] else f", still more than {capacity}"


def _cost(setting: ZeroSetting, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The change in traffic, and where it comes from."""
    more, why = after["traffic"] - before["traffic"], _reason(setting, after["zero"])
    if abs(more) < 0.001 * before["traffic"]:
        return f"costs no traffic ({format_size(after['traffic'])} in a step, as before): {why}"
    between = f"{format_size(before['traffic'])} to {format_size(after['traffic'])}"
    time = f"{format_seconds(abs(more) / setting.bandwidth)} at {setting.bandwidth / 1e9:g} GB/s"
    change = f"costs {format_size(more)} more" if more > 0 else f"saves {format_size(-more)} of"
    return f"{change} traffic in a step ({between}; {time}): {why}"


def _reason(setting: ZeroSetting, zero: int) -> str:
    count = setting.grad_acc
    if zero == 1:
        return "a reduce-scatter of gradients and an all-gather of new weights take the all-reduce's place"
    if zero == 2:
        often = f"in each of {count} micro-batches, as there is no place to add up whole ones"
        return f"gradients are reduced {often}" if count > 1 else "gradients are reduced once either way"
    gathers = "forward and backward" if setting.reshard else "forward, and kept for backward,"
    often = f"of each of {count} micro-batches" if count > 1 else "of the micro-batch"
    return f"weights are gathered for {gathers} {often} instead of once in a step"


# --- The command


def command(setting: ZeroSetting) -> dict[str, Any]:
    """The ``playbook memory`` line of the setting, and how many parameters its model has."""
    shape = setting.shape or stand_in(setting.parameters)
    model = shape.name or json.dumps(shape.sizes(), separators=(",", ":"))
    layout = Layout(dp=setting.replicas, zero=setting.zero, grad_acc=setting.grad_acc)
    words = ["playbook", "memory", "--model", model]
    if str(layout):
        words += ["--layout", str(layout)]
    if setting.precision != "bf16-mixed":
        words += ["--precision", setting.precision]
    if setting.optimizer_bytes is not None:
        words += ["--optimizer-bytes", str(setting.optimizer_bytes)]
    text = shlex.join([*words, "--accelerator", setting.accelerator.name])
    return {"text": text, "parameters": shape.num_parameters}


def stand_in(parameters: int) -> ModelShape:
    """A GPT of nearly so many parameters, at least a million: off by at most half its width.

    It is 128 times as wide as deep, as GPT-3 is; the vocabulary takes what the blocks leave.
    """
    hidden = max(64, int((128 * 0.9 * parameters / 12) ** (1 / 3)) // 64 * 64)
    shape = ModelShape(1, hidden, hidden // 64, 1)
    block, ends = sum(shape.block_parameters(shape.kind(0)).values()), shape.num_parameters
    layers = max(1, int((0.95 * parameters - ends + block) / block))
    left = parameters - (ends + (layers - 1) * block)
    return shape.replace(layers=layers, vocab=max(1, 1 + round(left / hidden)))
