"""A configuration of Accelerate 1.15, in YAML: ``accelerate launch --config_file FILE train.py``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from playbook.errors import ConfigError
from playbook.planning.flags.own import rarely_said

if TYPE_CHECKING:
    from playbook.planning.simulator import Run

#: How it passes keys and values around.
ROTATE = {"ring": "alltoall", "gather": "allgather"}


def lines(run: Run) -> Iterator[str]:
    """What the file does not say, and the file."""
    layout, cluster = run.layout, run.cluster
    if layout.pp > 1:
        raise ConfigError(f"Accelerate has no pipeline for training, and the layout has pp={layout.pp}")
    if layout.ep > 1:
        raise ConfigError(f"Accelerate has no expert parallelism, and the layout has ep={layout.ep}")
    if layout.zero == 0 and layout.dp > 1 and layout.tp * layout.cp > 1:
        raise ConfigError("Accelerate replicates with zero=0 only where tp and cp are 1: take zero=3")
    sharded = layout.zero > 0 or layout.tp * layout.cp > 1
    kind = "FSDP" if sharded else "MULTI_GPU" if layout.dp > 1 else "NO"
    sixteen = "fp16" if run.recipe.name.startswith("fp16") else "bf16"
    mixed = "fp8" if run.recipe.fp8 else sixteen if run.recipe.compute == 2 else "no"
    yield "# Accelerate 1.15"
    yield from (f"# NOT EXPRESSED: {what}" for what in _unsaid(run))
    yield from ("compute_environment: LOCAL_MACHINE", f"distributed_type: {kind}")
    yield f"mixed_precision: '{mixed}'"
    yield f"num_machines: {-(-layout.world_size // cluster.gpus_per_node)}"
    yield f"num_processes: {layout.world_size}"
    if sharded:
        yield from ("fsdp_config:", "  fsdp_version: 2")
        yield f"  fsdp_reshard_after_forward: {_yes(layout.zero == 3)}"
        yield f"  fsdp_activation_checkpointing: {_yes(layout.recompute == 'full')}"
        yield "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP"
        yield "  fsdp_state_dict_type: SHARDED_STATE_DICT"
        yield "parallelism_config:"
        yield f"  parallelism_config_dp_replicate_size: {layout.replicate}"
        yield f"  parallelism_config_dp_shard_size: {layout.dp // layout.replicate}"
        yield f"  parallelism_config_tp_size: {layout.tp}"
        yield f"  parallelism_config_cp_size: {layout.cp}"
        if layout.cp > 1:
            yield f"  parallelism_config_cp_comm_strategy: {ROTATE.get(layout.context, 'allgather')}"


def _yes(value: bool) -> str:
    return str(value).lower()


def _unsaid(run: Run) -> Iterator[str]:
    layout = run.layout
    yield from rarely_said(run)
    yield (
        f"the model ({run.shape.name or 'your own'}), seq={run.seq} and micro_batch={layout.micro_batch}: they are set "
        "in your script"
    )
    if layout.world_size > run.cluster.gpus_per_node:
        yield "the machines: machine_rank and main_process_ip, on each of them"
    if layout.grad_acc > 1:
        yield f"grad_acc={layout.grad_acc}: Accelerator(gradient_accumulation_steps={layout.grad_acc}) in your script"
    if layout.zero in (1, 2):
        yield f"zero={layout.zero}: FSDP2 shards weights, too, and keeps them whole from forward to backward"
    if layout.cp > 1 and layout.context not in ROTATE:
        yield f"context={layout.context}: it has a ring (alltoall) and gathered keys (allgather)"
    if layout.tp > 1:
        yield f"tp={layout.tp}: as the model's own plan in transformers splits it, without the sequence"
    if layout.recompute not in ("none", "full") or (layout.recompute == "full" and layout.zero == 0):
        yield f"recompute={layout.recompute}: it is turned on in your model"
    if run.recipe.compute == 2 and run.recipe.states.parameters != 4:
        yield "weights and gradients in 16 bits beside masters: it keeps weights in fp32, and computes in 16 bits"
    if run.recipe.fp8:
        yield f"FP8 with {run.recipe.fp8.name} scales: a recipe of torchao or Transformer Engine in your script"
