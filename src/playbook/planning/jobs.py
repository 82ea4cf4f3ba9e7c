"""Jobs: what `simulate` is asked, as an object of JSON, one a line. Standard library only."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from playbook._checks import check_int, unknown
from playbook._tables import read_json
from playbook.errors import ConfigError, LayoutError, PlaybookError
from playbook.hardware import Cluster, default_reserve
from playbook.hardware import load as load_cluster
from playbook.layout import Layout
from playbook.planning.calibration import load_calibration
from playbook.planning.fusion import load_fused
from playbook.planning.job import Job
from playbook.planning.recipes import RECIPES, Recipe, load_recipe, recipe_of_run
from playbook.planning.search import Problem
from playbook.planning.simulator import Run
from playbook.planning.weights import weight_units
from playbook.registry import places
from playbook.shapes import ModelShape, load

if TYPE_CHECKING:
    from playbook.training.config import TrainConfig

#: Keys of a job; those of `NEEDED` must be there.
KEYS = (
    "model", "train", "cluster", "gpus", "layout", "micro_batch", "global_batch", "seq", "precision", "attention",
    "fused", "overlap", "calibration", "stage_layers", "context", "imbalance", "reserve", "limit", "optimizer", "muon",
    "document",
)  # fmt: skip
NEEDED = ("model", "cluster", "layout")
#: Precisions by the names that people use.
PRECISIONS = {
    "bf16": "bf16-mixed",
    "fp16": "bf16-mixed",
    "bfloat16": "bf16-mixed",
    "float16": "bf16-mixed",
    "float32": "fp32",
}
#: What a fused model's memory is counted with.
FUSED = ("norms", "swiglu", "cross-entropy")
#: Fields of a cluster that a job may override: of the accelerator, and of the nodes.
OF_ACCELERATOR = ("memory_bytes", "memory_bandwidth", "peak_flops")
OF_NODES = ("intra_bandwidth", "inter_bandwidth", "gpus_per_node", "intra_latency", "inter_latency")


def job_of_run(shape: ModelShape, config: TrainConfig, device: str) -> Job:
    """What the trainer runs on a kind of device, ``cpu`` or ``cuda``."""
    formats = {name: getattr(config, name) for name in ("weights", "dtype", "moments", "masters", "fp8")}
    return Job(
        shape,
        config.layout,
        seq=config.seq,
        recipe=recipe_of_run(**formats),
        attention=config.attention,
        fused=load_fused(config.kernels == "fused"),
        offload=config.offload,
        optimizer=config.optimizer,
        document=config.seq if config.documents == "packed" else None,
        device=device,
    )


def trained_parameters(shape: ModelShape) -> int:
    """How many learn."""
    units = weight_units(shape, Layout(), {0: range(shape.layers)}, 1)
    return sum(weight.elements for unit in units for weight in unit.weights)


def run_of(job: Mapping[str, Any], trained: Job | None = None) -> Run:
    """What a job describes, or ``trained`` on its cluster.

    Raises ConfigError, LayoutError or ShapeError for one that nobody can run.
    """
    for key in job:
        if key not in KEYS:
            raise ConfigError(unknown("key of a job", key, KEYS))
    for key in NEEDED:
        if key not in job:
            raise ConfigError(f"the job has no {key}: give it one")
    trained, settings = trained or _spread(job), settings_of(job)
    cluster, ranks = settings.pop("cluster"), trained.layout.world_size
    return Run(
        # Frameworks that shard weights in a pipeline keep them gathered between micro-batches.
        trained.relayout(reshard=trained.layout.pp == 1),
        cluster.with_gpus(ranks) if ranks > 1 else cluster,
        imbalance=job.get("imbalance", 1.0),
        **settings,
    )


def _spread(job: Mapping[str, Any]) -> Job:
    layers = job.get("stage_layers")
    if layers is not None and not (
        isinstance(layers, list | tuple) and all(isinstance(n, int) for n in layers)
    ):
        raise ConfigError(f"stage_layers must be a list of whole numbers, got {layers!r}")
    options = {"stage_layers": tuple(layers) if layers else None}
    options |= {key: job[key] for key in ("context", "muon") if key in job}
    return planned_job(job).on(layout_of(job).replace(**options))


def problem_of(job: Mapping[str, Any]) -> Problem:
    """What a job without a layout asks `search`; some of the memory stays free unless its reserve is 0."""
    settings = settings_of(job)
    gpus = check_int("gpus", job.get("gpus"), ConfigError)
    cluster = settings.pop("cluster").with_gpus(gpus)
    reserve = job.get("reserve", default_reserve(cluster.accelerator.memory_bytes))
    return Problem(planned_job(job), cluster, job.get("global_batch", 0), reserve=reserve, **settings)


def planned_job(job: Mapping[str, Any]) -> Job:
    """What is trained, on one device until there is a layout."""
    shape, fused = load(job["model"], job.get("train", "full")), job.get("fused")
    attention = str(job.get("attention", "flash"))
    if attention not in ("flash", "sdpa", "reference"):
        raise ConfigError(f"attention must be flash or reference, got {attention!r}")
    return Job(
        shape,
        Layout(muon=job.get("muon", Layout.muon)),
        seq=job.get("seq", shape.max_seq),
        recipe=precision_of(str(job.get("precision", "bf16"))),
        attention="reference" if attention == "reference" else "sdpa",
        fused=frozenset(FUSED if fused else ()),
        optimizer=str(job.get("optimizer", "adamw")),
        document=job.get("document"),
    )


def settings_of(job: Mapping[str, Any]) -> dict[str, Any]:
    """What `Run` and `Problem` have in common beside it."""
    cluster, fused, overlap = cluster_of(job["cluster"]), job.get("fused"), job.get("overlap") or {}
    if not isinstance(fused, bool | None):
        raise ConfigError(f"fused must be true or false, got {fused!r}")
    if not isinstance(overlap, Mapping) or not all(isinstance(on, bool) for on in overlap.values()):
        raise ConfigError(f'overlap must be an object such as {{"dp": true, "tp": false}}, got {overlap!r}')
    calibration = load_calibration(job.get("calibration"), cluster.accelerator)
    return {"cluster": cluster, "calibration": calibration, "compiled": fused, "overlap": overlap}


def precision_of(name: str) -> Recipe:
    """A recipe by its name or by a precision's; fp8 is bf16-mixed with products of current scales a tensor."""
    if name.partition(",")[0] in places("recipe"):
        name = f"fp8:{name}"
    if name == "fp8" or name.startswith("fp8:"):
        return load_recipe("bf16-mixed").with_fp8(name.partition(":")[2] or "tensorwise")
    if name not in PRECISIONS and name not in RECIPES:
        raise ConfigError(unknown("precision", name, (*PRECISIONS, "fp8", *places("recipe"), *RECIPES)))
    recipe = load_recipe(PRECISIONS.get(name, name))
    return (
        dataclasses.replace(recipe, name="fp16-mixed") if name in ("fp16", "float16") else recipe
    )  # the same bytes


