"""Flags of Megatron-LM, core 0.16: arguments of ``pretrain_gpt.py``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Any

from playbook.errors import ConfigError
from playbook.layout.stages import split
from playbook.planning.flags.own import rarely_said

if TYPE_CHECKING:
    from playbook.planning.simulator import Run
    from playbook.shapes import MLA, ModelShape, MoE

#: How context parallelism reaches other ranks' keys.
CONTEXT = {"ring": "p2p", "gather": "allgather", "ulysses": "a2a"}
#: What the load-balancing loss counts over.
BALANCE = {"sample": "seq_aux_loss", "micro_batch": "aux_loss", "global_batch": "global_aux_loss"}
SHARDED = {2: "optim_grads", 3: "optim_grads_params"}


#: What Transformer Engine 2.8 has in its environment to leave out of NVFP4.
TE_LEAVES_OUT = {
    "hadamard": "NVTE_NVFP4_DISABLE_RHT",
    "stochastic": "NVTE_NVFP4_DISABLE_STOCHASTIC_ROUNDING",
    "square": "NVTE_NVFP4_DISABLE_2D_QUANTIZATION",
}


def lines(run: Run) -> Iterator[str]:
    """Three groups of flags, what they do not say, and the command that takes them."""
    layout, gpus = run.layout, run.cluster.gpus_per_node
    yield "# Megatron-LM, core 0.16"
    for name, flags in (
        ("MODEL", _model(run.shape, run.seq)),
        ("LAYOUT", _layout(run)),
        ("DATA", _data(run)),
    ):
        yield from (f"{name}=(", *(f"  {flag}" for flag in flags), ")")
    yield from (f"# NOT EXPRESSED: {what}" for what in _unsaid(run))
    each = max(n for n in range(1, gpus + 1) if layout.world_size % n == 0)  # as many on every node
    nodes = layout.world_size // each
    # With one connection, kernels of all streams reach the GPU in the order of their launches: messages start before
    # products. It is asked for with tp or cp on GPUs before Blackwell, and refused by FSDP.
    order = "CUDA_DEVICE_MAX_CONNECTIONS=1 " if _one_connection(run) else ""
    meet = ' --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:29500"' if nodes > 1 else ""
    yield f"{order}torchrun --nnodes {nodes} --nproc-per-node {each}{meet} pretrain_gpt.py \\"
    yield '  "${MODEL[@]}" "${LAYOUT[@]}" "${DATA[@]}"'


def _one_connection(run: Run) -> bool:
    newer = run.cluster.accelerator.name.lower().startswith(("b", "gb"))
    return run.layout.tp * run.layout.cp > 1 and run.layout.zero < 2 and not newer


def _model(shape: ModelShape, seq: int) -> Iterator[str]:
    yield f"--num-layers {shape.layers} --hidden-size {shape.hidden} --ffn-hidden-size {shape.ffn_dim}"
    yield f"--num-attention-heads {shape.heads} --kv-channels {shape.v_dim}"
    if shape.n_kv_heads != shape.heads:
        yield f"--group-query-attention --num-query-groups {shape.n_kv_heads}"
    norm = {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"}[shape.norm]
    yield f"--normalization {norm} --norm-epsilon {shape.norm_eps:g}"
    if shape.gated:
        yield "--swiglu"
    if not shape.bias:
        yield "--disable-bias-linear"
    if shape.qkv_bias and not shape.bias:
        yield "--add-qkv-bias"
    if shape.qk_norm or shape.mla:
        yield "--qk-layernorm"  # with latent attention: the norms of the latents
    kind = {"learned": "learned_absolute", "rotary": "rope", "none": "none"}[shape.positions]
    longest = shape.max_seq if shape.positions == "learned" else max(seq, shape.max_seq)
    yield f"--position-embedding-type {kind} --max-position-embeddings {longest}"
    if shape.positions == "rotary":
        yield f"--rotary-base {shape.rope_theta:.0f}"
        if factor := _stretched(shape):
            yield f"--use-rope-scaling --rope-scaling-factor {factor:g}"
    if not shape.tied:
        yield "--untie-embeddings-and-output-weights"
    yield f"--attention-dropout {shape.dropout:g} --hidden-dropout {shape.dropout:g}"
    if shape.mla:
        yield _latent(shape.mla)
    if shape.moe:
        yield from _experts(shape.moe, [shape.is_moe(layer) for layer in range(shape.layers)])
    if shape.recurrent:
        yield from _states(shape.recurrent, [shape.kind(layer).recurrent for layer in range(shape.layers)])


def _states(of: Any, where: list[bool]) -> Iterator[str]:
    if of.rule != "delta":
        raise ConfigError(
            f"Megatron-LM's pretrain_gpt.py has no layers of recurrent.rule={of.rule}: it has delta"
        )
    yield f"--experimental-attention-variant gated_delta_net --linear-attention-freq '{_pattern(where)}'"
    yield f"--linear-num-value-heads {of.heads} --linear-value-head-dim {of.head_dim}"
    yield f"--linear-num-key-heads {of.groups} --linear-key-head-dim {of.state} --linear-conv-kernel-dim {of.kernel}"
    if of.gate:
        yield "--attention-output-gate"


def _latent(mla: MLA) -> str:
    queries = f"--q-lora-rank {mla.q_rank} " if mla.q_rank else ""
    return (
        f"--multi-latent-attention --rope-type rope {queries}--kv-lora-rank {mla.kv_rank} "
        f"--qk-head-dim {mla.nope_dim} --qk-pos-emb-head-dim {mla.rope_dim} --v-head-dim {mla.value_dim}"
    )


def _experts(moe: MoE, where: list[bool]) -> Iterator[str]:
    yield f"--num-experts {moe.experts} --moe-ffn-hidden-size {moe.ffn} --moe-router-topk {moe.top_k}"
    yield "--moe-grouped-gemm --moe-token-dispatcher-type alltoall --moe-router-dtype fp32"
    if not all(where):
        yield f"--moe-layer-freq '{_pattern(where)}'"
    if moe.shared_experts:
        yield f"--moe-shared-expert-intermediate-size {moe.shared_experts * moe.ffn}"
    yield f"--moe-router-score-function {moe.scores}"
    if moe.scores == "softmax" and not moe.normalized:
        yield "--moe-router-pre-softmax"  # the weights of the chosen are those of a softmax over all
    if moe.scale != 1:
        yield f"--moe-router-topk-scaling-factor {moe.scale:g}"
    if moe.groups > 1:
        yield f"--moe-router-num-groups {moe.groups} --moe-router-group-topk {moe.top_groups}"
    if moe.bias_rate:
        yield f"--moe-router-enable-expert-bias --moe-router-bias-update-rate {moe.bias_rate:g}"
    kind = BALANCE[moe.balance_over] if moe.balance_loss else "none"
    yield f"--moe-router-load-balancing-type {kind} --moe-aux-loss-coeff {moe.balance_loss:g}"
    if moe.z_loss:
        yield f"--moe-z-loss-coeff {moe.z_loss:g}"
    if moe.capacity:
        yield f"--moe-expert-capacity-factor {moe.capacity:g} --moe-token-drop-policy probs"


def _pattern(where: list[bool]) -> str:
    """Which layers have experts, or a state, as a list in Python: its shortest period, run by run."""
    layers = len(where)
    periods = (n for n in range(1, layers + 1) if layers % n == 0 and where[:n] * (layers // n) == where)
    period = next(periods)
    runs = "+".join(f"[{int(experts)}]*{len(list(run))}" for experts, run in groupby(where[:period]))
    return f"({runs})*{layers // period}"


def _layout(run: Run) -> Iterator[str]:
    layout = run.layout
    yield f"--tensor-model-parallel-size {layout.tp} --pipeline-model-parallel-size {layout.pp}"
    if layout.pp > 1:
        yield from _stages(run)
    if layout.cp > 1:
        yield f"--context-parallel-size {layout.cp} --cp-comm-type {CONTEXT[layout.context]}"
    if layout.ep > 1:
        yield f"--expert-model-parallel-size {layout.ep} --expert-tensor-parallel-size {layout.etp or layout.tp}"
    if layout.sp:
        yield "--sequence-parallel"
    elif run.shape.moe and layout.tp > 1:
        raise ConfigError(f"Megatron-LM trains experts with tp={layout.tp} only if the layout has sp")
    if run.job.optimizer == "muon":
        yield from _muon(run)
    elif layout.zero > 1:
        yield "--use-megatron-fsdp --use-distributed-optimizer --ckpt-format fsdp_dtensor"
        yield f"--data-parallel-sharding-strategy {SHARDED[layout.zero]} --no-gradient-accumulation-fusion"
    elif layout.zero == 1:
        yield "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
    elif layout.dp > 1:
        yield "--overlap-grad-reduce"
    if layout.replicate > 1 and run.job.optimizer != "muon":
        yield f"--num-distributed-optimizer-instances {layout.replicate}"
    again = layout.again - {"offload"}
    if "full" in again:
        blocks = layout.blocks_again
        method = (
            "uniform --recompute-num-layers 1" if blocks is None else f"block --recompute-num-layers {blocks}"
        )
        yield f"--recompute-granularity full --recompute-method {method}"
    elif again:
        if layout.blocks_again is not None:
            raise ConfigError(
                f"Megatron-LM recomputes modules in all blocks: recompute={layout.recompute} is not"
            )
        if "mla_up_proj" in layout.again and not run.shape.mla:
            raise ConfigError(
                "Megatron-LM recomputes mla_up_proj only of latent attention, which the model has not"
            )
        if run.recipe.fp8 and run.recipe.fp8.history and layout.again & {"layernorm", "moe_act"}:
            raise ConfigError("Megatron-LM recomputes neither layernorm nor moe_act with delayed scaling")
        yield f"--recompute-granularity selective --recompute-modules {' '.join(sorted(again))}"
    yield f"--micro-batch-size {layout.micro_batch} --global-batch-size {layout.global_batch}"
    yield f"--attention-backend {_attention(run)}"
    yield from _precision(run)


def _muon(run: Run) -> Iterator[str]:
    """Each replica updates all matrices, or a part of them whole; scaled as AdamW's steps are."""
    if run.layout.zero > 1:
        raise ConfigError(
            f"Megatron-LM's Muon goes with zero=0 or 1, and the layout has zero={run.layout.zero}"
        )
    if run.recipe.name.startswith("fp16"):
        raise ConfigError("Megatron-LM's Muon goes without fp16, and the plan computes in it")
    yield f"--optimizer {'dist_muon' if run.layout.zero else 'muon'} --muon-tp-mode duplicated --muon-num-ns-steps 5"
    yield "--muon-momentum 0.95 --muon-use-nesterov --muon-scale-mode spectral --muon-extra-scale-factor 0.2"


