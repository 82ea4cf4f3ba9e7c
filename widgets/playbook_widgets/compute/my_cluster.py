"""My cluster: every layout of a model on so many GPUs that fits, fastest first, and one of them in detail.

``compute`` runs in a kernel and, as the same file, in the reader's browser. Inputs are a flat mapping of what differs
from ``DEFAULTS``; ``layout`` is the one that is looked at, the fastest where none is named, those of ``NARROW`` what the
ranking may choose from, and ``map`` asks for the best layout of each number of tensor-parallel ranks and pipeline stages
as well, which takes longer.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from playbook._checks import check_positive, divisors, typed_int, unknown
from playbook.errors import ConfigError, LayoutError, PlaybookError
from playbook.hardware import UNITS, Cluster, cluster_of, load_accelerator
from playbook.layout import FIELDS, Layout
from playbook.planning.calibration import load_calibration, names
from playbook.planning.flags import FRAMEWORKS, can_say, emit
from playbook.planning.flags.own import model_flags
from playbook.planning.job import Job
from playbook.planning.jobs import run_of
from playbook.planning.recipes import load_recipe
from playbook.planning.search import CLOSE, WORDS, Found, Problem, Result, Space, explain, search
from playbook.planning.simulator import Run
from playbook.shapes import ModelShape, load
from playbook_book.published import TABLES, Measured
from playbook_book.training_time import Duration
from playbook_widgets.compute.gpus import GPU_DEFAULTS, Gpu, gpu_of, gpu_values
from playbook_widgets.compute.pasted import settings_of
from playbook_widgets.compute.refusals import answered
from playbook_widgets.compute.sizes import PRESET, SEQ, differs, model_of, own_model
from playbook_widgets.compute.visualizer_setting import CHUNKS, STAGES

#: What the ranking may be narrowed to, such as "4,8"; blank for all.
NARROW = ("tp", "pp", "cp", "ep", "zero", "replicate", "recompute")
#: What a control shows when nothing is set; None follows from the GPU or the model.
DEFAULTS: dict[str, Any] = {
    "model": PRESET, **GPU_DEFAULTS, "unit": "GB", "gpus": 32, "tflops": None, "hbm": None,
    "gpus_per_node": None, "intra": None, "inter": None,
    "global_batch": 128, "seq": None, "train": "full", "precision": "bf16-mixed", "fp8": "", "calibration": "",
    "price": 2.5, "tokens": 1000, "layout": "", **dict.fromkeys(NARROW, ""), "runs_in": "",
}  # fmt: skip
#: So many of the fastest: most are much like others, beside which a page does not show them.
TOP = 60
#: Frameworks that one may run the layout in.
RUNS_IN = tuple(name for name in FRAMEWORKS if name != "playbook")
GB = 10**9


def compute(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The ranking, and all that is drawn of one layout of it; ``{"error": {"field", "message"}}`` for what cannot be.

    ``asked`` is the setting again: a page may have another one by the time that it has the answer.
    """
    asked = {key: value for key, value in inputs.items() if key != "map"}
    return {**answered(lambda: _describe(inputs)), "asked": asked}


def _describe(inputs: Mapping[str, Any]) -> dict[str, Any]:
    for key in inputs:
        if key not in DEFAULTS and key != "map":
            raise ConfigError(f"{key} is not a setting of My cluster")
    given, pasted = settings_of(inputs, {key: None for key in DEFAULTS if key not in NARROW})
    values = {**DEFAULTS, **given}
    if values["unit"] not in UNITS:
        raise ConfigError(unknown("unit", str(values["unit"]), UNITS))
    question = {key: values[key] for key in DEFAULTS if key not in ("layout", "unit", "price", "tokens")}
    text = json.dumps(question, sort_keys=True)
    problem, gpu, result = _search(text)
    price, tokens = (check_positive(name, values[name], ConfigError) for name in ("price", "tokens"))
    chosen, best = _chosen(problem, result, str(values["layout"])), result.best
    index = result.found.index(chosen) if chosen in result.found else None
    other = result.found[1:2] if chosen == best else [chosen]
    return {
        "values": _values(values, problem, gpu),
        "own": own_model(values),
        "pasted": pasted,
        "parameters": problem.shape.num_parameters,
        "candidates": result.candidates,
        "evaluated": result.evaluated,
        "memory": gpu.accelerator.memory_bytes,
        "reserve": gpu.reserve,
        "rows": [row(one, price) for one in result.found],
        "at": index,
        "chosen": row(chosen, price),
        "published": published(problem, str(values["calibration"])),
        "training": _training(chosen, tokens * GB, price),
        "why": explain(best, *other) if other else "",
        "breakdown": [[part, WORDS[part], seconds] for part, seconds in chosen.step.breakdown.items()],
        "report": _report(chosen, gpu),
        "flags": _flags(problem, chosen),
        "command": command(values, problem),
        "elsewhere": _elsewhere(values, problem, chosen.layout),
        "map": _map(text) if inputs.get("map") else None,
    }


