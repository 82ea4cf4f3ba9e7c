"""What the visualizer says in words: names, one sentence for what is drawn, the command that prints the same."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from playbook_widgets.compute.visualizer_setting import ScheduleSetting
from playbook_widgets.compute.visualizer_times import of_stages

#: The name of each schedule, and in a few words how it goes about it.
ABOUT = {
    "naive": ("Naive", "one micro-batch after the other: of all ranks, one works"),
    "afab": ("All forward, all backward", "GPipe: every rank keeps the activations of all micro-batches"),
    "1f1b": (
        "1F1B",
        "each gradient goes back as soon as it is there: the bubble of GPipe, a fraction of its memory",
    ),
    "interleaved": (
        "Interleaved 1F1B",
        "several stages on each rank, one run of micro-batches through each in turn",
    ),
    "breadth-first": (
        "Interleaved, breadth first",
        "all micro-batches through a stage before the next one of the rank",
    ),
    "zb-h1": ("ZB-H1", "weight gradients fill gaps: the memory of 1F1B, less of its bubble"),
    "zb-h2": ("ZB-H2", "more micro-batches ahead: nearly twice the memory, and no bubble between two steps"),
    "zb-1p": ("ZB-1p", "fitted to the times, with the memory of 1F1B"),
    "zb-2p": ("ZB-2p", "fitted to the times, with twice the memory of 1F1B"),
    "zb-v": (
        "ZB-V",
        "two stages on each rank, down a V and up again: the memory of 1F1B and no bubble if F = B = W",
    ),
    "dualpipe": (
        "DualPipe",
        "micro-batches from both ends, forward and backward side by side; two copies of the model",
    ),
    "dualpipev": ("DualPipeV", "half of DualPipe, folded into a V: forward and backward side by side"),
}


def named(name: str) -> str:
    return ABOUT[name][0]


def answer(setting: ScheduleSetting, result: Mapping[str, Any]) -> str:
    """What the drawn schedules come to, in a few sentences."""
    if "traced" in result:
        return _of_trace(setting, result)
    if "board" in result:
        return _of_board(setting, result)
    first, *others = result["sides"]
    known = result.get("brought")
    found = [f"It is {known}."] if known else []
    found += [_takes(setting, first), _keeps(setting, first)]
    if others:
        found.append(_against(setting, first, others[0]))
    return " ".join(found)


def _time(setting: ScheduleSetting, time: float) -> str:
    """With its unit; seconds as people say them."""
    short = setting.unit == "s" and 0 < time < 1
    one, unit = (1, setting.unit) if not short else (1e-3, "ms") if time >= 1e-3 else (1e-6, "µs")
    return f"{time / one:.4g}" + (f" {unit}" if unit else "")


def _takes(setting: ScheduleSetting, side: Mapping[str, Any]) -> str:
    numbers = side["numbers"]
    waits = numbers["makespan"] - numbers["ideal"]
    text = (
        f"{side['label']} on {side['ranks']} ranks takes {_time(setting, numbers['makespan'])} for "
        f"{side['microbatches']} micro-batches; the busiest rank works {_time(setting, numbers['ideal'])} and waits "
        f"{_time(setting, waits)}, "
        f"{numbers['bubble_fraction']:.1%} of the step"
    )
    between = numbers["bubble_fraction_span"]
    return text + (
        "." if abs(between - numbers["bubble_fraction"]) < 5e-4 else f" ({between:.1%} if steps overlap)."
    )


def _keeps(setting: ScheduleSetting, side: Mapping[str, Any]) -> str:
    peaks, most = side["peaks"], max(side["peaks"])
    where = "Every rank" if min(peaks) == most else f"Rank {peaks.index(most)}"
    text = f"{where} keeps up to {_micro(most)}"
    if setting.cap is None:
        return f"{text}."
    over = [rank for rank, peak in enumerate(peaks) if peak > setting.cap + 1e-9]
    if not over:
        return f"{text}, and {setting.cap:g} fit."
    ranks = "rank" if len(over) == 1 else "ranks"
    listed = ", ".join(map(str, over)) if len(over) <= 6 else f"{over[0]} to {over[-1]}"
    return f"{text}, but only {setting.cap:g} fit: too much for {ranks} {listed}."


def _micro(amount: float) -> str:
    return (
        f"{amount:.4g} micro-batch{'' if amount == 1 else 'es'}' activations"
        if amount != 1
        else "one micro-batch's activations"
    )


def _against(setting: ScheduleSetting, a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    first, second = a["numbers"]["makespan"], b["numbers"]["makespan"]
    if abs(first - second) <= 1e-9 * first:
        return f"{b['label']} takes as long" + _memory_of(a, b)
    word = "less" if second < first else "more"
    text = f"{b['label']} takes {_time(setting, second)}, {abs(second - first) / first:.1%} {word}"
    return text + _memory_of(a, b)


def _memory_of(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    most, other = max(a["peaks"]), max(b["peaks"])
    if most == other:
        return ", and keeps as much."
    return f", and keeps up to {other:.4g} instead of {most:.4g}."


def _of_trace(setting: ScheduleSetting, result: Mapping[str, Any]) -> str:
    predicted, measured = (side["numbers"]["makespan"] for side in result["sides"])
    part = predicted / measured - 1 if measured else 0.0
    word = f"{abs(part):.1%} {'more' if part > 0 else 'less'}" if abs(part) >= 5e-4 else "the same"
    return (
        f"The run ({result['traced']}) took {_time(setting, measured)}; with the median times of its own actions and "
        f"messages the simulation says {_time(setting, predicted)}, {word}."
    )


def _of_board(setting: ScheduleSetting, result: Mapping[str, Any]) -> str:
    board, side = result["board"], result["sides"][0]
    if not board["placed"]:
        return "Nothing is placed yet: begin with a forward pass on a rank that holds the first stage."
    rival = f"{named(setting.schedule)} takes {_time(setting, board['rival']['makespan'])}"
    takes = f"{_time(setting, side['numbers']['makespan'])}; {rival}"
    if not board["complete"]:
        return f"{board['placed']} actions placed, {board['left']} passes left. So far it takes {takes} for everything."
    known = f"You have rebuilt {board['known']}. " if board["known"] else ""
    return f"{known}Your schedule is complete and takes {takes}. {_keeps(setting, side)}"


def command(setting: ScheduleSetting) -> str:
    """The ``playbook schedule`` line that simulates the same."""
    name, chunked = setting.schedule, setting.schedule in ("interleaved", "breadth-first")
    words = [
        "playbook",
        "schedule",
        name,
        "--stages",
        str(setting.stages),
        "--microbatches",
        str(setting.microbatches),
    ]
    if chunked:
        words += ["--vpp", str(setting.vpp)]
    if name == "interleaved" and setting.run is not None:
        words += ["--run", str(setting.run)]
    depth = setting.stages * (setting.vpp if chunked else 2 if name in ("zb-v", "dualpipev") else 1)
    words += ["--times", _times(of_stages(setting.times, setting.stages, depth))]
    if name in ("zb-1p", "zb-2p"):
        words += ["--limit", f"{setting.limit:g}"] if setting.limit is not None else []
        words += ["--rest", f"{setting.rest:g}"] if setting.rest != 1 else []
    return shlex.join(words)


def _times(times: Any) -> str:
    def several(value: Any) -> str:
        return f"{value:.6g}" if isinstance(value, int | float) else "/".join(f"{v:.6g}" for v in value)

    found = [f"{key}={several(getattr(times, key))}" for key in "fbw"] + [f"comm={times.comm:g}"]
    found += [f"transfer={times.transfer:g}"] if times.transfer else []
    found += [f"fb={times.fb:g}"] if times.fb is not None else []
    return ",".join(found + ([] if times.overlap else ["overlap=no"]))