def _muon_differs(run: Run) -> Iterator[str]:
    layout = run.layout
    if layout.zero:
        yield "zero=1: dist_muon gives each rank whole tensors to update, sums gradients everywhere, and gathers weights"
        if layout.replicate > 1:
            yield f"replicate={layout.replicate}: it spreads states over all of dp * cp"
    elif layout.muon != "gather":
        yield f"muon={layout.muon}: each rank gathers over tp, and each replica computes all updates (muon=gather)"
    if run.shape.gated:
        yield "muon: gate and up are one matrix for it"
    if run.shape.moe:
        yield "muon: it updates the router's matrix, too"
    yield "muon: each of its five iterations has coefficients of its own (quintic)"


def _attention(run: Run) -> str:
    """FlashAttention takes numbers of 16 bits, and Transformer Engine not that one for latent attention."""
    if run.job.attention == "reference" or run.recipe.compute == 4:
        return "unfused"
    return "fused" if run.shape.mla else "flash"


def _stages(run: Run) -> Iterator[str]:
    """Stages that are not alike are spelled out: E the embedding, t a block, L norm, head and loss."""
    layout, groups = run.layout, run.layout.grad_acc % run.layout.pp
    if layout.schedule not in ("1f1b", "interleaved"):
        raise ConfigError(f"Megatron-LM has no schedule={layout.schedule}: take 1f1b or interleaved")
    if layout.vpp > 1 and groups:
        raise ConfigError(
            f"grad_acc must be a multiple of pp = {layout.pp} in Megatron-LM's interleaved schedule, got "
            f"{layout.grad_acc}"
        )
    sizes = [len(cut) for cut in split(run.shape.layers, layout.stages, layout.stage_layers)]
    if len(set(sizes)) > 1:
        text = "|".join(f"t*{size}" if size else "" for size in sizes)
        yield f"--pipeline-model-parallel-layout 'E{text}L'"
    elif layout.vpp > 1:
        yield f"--num-layers-per-virtual-pipeline-stage {sizes[0]}"