def problem_of(values: Mapping[str, Any]) -> tuple[Problem, Gpu]:
    """What is to be trained on what. Raises ConfigError, LayoutError or ShapeError, each with its control first."""
    shape, gpu = load(model_of(values), str(values["train"])), gpu_of(values)
    gpu = replace(gpu, accelerator=replace(gpu.accelerator, **_speeds(values)))
    cluster = replace(cluster_of(gpu.accelerator), **_nodes(values))
    gpus = typed_int("gpus", values["gpus"], LayoutError)
    seq = min(SEQ, shape.max_seq) if values["seq"] is None else typed_int("seq", values["seq"], LayoutError)
    recipe = load_recipe(values["precision"]).with_fp8(values["fp8"])
    batch = typed_int("global_batch", values["global_batch"], LayoutError)
    name = str(values["calibration"])
    if name and name not in names():
        raise ConfigError(unknown("calibration", name, names()))
    calibration = load_calibration(name, gpu.accelerator) if name else None
    job = Job(shape, seq=seq, recipe=recipe)
    return Problem(job, cluster.with_gpus(gpus), batch, calibration, reserve=gpu.reserve), gpu


def _speeds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of an accelerator that the reader has set: TFLOP/s of dense products in bf16, in FP8 twice as many, in
    FP4 four times; TB/s."""
    found: dict[str, Any] = {}
    if values["tflops"] is not None:
        peak = check_positive("tflops", values["tflops"], ConfigError) * 1e12
        accelerator = load_accelerator(str(values["accelerator"]))
        own = {"bf16": peak, "fp16": peak, "fp8": 2 * peak, "fp4": 4 * peak}
        found["peak_flops"] = {
            **accelerator.peak_flops,
            **{k: v for k, v in own.items() if k in accelerator.peak_flops},
        }
    if values["hbm"] is not None:
        found["memory_bandwidth"] = check_positive("hbm", values["hbm"], ConfigError) * 1e12
    return found


def _nodes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a cluster that the reader has set; bandwidths are typed in GB/s."""
    found: dict[str, Any] = {}
    if values["gpus_per_node"] is not None:
        found["gpus_per_node"] = typed_int("gpus_per_node", values["gpus_per_node"], ConfigError)
    for key in ("intra", "inter"):
        if values[key] is not None:
            found[f"{key}_bandwidth"] = check_positive(key, values[key], ConfigError) * GB
    return found


def space_of(values: Mapping[str, Any]) -> Space:
    """What the ranking may choose from."""
    chosen: dict[str, Any] = {}
    for name in NARROW:
        parts = [part.strip() for part in str(values[name]).split(",") if part.strip()]
        if parts:
            least = 0 if name == "zero" else 1
            numbers = name != "recompute"
            chosen[name] = tuple(
                typed_int(name, p, ConfigError, least=least) if numbers else p for p in parts
            )
    return Space(**chosen)


@lru_cache(maxsize=4)
def _search(text: str) -> tuple[Problem, Gpu, Result]:
    values = json.loads(text)
    (problem, gpu), space, framework = problem_of(values), space_of(values), values["runs_in"]
    if framework and framework not in RUNS_IN:
        raise ConfigError(unknown("runs_in", str(framework), RUNS_IN))
    try:
        return problem, gpu, _fastest(problem, space, framework)
    except LayoutError as error:  # that nothing fits is about the number of GPUs
        raise LayoutError(f"gpus: {error}{_enough(problem, space, framework)}") from None


def _fastest(problem: Problem, space: Space, framework: str, top: int = TOP) -> Result:
    """The ranking; of one layout alone, as of a cell of the map, the fastest."""

    def accept(run: Run) -> bool:
        return not framework or can_say(framework, run)

    return search(problem, space, top, accept=accept, among=min(top, CLOSE))


