"""What Megatron-LM makes of its flags: its defaults, and the parameters of the model that it would build.

Written from Megatron-LM's arguments.py, gpt_layer_specs.py and the modules they name (core 0.16), not from
:mod:`playbook.planning`. `test_megatron_itself.py` holds it to megatron-core where that is installed.
"""

from __future__ import annotations

import argparse
import re
import shlex


def parser() -> argparse.ArgumentParser:
    """The flags that describe a model, a layout and a precision, with their defaults."""
    p = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False)
    for name in (
        "num-layers", "hidden-size", "ffn-hidden-size", "num-attention-heads", "kv-channels",
        "max-position-embeddings", "seq-length", "micro-batch-size", "global-batch-size", "vocab-size", "train-iters",
        "eval-iters",
        "num-layers-per-virtual-pipeline-stage", "num-experts", "moe-ffn-hidden-size",
        "moe-shared-expert-intermediate-size", "moe-router-num-groups", "moe-router-group-topk", "q-lora-rank",
        "expert-tensor-parallel-size", "recompute-num-layers", "linear-num-key-heads", "linear-num-value-heads",
        "linear-key-head-dim", "linear-value-head-dim", "linear-conv-kernel-dim",
    ):  # fmt: skip
        p.add_argument(f"--{name}", type=int)
    for name, default in {
        "num-query-groups": 1, "rotary-base": 10000, "make-vocab-size-divisible-by": 128, "moe-router-topk": 2,
        "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 1, "context-parallel-size": 1,
        "expert-model-parallel-size": 1, "kv-lora-rank": 32, "qk-head-dim": 128, "qk-pos-emb-head-dim": 64,
        "v-head-dim": 128, "muon-num-ns-steps": 5,
        "fp8-amax-history-len": 1, "num-layers-at-start-in-bf16": 1, "num-layers-at-end-in-bf16": 1,
    }.items():  # fmt: skip
        p.add_argument(f"--{name}", type=int, default=default)
    for name, default in {
        "norm-epsilon": 1e-5, "attention-dropout": 0.1, "hidden-dropout": 0.1, "moe-aux-loss-coeff": 0.0,
        "moe-router-bias-update-rate": 1e-3, "lr": None, "moe-z-loss-coeff": None, "moe-expert-capacity-factor": None,
        "moe-router-topk-scaling-factor": None, "rope-scaling-factor": 8.0, "muon-momentum": 0.9,
        "muon-extra-scale-factor": 1.0,
    }.items():  # fmt: skip
        p.add_argument(f"--{name}", type=float, default=default)
    for name, choices in {
        "normalization": ("LayerNorm", "RMSNorm"), "position-embedding-type": ("learned_absolute", "rope", "none"),
        "moe-router-score-function": ("softmax", "sigmoid"),
        "moe-token-dispatcher-type": ("allgather", "alltoall", "flex"),
        "moe-router-load-balancing-type": ("aux_loss", "seq_aux_loss", "global_aux_loss", "sinkhorn", "none"),
        "moe-token-drop-policy": ("probs", "position"), "moe-router-dtype": (None, "fp32", "fp64"),
        "rope-type": (None, "rope", "yarn"),
        "fp4-format": (None, "e2m1"), "fp4-recipe": ("nvfp4", "custom"), "fp8-format": (None, "e4m3", "hybrid"),
        "fp8-recipe": ("delayed", "tensorwise", "blockwise", "mxfp8"), "fp8-amax-compute-algo": ("most_recent", "max"),
        "recompute-granularity": (None, "full", "selective"), "recompute-method": (None, "uniform", "block"),
        "data-parallel-sharding-strategy": ("no_shard", "optim", "optim_grads", "optim_grads_params"),
        "attention-backend": ("auto", "flash", "fused", "unfused", "local"),
        "cp-comm-type": ("p2p", "a2a", "allgather"),
        "optimizer": ("adam", "sgd", "muon", "dist_muon"), "muon-tp-mode": ("blockwise", "duplicated", "distributed"),
        "muon-scale-mode": ("spectral", "unit_rms_norm", "shape_scaling"),
    }.items():  # fmt: skip
        p.add_argument(f"--{name}", choices=choices, default=choices[0])
    p.add_argument("--moe-layer-freq", default="1")
    p.add_argument("--linear-attention-freq")
    p.add_argument("--experimental-attention-variant", choices=("gated_delta_net", "dsa"))
    p.add_argument("--pipeline-model-parallel-layout")
    # As transformer_config.py allows them.
    modules = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
    p.add_argument("--recompute-modules", nargs="*", choices=modules)
    for name in (
        "swiglu", "group-query-attention", "add-qkv-bias", "qk-layernorm", "untie-embeddings-and-output-weights",
        "multi-latent-attention", "moe-grouped-gemm", "moe-router-pre-softmax", "moe-router-enable-expert-bias",
        "sequence-parallel", "use-distributed-optimizer", "overlap-grad-reduce", "overlap-param-gather",
        "use-megatron-fsdp", "bf16",
        "no-gradient-accumulation-fusion",
        "fp16", "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "mock-data",
        "attention-output-gate", "use-rope-scaling", "first-last-layers-bf16",
        "muon-use-nesterov",
    ):  # fmt: skip
        p.add_argument(f"--{name}", action="store_true")
    p.add_argument("--disable-bias-linear", action="store_false", dest="add_bias_linear")
    p.add_argument("--ckpt-format", default="torch_dist")
    p.add_argument("--tokenizer-type")
    return p


