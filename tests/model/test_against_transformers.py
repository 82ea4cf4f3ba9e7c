"""GPT-2, Llama, Mixtral, Qwen 3 and DeepSeek-V3 as Hugging Face builds them, with our weights: the same logits."""

import dataclasses

import pytest
import torch
from helpers import DEEPSEEK, GPT, LLAMA, MIXTRAL, tokens

from playbook.model.mla import absorbed
from playbook.model.moe import looped
from playbook.model.transformer import Transformer

transformers = pytest.importorskip("transformers")


def test_llama_logits():
    config = transformers.LlamaConfig(
        vocab_size=LLAMA.vocab, hidden_size=LLAMA.hidden, intermediate_size=LLAMA.ffn, num_hidden_layers=LLAMA.layers,
        num_attention_heads=LLAMA.heads, num_key_value_heads=LLAMA.kv_heads, rms_norm_eps=LLAMA.norm_eps,
        max_position_embeddings=LLAMA.max_seq, tie_word_embeddings=False,
    )  # fmt: skip
    ours, theirs = Transformer(LLAMA), transformers.LlamaForCausalLM(config)
    names = {"attention.q": "self_attn.q_proj", "attention.k": "self_attn.k_proj", "attention.v": "self_attn.v_proj",
             "attention.out": "self_attn.o_proj", "mlp.gate": "mlp.gate_proj", "mlp.up": "mlp.up_proj",
             "mlp.down": "mlp.down_proj", "norm1": "input_layernorm", "norm2": "post_attention_layernorm"}  # fmt: skip
    state = {"model.embed_tokens.weight": ours.embedding.weight, "model.norm.weight": ours.final_norm.weight,
             "lm_head.weight": ours.head.weight}  # fmt: skip
    for i, block in enumerate(ours.blocks):
        parameters = dict(block.named_parameters())
        for mine, other in names.items():
            state[f"model.layers.{i}.{other}.weight"] = parameters[f"{mine}.weight"]
    theirs.load_state_dict(state)
    x, _ = tokens(LLAMA, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)


def _common(ours: Transformer) -> dict:
    """The weights that Llama, Mixtral, Qwen 3 and DeepSeek name alike."""
    state = {"model.embed_tokens.weight": ours.embedding.weight, "model.norm.weight": ours.final_norm.weight,
             "lm_head.weight": ours.head.weight}  # fmt: skip
    for i, block in enumerate(ours.blocks):
        state[f"model.layers.{i}.input_layernorm.weight"] = block.norm1.weight
        state[f"model.layers.{i}.post_attention_layernorm.weight"] = block.norm2.weight
        state[f"model.layers.{i}.self_attn.o_proj.weight"] = block.attention.out.weight
        prefix = f"model.layers.{i}.mlp."
        if not hasattr(block.mlp, "router"):
            state |= {
                f"{prefix}{m}_proj.weight": getattr(block.mlp, m).weight for m in ("gate", "up", "down")
            }
            continue
        experts = block.mlp.experts
        state[f"{prefix}gate.weight"] = block.mlp.router.weight
        state[f"{prefix}experts.gate_up_proj"] = torch.cat([experts.gate.weight, experts.up.weight], 1)
        state[f"{prefix}experts.down_proj"] = experts.down.weight
        if block.mlp.shared:
            state[f"{prefix}gate.e_score_correction_bias"] = block.mlp.router.bias
            for m in ("gate", "up", "down"):
                state[f"{prefix}shared_experts.{m}_proj.weight"] = getattr(block.mlp.shared, m).weight
    return state


def _with_large_weights(shape) -> Transformer:
    """So that routers decide: with the usual deviation of 0.02 all experts score alike."""
    model = Transformer(shape)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() > 1:
                p.mul_(5)
    return model