def _enough(problem: Problem, space: Space, framework: str) -> str:
    """On how many GPUs something fits, of two, four, … times as many; nothing where none does, either."""
    for times in (2, 4, 8, 16):
        try:
            more = replace(problem, cluster=problem.cluster.with_gpus(times * problem.gpus))
            best = _fastest(more, space, framework, top=1).best
        except PlaybookError:
            continue
        return f"; on {more.gpus} GPUs {best.layout} fits"
    return ""


def _chosen(problem: Problem, result: Result, text: str) -> Found:
    """The layout that is looked at, simulated where it is none of the ranking; the best where none is named."""
    known = {str(one.layout): one for one in result.found}
    if not text or text in known:
        return known.get(text, result.best)
    layout = Layout.parse(text)
    if (layout.world_size, layout.global_batch) != (problem.gpus, problem.global_batch):
        return result.best  # of GPUs and batches that have changed since
    run, memory = problem.run(layout), problem.cluster.accelerator.memory_bytes
    run.check()
    if run.needs > memory:
        raise LayoutError(run.does_not_fit(memory))
    return Found(layout, run.step(problem.reserve, limit=False))  # which may be tight


@lru_cache(maxsize=4)
def _map(text: str) -> dict[str, Any]:
    """Seconds of the fastest layout for each number of tensor-parallel ranks (rows) and stages; None where none fits."""
    problem, *_ = _search(text)
    values = json.loads(text)
    space, framework = space_of(values), values["runs_in"]
    tps = [
        tp for tp in divisors(problem.gpus) if tp in (space.tp or range(problem.cluster.gpus_per_node + 1))
    ]
    pps = [pp for pp in divisors(problem.gpus) if pp in (space.pp or range(problem.shape.layers + 1))]

    def cell(tp: int, pp: int) -> dict[str, Any] | None:
        try:
            best = _fastest(problem, replace(space, tp=(tp,), pp=(pp,)), framework, top=1).best
        except PlaybookError:
            return None
        return {"layout": str(best.layout), "seconds": best.step.seconds}

    return {"tp": tps, "pp": pps, "cells": [[cell(tp, pp) for pp in pps] for tp in tps]}


def row(one: Found, price: float) -> dict[str, Any]:
    """A layout of the ranking: what it is, how fast, how full; what 10⁹ tokens cost at ``price`` for an hour of a GPU."""
    step, layout = one.step, one.layout
    axes = *NARROW, "etp", "dp", "micro_batch", "grad_acc", "schedule", "vpp"
    return {
        "layout": str(layout), **{axis: getattr(layout, axis) for axis in axes}, "seconds": step.seconds, "mfu": step.mfu,
        "rate": step.tokens_per_s_per_gpu, "needs": step.needs, "verdict": step.verdict,
        "cost": Duration(step.seconds, step.gpus).cost(price) * GB / step.tokens,
    }  # fmt: skip


def _training(one: Found, tokens: float, price: float) -> dict[str, float]:
    """What so many tokens take: 24 hours a day and no interruption."""
    whole = Duration(one.step.seconds * tokens / one.step.tokens, one.step.gpus)
    return {"tokens": tokens, "days": whole.days, "gpu_hours": whole.gpu_hours, "cost": whole.cost(price)}


def published(problem: Problem, calibration: str = "") -> dict[str, Any] | None:
    """The published run of this model on GPUs of this kind that is most like what is planned, and what is predicted for
    it; None where none is known."""

    def like(row: Measured) -> float:
        sizes = (row.job["gpus"] / problem.gpus, row.job["seq"] / problem.seq)
        other = row.job.get("precision", "").startswith("fp8") != bool(problem.recipe.fp8)
        return sum(abs(math.log(size)) for size in sizes) + other

    row = min(
        _published(
            problem.shape.replace(name="", max_seq=1, rope_scaling=""), problem.cluster.accelerator.name
        ),
        key=like,
        default=None,
    )
    if row is None:
        return None
    job = row.job
    run = run_of(job | {"calibration": calibration} if calibration else job)
    over = run.needs > run.cluster.accelerator.memory_bytes  # of the GPUs that it did run on
    tokens = job["global_batch"] * job["seq"] / job["gpus"]
    return {
        "name": row.name, "source": (TABLES[row.table].__doc__ or "").strip().rstrip("."), "layout": job["layout"],
        "gpus": job["gpus"], "seq": job["seq"], "global_batch": job["global_batch"], "precision": job["precision"],
        "rate": tokens / row.seconds, "predicted": tokens / run.seconds, "needs": run.needs if over else None,
    }  # fmt: skip