def read(text: str) -> argparse.Namespace:
    """What a script of bash arrays and one torchrun says. Raises argparse.ArgumentError for flags that do not exist."""
    arrays = re.findall(r"^\w+=\((.*?)^\)", text, flags=re.MULTILINE | re.DOTALL)
    words = [word for array in arrays for word in shlex.split(array, comments=True)]
    args = parser().parse_args(words)
    two_thirds = int((4 * args.hidden_size * 2 / 3) / 64) * 64
    args.ffn_hidden_size = args.ffn_hidden_size or (two_thirds if args.swiglu else 4 * args.hidden_size)
    args.kv_channels = args.kv_channels or args.hidden_size // args.num_attention_heads
    args.groups = args.num_query_groups if args.group_query_attention else args.num_attention_heads
    run = re.search(r"--nnodes (\d+) --nproc-per-node (\d+)", text)
    assert run, text
    if "muon" in args.optimizer:  # as arguments.py and optimizer/muon.py refuse others
        others = (
            "overlap_grad_reduce",
            "overlap_param_gather",
            "use_distributed_optimizer",
            "use_megatron_fsdp",
            "fp16",
        )
        assert not any(getattr(args, name) for name in others), args.optimizer
        assert args.ckpt_format in ("torch", "torch_dist")
    args.world_size = int(run[1]) * int(run[2])
    return args


def layers(args: argparse.Namespace) -> list[bool]:
    """Which layers have experts: every n-th of a number, those that are 1 of a list."""
    if not args.num_experts:
        return [False] * args.num_layers
    if not args.moe_layer_freq.startswith(("[", "(")):
        every = int(args.moe_layer_freq)
        return [layer % every == 0 for layer in range(args.num_layers)]
    assert not re.search(r"[^,\d\[\]()+*]", args.moe_layer_freq)
    pattern = [bool(one) for one in eval(args.moe_layer_freq)]  # as Megatron-LM does
    assert len(pattern) == args.num_layers
    return pattern


