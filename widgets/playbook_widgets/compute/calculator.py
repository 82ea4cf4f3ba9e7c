"""The memory calculator: one pure function from what a reader sets to what the page draws.

``compute`` runs in a kernel and, as the same file, in the reader's browser. A configuration is a flat mapping that
holds only what differs from ``DEFAULTS`` and from the chosen preset, so that it fits into a link:
``{"model": "llama3-70b", "tp": 8, "zero": 1}``. Keys are the names of ``ModelShape``, ``Layout`` and the flags of
``playbook memory``; sizes of experts are ``moe.experts``, ``moe.top_k`` and so on.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from playbook._checks import check_int, unknown
from playbook.errors import ConfigError, LayoutError
from playbook.hardware import FITS, UNITS, cluster_of, verdict_of
from playbook.layout import FIELDS, Layout
from playbook.planning.flags.own import model_flags
from playbook.planning.fusion import EVERYTHING, NOTHING, load_fused
from playbook.planning.job import Job
from playbook.planning.memory import Counted, MemoryReport, StageMemory, predict_job
from playbook.planning.recipes import load_recipe
from playbook.planning.terms import Part, Term, symbols
from playbook_widgets.compute.advice import Advice, what_would_fit
from playbook_widgets.compute.changes import limit_of_experts
from playbook_widgets.compute.gpus import GPU_DEFAULTS, Gpu, gpu_flags, gpu_of, gpu_values
from playbook_widgets.compute.pasted import settings_of
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.sizes import (
    MOE_CONTROLS,
    PRESET,
    SEQ,
    SHAPE_CONTROLS,
    differs,
    latent,
    own_model,
    shape_of,
    sizes_of,
    whole,
)

#: What a control shows when nothing is set.
DEFAULTS: dict[str, Any] = {
    "model": PRESET,
    "seq": SEQ,
    "gpus": None,
    "train": "full",
    "precision": "bf16-mixed",
    "optimizer_bytes": None,
    "attention": "sdpa",
    "fused": "none",
    "offload": False,
    "bucket_mb": 25,
    "fp8": "",
    "unit": "GB",
    **GPU_DEFAULTS,
    **{name: getattr(Layout, name) for name in FIELDS},
}

#: Lengths at which the curve over the sequence is computed, as far as the model and the layout allow them.
CURVE = tuple(2**k for k in range(9, 18))

CATEGORIES = ("parameters", "gradients", "optimizer", "activations", "buffers", "working")
MB = 2**20


@dataclass(frozen=True)
class Configuration:
    """What a flat mapping of controls comes to."""

    job: Job
    gpu: Gpu
    values: dict[str, Any]
    pasted: dict[str, Any] | None = None


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """``{"configs": [configuration, …], "advice": bool}`` to ``{"results": [result, …]}``, one for each.

    A result that cannot be is ``{"error": {"field", "message"}}``: the field is the control that has to change.
    ``advice`` asks for what would make it fit as well, which takes longer. ``asked`` are the configurations again: a page
    may have other ones by the time that it has their results.
    """
    configs, wanted = inputs["configs"], bool(inputs.get("advice"))
    return {"results": [_result(json.dumps(c, sort_keys=True), wanted) for c in configs], "asked": configs}


@lru_cache(maxsize=16)
def _result(text: str, advice: bool) -> dict[str, Any]:
    return answered(lambda: describe(read(json.loads(text)), advice=advice))


def read(config: Mapping[str, Any]) -> Configuration:
    """The job that a flat mapping means; raises ShapeError, LayoutError or ConfigError in one sentence."""
    known = {*DEFAULTS, *SHAPE_CONTROLS, *MOE_CONTROLS}
    config, pasted = settings_of(config, {key: None for key in DEFAULTS if key != "gpus"})
    for key in config:
        if key not in known:
            raise ConfigError(f"{key} is not a setting of the memory calculator")
    shape = shape_of(config)
    values = {**DEFAULTS, "seq": min(SEQ, shape.max_seq), **config}
    layout_values: dict[str, Any] = {
        key: whole(key, values[key]) if kind == "int" else values[key] for key, kind in FIELDS.items()
    }
    bucket = check_int("bucket_mb", whole("bucket_mb", values["bucket_mb"]), ConfigError) * MB
    if values["gpus"] is not None:
        layout_values["dp"] = _replicas(whole("gpus", values["gpus"]), layout_values)
    optimizer = values["optimizer_bytes"]
    recipe = load_recipe(values["precision"]).with_fp8(values["fp8"])
    job = Job(
        shape,
        Layout(**layout_values, bucket=bucket),
        seq=whole("seq", values["seq"]),
        recipe=recipe.with_optimizer(
            None if optimizer in (None, "") else whole("optimizer_bytes", optimizer)
        ),
        attention=values["attention"],
        fused=load_fused(values["fused"]),
        offload=_switch("offload", values["offload"]),
    )
    if values["unit"] not in UNITS:
        raise ConfigError(unknown("unit", str(values["unit"]), UNITS))
    return Configuration(job, gpu_of(config), values, pasted)


def _switch(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def _replicas(gpus: int, layout: Mapping[str, Any]) -> int:
    """Data parallelism of ``gpus`` GPUs: what the other axes leave."""
    others = layout["tp"] * layout["cp"] * layout["pp"]
    if gpus < 1 or others < 1 or gpus % others:
        raise LayoutError(f"gpus must be a multiple of tp * cp * pp = {others}, got {gpus}")
    return gpus // others


def describe(configuration: Configuration, *, advice: bool = False) -> dict[str, Any]:
    """All that the page draws of one configuration: bytes, terms, curve, verdict, command."""
    job, gpu = configuration.job, configuration.gpu
    report, layout, shape = predict_job(job), job.layout, job.shape
    memory, cluster = gpu.accelerator.memory_bytes, cluster_of(gpu.accelerator)
    verdict = verdict_of(report.peak, memory, gpu.reserve)
    states = job.recipe.states
    return {
        "values": _values(configuration),
        "own": own_model(configuration.values),
        "pasted": configuration.pasted,
        "parameters": shape.num_parameters,
        "active": shape.active_parameters,
        "ranks": layout.world_size,
        "global_batch": layout.global_batch,
        "tokens": layout.global_batch * job.seq,
        "bytes_per_parameter": {
            "parameters": states.parameters,
            "gradients": states.gradients,
            "master": states.master,
            "moments": states.optimizer,
        },
        **_stages(report),
        "symbols": symbols(job),
        "peak": report.peak,
        "fullest": report.fullest.stage,
        "memory": memory,
        "reserve": gpu.reserve,
        "usable": gpu.usable,
        "verdict": verdict,
        "spare": memory - report.peak,
        "curve": _curve(job),
        "command": command(configuration),
        "advice": [_advice(a, configuration) for a in what_would_fit(job, gpu.usable, cluster)]
        if advice
        else None,
        "per_node": cluster.gpus_per_node,
        "limit": "" if verdict == FITS else limit_of_experts(job, report.fullest.counts),
    }


def _values(configuration: Configuration) -> dict[str, Any]:
    """What every control shows, with what follows from others filled in."""
    shape, layout, job = configuration.job.shape, configuration.job.layout, configuration.job
    return {
        **configuration.values,
        **sizes_of(shape),
        **{name: getattr(layout, name) for name in FIELDS},
        "train": shape.train,
        "seq": job.seq,
        "gpus": layout.world_size,
        "optimizer_bytes": job.recipe.states.master + job.recipe.states.optimizer,
        **gpu_values(configuration.gpu, configuration.values, configuration.values["unit"]),
        "max_seq": shape.max_seq if shape.positions == "learned" else None,
        "latent": latent(shape),
        "differs": differs(shape),
    }


def _stages(report: MemoryReport) -> dict[str, Any]:
    """Every stage with its parts; terms that stages share stand once, under a key."""
    keys: dict[tuple[Term, ...], str] = {}
    stages = []
    for stage in report.stages:
        breakdown = {}
        for category, parts in _parts(stage).items():
            keyed = [(part, keys.setdefault(part.terms, f"t{len(keys)}")) for part in parts]
            breakdown[category] = [[part.name, key, part.times, part.value] for part, key in keyed]
        stages.append({
            **stage.to_json(),
            "local": stage.counts.local,  # parameters that a rank computes with, and the share that ZeRO leaves it
            "shard": stage.counts.shard,
            "breakdown": breakdown,
        })  # fmt: skip
    terms = {key: [[t.part, t.name, t.text, t.value] for t in shared] for shared, key in keys.items()}
    return {"stages": stages, "terms": terms}


def _parts(stage: StageMemory) -> dict[str, tuple[Part, ...]]:
    """The parts of each count: parameters (a number of them), and bytes of activations, buffers and working memory."""
    working = Part(stage.moment.name, stage.moment.terms, 1)
    return {
        "parameters": stage.counts.parts,
        "activations": stage.parts,
        "buffers": stage.buffer_parts,
        "working": (working,),
    }


def _curve(job: Job) -> dict[str, list[int]]:
    """Bytes of each category on the fullest rank at the lengths of ``CURVE`` and at the one that is set."""
    curve: dict[str, list[int]] = {"seq": [], **{category: [] for category in CATEGORIES}, "peak": []}
    counted: Counted = {}
    for seq in sorted({*CURVE, job.seq}):
        try:
            report = predict_job(replace(job, seq=seq), counted)
        except LayoutError:  # longer than the learned positions, or not divisible by cp
            continue
        curve["seq"].append(seq)
        curve["peak"].append(report.peak)
        for category, held in report.fullest.at_peak.items():
            curve[category].append(held)
    return curve


def command(configuration: Configuration) -> str:
    """The ``playbook memory`` line that gives the same numbers."""
    job, layout, default = configuration.job, configuration.job.layout, Layout()
    words = ["playbook", "memory", *model_flags(job.shape)]
    if axes := str(layout.replace(micro_batch=1, grad_acc=1, recompute="none")):
        words += ["--layout", axes]
    for field in ("micro_batch", "grad_acc", "recompute"):
        if getattr(layout, field) != getattr(default, field):
            words += [f"--{field.replace('_', '-')}", str(getattr(layout, field))]
    words += ["--seq", str(job.seq)]
    if job.recipe.name != DEFAULTS["precision"]:
        words += ["--precision", job.recipe.name]
    if job.recipe.fp8:
        words += ["--fp8", job.recipe.fp8.name]
    if (optimizer := configuration.values["optimizer_bytes"]) not in (None, ""):
        words += ["--optimizer-bytes", str(optimizer)]
    if job.attention != DEFAULTS["attention"]:
        words += ["--attention", job.attention]
    if job.fused:
        words += ["--fused", *([] if job.fused == EVERYTHING else [",".join(sorted(job.fused))])]
    if job.offload:
        words.append("--offload")
    if layout.bucket != default.bucket:
        words += ["--bucket-mb", str(layout.bucket // MB)]
    words += gpu_flags(configuration.values)
    if configuration.values["unit"] != DEFAULTS["unit"]:
        words += ["--unit", configuration.values["unit"]]
    return shlex.join(words)


def _advice(advice: Advice, configuration: Configuration) -> dict[str, Any]:
    """Advice as changes of controls."""
    before, after = _settable(configuration.job), _settable(advice.job)
    return {
        "changes": [{"label": c.label, "why": c.why} for c in advice.changes],
        "seconds": advice.seconds,
        "gpus": advice.job.layout.world_size,
        "peak": advice.peak,
        "spare": configuration.gpu.accelerator.memory_bytes - advice.peak,
        "set": _changed(before, after),
    }


def _changed(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Controls to set; with another number of ranks along an axis, dp says itself how many replicas there are."""
    changes = {key: value for key, value in after.items() if before[key] != value}
    if {"dp", "tp", "pp", "cp"} & set(changes):
        changes |= {"dp": after["dp"], "gpus": None}
    return changes


def _settable(job: Job) -> dict[str, Any]:
    layout = {name: getattr(job.layout, name) for name in FIELDS}
    fused = {EVERYTHING: "all", NOTHING: "none"}.get(job.fused, ",".join(sorted(job.fused)))
    return {**layout, "attention": job.attention, "fused": fused, "offload": job.offload}