@pytest.mark.parametrize("family", ["mixtral", "qwen3"])
@pytest.mark.parametrize(("experts", "top_k"), [(5, 2), (8, 1), (4, 4)])
def test_softmax_router_logits(family, experts, top_k):
    moe = {"experts": experts, "top_k": top_k, "ffn": 20, "normalized": family == "mixtral"}
    shape = MIXTRAL.replace(moe=moe, qk_norm=family == "qwen3")
    common = {
        "vocab_size": shape.vocab, "hidden_size": shape.hidden, "intermediate_size": 20, "rms_norm_eps": shape.norm_eps,
        "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.max_seq, "num_experts_per_tok": top_k, "head_dim": shape.head_dim,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
    }  # fmt: skip
    if family == "mixtral":
        config = transformers.MixtralConfig(num_local_experts=experts, sliding_window=None, **common)
        theirs = transformers.MixtralForCausalLM(config)
    else:
        config = transformers.Qwen3MoeConfig(
            num_experts=experts,
            moe_intermediate_size=20,
            norm_topk_prob=False,
            decoder_sparse_step=1,
            **common,
        )
        theirs = transformers.Qwen3MoeForCausalLM(config)
    ours = _with_large_weights(shape)
    state = _common(ours)
    for i, block in enumerate(ours.blocks):
        for m in "qkv":
            state[f"model.layers.{i}.self_attn.{m}_proj.weight"] = getattr(block.attention, m).weight
        if family == "qwen3":
            for m in "qk":
                state[f"model.layers.{i}.self_attn.{m}_norm.weight"] = getattr(
                    block.attention, f"{m}_norm"
                ).weight
    theirs.load_state_dict(state)
    x, _ = tokens(shape, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("q_rank", [10, None])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_deepseek_logits(q_rank, scale):
    """Latent attention, sigmoid scores with biases, groups of experts, a shared expert, a dense first layer."""
    base, latent = DEEPSEEK.moe, DEEPSEEK.mla
    shape = DEEPSEEK.replace(
        moe=dataclasses.replace(base, scale=scale), mla=dataclasses.replace(latent, q_rank=q_rank)
    )
    moe, mla = shape.moe, shape.mla
    config = transformers.DeepseekV3Config(
        vocab_size=shape.vocab, hidden_size=shape.hidden, intermediate_size=shape.ffn, moe_intermediate_size=moe.ffn,
        num_hidden_layers=shape.layers, num_attention_heads=shape.heads, num_key_value_heads=shape.heads,
        n_shared_experts=moe.shared_experts, n_routed_experts=moe.experts, routed_scaling_factor=scale,
        kv_lora_rank=mla.kv_rank, q_lora_rank=q_rank, qk_rope_head_dim=mla.rope_dim, v_head_dim=mla.value_dim,
        qk_nope_head_dim=mla.nope_dim, n_group=moe.groups, topk_group=moe.top_groups, num_experts_per_tok=moe.top_k,
        first_k_dense_replace=moe.dense_layers, norm_topk_prob=True, max_position_embeddings=shape.max_seq,
        rms_norm_eps=shape.norm_eps, tie_word_embeddings=False,
        rope_parameters={"rope_theta": shape.rope_theta, "rope_type": "default"},
    )  # fmt: skip
    ours, theirs = _with_large_weights(shape), transformers.DeepseekV3ForCausalLM(config)
    state = _common(ours)
    for i, block in enumerate(ours.blocks):
        attention, prefix = block.attention, f"model.layers.{i}.self_attn."
        if shape.is_moe(i):  # biases that change the choice
            block.mlp.router.bias.copy_(torch.linspace(-0.2, 0.2, moe.experts))
        heads = attention.q_up.weight.unflatten(0, (shape.heads, -1))
        nope, rope = heads.split([mla.nope_dim, mla.rope_dim], 1)
        q = torch.cat([nope, _interleaved(rope, 1)], 1).flatten(0, 1)
        latents, key = attention.kv_down.weight.split([mla.kv_rank, mla.rope_dim])
        state |= {
            f"{prefix}{'q_b_proj' if q_rank else 'q_proj'}.weight": q,
            f"{prefix}kv_a_proj_with_mqa.weight": torch.cat([latents, _interleaved(key, 0)]),
            f"{prefix}kv_a_layernorm.weight": attention.kv_norm.weight,
            f"{prefix}kv_b_proj.weight": attention.kv_up.weight,
        }
        if q_rank:
            state[f"{prefix}q_a_proj.weight"] = attention.q_down.weight
            state[f"{prefix}q_a_layernorm.weight"] = attention.q_norm.weight
    theirs.load_state_dict(state)
    x, _ = tokens(shape, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)
    y = torch.randn(2, 17, shape.hidden, generator=torch.Generator().manual_seed(0))
    cos, sin = ours.angles(17)
    for attention in (block.attention for block in ours.blocks):
        torch.testing.assert_close(
            absorbed(attention, y, cos, sin), attention(y, cos, sin), atol=1e-5, rtol=1e-4
        )
    torch.testing.assert_close(looped(ours.blocks[-1].mlp, y), ours.blocks[-1].mlp(y), atol=1e-6, rtol=1e-5)


def _interleaved(rope: torch.Tensor, dim: int) -> torch.Tensor:
    """Rotary rows as DeepSeek keeps them, pairs side by side, of ours, whose pairs are in two halves."""
    return torch.stack(rope.chunk(2, dim), dim + 1).flatten(dim, dim + 1)


def test_gpt2_logits():
    config = transformers.GPT2Config(
        vocab_size=GPT.vocab, n_embd=GPT.hidden, n_layer=GPT.layers, n_head=GPT.heads, n_positions=GPT.max_seq,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    ours, theirs = Transformer(GPT), transformers.GPT2LMHeadModel(config)
    state = {"transformer.wte.weight": ours.embedding.weight, "lm_head.weight": ours.embedding.weight,
             "transformer.wpe.weight": ours.position_embedding.weight}  # fmt: skip
    for kind in ("weight", "bias"):
        state[f"transformer.ln_f.{kind}"] = getattr(ours.final_norm, kind)
        for i, block in enumerate(ours.blocks):
            a, prefix = block.attention, f"transformer.h.{i}."
            # GPT-2 keeps q, k and v in one matrix, and all its matrices transposed.
            qkv = torch.cat([getattr(m, kind) for m in (a.q, a.k, a.v)])
            state[f"{prefix}attn.c_attn.{kind}"] = _t(qkv)
            state[f"{prefix}attn.c_proj.{kind}"] = _t(getattr(a.out, kind))
            state[f"{prefix}mlp.c_fc.{kind}"] = _t(getattr(block.mlp.up, kind))
            state[f"{prefix}mlp.c_proj.{kind}"] = _t(getattr(block.mlp.down, kind))
            state[f"{prefix}ln_1.{kind}"] = getattr(block.norm1, kind)
            state[f"{prefix}ln_2.{kind}"] = getattr(block.norm2, kind)
    theirs.load_state_dict(state)
    x, _ = tokens(GPT, 2, 17)
    torch.testing.assert_close(ours(x), theirs(x).logits, atol=1e-5, rtol=1e-4)


def _t(x):
    return x.mT if x.dim() == 2 else x
