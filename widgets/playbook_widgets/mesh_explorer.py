"""The mesh explorer: five axes, the ranks that they make, and of each rank its groups, what it holds and sends."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from playbook.figures.units import format_count, format_size
from playbook.shapes import PRESETS
from playbook_widgets.base import Widget
from playbook_widgets.compute.mesh import DEFAULTS, GROUPS, LIMITS, MOST_RANKS, read


class MeshExplorer(Widget):
    """``MeshExplorer({"model": "llama3-8b", "tp": 8, "dp": 2, "rank": 5})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.mesh.DEFAULTS``; ``start`` says when a page loads Python, as for every
    widget. Raises PlaybookError for settings that cannot be.
    """

    script = "mesh_explorer.mjs"
    compute = "playbook_widgets.compute.mesh:compute"
    name = "mesh-explorer"

    def __init__(self, inputs: Mapping[str, Any] | None = None, *, start: str = "touch"):
        shown = {"rank": DEFAULTS["rank"], **(inputs or {})}
        read(shown)  # refused here, where the cell is, and not in the page
        super().__init__(shown, start=start, constants=constants())

    def summary(self) -> str:
        outputs = self.outputs
        head = f"Rank {outputs['rank']} of {outputs['ranks']} ranks on {outputs['nodes']} nodes."
        words = "".join(
            f"<p>{html.escape(text)}</p>" for text in (head, *outputs["holds"], outputs["answer"])
        )
        command = html.escape(outputs["command"])
        tables = "".join(
            f"<div class='pb-scroll'>{table}</div>" for table in (_groups(outputs), _sent(outputs))
        )
        return f"{words}{tables}<p><code>{command}</code></p>"


# --- What the page's controls are. Choices and limits come from the library.


def _controls() -> list[dict[str, Any]]:
    """One for each setting as a reader meets it; a number is a slider over ``stops`` and a field."""
    models = [[name, f"{name}, {format_count(shape.num_parameters)}"] for name, shape in PRESETS.items()]
    stages = [[stage, str(stage) if stage else "none"] for stage in range(LIMITS["zero"][1] + 1)]
    return [
        _control("model", "Model", kind="select", choices=models),
        _control("tp", "Tensor (tp)"),
        _control("cp", "Context (cp)"),
        _control("dp", "Data (dp)"),
        _control("pp", "Pipeline (pp)"),
        _control("ep", "Experts (ep)"),
        _control("etp", "Experts over tp", kind="choice", choices=[[0, "cut"], [1, "whole"]]),
        _control("sp", "Sequence (sp)", kind="choice", choices=[[False, "off"], [True, "on"]]),
        _control("zero", "ZeRO stage", kind="choice", choices=stages),
        _control("replicate", "Replicas of shards"),
        _control("per_node", "Ranks per node"),
        _control("seq", "Tokens per sample"),
        _control("micro_batch", "Micro-batch"),
        _control("grad_acc", "Micro-batches"),
        _control("rank", "Rank"),
    ]


def _control(
    field: str, label: str, *, kind: str = "number", choices: list[list[Any]] | None = None
) -> dict[str, Any]:
    own: dict[str, Any] = {"choices": choices} if choices else {"stops": stops(field)}
    return {"field": field, "label": label, "kind": kind, **own}


def stops(name: str) -> list[int]:
    """Likely values of a number: powers of two and three times powers of two; of ranks all that the mesh may have."""
    if name == "rank":
        return [*range(64), *(2**k for k in range(6, MOST_RANKS.bit_length() - 1))]
    if name == "per_node":
        return [1, 2, 4, 8, 16, 32, 64, 72]
    least, most = LIMITS[name]
    threes = name in ("dp", "grad_acc")
    return sorted(
        n for k in range(21) for n in (2**k, 3 * 2**k) if max(least, 128 * (name == "seq")) <= n <= most
        and (threes or n == 2**k)
    )  # fmt: skip


#: Layouts to load: a name, what is set, and where it comes from.
EXAMPLES: list[tuple[str, dict[str, Any], str]] = [
    (
        "16 ranks, five axes",
        {"model": "mixtral-8x7b", "ep": 4, "sp": True},
        "Two nodes of eight. Groups along tp, cp, dp and ep are in one node; those along pp reach over both.",
    ),
    (
        "Llama 3 405B, 16,384 GPUs",
        {"model": "llama3.1-405b", "tp": 8, "cp": 1, "dp": 128, "pp": 16, "zero": 2, "grad_acc": 16, "rank": 5000},
        "TP 8, CP 1, PP 16, DP 128, samples of 8,192 tokens (Grattafiori et al. 2024, arXiv 2407.21783, table 4). The "
        "paper orders axes [TP, CP, PP, DP], dp outermost; here pp is outermost. TP fills a node either way. Its "
        "FSDP shards optimizer states and gradients: ZeRO-2. Its pipeline is interleaved, this one runs 1F1B.",
    ),
    (
        "Llama 3 405B, CP 16",
        {"model": "llama3.1-405b", "tp": 8, "cp": 16, "dp": 8, "pp": 16, "zero": 2, "grad_acc": 16, "seq": 131072,
         "rank": 5000},
        "For samples of 131,072 tokens, CP 16 takes the place of most of DP (table 4 of the same paper): the groups "
        "of context parallelism reach over sixteen nodes.",
    ),
    (
        "DeepSeek-V3, 2,048 GPUs",
        {"model": "deepseek-v3", "tp": 1, "cp": 1, "dp": 128, "pp": 16, "ep": 64, "seq": 4096, "grad_acc": 120,
         "rank": 500},
        "PP 16, EP 64 over eight nodes, ZeRO-1 and no tensor parallelism (DeepSeek-AI 2024, arXiv 2412.19437, "
        "section 3.2). Its pipeline runs both ways (DualPipe), this one 1F1B.",
    ),
]  # fmt: skip


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "controls": _controls(),
        "defaults": DEFAULTS,
        "experts": [name for name, shape in PRESETS.items() if shape.moe],
        "groups": {name: list(words) for name, words in GROUPS.items()},
        "examples": [{"name": name, "inputs": inputs, "note": note} for name, inputs, note in EXAMPLES],
    }


# --- The first state in words, for readers without JavaScript and for paper.


def _groups(outputs: Mapping[str, Any]) -> str:
    rows = [
        [
            group["name"],
            f"{group['place']}",
            f"{len(group['ranks'])}",
            _ranks(group["ranks"]),
            str(group["nodes"]),
        ]
        for group in outputs["groups"]
    ]
    return _table(["group", "index", "size", "ranks", "nodes"], rows)


def _ranks(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks if len(ranks) <= 8 else [*ranks[:3], "…", ranks[-1]]))


def _sent(outputs: Mapping[str, Any]) -> str:
    rows = [[one["axis"], format_size(one["within"]), format_size(one["across"])] for one in outputs["sent"]]
    return _table(["axis", "sent in the node", "sent to other nodes"], rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    lines = "".join(_row("td", row) for row in rows)
    return f"<table><thead>{_row('th', head)}</thead><tbody>{lines}</tbody></table>"


def _row(cell: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"