def layout_of(job: Mapping[str, Any]) -> Layout:
    """The layout of a job: dp is what is left of its GPUs, grad_acc of its global batch, unless the layout has them."""
    layout = Layout.parse(str(job["layout"]), job.get("gpus"))
    if "micro_batch" in job:
        layout = layout.replace(micro_batch=check_int("micro_batch", job["micro_batch"], LayoutError))
    if "global_batch" in job:
        batch = check_int("global_batch", job["global_batch"], LayoutError)
        each = layout.dp * layout.micro_batch
        if batch % each:
            raise LayoutError(f"global_batch must be a multiple of dp * micro_batch = {each}, got {batch}")
        layout = layout.replace(grad_acc=batch // each)
    return layout


def cluster_of(spec: str | Mapping[str, Any] | Cluster) -> Cluster:
    """A cluster by name, or {"base": name, …} with fields of its own. Raises ConfigError for what is neither."""
    if isinstance(spec, Cluster):
        return spec
    if isinstance(spec, str):
        return load_cluster(spec)
    if not isinstance(spec, Mapping) or "base" not in spec:
        raise ConfigError(f"cluster must be a name or an object with a base, got {spec!r}")
    cluster = load_cluster(str(spec["base"]))
    accelerator = cluster.accelerator
    for key, value in spec.items():
        if key == "peak_flops" and not isinstance(value, Mapping):
            times = {"bf16": 1, "fp16": 1, "fp8": 2, "fp4": 4 * ("fp4" in accelerator.peak_flops)}
            value = {form: n * value for form, n in times.items() if n}
        if key == "peak_flops":
            value = {**accelerator.peak_flops, **value}
        if key == "memory_bytes" and isinstance(value, float):
            value = int(value)
        if key in OF_ACCELERATOR:
            accelerator = dataclasses.replace(accelerator, **{key: value})
        elif key in OF_NODES:
            cluster = dataclasses.replace(cluster, **{key: value})
        elif key != "base":
            raise ConfigError(unknown("field of a cluster", key, ("base", *OF_ACCELERATOR, *OF_NODES)))
    return dataclasses.replace(cluster, accelerator=accelerator)


def answer(line: str | Mapping[str, Any], number: int = 1) -> dict[str, Any]:
    """The answer to a job: ``Step.to_json``, or {"error": one sentence}, with the memory where it does not fit."""
    try:
        job = read_json(line, f"job {number}", ConfigError) if isinstance(line, str) else line
        if not isinstance(job, Mapping):
            raise ConfigError(f"job {number} must be an object, got {type(job).__name__}")
        reserve, limit = job.get("reserve"), job.get("limit", True)
        if reserve is not None:
            check_int("reserve", reserve, ConfigError, least=0)
        run = run_of(job)
        run.check()
        capacity = run.cluster.accelerator.memory_bytes - (reserve or 0)
        if limit and run.needs > capacity:
            memory = {"peak": run.needs, "capacity": capacity, "fits": False, "verdict": run.verdict(reserve)}
            return {"error": run.does_not_fit(capacity), "memory": memory}
        return run.step(reserve, limit=False).to_json()
    except PlaybookError as error:
        return {"error": str(error)}
