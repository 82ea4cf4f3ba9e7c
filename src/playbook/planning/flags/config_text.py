"""Reads configurations of torchtitan (TOML of 0.2), DeepSpeed (JSON) and Accelerate (YAML)."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from playbook._tables import read_json
from playbook.errors import ConfigError
from playbook.planning.flags import torchtitan
from playbook.planning.flags.pasted import Pasted, number
from playbook.shapes import PRESETS

#: Fields that torchtitan has had before 0.2.
OLD = {
    "training.batch_size", "training.tensor_parallel_degree", "training.data_parallel_shard_degree",
    "training.data_parallel_degree", "experimental.pipeline_parallel_degree", "experimental.context_parallel_degree",
}  # fmt: skip


class Table:
    """The values of nested tables by their path, each as it is asked for."""

    def __init__(self, table: Mapping[str, Any], unknown: list[str]):
        if not isinstance(table, Mapping):
            raise ConfigError("the text must be a table of fields, and is a list")
        self.unknown, self.values = unknown, dict(_flat(table))
        self.asked: set[str] = set()

    def get(self, path: str, default: Any = None) -> Any:
        """What stands there."""
        self.asked.add(path)
        return self.values.get(path, default)

    def number(self, path: str, default: int | None = None, least: int = 1) -> int | None:
        """A whole number; "auto", -1 and the like are unknown."""
        value = self.get(path)
        found = number(value)
        if value is not None and (found is None or found < least):
            self.unknown.append(f"{path} is {value}: it is known once the run starts")
        return default if found is None or found < least else found

    def left(self) -> set[str]:
        return self.values.keys() - self.asked


def _flat(table: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield before + key, value


def read_torchtitan(text: str) -> Pasted:
    """A run of torchtitan. Raises ConfigError for what is no TOML."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the text looks like a TOML of torchtitan, and cannot be read: {error}") from None
    run = Pasted("torchtitan")
    found = Table(table, run.unknown)
    if old := sorted(found.values.keys() & OLD):
        raise ConfigError(f"the TOML is of torchtitan before 0.2, which is not read: it has {', '.join(old)}")
    told = (str(found.get("model.name")), str(found.get("model.flavor")))
    presets = [name for name, known in torchtitan.MODELS.items() if known == told]
    if presets:
        run.shape = PRESETS[presets[-1]]  # the newer of two that have one name there
    else:
        run.unknown.append(f"the model {told[0]} {told[1]}: its sizes are in its Python")
    _titan_layout(run, found)
    run.seq = found.number("training.seq_len", 2048)
    run.precision = "fp32" if found.get("training.mixed_precision_param") == "float32" else "autocast"
    told = found.get("model.converters", ())
    converters = told if isinstance(told, str) else " ".join(told)
    if "mx" in converters:
        run.fp8 = "mxfp8"
    elif "float8" in converters:
        run.fp8 = found.get("quantize.linear.float8.recipe_name", "tensorwise")
    run.left(found.left())
    return run


def _titan_layout(run: Pasted, found: Table) -> None:
    layout, sizes = run.layout, "parallelism."
    for axis, name in {"tp": "tensor", "pp": "pipeline", "cp": "context", "ep": "expert"}.items():
        layout[axis] = found.number(f"{sizes}{name}_parallel_degree", 1)
    layout["sp"] = layout["tp"] > 1
    if found.number(f"{sizes}expert_tensor_parallel_degree", 1) == 1 < min(layout["tp"], layout["ep"]):
        layout["etp"] = 1
    replicas = found.number(f"{sizes}data_parallel_replicate_degree", 1) or 1
    degree = number(found.get(f"{sizes}data_parallel_shard_degree", -1))  # -1: what is left of the GPUs
    shards = degree if degree and degree > 0 else 1
    if shards == degree:
        layout["dp"] = replicas * shards
    again = found.get(f"{sizes}fsdp_reshard_after_forward", "default")
    whole = again == "never" or (again == "default" and layout["pp"] > 1)
    one = found.get(f"{sizes}data_parallel_shard_degree", -1) == 1 and layout["cp"] == 1
    layout["zero"] = 0 if one else 2 if whole else 3
    if whole and not one:
        run.unknown.append("FSDP2 without resharding: read as zero=2, which shards weights too at rest there")
    layout["replicate"] = 1 if one else replicas
    ways = {told: name for name, told in torchtitan.ROTATE.items()}
    layout["context"] = ways.get(found.get(f"{sizes}context_parallel_rotate_method", "allgather"), "ring")
    mode = found.get("activation_checkpoint.mode", "selective")
    layout["recompute"] = mode if mode in ("none", "full", "selective") else "none"
    if mode == "selective":
        run.unknown.append("activation_checkpoint of chosen operations: read as attention alone")
    batch = found.number("training.local_batch_size", 8) or 8
    layout["micro_batch"] = batch
    if layout["pp"] > 1:
        layout["micro_batch"] = found.number(f"{sizes}pipeline_parallel_microbatch_size", 1)
        schedules = {told: name for name, told in torchtitan.SCHEDULES.items()}
        told = found.get(f"{sizes}pipeline_parallel_schedule", "Interleaved1F1B")
        layout["schedule"] = schedules.get(told, "1f1b")
        if told not in schedules:
            run.unknown.append(f"the schedule {told}: read as 1F1B")
        _titan_stages(run, found)
    told = number(found.get("training.global_batch_size", -1))  # -1: one pass of all replicas
    if told and told > 0:
        run.samples = told
    else:
        layout["grad_acc"] = batch // (layout["micro_batch"] or 1)


