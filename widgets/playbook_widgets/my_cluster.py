"""My cluster: every layout of a model on the reader's GPUs that fits, fastest first, and where each one's time goes."""

from __future__ import annotations

import html
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

from playbook.figures.style import colour
from playbook.hardware import ACCELERATORS
from playbook.planning.flags import FRAMEWORKS
from playbook.planning.search import WORDS
from playbook_widgets.base import Widget
from playbook_widgets.compute.my_cluster import DEFAULTS, RUNS_IN
from playbook_widgets.memory_calculator import categories, described, presets
from playbook_widgets.memory_controls import Control, Group, doublings, precisions, start


class MyCluster(Widget):
    """``MyCluster({"model": "llama3-70b", "gpus": 128})`` as the last line of a cell.

    Keys are those of ``playbook_widgets.compute.my_cluster.DEFAULTS``; ``start`` says when a page loads Python, as for
    every widget.
    """

    script = "my_cluster.mjs"
    compute = "playbook_widgets.compute.my_cluster:compute"
    name = "cluster"
    warm: ClassVar[Mapping[str, Any]] = {
        "model": "tiny-moe",
        "gpus": 1,
        "global_batch": 2,
        "seq": 64,
        "map": True,
    }
    styles = ("memory_calculator.css",)

    def __init__(self, setting: Mapping[str, Any] | None = None, *, start: str = "touch"):
        # With the map from the start: else a page would have to load Python before its reader has touched anything.
        super().__init__({**(setting or {}), "map": True}, start=start, constants=constants())

    def summary(self) -> str:
        if "error" in self.outputs:
            return f"<p>{html.escape(self.outputs['error']['message'])}</p>"
        head = _row("th", ["layout", "s a step", "MFU", "tokens/s/GPU", "GB", "$ for 10⁹ tokens"])
        rows = "".join(
            _row("td", [r["layout"] or "one device", f"{r['seconds']:.3g}", f"{r['mfu']:.1%}", f"{r['rate']:,.0f}",
                        f"{r['needs'] / 1e9:.1f}", f"{r['cost']:,.2f}"])
            for r in self.outputs["rows"]
        )  # fmt: skip
        table = f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"
        return (
            f"<div class='pb-scroll'>{table}</div><p><code>{html.escape(self.outputs['command'])}</code></p>"
        )


def _row(cell: str, texts: list[str]) -> str:
    return "<tr>" + "".join(f"<{cell}>{html.escape(text)}</{cell}>" for text in texts) + "</tr>"


# --- What the page shows and no input changes. Choices, names and sizes come from the library.

#: The colour of each part of a step, by its concept in the palette; those of `HATCHED` share one.
COLOURS = {
    "compute": "compute", "tp": "tp", "cp": "cp", "ep": "ep", "dp_exposed": "dp", "pp_comm": "pp", "bubble": "idle",
    "optimizer": "optimizer", "stragglers": "idle",
}  # fmt: skip
HATCHED = ("dp_exposed", "optimizer", "stragglers")


#: Calibrations that were fitted to a framework's steps.
FITTED = (
    ("", "not named"), ("megatron-h100", "Megatron-Core, H100"), ("torchtitan-h100", "torchtitan, H100 of 500 W"),
    ("fsdp-h100", "FSDP, H100"), ("nanotron-h100", "nanotron, H100"), ("megatron-a100", "Megatron-LM, A100"),
    ("fsdp-a100", "FSDP, A100"), ("megatron-b200", "Megatron-LM, B200"),
)  # fmt: skip


#: What the ranking may be narrowed to, in words, and what a reader may type.
ONLY = (
    ("tp", "Tensor-parallel ranks", "8 or 2,4,8"), ("pp", "Pipeline stages", "1 or 2,4"),
    ("cp", "Context-parallel ranks", "1, which is without it"), ("ep", "Expert-parallel ranks", "8"),
    ("zero", "ZeRO stages", "0,1"), ("replicate", "Groups with all shards (HSDP)", "1"),
    ("recompute", "Recomputation", "none or none,selective"),
)  # fmt: skip


@cache
def constants() -> dict[str, Any]:
    """All that the page shows and that no input changes."""
    return {
        "groups": described(groups()),
        "defaults": {k: v for k, v in DEFAULTS.items() if v is not None},
        "presets": presets(),
        "categories": categories(),
        "parts": [[part, words, colour(COLOURS[part]), part in HATCHED] for part, words in WORDS.items()],
        "frameworks": list(FRAMEWORKS),
    }


def groups() -> tuple[Group, ...]:
    """All controls, in the order of the page."""
    cluster = (
        Control("gpus", "GPUs", "All of them: whole nodes, or a part of one.", stops=doublings(1, 4096, threes=False)),
        Control("tflops", "TFLOP/s of a GPU", "Dense products in bf16, as its data sheet has them; FP8 is twice as fast.",
                stops=(50, 100, 150, 200, 312, 500, 750, 990, 1500, 2250, 2500), unit="TFLOP/s"),
        Control("hbm", "TB/s of its memory", "Read and written, as its data sheet has it.",
                stops=(0.5, 1, 1.5, 2, 3.35, 4.8, 6, 8), unit="TB/s"),
        Control("gpus_per_node", "GPUs per node", "Those that NVLink or its like connects.",
                stops=(1, 2, 4, 8, 16, 32, 72)),
        Control("intra", "GB/s in a node", "What a GPU sends to the others of its node, in one direction.",
                stops=(10, 25, 50, 100, 150, 200, 300, 400, 500, 800), unit="GB/s"),
        Control("inter", "GB/s between nodes", "What a GPU sends over the network: 50 is one adapter of 400 Gb/s.",
                stops=(1, 2, 3, 6, 12, 25, 50, 100), unit="GB/s"),
        Control("price", "$ per GPU-hour", "In dollars, or in a currency of your own: costs are in the same.",
                stops=(0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 8, 12)),
        Control("tokens", "10⁹ tokens to train on", "All that the model is to see, in thousands of millions.",
                stops=(1, 10, 100, 300, 1000, 2000, 5000, 10_000, 15_000, 30_000)),
    )  # fmt: skip
    batch = (
        Control("global_batch", "Global batch", "Samples of one optimizer step, over all GPUs.",
                stops=doublings(1, 8192), unit="samples"),
        Control("seq", "Sequence length", "Tokens of one sample.", stops=doublings(128, 2**20), unit="tokens"),
        *precisions(),
        Control("calibration", "Framework", "Whose measured steps the seconds follow, and on which GPU; others reach the "
                "same shares of what they can do.", "select", choices=FITTED, brief="as {}", quiet=""),
    )  # fmt: skip
    only = [
        Control(name, words, f"Such as {example}; nothing for all.", "text", brief=f"{name} {{}}", quiet="")
        for name, words, example in ONLY
    ]
    only.append(Control("runs_in", "Runs in", "A framework that can run the layout as it is planned.", "select",
                        choices=(("", "any"), *((name, name) for name in RUNS_IN)), brief="in {}", quiet=""))  # fmt: skip
    return (
        start(name for name in ACCELERATORS if name != "cpu"),
        Group("Cluster", cluster),
        Group("Training", batch),
        Group("Only layouts with", tuple(only), empty="all that fit", folded=True),
    )
