"""A configuration of torchtitan 0.2.2, in TOML. Later versions are configured in Python, by other fields in part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from playbook.errors import ConfigError
from playbook.layout import RECOMPUTE
from playbook.layout.stages import split
from playbook.planning.flags.own import rarely_said

if TYPE_CHECKING:
    from playbook.planning.simulator import Run
    from playbook.shapes import ModelShape

#: Schedules by torch.distributed.pipelining's names.
SCHEDULES = {
    "afab": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip
#: Presets that it has: ``model.name`` and ``model.flavor``.
MODELS = {
    "llama3-8b": ("llama3", "8B"), "llama3.1-8b": ("llama3", "8B"), "llama3-70b": ("llama3", "70B"),
    "llama3.1-70b": ("llama3", "70B"), "llama3.1-405b": ("llama3", "405B"), "llama4-scout": ("llama4", "17bx16e"),
    "llama4-maverick": ("llama4", "17bx128e"), "deepseek-v3": ("deepseek_v3", "671B"),
    **{f"qwen3-{size.lower()}": ("qwen3", size)
       for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B", "235B-A22B")},
}  # fmt: skip
ROTATE = {"ring": "alltoall", "gather": "allgather"}


def lines(run: Run) -> Iterator[str]:
    """A table for each of its sections, behind what they do not say."""
    layout = run.layout
    _refuse(run)
    yield "# torchtitan 0.2.2 (later versions are configured in Python, and some of these fields are gone)"
    yield from (f"# NOT EXPRESSED: {what}" for what in _unsaid(run))
    yield from _model(run)
    yield "[parallelism]"
    sharded = layout.zero > 0
    replicas = layout.replicate if sharded else layout.dp
    yield f"data_parallel_replicate_degree = {replicas}"
    yield f"data_parallel_shard_degree = {layout.dp // replicas}"
    if sharded:  # by default weights stay whole between the passes of a pipeline
        yield f'fsdp_reshard_after_forward = "{"always" if layout.zero == 3 else "never"}"'
    yield f"tensor_parallel_degree = {layout.tp}"
    yield f"context_parallel_degree = {layout.cp}"
    if layout.cp > 1 and layout.context in ROTATE:
        yield f'context_parallel_rotate_method = "{ROTATE[layout.context]}"'
    yield f"pipeline_parallel_degree = {layout.pp}"
    if layout.ep > 1:
        yield f"expert_parallel_degree = {layout.ep}"
        yield f"expert_tensor_parallel_degree = {layout.etp or layout.tp}"
    if layout.pp > 1:
        yield from _stages(run)
    mode = layout.recompute if layout.recompute in RECOMPUTE else "none"
    yield from ("", "[activation_checkpoint]", f'mode = "{mode}"')
    if layout.recompute == "selective":
        yield 'selective_ac_option = "op"'
    yield from ("", "[training]", f"seq_len = {run.seq}")
    yield f"local_batch_size = {layout.micro_batch * (layout.grad_acc if layout.pp > 1 else 1)}"
    yield f"global_batch_size = {layout.global_batch}"
    if run.recipe.compute == 4:
        yield 'mixed_precision_param = "float32"'
    if run.recipe.fp8:
        yield from ("", "[compile]", "enable = true")


def _refuse(run: Run) -> None:
    """Raise ConfigError for what it would not start."""
    layout, model = run.layout, MODELS.get(run.shape.name, ("", ""))[0]
    if run.recipe.compute == 2 and run.recipe.name.startswith("fp16"):
        raise ConfigError("torchtitan computes in bfloat16 or float32, and the plan in float16")
    if layout.zero == 0 and layout.dp > 1 and layout.cp == 1 and layout.tp * layout.pp > 1:
        raise ConfigError("torchtitan replicates with zero=0 only where tp and pp are 1: take zero=3")
    if layout.pp > 1 and layout.schedule not in SCHEDULES:
        raise ConfigError(f"torchtitan has no schedule={layout.schedule}: it has {', '.join(SCHEDULES)}")
    if run.shape.recurrent:
        raise ConfigError("torchtitan has no model with a state in place of attention")
    if layout.pp > 1 and model == "qwen3":
        raise ConfigError("torchtitan's Qwen3 has no pipeline: take pp=1")
    if layout.cp > 1 and model == "deepseek_v3":
        raise ConfigError("torchtitan's DeepSeek-V3 computes FlexAttention, which goes without cp: take cp=1")
    rounds = max(1, layout.grad_acc // layout.pp)
    if layout.schedule == "interleaved" and layout.pp > 1 and layout.grad_acc % rounds:
        raise ConfigError(
            f"grad_acc must be a multiple of grad_acc // pp = {rounds} in PyTorch's Interleaved1F1B, got "
            f"{layout.grad_acc}"
        )


def _model(run: Run) -> Iterator[str]:
    name, flavor = MODELS.get(run.shape.name, ("", ""))
    fp8 = run.recipe.fp8.name if run.recipe.fp8 else ""
    kind = "mx" if fp8 == "mxfp8" else "float8" if fp8 in ("tensorwise", "rowwise") else ""
    if name or kind:
        yield "[model]"
    if name:
        yield from (f'name = "{name}"', f'flavor = "{flavor}"')
    if kind:
        converters = [
            f'"quantize.{which}.{kind}"' for which in ("linear", "grouped_mm")[: 1 + _fp8_experts(run)]
        ]
        yield f"converters = [{', '.join(converters)}]"
    if kind == "float8":
        yield from ("", "[quantize.linear.float8]", f'recipe_name = "{fp8}"')
    if kind and _fp8_experts(run):
        yield from ("", f"[quantize.grouped_mm.{kind}]", 'fqns = ["experts"]')
    if name or kind:
        yield ""


def _fp8_experts(run: Run) -> bool:
    return bool(run.shape.moe) and run.layout.pp == run.layout.cp == 1


def _stages(run: Run) -> Iterator[str]:
    """Stages that are not alike are spelled out, module by module."""
    layout = run.layout
    yield f'pipeline_parallel_schedule = "{SCHEDULES[layout.schedule]}"'
    yield f"pipeline_parallel_microbatch_size = {layout.micro_batch}"
    cuts = split(run.shape.layers, layout.stages, layout.stage_layers)
    if len({len(cut) for cut in cuts}) == 1:
        yield from (f"pipeline_parallel_{end}_stage_less_layers = 0" for end in ("first", "last"))
        yield f"pipeline_parallel_layers_per_stage = {len(cuts[0])}"
        return
    parts = [[f"layers.{layer}" for layer in cut] for cut in cuts]
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    yield "module_fqns_per_model_part = ["
    yield from (f"  [{', '.join(map(_quoted, part))}]," for part in parts)
    yield "]"


def _quoted(text: str) -> str:
    return f'"{text}"'


def _unsaid(run: Run) -> Iterator[str]:
    layout, states = run.layout, run.recipe.states
    yield from rarely_said(run, "which it has beside Adam; 0.3 has DistMuon, in Python, without tp and pp")
    if run.shape.planned:
        yield run.shape.planned
    if run.shape.rope_scaling:
        yield f"rope_scaling={run.shape.rope_scaling}: it is set in Python, with the model"
    if run.shape.windows:
        yield f"windows of {run.shape.windows} tokens: all keys are seen"
    if run.shape.name not in MODELS:
        yield f"the model, which is set in Python, in its model args: {_sizes(run.shape)}"
    if layout.zero in (1, 2):
        yield f"zero={layout.zero}: FSDP2 shards weights, too, and keeps them whole from forward to backward"
    if layout.zero == 0 and layout.cp > 1:
        yield f"zero=0: FSDP2 shards weights over cp={layout.cp}"
    if layout.zero == 0 and layout.cp == 1 and layout.tp * layout.pp > 1 and run.recipe.compute == 2:
        yield "16 bits: without FSDP mixed precision is off beside tp and pp, and all is computed in fp32"
    if layout.tp > 1 and not layout.sp:
        yield f"tp={layout.tp} without sp: it splits the sequence, too"
    if layout.cp > 1 and layout.context not in ROTATE:
        yield f"context={layout.context}: it has a ring (alltoall) and gathered keys (allgather)"
    if layout.recompute not in RECOMPUTE:
        yield f"recompute={layout.recompute}: it has whole blocks, all of them, or chosen operations"
    if layout.recompute == "selective":
        yield "recompute=selective for attention alone: it chooses operations, and some matrix products are among them"
    if run.recipe.fp8 and run.recipe.fp8.name not in ("tensorwise", "rowwise", "mxfp8"):
        yield f"FP8 with {run.recipe.fp8.name} scales: it has tensorwise, rowwise and mxfp8"
    if run.recipe.fp8 and run.shape.moe:
        yield (
            "FP8 of experts: their scales are of rows"
            if _fp8_experts(run)
            else "FP8 of experts: with pp or cp, they multiply in 16 bits"
        )
    if states.parameters != 4:
        yield "weights and gradients in 16 bits beside masters: it keeps weights in fp32, and gathers 16 bits"


def _sizes(shape: ModelShape) -> str:
    return ", ".join(f"{key}={value}" for key, value in shape.sizes().items())