def _precision(run: Run) -> Iterator[str]:
    recipe = run.recipe
    if recipe.compute == 2 and recipe.name.startswith("fp16"):
        yield "--fp16" if recipe.states.gradients == 2 else "--fp16 --accumulate-allreduce-grads-in-fp32"
    elif recipe.compute == 2:
        yield "--bf16" if recipe.states.gradients > 2 else "--bf16 --grad-reduce-in-bf16"
    if recipe.fp8 and recipe.fp8.name.startswith("nvfp4"):
        yield "--fp4-format e2m1 --fp4-recipe nvfp4"
        if wide := run.job.wide:
            yield f"--first-last-layers-bf16 --num-layers-at-start-in-bf16 {wide[0]}"
            yield f"--num-layers-at-end-in-bf16 {wide[1]}"
    elif recipe.fp8 and recipe.fp8.dtype == "fp8" and recipe.fp8.name != "rowwise":
        form = "hybrid" if recipe.fp8.gradients == "e5m2" else "e4m3"
        yield f"--fp8-format {form} --fp8-recipe {recipe.fp8.name}"
        if recipe.fp8.history:
            yield f"--fp8-amax-history-len {recipe.fp8.history} --fp8-amax-compute-algo max"


def _data(run: Run) -> Iterator[str]:
    """What starts without any data. The vocabulary is padded to a multiple of its own size, so that it is as planned with
    any tokenizer that fits in."""
    each = -(-run.shape.vocab // run.layout.tp)
    yield f"--seq-length {run.seq} --make-vocab-size-divisible-by {each}"
    yield f"--mock-data --tokenizer-type NullTokenizer --vocab-size {run.shape.vocab - 1}"
    yield "--train-iters 20 --eval-iters 0 --lr 1e-4  # yours: data, tokenizer, schedule"


def _stretched(shape: ModelShape) -> float:
    """The factor of Llama 3.1's scaling of rotary angles, whose lengths are fixed there; 0 where it is another."""
    known = re.fullmatch(r"llama3:factor=([\d.]+),original=8192", shape.rope_scaling)
    return float(known[1]) if known else 0.0


def _unsaid(run: Run) -> Iterator[str]:
    shape, moe, states = run.shape, run.shape.moe, run.recipe.states
    yield from rarely_said(run, "")
    yield from _muon_differs(run) if run.job.optimizer == "muon" else ()
    if shape.rope_scaling and not _stretched(shape):
        yield f"rope_scaling={shape.rope_scaling}: rotary angles are plain"
    if run.shape.planned:
        yield run.shape.planned
    if run.shape.norms != "before":
        yield f"norms={run.shape.norms}: it has one before attention and one before the MLP, and their parameters"
    if max(run.shape.windows, default=0) > 0:
        yield f"windows of {run.shape.windows} tokens: all keys are seen"
    if run.recipe.compute == 4 and run.job.attention != "reference":
        yield "flash attention in fp32: it keeps the scores"
    known = ("silu",) if shape.gated else ("gelu",)
    if shape.activation not in known:
        yield f"activation={shape.activation} in {'a gated' if shape.gated else 'an'} MLP: it takes {known[0]}"
    if shape.bias and not shape.qkv_bias:
        yield "qkv_bias=false beside other biases: it adds one"
    if shape.norm == "layernorm" and not shape.norm_bias:
        yield f"LayerNorm without bias: it has {shape.hidden} parameters more for each norm"
    if shape.positions == "rotary" and shape.rope_theta != round(shape.rope_theta):
        yield f"rope_theta={shape.rope_theta}: it takes whole numbers"
    if shape.vocab % run.layout.tp:
        yield f"vocab={shape.vocab}: tp={run.layout.tp} pads it to {-(-shape.vocab // run.layout.tp) * run.layout.tp}"
    if moe and moe.normalized != (moe.top_k > 1) and moe.scores == "sigmoid":
        yield f"moe.normalized={str(moe.normalized).lower()} with sigmoid scores: it divides by their sum where top_k > 1"
    if moe and moe.normalized and moe.scores == "softmax" and moe.top_k == 1:
        yield "moe.normalized=true with top_k=1, where every weight is 1: it wants --moe-router-pre-softmax"
    if moe and moe.capacity:
        yield "moe.capacity over each sample: it counts over a micro-batch"
    if run.recipe.fp8 and run.recipe.fp8.name == "rowwise":
        yield "FP8 with a scale per row: it has tensorwise, delayed, blockwise and mxfp8"
    if run.recipe.fp8 and run.recipe.fp8.name.partition(",")[0] == "mxfp4":
        yield "mxfp4: in four bits it has nvfp4"
    for key, name in TE_LEAVES_OUT.items():
        if run.recipe.fp8 and f"{key}=off" in run.recipe.fp8.name:
            yield f"{key}=off: Transformer Engine leaves it out where the environment has {name}=1"
    usual = (states.parameters, states.master, states.optimizer) == (2, 4, 8) and states.gradients in (2, 4)
    if not usual and run.recipe.name != "fp32":
        yield (
            f"states of the recipe {run.recipe.name}: {states.parameters} + {states.gradients} + {states.master} + "
            f"{states.optimizer} bytes per parameter"
        )
