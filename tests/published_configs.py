"""What models on Hugging Face say of themselves: the fields of their config.json that are read, and their parameters."""

SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
)
REST = ("vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "tie_word_embeddings")


def config(model_type, *values, **more):
    """The fields of a config.json that are read: those of every block in the order of SIZES and REST, and more."""
    return {"model_type": model_type, **dict(zip(SIZES + REST, values, strict=True)), **more}


def gpt2(layers, hidden, heads):
    """As the four of openai-community on huggingface.co are: dropout 0.1 three times, no n_inner."""
    pdrop = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
    sizes = {"n_layer": layers, "n_embd": hidden, "n_head": heads, "n_positions": 1024, "n_ctx": 1024}
    rest = {"vocab_size": 50257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-05}
    return {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **sizes, **rest, **pdrop}


def qwen3(layers, hidden, heads, kv_heads, ffn, tied):
    return config(
        "qwen3", layers, hidden, heads, kv_heads, ffn, 151936, 40960, 1e-06, 1e6, tied, head_dim=128
    )


def qwen3_moe(layers, hidden, heads, ffn, width):
    sizes = config("qwen3_moe", layers, hidden, heads, 4, ffn, 151936, 40960, 1e-06, 1e6, False, head_dim=128)
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": width}
    router = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}
    return sizes | experts | router | {"output_router_logits": False, "router_aux_loss_coef": 0.001}


def mixtral(layers, hidden, heads, ffn, max_seq, loss):
    sizes = config("mixtral", layers, hidden, heads, 8, ffn, 32000, max_seq, 1e-05, 1e6, False)
    experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "hidden_act": "silu"}
    return sizes | experts | {"output_router_logits": False, "router_aux_loss_coef": loss}