def _titan_stages(run: Pasted, found: Table) -> None:
    each = found.number("parallelism.pipeline_parallel_layers_per_stage")
    parts, schedule = found.get("parallelism.module_fqns_per_model_part"), run.layout["schedule"]
    if parts:
        run.stages([sum(name.startswith("layers.") for name in part) for part in parts])
    elif each and run.shape:
        run.stages([each] * -(-run.shape.layers // each))
    run.layout["schedule"] = schedule
    if schedule == "interleaved":
        run.layout.setdefault("vpp", 2)
    else:
        run.layout.pop("vpp", None)
    for end in ("first", "last"):
        found.get(f"parallelism.pipeline_parallel_{end}_stage_less_layers")


def read_deepspeed(text: str) -> Pasted:
    """A run of DeepSpeed: its model, sample length and number of GPUs are in a script."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith(("//", "#"))]
    run = Pasted("DeepSpeed")
    found = Table(read_json("\n".join(lines), "the DeepSpeed configuration", ConfigError), run.unknown)
    _deepspeed(run, found, "zero_optimization.stage", "zero_optimization.offload_optimizer.device")
    run.layout["tp"] = found.number("tensor_parallel.autotp_size", 1)
    if (name := str(found.get("optimizer.type", "AdamW"))).lower() == "muon":
        run.optimizer, run.layout["muon"] = "muon", "gather"
        run.unknown.append(
            "Muon keeps moments in CPU memory: read as on the GPU, matrices as made whole by all"
        )
    elif "adam" not in name.lower():
        run.unknown.append(f"the optimizer {name}: read as AdamW")
    run.layout["micro_batch"] = found.number("train_micro_batch_size_per_gpu", 1)
    run.layout["grad_acc"] = found.number("gradient_accumulation_steps", 1)
    each = run.layout["micro_batch"] * run.layout["grad_acc"]
    batch, all_three = (
        found.number("train_batch_size"),
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps"),
    )
    if batch and batch % each == 0 and all(number(found.values.get(name)) for name in all_three):
        run.gpus = batch // each * run.layout["tp"]
    on = {kind: str(found.get(f"{kind}.enabled")).lower() for kind in ("bf16", "fp16")}
    sixteen = next((kind for kind, told in on.items() if told == "true"), "")
    if not sixteen and "auto" in on.values():
        run.unknown.append("bf16 or fp16 is auto: read as 16 bits")
        sixteen = "bf16"
    wide = found.get("data_types.grad_accum_dtype") == "fp32"
    run.precision = ("bf16-mixed-fp32-grads" if wide else "bf16-mixed") if sixteen else "fp32"
    run.unknown.append("the model and the length of samples: they are set in a script")
    run.left(found.left())
    return run


def _deepspeed(run: Pasted, found: Table, stage: str, offload: str, usual: int = 0) -> None:
    run.layout["zero"] = found.number(stage, usual, least=0)
    where = str(found.get(offload, "none"))
    run.offload = where == "cpu"
    if where not in ("cpu", "none"):
        run.unknown.append(f"optimizer states on {where}: read as on the GPU")


def read_accelerate(text: str) -> Pasted:
    """A run of Accelerate: its model, samples and batch are in a script."""
    run = Pasted("Accelerate")
    found = Table(_yaml(text), run.unknown)
    layout, kind = run.layout, str(found.get("distributed_type", "NO"))
    axes = "parallelism_config.parallelism_config_"
    replicas, _ = (found.number(f"{axes}dp_{name}_size", 1) or 1 for name in ("replicate", "shard"))
    for axis in ("tp", "cp"):
        layout[axis] = found.number(f"{axes}{axis}_size", 1)
    layout["sp"] = False
    ways = {"alltoall": "ring", "allgather": "gather"}
    layout["context"] = ways.get(str(found.get(f"{axes}cp_comm_strategy", "allgather")), "gather")
    if kind == "FSDP":
        names = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
        told = str(found.get("fsdp_config.fsdp_sharding_strategy", ""))
        told = names[int(told) - 1] if told in ("1", "2", "3", "4", "5") else told  # of FSDP 1
        old = dict(zip(names, (True, False, False, True, False), strict=True))
        within = (found.number("num_machines") or 1) if told.startswith("HYBRID") else replicas
        again = found.get("fsdp_config.fsdp_reshard_after_forward", old.get(str(told), True))
        again = old.get(str(again), str(again).lower() == "true")
        layout["zero"] = 0 if told == "NO_SHARD" else 3 if again else 2
        full = str(found.get("fsdp_config.fsdp_activation_checkpointing", False)).lower() == "true"
        layout["recompute"] = "full" if full else "none"
        if str(found.get("fsdp_config.fsdp_offload_params", False)).lower() == "true":
            run.unknown.append("fsdp_offload_params: read as optimizer states on the CPU, weights on the GPU")
            run.offload = True
        layout["replicate"] = within if layout["zero"] else 1
    elif kind == "DEEPSPEED":
        _deepspeed(run, found, "deepspeed_config.zero_stage", "deepspeed_config.offload_optimizer_device", 2)
        if file := found.get("deepspeed_config.deepspeed_config_file"):
            run.unknown.append(f"{file}, which says what ZeRO does: read as stage {layout['zero']}")
        layout["grad_acc"] = found.number("deepspeed_config.gradient_accumulation_steps", 1)
    elif kind == "MEGATRON_LM":
        for axis in ("tp", "pp"):
            layout[axis] = found.number(f"megatron_lm_config.megatron_lm_{axis}_degree", 1)
        on = [str(found.get(f"megatron_lm_config.megatron_lm_{name}")).lower() == "true" for name in MEGATRON]
        layout["sp"], selective, layout["zero"] = on[0] and layout["tp"] > 1, on[1], int(on[2])
        layout["recompute"] = "selective" if selective else "none"
        layout["grad_acc"] = found.number("megatron_lm_config.megatron_lm_num_micro_batches", 1)
    run.gpus = found.number("num_processes")
    mixed = str(found.get("mixed_precision", "no"))
    weights = "bf16-mixed" if kind in ("DEEPSPEED", "MEGATRON_LM") else "autocast"
    run.precision = "fp32" if mixed == "no" else weights
    run.fp8 = "tensorwise" if mixed == "fp8" else ""
    found.get("num_machines")
    run.unknown.append("the model, the length of samples and the batch: they are set in a script")
    run.left(found.left())
    return run


MEGATRON = ("sequence_parallelism", "recompute_activations", "use_distributed_optimizer")


def _yaml(text: str) -> dict[str, Any]:
    """The YAML that `accelerate config` writes: keys and values, and tables of them one level below."""
    table: dict[str, Any] = {}
    inner = table
    for line in re.sub(r"\s#.*", "", text).splitlines():
        found = re.fullmatch(r"(\s*)([\w-]+):\s*(?:(['\"]?)(.*?)\3)?\s*(?:\s#.*)?", line)
        if not found:
            continue
        depth, key, _, value = found.groups()
        if str(value).startswith(("{", "[")):
            raise ConfigError(
                f"{key} is {value}: only what `accelerate config` writes is read, a field a line"
            )
        inner = inner if depth else table
        if value or depth:
            inner[key] = value
        else:
            inner = table[key] = {}
    return table
