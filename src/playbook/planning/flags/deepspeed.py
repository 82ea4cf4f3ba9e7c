"""A configuration of DeepSpeed 0.17 (Muon: 0.17.6), which reads Hjson: JSON with comments."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from playbook.errors import ConfigError
from playbook.planning.flags.own import rarely_said

if TYPE_CHECKING:
    from playbook.planning.simulator import Run


def lines(run: Run) -> Iterator[str]:
    """What the file does not say, and the file."""
    layout = run.layout
    if layout.pp > 1 and layout.zero > 1:
        raise ConfigError(f"DeepSpeed's pipelines go with zero=0 or 1, and the layout has zero={layout.zero}")
    if layout.tp > 1 and layout.zero > 2:
        raise ConfigError(
            f"DeepSpeed's tensor parallelism goes with zero=0, 1 or 2, and the layout has zero={layout.zero}"
        )
    config: dict[str, Any] = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_acc,
        "zero_optimization": {"stage": layout.zero, "overlap_comm": True},
    }
    if run.recipe.compute == 2:
        kind = "fp16" if run.recipe.name.startswith("fp16") else "bf16"
        config[kind] = {"enabled": True}
        config["data_types"] = {"grad_accum_dtype": "fp32" if _wide(run) else kind}
    if run.job.optimizer == "muon":
        _refuse_muon(run)
        config["optimizer"] = {"type": "Muon", "params": {"lr": 1e-4, "momentum": 0.95, "weight_decay": 0.1}}
    if layout.tp > 1:
        config["tensor_parallel"] = {"autotp_size": layout.tp}
    yield "// DeepSpeed 0.17"
    yield from (f"// NOT EXPRESSED: {what}" for what in _unsaid(run))
    yield json.dumps(config, indent=2)


def _refuse_muon(run: Run) -> None:
    """Raise ConfigError where matrices would be updated by their plain gradients, or it would not start."""
    zero = run.layout.zero
    if zero not in (1, 2):
        raise ConfigError(f"DeepSpeed's Muon goes with zero=1 or 2, and the layout has zero={zero}")
    if zero == 1 and run.recipe.compute == 2 and _wide(run):
        raise ConfigError(
            "DeepSpeed's Muon goes with zero=1 where gradients have 16 bits, and the plan's have 32"
        )


def _wide(run: Run) -> bool:
    """Whether gradients are accumulated in fp32; without ZeRO it takes nothing else with bf16 weights."""
    return run.recipe.states.gradients > 2 or (run.layout.zero == 0 and run.layout.pp == 1)


def _unsaid(run: Run) -> Iterator[str]:
    layout = run.layout
    yield from rarely_said(run, "")
    if run.job.optimizer == "muon":
        yield (
            f"muon={layout.muon}: a rank computes the whole update of each matrix of which it has a part, from a whole "
            "gradient, and keeps the moment in CPU memory; a step's scale is √max(1, rows/columns)"
        )
    if run.recipe.compute == 2 and _wide(run) and run.recipe.states.gradients == 2:
        yield "gradients in 16 bits: without ZeRO it accumulates them in fp32"
    yield f"the model ({run.shape.name or 'your own'}) and seq={run.seq}: they are set in your script"
    if layout.pp > 1:
        yield f"pp={layout.pp}: PipelineModule(num_stages={layout.pp}) in your script"
        if (layout.schedule, layout.vpp) != ("1f1b", 1):
            yield f"schedule={layout.schedule}: its pipelines run 1f1b"
    if layout.replicate > 1:
        yield (
            f"replicate={layout.replicate}: it shards over all ranks. With zero=3 MiCS (mics_shard_size={layout.shards}, "
            "and MiCS_Init in your script) does not; zero_hpz_partition_size is a second copy of weights inside a node"
        )
    if layout.cp > 1:
        yield f"cp={layout.cp}: its sequence parallelism is Ulysses, set in your script"
    if layout.ep > 1:
        whole = ", enable_expert_tensor_parallelism=False" * layout.etp
        yield f"ep={layout.ep}: ep_size={layout.ep}{whole} of each deepspeed.moe.layer.MoE in your script"
    if layout.sp:
        yield "sp: its tensor parallelism does not split the sequence"
    if layout.recompute != "none":
        yield f"recompute={layout.recompute}: it is turned on in your model"
    if run.recipe.fp8:
        yield f"FP8 ({run.recipe.fp8.name}): linear layers of Transformer Engine in your model"