@lru_cache(maxsize=16)
def _published(shape: ModelShape, accelerator: str) -> list[Measured]:
    def same(row: Measured) -> bool:
        cluster = row.job["cluster"]
        base = cluster if isinstance(cluster, str) else cluster["base"]
        return (
            base.partition("-")[0] == accelerator
            and load(row.job["model"]).replace(name="", max_seq=1, rope_scaling="") == shape
        )

    return [row for table in TABLES.values() for row in table() if row.of == "step" and same(row)]


def _report(one: Found, gpu: Gpu) -> dict[str, Any]:
    """Every stage's memory as the memory calculator draws it."""
    report = one.step.memory
    stages = [
        {"stage": s.stage, "total": s.total, "at_peak": s.at_peak, "in_flight": s.in_flight}
        for s in report.stages
    ]
    return {
        "stages": stages,
        "peak": report.peak,
        "fullest": report.fullest.stage,
        "memory": gpu.accelerator.memory_bytes,
        "usable": gpu.usable,
    }


def _elsewhere(values: Mapping[str, Any], problem: Problem, layout: Layout) -> dict[str, dict[str, Any]]:
    """The settings with which the other tools show the layout, by page and widget."""
    same = ("model", "train", "accelerator", "memory", "reserve", "unit", "precision", "fp8")
    axes = {name: getattr(layout, name) for name in FIELDS if getattr(layout, name) != getattr(Layout, name)}
    plan = {name: values[name] for name in same if values[name] != DEFAULTS[name]}
    found = {"memory-calculator.html#calculator": {**plan, "seq": problem.seq, **axes}}
    if 1 < layout.pp <= STAGES[1] and layout.vpp <= CHUNKS[1]:  # which that tool draws
        most = min(layout.grad_acc, 4 * layout.pp)  # more of them look alike
        stages = {"stages": layout.pp, "microbatches": most, "vpp": layout.vpp}
        found["pipeline-schedules.html#schedules"] = {"schedule": layout.schedule, **stages}
    return found


def _flags(problem: Problem, one: Found) -> dict[str, str]:
    """The layout in the words of each framework that can say it."""
    found = {}
    for framework in FRAMEWORKS:
        try:
            found[framework] = emit(framework, problem.run(one.layout))
        except ConfigError as error:
            found[framework] = str(error)
    return found


def _values(values: Mapping[str, Any], problem: Problem, gpu: Gpu) -> dict[str, Any]:
    cluster, chip = problem.cluster, problem.cluster.accelerator
    return {
        **values, **gpu_values(gpu, values, values["unit"]), "seq": problem.seq, "gpus_per_node": cluster.gpus_per_node,
        "tflops": chip.peak_flops["bf16"] / 1e12, "hbm": chip.memory_bandwidth / 1e12,
        "intra": cluster.intra_bandwidth / GB, "inter": cluster.inter_bandwidth / GB, "differs": differs(problem.shape),
    }  # fmt: skip


def command(values: Mapping[str, Any], problem: Problem) -> str:
    """The ``playbook search`` line with the same ranking."""
    words = [
        "playbook",
        "search",
        *model_flags(problem.shape),
        "--cluster",
        _cluster(values, problem.cluster),
    ]
    words += [
        "--gpus",
        str(problem.gpus),
        "--global-batch",
        str(problem.global_batch),
        "--seq",
        str(problem.seq),
    ]
    if problem.recipe.fp8:
        words += ["--precision", f"fp8:{problem.recipe.fp8.name}"]
    elif problem.recipe.name != DEFAULTS["precision"]:
        words += ["--precision", problem.recipe.name]
    if values["calibration"]:
        words += ["--calibration", values["calibration"]]
    if values["reserve"] is not None:
        words += ["--reserve", str(values["reserve"])]
    for name in (*NARROW, "runs_in"):
        if values[name]:
            words += [f"--{name.replace('_', '-')}", str(values[name]).replace(" ", "")]
    return shlex.join([*words, "--top", str(TOP)])


def _cluster(values: Mapping[str, Any], cluster: Cluster) -> str:
    """The cluster's name or, where the reader has changed it, its JSON."""
    own: dict[str, Any] = {**_speeds(values), **_nodes(values)}
    if values["memory"] is not None:
        own["memory_bytes"] = cluster.accelerator.memory_bytes
    return json.dumps({"base": cluster.name, **own}, separators=(",", ":")) if own else cluster.name
