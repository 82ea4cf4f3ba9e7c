"""A layout in the words of frameworks: command lines and files that people can paste.

Flags as of Megatron-LM core 0.14, torchtitan 0.2 and DeepSpeed 0.17. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from playbook.errors import ConfigError
from playbook.layout import Layout
from playbook.shapes import ModelShape


def emit(framework: str, shape: ModelShape, layout: Layout, seq: int) -> str:
    """The layout for one of `FRAMEWORKS`. Raises ConfigError for another one, and for what it cannot say."""
    if framework not in FRAMEWORKS:
        raise ConfigError(f"framework must be one of {', '.join(FRAMEWORKS)}, got {framework!r}")
    return "\n".join(FRAMEWORKS[framework](shape, layout, seq))


def _megatron(shape: ModelShape, layout: Layout, seq: int) -> Iterator[str]:
    yield "torchrun … pretrain_gpt.py \\"
    yield f"  --tensor-model-parallel-size {layout.tp} --pipeline-model-parallel-size {layout.pp} \\"
    if layout.pp > 1 and layout.vpp > 1:
        if layout.schedule != "interleaved":
            raise ConfigError(f"Megatron-LM has no schedule={layout.schedule}: take 1f1b or interleaved")
        yield f"  --num-layers-per-virtual-pipeline-stage {max(1, shape.layers // layout.stages)} \\"
    if layout.cp > 1:
        yield f"  --context-parallel-size {layout.cp} \\"
    if layout.ep > 1:
        yield f"  --expert-model-parallel-size {layout.ep} --moe-token-dispatcher-type alltoall \\"
    if layout.sp:
        yield "  --sequence-parallel \\"
    if layout.zero == 1:
        yield "  --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather \\"
    elif layout.zero > 1:
        strategy = {2: "optim_grads", 3: "optim_grads_params"}[layout.zero]
        yield "  --use-megatron-fsdp --use-distributed-optimizer \\"
        yield f"  --data-parallel-sharding-strategy {strategy} \\"
    if layout.recompute == "full":
        yield "  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1 \\"
    elif layout.recompute == "selective":
        yield "  --recompute-granularity selective \\"
    yield f"  --micro-batch-size {layout.micro_batch} --global-batch-size {layout.global_batch} --seq-length {seq} \\"
    yield f"  --num-layers {shape.layers} --hidden-size {shape.hidden} --num-attention-heads {shape.heads} --bf16"


def _torchtitan(shape: ModelShape, layout: Layout, seq: int) -> Iterator[str]:
    if layout.zero in (1, 2):
        yield "# torchtitan shards weights, too (FSDP2, which is ZeRO-3): there is no ZeRO-1 or 2"
    yield "[parallelism]"
    sharded = layout.zero > 0
    yield f"data_parallel_replicate_degree = {1 if sharded else layout.dp}"
    yield f"data_parallel_shard_degree = {layout.dp if sharded else 1}"
    yield f"tensor_parallel_degree = {layout.tp}"
    yield f"context_parallel_degree = {layout.cp}"
    yield f"pipeline_parallel_degree = {layout.pp}"
    if layout.ep > 1:
        yield f"expert_parallel_degree = {layout.ep}"
    if layout.pp > 1:
        if layout.schedule not in TITAN:
            raise ConfigError(f"torchtitan has no schedule={layout.schedule}: it has {', '.join(TITAN)}")
        yield f'pipeline_parallel_schedule = "{TITAN[layout.schedule]}"'
        yield f"pipeline_parallel_microbatch_size = {layout.micro_batch}"
    yield ""
    yield "[activation_checkpoint]"
    mode = {"none": "none", "selective": "selective", "full": "full"}[layout.recompute]
    yield f'mode = "{mode}"'
    yield ""
    yield "[training]"
    yield f"seq_len = {seq}"
    local = layout.micro_batch * (layout.grad_acc if layout.pp > 1 else 1)
    yield f"local_batch_size = {local}"
    yield f"global_batch_size = {layout.global_batch}"


#: Schedules by torch.distributed.pipelining's names.
TITAN = {
    "afab": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B", "zb-v": "ZBVZeroBubble", "dualpipev": "DualPipeV",
}  # fmt: skip


def _deepspeed(shape: ModelShape, layout: Layout, seq: int) -> Iterator[str]:
    if layout.pp > 1 and layout.zero > 1:
        raise ConfigError(f"DeepSpeed's pipelines go with zero=0 or 1, and the layout has zero={layout.zero}")
    config = {
        "train_batch_size": layout.global_batch,
        "train_micro_batch_size_per_gpu": layout.micro_batch,
        "gradient_accumulation_steps": layout.grad_acc,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": layout.zero, "overlap_comm": True},
    }
    beside = [
        f"{name}={size}"
        for name, size in (
            ("tensor parallel", layout.tp), ("pipeline stages", layout.pp), ("sequence parallel (Ulysses)", layout.cp),
            ("experts", layout.ep),
        )
        if size > 1
    ]  # fmt: skip
    if beside:
        yield "// set where the model is made, not in this file: " + ", ".join(beside)
    yield json.dumps(config, indent=2)


def _playbook(shape: ModelShape, layout: Layout, seq: int) -> Iterator[str]:
    yield (
        f"playbook train --model {shape.name or 'MODEL'} --layout {layout or 'dp=1'} --seq {seq} "
        f"--global-batch {layout.global_batch} --micro-batch {layout.micro_batch}"
    )


FRAMEWORKS = {
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
    "playbook": _playbook,
}
