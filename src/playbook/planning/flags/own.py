"""The command of this library."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING

from playbook.planning.recipes import recipe_of_run
from playbook.shapes import PRESETS

if TYPE_CHECKING:
    from playbook.planning.simulator import Run
    from playbook.shapes import ModelShape


def model_flags(shape: ModelShape) -> list[str]:
    """What names a model, by its preset or all of its sizes, and what of it learns."""
    whole = shape.replace(train="full")
    name = (
        shape.name if PRESETS.get(shape.name) == whole else json.dumps(whole.sizes(), separators=(",", ":"))
    )
    return ["--model", name, *(["--train", shape.train] if shape.train != "full" else [])]


def rarely_said(run: Run, muon: str = "unless a script of yours has torch.optim.Muon") -> Iterator[str]:
    """What no framework's flags say: what learns and how, what waits in CPU memory, and Muon where there is none."""
    shape, others = run.shape, "unless a script of yours has"
    if run.job.optimizer == "muon" and muon:
        yield f"optimizer=muon: matrices are updated by AdamW, {muon}"
    if run.job.document:
        yield f"packed documents: attention goes across them, {others} their lengths (cu_seqlens) for the kernels"
    if shape.lora:
        how = f"r={shape.lora}, lora_alpha={2 * shape.lora}, target_modules='all-linear'"
        yield f"train={shape.train}: all weights learn, {others} peft.LoraConfig({how})"
    elif shape.train != "full":
        yield f"train={shape.train}: all weights learn, {others} requires_grad_(False) for the others"
    if "offload" in run.layout.again:
        yield f"recompute={run.layout.recompute}: what is kept stays on the GPU, {others} autograd.graph.save_on_cpu()"


def lines(run: Run) -> Iterator[str]:
    """`playbook train` with the same model, layout and precision."""
    layout = run.layout
    words = ["playbook", "train", *model_flags(run.shape)]
    words += ["--layout", str(layout) or "dp=1", "--seq", str(run.seq)]
    words += ["--global-batch", str(layout.global_batch), "--micro-batch", str(layout.micro_batch)]
    if layout.stage_layers:
        words += ["--stage-layers", ",".join(map(str, layout.stage_layers))]
    fp8 = run.recipe.fp8.name if run.recipe.fp8 else ""
    kind = "float16" if run.recipe.name.startswith("fp16") else "bfloat16"
    said = {"weights": kind, "dtype": kind} if run.recipe.compute == 2 else {}
    if run.recipe.states.parameters == 4:
        said.pop("weights", None)
    words += [word for key, value in said.items() for word in (f"--{key}", value)]
    words += ["--fp8", fp8] if fp8 else []
    words += ["--documents", "packed"] if run.job.document else []
    words += ["--optimizer", "muon", "--muon", layout.muon] if run.job.optimizer == "muon" else []
    runs = recipe_of_run(**said, fp8=fp8)
    if runs.states != run.recipe.states:
        yield f"# NOT EXPRESSED: states of the recipe {run.recipe.name}: {run.recipe.states.total} bytes per parameter, "
        yield f"# of which this run keeps {runs.states.total}"
    yield shlex.join(words)