def stages(args: argparse.Namespace) -> list[int]:
    """Blocks of each virtual stage."""
    pp, text = args.pipeline_model_parallel_size, args.pipeline_model_parallel_layout
    if not text:
        each = args.num_layers_per_virtual_pipeline_stage or args.num_layers // pp
        assert args.num_layers % (each * pp) == 0, "number of layers should be divisible by the stages"
        return [each] * (args.num_layers // each)
    assert (text[0], text[-1]) == ("E", "L")
    parts = text[1:-1].split("|")
    found = [sum(int(n or 1) for n in re.findall(r"t(?:\*(\d+))?", part)) for part in parts]
    assert sum(found) == args.num_layers
    assert len(found) % pp == 0
    return found


def parameters(args: argparse.Namespace) -> int:
    """Parameters of the whole model, its vocabulary padded; the NullTokenizer has one word beyond ``vocab_size``."""
    h, multiple = args.hidden_size, args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
    words = args.vocab_size + (args.tokenizer_type == "NullTokenizer")
    vocab = -(-words // multiple) * multiple
    norm = h * (2 if args.normalization == "LayerNorm" else 1)
    total = vocab * h * (2 if args.untie_embeddings_and_output_weights else 1) + norm
    if args.position_embedding_type == "learned_absolute":
        total += args.max_position_embeddings * h
    for experts, linear in zip(layers(args), states(args), strict=True):
        total += 2 * norm + (_gated_delta_net(args) if linear else _attention(args))
        total += _experts(args) if experts else _mlp(args, args.ffn_hidden_size)
    return total


def states(args: argparse.Namespace) -> list[bool]:
    """Which layers have linear attention: all but every n-th of a number, those that are 1 of a list."""
    if args.experimental_attention_variant != "gated_delta_net":
        return [False] * args.num_layers
    text = args.linear_attention_freq
    if text.isdigit():
        return [bool((layer + 1) % int(text)) for layer in range(args.num_layers)]
    assert not re.search(r"[^,\d\[\]()+*]", text)
    pattern = [bool(one) for one in eval(text)]
    assert len(pattern) == args.num_layers
    return pattern


def _gated_delta_net(args: argparse.Namespace) -> int:
    """gated_delta_net.py: one projection in, a depthwise convolution, A_log and dt_bias, the norm of a head, out."""
    keys = args.linear_num_key_heads * args.linear_key_head_dim
    heads, values = args.linear_num_value_heads, args.linear_num_value_heads * args.linear_value_head_dim
    total = _linear(args, args.hidden_size, 2 * keys + 2 * values + 2 * heads)
    total += (2 * keys + values) * args.linear_conv_kernel_dim + 2 * heads + args.linear_value_head_dim
    return total + _linear(args, values, args.hidden_size)


def _linear(args: argparse.Namespace, inputs: int, outputs: int, bias: bool | None = None) -> int:
    return inputs * outputs + outputs * (args.add_bias_linear if bias is None else bias)


def _attention(args: argparse.Namespace) -> int:
    h, heads, size = args.hidden_size, args.num_attention_heads, args.kv_channels
    twice = 2 if args.normalization == "LayerNorm" else 1
    if args.multi_latent_attention:
        rank, turning, values = args.kv_lora_rank, args.qk_pos_emb_head_dim, args.v_head_dim
        queries, norms = heads * (args.qk_head_dim + turning), rank
        down = args.q_lora_rank
        total = h * queries if down is None else down * (h + queries)
        norms += down or 0
        total += h * (rank + turning) + rank * heads * (args.qk_head_dim + values)
        return total + _linear(args, heads * values, h) + (twice * norms if args.qk_layernorm else 0)
    qkv = size * (heads * (2 if args.attention_output_gate else 1) + 2 * args.groups)
    total = _linear(args, h, qkv, args.add_bias_linear or args.add_qkv_bias) + _linear(args, heads * size, h)
    return total + (2 * size * twice if args.qk_layernorm else 0)


def _mlp(args: argparse.Namespace, width: int) -> int:
    h = args.hidden_size
    return _linear(args, h, width * (2 if args.swiglu else 1)) + _linear(args, width, h)


def _experts(args: argparse.Namespace) -> int:
    each = _mlp(args, args.moe_ffn_hidden_size or args.ffn_hidden_size)
    shared = args.moe_shared_expert_intermediate_size
    return args.num_experts * (each + args.hidden_size) + (_mlp(args, shared) if shared else 0)