LLAMA31 = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}
LLAMA32 = {**LLAMA31, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {
    "type": "yarn",
    "factor": 40,
    "original_max_position_embeddings": 4096,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
#: What config.json says at huggingface.co/{name}/blob/main/config.json, of what is read.
PUBLISHED = {
    "openai-community/gpt2": gpt2(12, 768, 12),
    "openai-community/gpt2-medium": gpt2(24, 1024, 16),
    "openai-community/gpt2-large": gpt2(36, 1280, 20),
    "openai-community/gpt2-xl": gpt2(48, 1600, 25),
    "meta-llama/Llama-2-7b-hf": config("llama", 32, 4096, 32, 32, 11008, 32000, 4096, 1e-05, None, False),
    "meta-llama/Llama-2-13b-hf": config("llama", 40, 5120, 40, 40, 13824, 32000, 4096, 1e-05, None, False),
    "meta-llama/Llama-2-70b-hf": config("llama", 80, 8192, 64, 8, 28672, 32000, 4096, 1e-05, None, False),
    "meta-llama/Meta-Llama-3-8B": config(
        "llama", 32, 4096, 32, 8, 14336, 128256, 8192, 1e-05, 500000.0, False
    ),
    "meta-llama/Meta-Llama-3-70B": config(
        "llama", 80, 8192, 64, 8, 28672, 128256, 8192, 1e-05, 500000.0, False
    ),
    "meta-llama/Llama-3.1-8B": config(
        "llama", 32, 4096, 32, 8, 14336, 128256, 131072, 1e-05, 500000.0, False, rope_scaling=LLAMA31
    ),
    "meta-llama/Llama-3.1-70B": config(
        "llama", 80, 8192, 64, 8, 28672, 128256, 131072, 1e-05, 500000.0, False, rope_scaling=LLAMA31
    ),
    "meta-llama/Llama-3.1-405B": config(
        "llama", 126, 16384, 128, 8, 53248, 128256, 131072, 1e-05, 500000.0, False, rope_scaling=LLAMA31
    ),
    "meta-llama/Llama-3.2-1B": config(
        "llama", 16, 2048, 32, 8, 8192, 128256, 131072, 1e-05, 500000.0, True, head_dim=64, attention_bias=False,
        rope_scaling=LLAMA32,
    ),
    "meta-llama/Llama-3.2-3B": config(
        "llama", 28, 3072, 24, 8, 8192, 128256, 131072, 1e-05, 500000.0, True, head_dim=128, mlp_bias=False,
        rope_scaling=LLAMA32,
    ),
    "mistralai/Mistral-7B-v0.1": config(
        "mistral", 32, 4096, 32, 8, 14336, 32000, 32768, 1e-05, 10000.0, False, sliding_window=4096
    ),
    "mistralai/Mixtral-8x7B-v0.1": mixtral(32, 4096, 32, 14336, 32768, 0.02),
    "mistral-community/Mixtral-8x22B-v0.1": mixtral(56, 6144, 48, 16384, 65536, 0.001),
    "HuggingFaceTB/SmolLM-135M": config(
        "llama", 30, 576, 9, 3, 1536, 49152, 2048, 1e-05, 10000.0, True
    ),
    "HuggingFaceTB/SmolLM-360M": config(
        "llama", 32, 960, 15, 5, 2560, 49152, 2048, 1e-05, 10000.0, True
    ),
    "HuggingFaceTB/SmolLM-1.7B": config(
        "llama", 24, 2048, 32, 32, 8192, 49152, 2048, 1e-05, 10000.0, True
    ),
    "HuggingFaceTB/SmolLM2-135M": config("llama", 30, 576, 9, 3, 1536, 49152, 8192, 1e-05, 100000, True),
    "HuggingFaceTB/SmolLM2-360M": config("llama", 32, 960, 15, 5, 2560, 49152, 8192, 1e-05, 100000, True),
    "HuggingFaceTB/SmolLM2-1.7B": config("llama", 24, 2048, 32, 32, 8192, 49152, 8192, 1e-05, 130000, True),
    "Qwen/Qwen2.5-0.5B": config(
        "qwen2", 24, 896, 14, 2, 4864, 151936, 32768, 1e-06, 1e6, True, use_sliding_window=False
    ),
    "Qwen/Qwen2.5-7B": config(
        "qwen2", 28, 3584, 28, 4, 18944, 152064, 131072, 1e-06, 1e6, False, use_sliding_window=False
    ),
    "Qwen/Qwen3-0.6B": qwen3(28, 1024, 16, 8, 3072, True),
    "Qwen/Qwen3-1.7B": qwen3(28, 2048, 16, 8, 6144, True),
    "Qwen/Qwen3-4B": qwen3(36, 2560, 32, 8, 9728, True),
    "Qwen/Qwen3-8B": qwen3(36, 4096, 32, 8, 12288, False),
    "Qwen/Qwen3-14B": qwen3(40, 5120, 40, 8, 17408, False),
    "Qwen/Qwen3-32B": qwen3(64, 5120, 64, 8, 25600, False),
    "Qwen/Qwen3-30B-A3B": qwen3_moe(48, 2048, 32, 6144, 768),
    "Qwen/Qwen3-235B-A22B": qwen3_moe(94, 4096, 64, 12288, 1536),
    "Qwen/Qwen1.5-MoE-A2.7B": config(
        "qwen2_moe", 24, 2048, 16, 16, 5632, 151936, 8192, 1e-06, 1e6, False, num_experts=60,
        num_experts_per_tok=4, moe_intermediate_size=1408, shared_expert_intermediate_size=5632,
        norm_topk_prob=False, decoder_sparse_step=1, output_router_logits=False, router_aux_loss_coef=0.001,
    ),
    "deepseek-ai/DeepSeek-V2-Lite": config(
        "deepseek_v2", 27, 2048, 16, 16, 10944, 102400, 163840, 1e-06, 10000, False, rope_scaling=YARN,
        n_routed_experts=64, num_experts_per_tok=6, moe_intermediate_size=1408, n_shared_experts=2,
        first_k_dense_replace=1, routed_scaling_factor=1.0, q_lora_rank=None, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=1, topk_group=1, moe_layer_freq=1,
        topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, attention_bias=False,
    ),
    "deepseek-ai/DeepSeek-V2": config(
        "deepseek_v2", 60, 5120, 128, 128, 12288, 102400, 163840, 1e-06, 10000, False, rope_scaling=YARN,
        n_routed_experts=160, num_experts_per_tok=6, moe_intermediate_size=1536, n_shared_experts=2,
        first_k_dense_replace=1, routed_scaling_factor=16.0, q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=8, topk_group=3, moe_layer_freq=1,
        topk_method="group_limited_greedy", scoring_func="softmax", norm_topk_prob=False,
    ),
    "deepseek-ai/DeepSeek-V3": config(
        "deepseek_v3", 61, 7168, 128, 128, 18432, 129280, 163840, 1e-06, 10000, False, rope_scaling=YARN,
        n_routed_experts=256, num_experts_per_tok=8, moe_intermediate_size=2048, n_shared_experts=1,
        first_k_dense_replace=3, routed_scaling_factor=2.5, q_lora_rank=1536, kv_lora_rank=512,
        qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, n_group=8, topk_group=4, moe_layer_freq=1,
        topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, num_nextn_predict_layers=1,
    ),
    "togethercomputer/RedPajama-INCITE-Base-3B-v1": {
        "model_type": "gpt_neox", "architectures": ["GPTNeoXForCausalLM"], "num_hidden_layers": 32,
        "hidden_size": 2560, "num_attention_heads": 32, "intermediate_size": 10240, "vocab_size": 50432,
        "max_position_embeddings": 2048, "layer_norm_eps": 1e-05, "rotary_emb_base": 10000, "rotary_pct": 1.0,
        "use_parallel_residual": False, "hidden_act": "gelu", "tie_word_embeddings": False,
    },
}  # fmt: skip

#: Elements of all tensors in the checkpoints of models that are no preset.
COUNTS = {
    "mistralai/Mistral-7B-v0.1": 7_241_732_096,
    "Qwen/Qwen1.5-MoE-A2.7B": 14_315_784_192 - 24 * 2048,  # without the gates of the shared experts
    "deepseek-ai/DeepSeek-V2-Lite": 15_706_484_224,
    "deepseek-ai/DeepSeek-V2": 235_741_434_880,
    "togethercomputer/RedPajama-INCITE-Base-3B-v1": 2_775_864_320,
}
